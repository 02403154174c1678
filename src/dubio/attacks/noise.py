"""Random noise: the floor that every attack must beat."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, Literal

from torch import Tensor

from dubio.attacks.attack import Attack, Perturbed, check_count, stronger
from dubio.attacks.progress import Ticker
from dubio.attacks.victims import Victim

__all__ = ["RandomNoise"]


@dataclass(frozen=True)
class RandomNoise(Attack):
    """The worst of several random perturbations: evenly spread in the ball, or signs at its corners."""

    epsilon: float = 8 / 255
    tries: int = 10
    kind: Literal["uniform", "sign"] = "uniform"

    _uses_gradients: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("tries", self.tries)
        if self.kind not in ("uniform", "sign"):
            raise ValueError(f"kind must be 'uniform' or 'sign', got {self.kind!r}")

    def _num_steps(self) -> int:
        return self.tries

    def _perturb(self, victim: Victim, inputs: Tensor, targets: Tensor, ticker: Ticker) -> Perturbed:
        def tries() -> Iterator[Perturbed]:
            for _ in range(self.tries):
                yield self._select(victim, self._candidate(victim, inputs), targets)
                ticker.tick()

        return reduce(stronger, tries())

    def _candidate(self, victim: Victim, inputs: Tensor) -> Tensor:
        if self.kind == "uniform":
            return self._random_start(victim, inputs)
        signs = victim.random(inputs.shape, "sign", inputs)
        reach = 1.0 if self.norm == "linf" else inputs[0].numel() ** -0.5
        return self._inside(inputs + self.epsilon * reach * signs, inputs)
