"""The nearest inputs that a network gets wrong: DDN, FMN, and the minimum-norm perturbation of E-64.

DDN and FMN walk along the boundary on a sphere that shrinks after success and grows after failure. ``MinimumNorm``
searches a weight on the distance for each example,

    r* = argmin_r  c ||r||_2 + CE(f(x + r), t)     with x + r in the box,

ten times larger while the attack succeeds, a tenth while it fails, then by bisection on a logarithmic scale. Its
solvers are Adam with a projection onto the box after every step, for all examples at once, and SciPy's L-BFGS-B, for
one example after another: torch's L-BFGS has no bounds, and putting the box into a sigmoid would leave pixels at the
very edge, most of a digit's, without a gradient.

Invariants (``tests/attacks/test_minimum_norm.py``): all keep the smallest perturbation that fooled the mean over the
draws. Without one, the result is the inputs as they were, with ``fooled`` False: a failure is never counted as success.
Inputs that are wrong already stay as they are too, with ``fooled`` True.

References: Rony et al. 2019 (DDN), Pintor et al. 2021 (FMN), Szegedy et al. 2014 (E-64 and the L-BFGS-B solver),
Carlini and Wagner 2017 (the margin).
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dubio import functional
from dubio.attacks.attack import Attack, Progress
from dubio.attacks.target import AttackTarget, Model, Perturbed
from dubio.checks import check_flag, check_positive
from dubio.functional.adversarial import AttackLoss, Norm

Inputs = Float[Tensor, "batch ..."]
PerExample = Float[Tensor, " batch"]
Flags = Bool[Tensor, " batch"]

DECADES = 6
"""How often c is multiplied or divided by ten at most."""
START_STD = 1e-3
"""Of the noise that a search starts with, since the gradient of the norm is not defined at zero."""
LATE = 0.9
"""From this share of the steps on, success of Adam counts as success of its c."""


class Nearest:
    """The smallest perturbation so far that fools the network; none at first."""

    def __init__(self, inputs: Inputs, norm: Norm) -> None:
        self._clean, self._norm = inputs, norm
        self.inputs = inputs
        self.size = torch.full_like(functional.adversarial.perturbation_norm(inputs, norm), math.inf)
        self.open = self.size.isinf()
        """Examples that are still searched; the others stay as they are."""

    def consider(self, end: Perturbed) -> None:
        """Keep what fools and is smaller."""
        size = functional.adversarial.perturbation_norm(end.inputs - self._clean, self._norm)
        better = self.open & end.fooled & (size < self.size)
        self.inputs = torch.where(functional.adversarial.as_rows(better, end.inputs), end.inputs, self.inputs)
        self.size = torch.where(better, size, self.size)

    def evaluated(self, target: AttackTarget, targets: Tensor, c: Tensor | None = None) -> Perturbed:
        """The result of an attack; an example without a perturbation is not fooled."""
        values, _ = target.evaluate(self.inputs, targets)
        return Perturbed(self.inputs, values, self.size.isfinite(), c)


@dataclass(frozen=True, eq=False)
class Problem:
    """Inputs to move, and classes to leave or reach.

    Success is decided by ``labels``, the true classes or the targets of the call. ``goals`` are classes to go to, where
    the attack has chosen some itself.
    """

    target: AttackTarget
    inputs: Inputs
    labels: Int[Tensor, " batch"]
    goals: Int[Tensor, " batch"] | None
    bounds: tuple[float, float]

    def objective_and_grad(self, end: Perturbed, c: PerExample) -> tuple[PerExample, Inputs]:
        """The objective that is minimised, and its gradient, from what the attacker measures at a point."""
        leaf, values = end.inputs.detach().requires_grad_(True), end.values.detach().requires_grad_(True)
        hinged = self.target.loss != "cross_entropy"
        with torch.enable_grad():
            lowered = functional.adversarial.minimum_norm_objective(leaf - self.inputs, values, c, hinged)
            by_distance, by_values = torch.autograd.grad(lowered.sum(), (leaf, values))
        return lowered.detach(), by_distance + functional.adversarial.as_rows(by_values, leaf) * end.gradient

    def row(self, i: int) -> "Problem":
        """The problem of one example."""
        row = slice(i, i + 1)
        target = replace(self.target, first_row=self.target.first_row + i)
        goals = None if self.goals is None else self.goals[row]
        return Problem(target, self.inputs[row], self.labels[row], goals, self.bounds)

    def on_vectors(self, c: PerExample) -> Callable[[Any], tuple[float, Any]]:
        """``objective_and_grad`` of one example as SciPy takes it."""

        def objective(flat: Any) -> tuple[float, Any]:
            end = self.target.loss_and_grad(self.from_vector(flat), self.labels, self.goals)
            lowered, gradient = self.objective_and_grad(end, c)
            return lowered.item(), gradient.double().flatten().cpu().numpy()

        return objective

    def from_vector(self, flat: Any) -> Inputs:
        """The inputs of one example that a vector of SciPy stands for."""
        return torch.as_tensor(flat, dtype=self.inputs.dtype, device=self.inputs.device).view_as(self.inputs)


class WeightSearch:
    """The weights of the distance to try, one for each example: first by factors of ten, then by bisection."""

    def __init__(self, first: float, bisections: int, like: PerExample) -> None:
        self.c = torch.full_like(like, first)
        """The weights to try now."""
        self._works, self._fails = torch.zeros_like(like), torch.full_like(like, math.inf)
        self._left = torch.full_like(like, bisections)

    @property
    def open(self) -> Flags:
        """Examples whose weight is still searched."""
        return self._left >= 0.0

    def update(self, succeeded: Flags) -> None:
        """Choose the next weights, smaller where the attack has failed."""
        self._works = torch.where(succeeded, self.c, self._works)
        self._fails = torch.where(succeeded, self._fails, self.c)
        self._left = self._left - ((self._works > 0.0) & self._fails.isfinite()).to(self._left.dtype)
        self.c = functional.adversarial.next_penalty(self.c, self._works, self._fails)


@dataclass(frozen=True)
class DDN(Attack):
    """Decoupled direction and norm: the smallest perturbation in L2.

    Args:
        steps: number of steps.
        step_size: length of the first step along the gradient; annealed to a hundredth of it.
        radius: radius of the first sphere.
        gamma: share by which the sphere shrinks after success and grows after failure.
    """

    norm: Norm = "l2"
    steps: int = 100
    step_size: float = 1.0
    radius: float = 1.0
    gamma: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_gamma(self.gamma)
        if self.norm != "l2":
            raise ValueError(f"norm must be 'l2' for DDN, got {self.norm!r}; FMN has both norms")
        check_positive("radius", self.radius)

    def _perturb(self, target: AttackTarget, inputs: Tensor, targets: Tensor, progress: Progress) -> Perturbed:
        here, nearest = target.loss_and_grad(inputs, targets), Nearest(inputs, self.norm)
        radius = torch.full_like(nearest.size, self.radius)
        for size in _annealed(self.step_size, self.step_size / 100.0, self.steps):
            nearest.consider(here)
            radius = functional.adversarial.next_decoupled_radius(radius, here.fooled, self.gamma)
            ahead = here.inputs - inputs + size * self._direction(target, here.gradient)
            direction = functional.adversarial.steepest_direction(ahead, self.norm)
            moved = inputs + direction * functional.adversarial.as_rows(radius, inputs)
            here = target.loss_and_grad(moved.clamp(*self.bounds), targets)
            progress.tick()
        nearest.consider(here)
        return nearest.evaluated(target, targets)

    def _direction(self, target: AttackTarget, gradient: Tensor) -> Tensor:
        """Along the gradient; in a random direction where it vanishes, as that of a saturated network does."""
        vanished = functional.adversarial.perturbation_norm(gradient, "linf") == 0.0
        random = target.random(gradient.shape, "normal", gradient)
        chosen = torch.where(functional.adversarial.as_rows(vanished, gradient), random, gradient)
        return functional.adversarial.steepest_direction(chosen, self.norm)


@dataclass(frozen=True)
class FMN(Attack):
    """Fast minimum norm: the smallest perturbation in L2 or Linf.

    Before the first success, the distance to the boundary is estimated to first order; so the loss must be a margin,
    which is zero at the boundary.

    Args:
        steps: number of steps.
        step_size: length of the first step along the gradient, in L2 for both norms; annealed to a hundredth of it.
        gamma: share by which the radius shrinks after success and grows after failure at first.
        last_gamma: that share at the end.
    """

    norm: Norm = "l2"
    loss: AttackLoss = "margin"
    steps: int = 100
    step_size: float = 1.0
    gamma: float = 0.05
    last_gamma: float = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_gamma(self.gamma)
        if not 0.0 < self.last_gamma <= self.gamma:
            raise ValueError(f"last_gamma must be positive and at most gamma = {self.gamma}, got {self.last_gamma}")
        if self.loss == "cross_entropy":
            raise ValueError("loss must be 'margin' or 'dlr' for FMN, being zero at the boundary, got 'cross_entropy'")

    def _perturb(self, target: AttackTarget, inputs: Tensor, targets: Tensor, progress: Progress) -> Perturbed:
        here, nearest = target.loss_and_grad(inputs, targets), Nearest(inputs, self.norm)
        radius = torch.full_like(nearest.size, math.inf)
        sizes = _annealed(self.step_size, self.step_size / 100.0, self.steps)
        for size, gamma in zip(sizes, _annealed(self.gamma, self.last_gamma, self.steps), strict=True):
            nearest.consider(here)
            # The norm of the perturbation that reaches the boundary to first order.
            linear = functional.adversarial.perturbation_norm(here.inputs - inputs, self.norm)
            linear = linear + functional.adversarial.boundary_distance(here.values, here.gradient, self.norm)
            radius = functional.adversarial.next_boundary_radius(radius, here.fooled, nearest.size, linear, gamma)
            ahead = here.inputs - inputs + size * functional.adversarial.steepest_direction(here.gradient, "l2")
            moved = inputs + functional.adversarial.project_perturbation(ahead, self.norm, radius)
            here = target.loss_and_grad(moved.clamp(*self.bounds), targets)
            progress.tick()
        nearest.consider(here)
        return nearest.evaluated(target, targets)


@dataclass(frozen=True)
class MinimumNorm(Attack):
    """The shortest perturbation in L2, by a search for the weight on the distance (E-64).

    A cross-entropy enters as it is. A margin or DLR counts up to the boundary only (a hinge), so that the search for an
    untargeted perturbation ends.

    Args:
        mode: ``"targeted"`` goes to a class that the attack chooses, ``"untargeted"`` leaves the true class. Either way
            the network is fooled when it no longer predicts the true class.
        target: the class to go to: ``"runner_up"``, the most probable after the true one; ``"random"``; or
            ``"best_of_all"``, which goes to each and keeps the nearest. With ``targeted=True`` it is that of the call.
        solver: ``"adam"``, all examples at once; or ``"lbfgs"``, the reference, one example after another and always on
            frozen draws.
        steps: steps of the solver, for each c.
        step_size: learning rate of Adam.
        c: the first weight of the distance.
        bisections: number of bisections of c after an interval of a factor of ten is reached.
        search: whether to search c for every example. Without, ``c`` is the same for all examples, and the result is
            where the solver ends: beyond the boundary, the further the smaller c is.
        keep_unsolved: without ``search``, whether inputs that do not fool the network stay where the solver ends; by
            default they are put back to where they were.
    """

    norm: Norm = "l2"
    mode: Literal["targeted", "untargeted"] = "targeted"
    target: Literal["runner_up", "random", "best_of_all"] = "runner_up"
    solver: Literal["adam", "lbfgs"] = "adam"
    steps: int = 300
    step_size: float = 0.01
    c: float = 0.1
    bisections: int = 8
    search: bool = True
    keep_unsolved: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("keep_unsolved", self.keep_unsolved)
        if self.search and self.keep_unsolved:
            raise ValueError("keep_unsolved must be False with search=True, which keeps what fools alone, got True")
        if self.norm != "l2":
            raise ValueError(f"norm must be 'l2' for MinimumNorm, got {self.norm!r}; FMN has both norms")
        if self.targeted and self.mode != "targeted":
            raise ValueError("mode must be 'targeted' where targeted=True, got 'untargeted'")
        if not self.search and self.target == "best_of_all":
            raise ValueError("target must not be 'best_of_all' with search=False, which keeps no nearest perturbation")
        check_positive("c", self.c)

    def _num_steps(self) -> int:
        return DECADES + self.bisections if self.search else 1

    def target_for(self, model: Model) -> AttackTarget:
        """The network as this attack evaluates it; a line search needs frozen noise."""
        target = super().target_for(model)
        return replace(target, noise="frozen") if self.solver == "lbfgs" and self.noise == "fresh" else target

    def _perturb(self, target: AttackTarget, inputs: Tensor, targets: Tensor, progress: Progress) -> Perturbed:
        log_probs = functional.uncertainty.predictive_log_probs(target.log_probs(inputs))
        nearest, labels = Nearest(inputs, self.norm), log_probs.argmax(dim=-1)
        nearest.consider(Perturbed(inputs, nearest.size, (labels == targets) == self.targeted))
        all_goals, kept = self._goals(target, log_probs, targets), torch.full_like(nearest.size, math.nan)
        progress.expect((len(all_goals) - 1) * self._num_steps())
        for goals in all_goals:
            problem = Problem(target, inputs, targets, goals, self.bounds)
            search = WeightSearch(self.c, self.bisections, kept)
            for _ in range(self._num_steps()):
                nearest.open = search.open & (nearest.size > 0.0)
                if not bool(nearest.open.any()):
                    break
                noise, before = target.random(inputs.shape, "normal", inputs), nearest.size
                start = (inputs + START_STD * noise).clamp(*self.bounds)
                seen = nearest if self.search else copy.copy(nearest)  # without a search only the end counts
                if self.solver == "lbfgs":
                    end, settled = minimise(problem, start, search.c, seen, self.steps)
                else:
                    end, settled = descend(problem, start, search.c, seen, self.steps, self.step_size)
                nearest.consider(end)
                kept = torch.where(nearest.size < before, search.c, kept)
                if self.keep_unsolved:
                    unsolved = nearest.open & ~end.fooled
                    rows = functional.adversarial.as_rows(unsolved, inputs)
                    nearest.inputs = torch.where(rows, end.inputs, nearest.inputs)
                    kept = torch.where(unsolved, search.c, kept)
                search.update(settled)
                progress.tick()
        return nearest.evaluated(target, targets, kept)

    def _goals(self, target: AttackTarget, log_probs: Tensor, labels: Tensor) -> list[Int[Tensor, " batch"] | None]:
        """Classes to go to, one set after another; None where the labels of the call are meant."""
        num_classes = log_probs.shape[-1]
        if self.targeted or self.mode == "untargeted":
            return [None]
        if self.target == "best_of_all":
            return [(labels + offset) % num_classes for offset in range(1, num_classes)]
        if self.target == "random":
            uniform = target.random((len(labels), 1), "uniform", log_probs).squeeze(1)
            return [(labels + 1 + (uniform * (num_classes - 1)).long().clamp_max(num_classes - 2)) % num_classes]
        return [log_probs.scatter(-1, labels.unsqueeze(-1), -math.inf).argmax(dim=-1)]


def descend(
    problem: Problem, start: Inputs, c: PerExample, nearest: Nearest, steps: int, step_size: float
) -> tuple[Perturbed, Flags]:
    """Steps of Adam from ``start``: the end, and which examples are fooled there or shortly before.

    ``nearest`` considers every point on the way.
    """
    moved = start.clone()
    optimizer = torch.optim.Adam([moved], lr=step_size)
    settled = torch.zeros_like(problem.labels, dtype=torch.bool)
    for k in range(steps):
        here = problem.target.loss_and_grad(moved, problem.labels, problem.goals)
        nearest.consider(here)
        if k >= LATE * steps:
            settled |= here.fooled
        _, moved.grad = problem.objective_and_grad(here, c)
        optimizer.step()
        moved.clamp_(*problem.bounds)
    end = Perturbed(moved, *problem.target.evaluate(moved, problem.labels))
    return end, settled | end.fooled


def minimise(problem: Problem, start: Inputs, c: PerExample, nearest: Nearest, steps: int) -> tuple[Perturbed, Flags]:
    """L-BFGS-B from ``start``, one example after another: the end, and which examples are fooled there."""
    try:
        from scipy.optimize import minimize  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(
            "solver='lbfgs' needs SciPy, which is missing: pip install scipy; 'adam' does without"
        ) from error
    moved, rows = start.clone(), {int(i): problem.row(int(i)) for i in nearest.open.nonzero()}
    for i, row in rows.items():
        first, box = start[i].double().flatten().cpu().numpy(), [problem.bounds] * start[i].numel()
        options = {"jac": True, "method": "L-BFGS-B", "bounds": box, "options": {"maxiter": steps}}
        result = minimize(row.on_vectors(c[i : i + 1]), first, **options)
        moved[i : i + 1] = row.from_vector(result.x).clamp(*problem.bounds)
    problem.target.forwards += max(row.target.forwards for row in rows.values())
    problem.target.backwards += max(row.target.backwards for row in rows.values())
    end = Perturbed(moved, *problem.target.evaluate(moved, problem.labels))
    return end, end.fooled


def _annealed(first: float, last: float, steps: int) -> Iterator[float]:
    """Values for so many steps, along half a cosine wave."""
    return (functional.adversarial.cosine_annealed(first, last, k / steps) for k in range(steps))


def _check_gamma(gamma: float) -> None:
    if not 0.0 < gamma < 1.0:
        raise ValueError(f"gamma must be in (0, 1), got {gamma}")
