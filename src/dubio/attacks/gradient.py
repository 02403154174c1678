"""Attacks along the gradient: one step (FGSM), many small ones (PGD), steps that adapt (Auto-PGD), steps towards a
target class without a ball, and steps that also change the uncertainty of the prediction (Evade).

Every gradient is that of a loss averaged over draws.

References: Goodfellow et al. 2015 (FGSM), Madry et al. 2018 (PGD), Croce and Hein 2020 (Auto-PGD), Li and Gal 2017
(FGSM on the network's own label, and targeted).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dubio import functional
from dubio.attacks.attack import Attack, Progress, stronger
from dubio.attacks.target import AttackTarget, Perturbed
from dubio.checks import check_not_negative


@dataclass(frozen=True)
class FGSM(Attack):
    """One step of size ``epsilon`` along the sign of the gradient (E-60).

    With ``label="own"`` the loss is that of the class the network itself predicts (E-61): the true label is not used.
    """

    epsilon: float = 8 / 255
    label: Literal["true", "own"] = "true"

    _never_synchronizes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label == "own" and self.targeted:
            raise ValueError("label must be 'true' for a targeted attack, which goes towards the targets, got 'own'")

    def _climb(self, target: AttackTarget, inputs: Tensor, targets: Tensor, progress: Progress) -> Tensor:
        if self.label == "own":
            gradient = self._own_gradient(target, inputs)
        else:
            gradient = target.loss_and_grad(inputs, targets).gradient
        progress.tick()
        direction = functional.adversarial.steepest_direction(gradient, self.norm)
        return self._inside(inputs + self.epsilon * direction, inputs)

    def _own_gradient(self, target: AttackTarget, inputs: Tensor) -> Tensor:
        """Gradient of ``-log pbar`` of the predicted class; classes that tie share it equally."""
        leaf = inputs.detach().requires_grad_(True)
        with torch.enable_grad():
            values = -functional.uncertainty.predictive_log_probs(target.log_probs(leaf)).amax(dim=-1)
            return target.gradient(values, leaf)


@dataclass(frozen=True)
class TargetedFGSM(Attack):
    """Steps of size ``step_size`` towards a target class, with no ball to stay in (E-62).

    ``targets`` are the classes to reach. All steps are taken, also where the network predicts the target already.
    """

    step_size: float = 0.01
    steps: int = 100
    targeted: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.targeted:
            raise ValueError("targeted must be True for TargetedFGSM; FGSM and PGD leave a class")

    def _climb(self, target: AttackTarget, inputs: Tensor, targets: Tensor, progress: Progress) -> Tensor:
        moved = inputs
        for _ in range(self.steps):
            gradient = target.loss_and_grad(moved, targets).gradient
            direction = functional.adversarial.steepest_direction(gradient, self.norm)
            moved = (moved + self.step_size * direction).clamp(*self.bounds)
            progress.tick()
        return moved


@dataclass(frozen=True)
class PGD(Attack):
    """Projected gradient ascent (E-63).

    Args:
        steps: number of steps.
        step_size: length of each step; by default ``2.5 * epsilon / steps``.
        restarts: number of starts; the restart with the largest loss, on draws of its own, counts.
        random_start: whether to start at a random point of the ball.
        momentum: share of the previous direction that is kept.
    """

    epsilon: float = 8 / 255
    steps: int = 20
    step_size: float | None = None
    restarts: int = 1
    random_start: bool = True
    momentum: float = 0.0

    _never_synchronizes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")

    def _climb(self, target: AttackTarget, inputs: Tensor, targets: Tensor, progress: Progress) -> Tensor:
        size = 2.5 * self.epsilon / self.steps if self.step_size is None else self.step_size
        moved, direction = self._start(target, inputs), torch.zeros_like(inputs)
        loss_and_grad = self._rising(target)
        for _ in range(self.steps):
            gradient = loss_and_grad(moved, targets).gradient
            direction = self.momentum * direction + functional.adversarial.steepest_direction(gradient, "l2")
            moved = self._inside(moved + size * functional.adversarial.steepest_direction(direction, self.norm), inputs)
            progress.tick()
        return moved

    def _rising(self, target: AttackTarget) -> Callable[[Tensor, Tensor], Perturbed]:
        """What the attack raises, as a function of inputs and targets."""
        return target.loss_and_grad


@dataclass(frozen=True)
class Evade(PGD):
    """Projected gradient ascent against a network whose uncertain predictions are rejected: the detector-aware attack.

    With ``goal="accept"`` it raises the loss where the network is right, and ``loss - weight * uncertainty`` where it
    is fooled already, so that an input is misclassified and accepted. On the way to another class the uncertainty must
    rise: an attack that held it down from the beginning would not leave an input of which the network is sure. With
    ``goal="reject"`` it raises the uncertainty alone, so that an input which is classified right is rejected (denial of
    service); labels and ``loss`` are then not used, except for ``fooled``.

    Args:
        weight: weight of the uncertainty beside the loss; 0 is ``PGD``. How far the two agree depends on the network:
            try several.
        uncertainty: the score of the detector: the ``"entropy"`` of the mean prediction, or the
            ``"mutual_information"`` of prediction and draw, which needs several draws.
        goal: whether inputs are to be accepted or rejected.
    """

    steps: int = 40
    weight: float = 1.0
    uncertainty: Literal["entropy", "mutual_information"] = "entropy"
    goal: Literal["accept", "reject"] = "accept"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative("weight", self.weight)
        if self.goal == "reject" and self.targeted:
            raise ValueError("targeted must be False with goal='reject', which goes to no class, got True")
        if self.uncertainty == "mutual_information" and self.num_samples == 1:
            raise ValueError(
                "num_samples must be at least 2 for uncertainty='mutual_information', which a single draw does not "
                "have, got 1; use uncertainty='entropy'"
            )

    def _rising(self, target: AttackTarget) -> Callable[[Tensor, Tensor], Perturbed]:
        return partial(self._loss_and_grad, target)

    def _loss_and_grad(self, target: AttackTarget, inputs: Tensor, targets: Tensor) -> Perturbed:
        leaf = inputs.detach().requires_grad_(True)
        with torch.enable_grad():
            values, fooled = self._evaluate(target, leaf, targets)
            return Perturbed(inputs, values.detach(), fooled, grad=target.gradient(values, leaf))

    def _perturb(self, target: AttackTarget, inputs: Tensor, targets: Tensor, progress: Progress) -> Perturbed:
        """The strongest of all restarts, each evaluated on draws of its own."""
        climbs = (self._climb(target, inputs, targets, progress) for _ in range(self.restarts))
        attempts = (Perturbed(moved, *self._evaluate(target, moved, targets)) for moved in climbs)
        return reduce(stronger if self.goal == "accept" else _larger, attempts)

    def _evaluate(self, target: AttackTarget, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The objective, and whether the mean over the draws is fooled."""
        log_probs = target.log_probs(inputs)
        predictive = functional.uncertainty.predictive_log_probs(log_probs)
        score = functional.uncertainty.entropy(predictive.exp())
        if self.uncertainty == "mutual_information":  # not cut off at rounding, so that it has a gradient everywhere
            score = score - functional.uncertainty.expected_entropy(log_probs)
        fooled = (predictive.argmax(dim=-1) == targets) == self.targeted
        if self.goal == "reject":
            return score, fooled
        loss = functional.adversarial.averaged_attack_loss(log_probs, targets, self.objective, self.loss)
        raised = -loss if self.targeted else loss
        return torch.where(fooled, raised - self.weight * score, raised), fooled


