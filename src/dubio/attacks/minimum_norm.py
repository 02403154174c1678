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

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dubio import functional
from dubio.attacks.attack import Attack, Perturbed, Progress
from dubio.attacks.target import AttackTarget, LossAndGrad, Model
from dubio.checks import check_positive
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

    def consider(self, moved: Inputs, fooled: Flags) -> None:
        """Keep what fools and is smaller."""
        size = functional.adversarial.perturbation_norm(moved - self._clean, self._norm)
        better = self.open & fooled & (size < self.size)
        self.inputs = torch.where(functional.adversarial.as_rows(better, moved), moved, self.inputs)
        self.size = torch.where(better, size, self.size)

    def evaluated(self, target: AttackTarget, targets: Tensor, c: Tensor | None = None) -> Perturbed:
        """The result of an attack; an example without a perturbation is not fooled."""
        return Perturbed(self.inputs, target.values(self.inputs, targets), self.size.isfinite(), c)


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

    def objective_and_grad(self, moved: Inputs, c: PerExample) -> tuple[PerExample, Flags, Inputs]:
        """The objective that is minimised, whether the network is fooled, and the gradient."""
        leaf = moved.detach().requires_grad_(True)
        hinged = self.target.loss != "cross_entropy"
        with torch.enable_grad():
            values, fooled = self.target.evaluate(leaf, self.labels, self.goals)
            lowered = functional.adversarial.minimum_norm_objective(leaf - self.inputs, values, c, hinged)
            gradient = self.target.gradient(lowered, leaf)
        return lowered.detach(), fooled, gradient

    def row(self, i: int) -> "Problem":
        """The problem of one example."""
        row = slice(i, i + 1)
        target = replace(self.target, first_row=self.target.first_row + i)
        goals = None if self.goals is None else self.goals[row]
        return Problem(target, self.inputs[row], self.labels[row], goals, self.bounds)


class End(NamedTuple):
    """Where a solver ended."""

    moved: Inputs
    fooled: Flags
    """Whether the network is fooled there."""
    settled: Flags
    """Whether it was fooled there, or shortly before."""


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
        view, moved = target.loss_and_grad(inputs, targets), inputs
        nearest = Nearest(inputs, self.norm)
        radius = torch.full_like(nearest.size, self.radius)
        for size in _annealed(self.step_size, self.step_size / 100.0, self.steps):
            nearest.consider(moved, view.fooled)
            radius = functional.adversarial.next_decoupled_radius(radius, view.fooled, self.gamma)
            ahead = moved - inputs + size * self._direction(target, view.gradient)
            direction = functional.adversarial.steepest_direction(ahead, self.norm)
            moved = (inputs + direction * functional.adversarial.as_rows(radius, inputs)).clamp(*self.bounds)
            view = target.loss_and_grad(moved, targets)
            progress.tick()
        nearest.consider(moved, view.fooled)
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
        view, moved = target.loss_and_grad(inputs, targets), inputs
        nearest = Nearest(inputs, self.norm)
        radius = torch.full_like(nearest.size, math.inf)
        sizes = _annealed(self.step_size, self.step_size / 100.0, self.steps)
        for size, gamma in zip(sizes, _annealed(self.gamma, self.last_gamma, self.steps), strict=True):
            nearest.consider(moved, view.fooled)
            linear = self._linear_distance(moved - inputs, view)
            radius = functional.adversarial.next_boundary_radius(radius, view.fooled, nearest.size, linear, gamma)
            ahead = moved - inputs + size * functional.adversarial.steepest_direction(view.gradient, "l2")
            moved = (inputs + functional.adversarial.project_perturbation(ahead, self.norm, radius)).clamp(*self.bounds)
            view = target.loss_and_grad(moved, targets)
            progress.tick()
        nearest.consider(moved, view.fooled)
        return nearest.evaluated(target, targets)

    def _linear_distance(self, perturbation: Tensor, view: LossAndGrad) -> Tensor:
        """Norm of the perturbation that reaches the boundary to first order."""
        size = functional.adversarial.perturbation_norm(perturbation, self.norm)
        return size + functional.adversarial.boundary_distance(view.values, view.gradient, self.norm)


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

    def __post_init__(self) -> None:
        super().__post_init__()
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
        nearest = Nearest(inputs, self.norm)
        nearest.consider(inputs, (log_probs.argmax(dim=-1) == targets) == self.targeted)
        c = torch.full_like(nearest.size, math.nan)
        all_goals = self._goals(target, log_probs, targets)
        progress.expect((len(all_goals) - 1) * self._num_steps())
        for goals in all_goals:
            problem = Problem(target, inputs, targets, goals, self.bounds)
            if not self.search:
                return self._solve_once(problem, nearest, progress)
            c = self._search(problem, nearest, c, progress)
        return nearest.evaluated(target, targets, c)

    def _solve_once(self, problem: Problem, nearest: Nearest, progress: Progress) -> Perturbed:
        """One c for all; inputs that fool the network already, or not in the end, stay as they were."""
        already = nearest.size == 0.0
        nearest.open = ~already
        c = torch.full_like(nearest.size, self.c)
        end = self._solve(problem, c, nearest)
        progress.tick()
        counts = end.fooled & ~already
        moved = torch.where(functional.adversarial.as_rows(counts, end.moved), end.moved, problem.inputs)
        values = problem.target.values(moved, problem.labels)
        return Perturbed(moved, values, counts | already, torch.where(counts, c, math.nan))

    def _search(self, problem: Problem, nearest: Nearest, kept: Tensor, progress: Progress) -> Tensor:
        """Try one c after another; returns those of the perturbations that are kept."""
        c = torch.full_like(kept, self.c)
        works, fails = torch.zeros_like(c), torch.full_like(c, math.inf)
        left = torch.full_like(c, self.bisections)
        for _ in range(DECADES + self.bisections):
            nearest.open = (left >= 0.0) & (nearest.size > 0.0)
            if not bool(nearest.open.any()):
                break
            before = nearest.size
            succeeded = self._solve(problem, c, nearest).settled
            kept = torch.where(nearest.size < before, c, kept)
            works, fails = torch.where(succeeded, c, works), torch.where(succeeded, fails, c)
            left = left - ((works > 0.0) & fails.isfinite()).to(left.dtype)
            c = functional.adversarial.next_penalty(c, works, fails)
            progress.tick()
        return kept

    def _solve(self, problem: Problem, c: Tensor, nearest: Nearest) -> End:
        noise = problem.target.random(problem.inputs.shape, "normal", problem.inputs)
        start = (problem.inputs + START_STD * noise).clamp(*self.bounds)
        if self.solver == "lbfgs":
            return minimise(problem, start, c, nearest, self.steps)
        return descend(problem, start, c, nearest, self.steps, self.step_size)

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


