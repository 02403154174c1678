"""Attacks along the gradient: one step (FGSM), many small ones (PGD), and steps towards a wanted class.

Every gradient is that of a loss averaged over draws. References: Goodfellow et al. 2015 (FGSM), Madry et al. 2018
(PGD), Li and Gal 2017 (FGSM on the network's own label, and targeted).

Auto-PGD: gradient ascent whose steps grow shorter where they no longer help (Croce and Hein 2020).

It starts with steps of twice the radius. At checkpoints an example's step is halved, and its search goes on from the
best point so far, if fewer than three in four of the last steps have raised the loss, or if neither step nor best loss
has changed. Every loss that it keeps books on is the one averaged over draws.
"""

import math
from dataclasses import dataclass, replace
from functools import reduce
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dubio import functional
from dubio.attacks.attack import Attack, Perturbed, Progress, check_count, stronger
from dubio.attacks.target import AttackTarget


@dataclass(frozen=True)
class FGSM(Attack):
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

    def _perturb(self, victim: AttackTarget, inputs: Tensor, targets: Tensor, ticker: Progress) -> Perturbed:
        moved = self._moved(victim, inputs, targets)
        ticker.tick()
        return self._select(victim, moved, targets)

    def _moved(self, victim: AttackTarget, inputs: Tensor, targets: Tensor) -> Tensor:
        own = self.label == "own"
        gradient = self._own_gradient(victim, inputs) if own else victim.look(inputs, targets).gradient
        return self._inside(
            inputs + self.epsilon * functional.adversarial.steepest_direction(gradient, self.norm), inputs
        )

    def _own_gradient(self, victim: AttackTarget, inputs: Tensor) -> Tensor:
        """Gradient of ``-log pbar`` of the predicted class; classes that tie share it equally."""
        leaf = inputs.detach().requires_grad_(True)
        with torch.enable_grad():
            values = -functional.uncertainty.predictive_log_probs(victim.log_probs(leaf)).amax(dim=-1)
            return victim.gradient(values, leaf)


@dataclass(frozen=True)
class TargetedFGSM(Attack):
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
            raise ValueError("targeted must be True for TargetedFGSM; FGSM and PGD leave a class")

    def _num_steps(self) -> int:
        return self.steps

    def _perturb(self, victim: AttackTarget, inputs: Tensor, targets: Tensor, ticker: Progress) -> Perturbed:
        moved = inputs
        for _ in range(self.steps):
            gradient = victim.look(moved, targets).gradient
            direction = functional.adversarial.steepest_direction(gradient, self.norm)
            moved = (moved + self.step_size * direction).clamp(*self.bounds)
            ticker.tick()
        return self._select(victim, moved, targets)


@dataclass(frozen=True)
class PGD(Attack):
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

    def _perturb(self, victim: AttackTarget, inputs: Tensor, targets: Tensor, ticker: Progress) -> Perturbed:
        climbed = (self._climb(victim, inputs, targets, ticker) for _ in range(self.restarts))
        return reduce(stronger, (self._select(victim, moved, targets) for moved in climbed))

    def _moved(self, victim: AttackTarget, inputs: Tensor, targets: Tensor) -> Tensor:
        if self.restarts > 1:
            return super()._moved(victim, inputs, targets)
        return self._climb(victim, inputs, targets, Progress(1, "", wanted=False))  # of one there is none to select

    def _climb(self, victim: AttackTarget, inputs: Tensor, targets: Tensor, ticker: Progress) -> Tensor:
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


