"""Attacks along the gradient: one step (FGSM), many small ones (PGD), and steps towards a wanted class.

Every gradient is that of a loss averaged over draws. References: Goodfellow et al. 2015 (FGSM), Madry et al. 2018
(PGD), Li and Gal 2017 (FGSM on the network's own label, and targeted).
"""

import math
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dubio import functional
from dubio.attacks.attack import Attack, Perturbed, check_count, stronger
from dubio.attacks.progress import Ticker
from dubio.attacks.victims import Victim

__all__ = ["Fgsm", "Pgd", "TargetedFgsm", "check_restarts", "check_steps"]


@dataclass(frozen=True)
class Fgsm(Attack):
    """One step of size ``epsilon`` along the sign of the gradient (E-60).

    With ``label="own"`` the loss is that of the class the network itself predicts (E-61): the true label is not used.
    """

    epsilon: float = 8 / 255
    label: Literal["true", "own"] = "true"

    _asks_nothing: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label not in ("true", "own"):
            raise ValueError(f"label must be 'true' or 'own', got {self.label!r}")
        if self.label == "own" and self.targeted:
            raise ValueError("label must be 'true' for a targeted attack, which goes towards the targets, got 'own'")

    def _perturb(self, victim: Victim, inputs: Tensor, targets: Tensor, ticker: Ticker) -> Perturbed:
        moved = self._moved(victim, inputs, targets)
        ticker.tick()
        return self._select(victim, moved, targets)

    def _moved(self, victim: Victim, inputs: Tensor, targets: Tensor) -> Tensor:
        own = self.label == "own"
        gradient = self._own_gradient(victim, inputs) if own else victim.look(inputs, targets).gradient
        return self._inside(
            inputs + self.epsilon * functional.adversarial.steepest_direction(gradient, self.norm), inputs
        )

    def _own_gradient(self, victim: Victim, inputs: Tensor) -> Tensor:
        """Gradient of ``-log pbar`` of the predicted class; classes that tie share it equally."""
        leaf = inputs.detach().requires_grad_(True)
        with torch.enable_grad():
            values = -functional.uncertainty.predictive_log_probs(victim.log_probs(leaf)).amax(dim=-1)
            return victim.gradient(values, leaf)


@dataclass(frozen=True)
class TargetedFgsm(Attack):
    """Steps of size ``step_size`` towards a wanted class, with no ball to stay in (E-62).

    ``targets`` are the classes wanted. Stops for nobody: an image that is taken for its target goes on.
    """

    step_size: float = 0.01
    steps: int = 100
    targeted: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_steps(self.steps, self.step_size)
        if not self.targeted:
            raise ValueError("targeted must be True for TargetedFgsm; Fgsm and Pgd leave a class")

    def _num_steps(self) -> int:
        return self.steps

    def _perturb(self, victim: Victim, inputs: Tensor, targets: Tensor, ticker: Ticker) -> Perturbed:
        moved = inputs
        for _ in range(self.steps):
            gradient = victim.look(moved, targets).gradient
            direction = functional.adversarial.steepest_direction(gradient, self.norm)
            moved = (moved + self.step_size * direction).clamp(*self.bounds)
            ticker.tick()
        return self._select(victim, moved, targets)


@dataclass(frozen=True)
class Pgd(Attack):
    """Projected gradient ascent (E-63).

    Args:
        steps: how many.
        step_size: how far each goes; by default ``2.5 * epsilon / steps``.
        restarts: how often it starts anew; the restart with the largest loss, on draws of its own, counts.
        random_start: whether to start at a random point of the ball.
        momentum: share of the direction before that is kept.
    """

    epsilon: float = 8 / 255
    steps: int = 20
    step_size: float | None = None
    restarts: int = 1
    random_start: bool = True
    momentum: float = 0.0

    _asks_nothing: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_steps(self.steps, self.step_size)
        check_restarts(self.restarts, self.random_start)
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")

    def _num_steps(self) -> int:
        return self.steps * self.restarts

    def _perturb(self, victim: Victim, inputs: Tensor, targets: Tensor, ticker: Ticker) -> Perturbed:
        climbed = (self._climb(victim, inputs, targets, ticker) for _ in range(self.restarts))
        return reduce(stronger, (self._select(victim, moved, targets) for moved in climbed))

    def _moved(self, victim: Victim, inputs: Tensor, targets: Tensor) -> Tensor:
        if self.restarts > 1:
            return super()._moved(victim, inputs, targets)
        return self._climb(victim, inputs, targets, Ticker(1, "", wanted=False))  # of one there is none to select

    def _climb(self, victim: Victim, inputs: Tensor, targets: Tensor, ticker: Ticker) -> Tensor:
        size = 2.5 * self.epsilon / self.steps if self.step_size is None else self.step_size
        moved = self._random_start(victim, inputs) if self.random_start else inputs
        direction = torch.zeros_like(inputs)
        for _ in range(self.steps):
            gradient = victim.look(moved, targets).gradient
            direction = self.momentum * direction + functional.adversarial.steepest_direction(gradient, "l2")
            moved = self._inside(moved + size * functional.adversarial.steepest_direction(direction, self.norm), inputs)
            ticker.tick()
        return moved


def check_steps(steps: int, step_size: float | None = None) -> None:
    """Refuse what is no number of steps, or no size of one."""
    check_count("steps", steps)
    if step_size is not None and not 0.0 < step_size < math.inf:
        raise ValueError(f"step_size must be positive and finite, got {step_size}")


def check_restarts(restarts: int, random_start: bool) -> None:
    """Refuse what is no number of restarts, or more than one of the same."""
    check_count("restarts", restarts)
    if restarts > 1 and not random_start:
        raise ValueError("restarts from the same point would be equal; leave random_start=True")