def descend(problem: Problem, start: Inputs, c: PerExample, nearest: Nearest, steps: int, step_size: float) -> End:
    """Steps of Adam from ``start``; ``nearest`` considers every point."""
    moved = start.clone()
    optimizer = torch.optim.Adam([moved], lr=step_size)
    succeeded = torch.zeros_like(problem.labels, dtype=torch.bool)
    for k in range(steps):
        _, fooled, moved.grad = problem.objective_and_grad(moved, c)
        nearest.consider(moved, fooled)
        if k >= LATE * steps:
            succeeded |= fooled
        optimizer.step()
        moved.clamp_(*problem.bounds)
    _, fooled = problem.target.evaluate(moved, problem.labels)
    nearest.consider(moved, fooled)
    return End(moved, fooled, succeeded | fooled)


def minimise(problem: Problem, start: Inputs, c: PerExample, nearest: Nearest, steps: int) -> End:
    """L-BFGS-B from ``start``, one example after another."""
    moved = start.clone()
    rows = {int(i): problem.row(int(i)) for i in nearest.open.nonzero()}
    for i, row in rows.items():
        moved[i : i + 1] = _minimise_row(row, start[i : i + 1], c[i : i + 1], steps)
    problem.target.forwards += max(row.target.forwards for row in rows.values())
    problem.target.backwards += max(row.target.backwards for row in rows.values())
    _, fooled = problem.target.evaluate(moved, problem.labels)
    nearest.consider(moved, fooled)
    return End(moved, fooled, fooled)


def _minimise_row(problem: Problem, start: Tensor, c: Tensor, steps: int) -> Tensor:
    try:
        from scipy.optimize import minimize  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(
            "solver='lbfgs' needs SciPy, which is missing: pip install scipy; 'adam' does without"
        ) from error

    def point(flat: Any) -> Tensor:
        return torch.as_tensor(flat, dtype=start.dtype, device=start.device).view_as(start)

    def objective(flat: Any) -> tuple[float, Any]:
        lowered, _, gradient = problem.objective_and_grad(point(flat), c)
        return lowered.item(), gradient.double().flatten().cpu().numpy()

    first, box = start.double().flatten().cpu().numpy(), [problem.bounds] * start.numel()
    result = minimize(objective, first, jac=True, method="L-BFGS-B", bounds=box, options={"maxiter": steps})
    return point(result.x).clamp(*problem.bounds)


def _annealed(first: float, last: float, steps: int) -> Iterator[float]:
    """Values for so many steps, along half a cosine wave."""
    return (functional.adversarial.cosine_annealed(first, last, k / steps) for k in range(steps))


def _check_gamma(gamma: float) -> None:
    if not 0.0 < gamma < 1.0:
        raise ValueError(f"gamma must be in (0, 1), got {gamma}")