@dataclass(frozen=True)
class APGD(Attack):
    """Projected gradient ascent with steps that adapt.

    Args:
        steps: how many.
        restarts: how often it starts anew; the restart with the largest loss, on draws of its own, counts.
        random_start: whether to start at a random point of the ball.
        momentum: share of a step that goes to the new point; the rest is the step before once more.
    """

    epsilon: float = 8 / 255
    steps: int = 100
    restarts: int = 1
    random_start: bool = True
    momentum: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        check_steps(self.steps)
        check_restarts(self.restarts, self.random_start)
        if not 0.0 < self.momentum <= 1.0:
            raise ValueError(f"momentum must be in (0, 1], got {self.momentum}")

    def _num_steps(self) -> int:
        return self.steps * self.restarts

    def _perturb(self, victim: AttackTarget, inputs: Tensor, targets: Tensor, ticker: Progress) -> Perturbed:
        climbed = (self._climb(victim, inputs, targets, ticker) for _ in range(self.restarts))
        return reduce(stronger, (self._select(victim, moved, targets) for moved in climbed))

    def _climb(self, victim: AttackTarget, inputs: Tensor, targets: Tensor, ticker: Progress) -> Tensor:
        """The strongest of all points on the way."""
        before = self._random_start(victim, inputs) if self.random_start else inputs
        here = best = _Point.seen(victim, before, targets)
        strongest = here.perturbed
        pace = _Pace.first(2.0 * self.epsilon, here.values)
        checkpoints = functional.adversarial.halving_checkpoints(self.steps)
        for k in range(1, self.steps + 1):
            arrived = _Point.seen(victim, self._step(here, before, pace.step, inputs, first=k == 1), targets)
            pace = replace(pace, num_rises=pace.num_rises + (arrived.values > here.values))
            best = best.or_where(arrived.values > best.values, arrived)
            strongest = stronger(strongest, arrived.perturbed)
            before, here = here.inputs, arrived
            if k in checkpoints:
                pace = pace.checked(k, best.values)
                before = torch.where(functional.adversarial.as_rows(pace.halved, before), here.inputs, before)
                here = here.or_where(pace.halved, best)
            ticker.tick()
        return strongest.inputs

    def _step(self, here: "_Point", before: Tensor, size: Tensor, inputs: Tensor, first: bool) -> Tensor:
        direction = functional.adversarial.steepest_direction(here.gradient, self.norm)
        proposal = self._inside(here.inputs + functional.adversarial.as_rows(size, inputs) * direction, inputs)
        if first:
            return proposal
        return self._inside(functional.adversarial.with_momentum(here.inputs, before, proposal, self.momentum), inputs)


@dataclass(frozen=True, eq=False)
class _Point:
    """Where the examples are, and what the attacker sees there."""

    perturbed: Perturbed
    gradient: Float[Tensor, "batch ..."]

    @classmethod
    def seen(cls, victim: AttackTarget, inputs: Tensor, targets: Tensor) -> "_Point":
        view = victim.look(inputs, targets)
        return cls(Perturbed(inputs, view.values, view.fooled), view.gradient)

    @property
    def inputs(self) -> Float[Tensor, "batch ..."]:
        return self.perturbed.inputs

    @property
    def values(self) -> Float[Tensor, " batch"]:
        return self.perturbed.values

    def or_where(self, chosen: Bool[Tensor, " batch"], other: "_Point") -> "_Point":
        """The other point for those examples that are chosen."""
        gradient = torch.where(functional.adversarial.as_rows(chosen, self.gradient), other.gradient, self.gradient)
        return _Point(self.perturbed.or_where(chosen, other.perturbed), gradient)


@dataclass(frozen=True, eq=False)
class _Pace:
    """The step of each example, and what decides whether it stays."""

    step: Float[Tensor, " batch"]
    num_rises: Float[Tensor, " batch"]
    halved: Bool[Tensor, " batch"]
    best: Float[Tensor, " batch"]
    since: int

    @classmethod
    def first(cls, step: float, values: Float[Tensor, " batch"]) -> "_Pace":
        zeros = torch.zeros_like(values)
        return cls(zeros + step, zeros, zeros.bool(), values, 0)

    def checked(self, step: int, best: Float[Tensor, " batch"]) -> "_Pace":
        """The pace from a checkpoint on."""
        halved = functional.adversarial.should_halve(self.num_rises, step - self.since, self.halved, best, self.best)
        size = torch.where(halved, self.step / 2.0, self.step)
        return _Pace(size, torch.zeros_like(self.num_rises), halved, best, step)
