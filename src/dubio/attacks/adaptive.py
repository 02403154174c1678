"""Auto-PGD: gradient ascent whose steps grow shorter where they no longer help (Croce and Hein 2020).

It starts with steps of twice the radius. At checkpoints an example's step is halved, and its search goes on from the
best point so far, if fewer than three in four of the last steps have raised the loss, or if neither step nor best loss
has changed. Every loss that it keeps books on is the one averaged over draws.
"""

from dataclasses import dataclass, replace
from functools import reduce

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dubio import functional
from dubio.attacks.attack import Attack, Perturbed, stronger
from dubio.attacks.gradient import check_restarts, check_steps
from dubio.attacks.progress import Ticker
from dubio.attacks.victims import Victim

__all__ = ["Apgd"]


@dataclass(frozen=True)
class Apgd(Attack):
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

    def _perturb(self, victim: Victim, inputs: Tensor, targets: Tensor, ticker: Ticker) -> Perturbed:
        climbed = (self._climb(victim, inputs, targets, ticker) for _ in range(self.restarts))
        return reduce(stronger, (self._select(victim, moved, targets) for moved in climbed))

    def _climb(self, victim: Victim, inputs: Tensor, targets: Tensor, ticker: Ticker) -> Tensor:
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
    def seen(cls, victim: Victim, inputs: Tensor, targets: Tensor) -> "_Point":
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