@dataclass(frozen=True)
class APGD(Attack):
    """Projected gradient ascent with steps that adapt (Auto-PGD).

    The first step has the length ``2 * epsilon``. At checkpoints the step of an example is halved, and its search goes
    on from the best point so far, if fewer than three in four of the last steps have raised the loss, or if neither
    step nor best loss has changed. All losses compared are averages over draws.

    Args:
        steps: number of steps.
        restarts: number of starts; the restart with the largest loss, on draws of its own, counts.
        random_start: whether to start at a random point of the ball.
        momentum: share of a step that goes to the new point; the rest repeats the previous step.
    """

    epsilon: float = 8 / 255
    steps: int = 100
    restarts: int = 1
    random_start: bool = True
    momentum: float = 0.75

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.momentum <= 1.0:
            raise ValueError(f"momentum must be in (0, 1], got {self.momentum}")

    def _climb(self, target: AttackTarget, inputs: Tensor, targets: Tensor, progress: Progress) -> Tensor:
        """The strongest of all points of the ascent."""
        before = self._start(target, inputs)
        here = best = strongest = target.loss_and_grad(before, targets)
        best_before, since = best.values, 0
        size = torch.zeros_like(here.values) + 2.0 * self.epsilon
        num_rises, halved = torch.zeros_like(here.values), torch.zeros_like(here.values).bool()
        checkpoints = functional.adversarial.halving_checkpoints(self.steps)
        for k in range(1, self.steps + 1):
            arrived = target.loss_and_grad(self._step(here, before, size, inputs, first=k == 1), targets)
            num_rises = num_rises + (arrived.values > here.values)
            best = best.or_where(arrived.values > best.values, arrived)
            strongest = stronger(strongest, arrived)
            before, here = here.inputs, arrived
            if k in checkpoints:
                halved = functional.adversarial.should_halve(num_rises, k - since, halved, best.values, best_before)
                size = torch.where(halved, size / 2.0, size)
                num_rises, best_before, since = torch.zeros_like(num_rises), best.values, k
                before = torch.where(functional.adversarial.as_rows(halved, before), here.inputs, before)
                here = here.or_where(halved, best)
            progress.tick()
        return strongest.inputs

    def _step(self, here: Perturbed, before: Tensor, size: Tensor, inputs: Tensor, first: bool) -> Tensor:
        direction = functional.adversarial.steepest_direction(here.gradient, self.norm)
        proposal = self._inside(here.inputs + functional.adversarial.as_rows(size, inputs) * direction, inputs)
        if first:
            return proposal
        return self._inside(functional.adversarial.with_momentum(here.inputs, before, proposal, self.momentum), inputs)


def _larger(one: Perturbed, other: Perturbed) -> Perturbed:
    """Of two attempts at the same examples, for each the one of the larger value."""
    return one.or_where(other.values > one.values, other)
