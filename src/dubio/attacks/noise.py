"""Random noise: the floor that every attack must beat."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dubio.attacks.attack import Attack, Perturbed
from dubio.attacks.gradient import stronger
from dubio.attacks.progress import Ticker
from dubio.attacks.victims import Victim

__all__ = ["RandomNoise"]


@dataclass(frozen=True)
class RandomNoise(Attack):
    """The worst of several random perturbations: evenly spread in the ball, or signs at its corners."""

    epsilon: float = 8 / 255
    tries: int = 10
    kind: Literal["uniform", "sign"] = "uniform"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tries < 1:
            raise ValueError(f"tries must be at least 1, got {self.tries}")
        if self.kind not in ("uniform", "sign"):
            raise ValueError(f"kind must be 'uniform' or 'sign', got {self.kind!r}")

    def _num_steps(self) -> int:
        return self.tries

    def _perturb(self, victim: Victim, inputs: Tensor, targets: Tensor, ticker: Ticker) -> Perturbed:
        best: Perturbed | None = None
        for _ in range(self.tries):
            found = self._select(victim, self._candidate(inputs), targets)
            best = found if best is None else stronger(best, found)
            ticker.tick()
        assert best is not None
        return best

    def _candidate(self, inputs: Tensor) -> Tensor:
        if self.kind == "uniform":
            return self._random_start(inputs)
        signs = torch.randint_like(inputs, 2) * 2.0 - 1.0
        reach = 1.0 if self.norm == "linf" else inputs[0].numel() ** -0.5
        return self._inside(inputs + self.epsilon * reach * signs, inputs)
