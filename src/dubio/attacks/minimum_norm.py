"""The nearest inputs that a network gets wrong: DDN (Rony et al. 2019) and FMN (Pintor et al. 2021).

Both walk along the boundary on a sphere that shrinks while the walk succeeds and grows while it fails. The smallest
perturbation by which the mean over the draws was fooled on the way is kept. Where there was none, the result is the
inputs as they were, with ``fooled`` False: a failure is never counted as success. Inputs that are got wrong already
stay as they are too, with ``fooled`` True.

The minimum-norm perturbation of E-64: a weight on the distance, searched for each example.

    r* = argmin_r  c ||r||_2 + CE(f(x + r), t)     with x + r in the box

A large c keeps r short, a small one lets it reach the boundary. Each example has its own: ten times more while the
attack succeeds, a tenth while it fails, then bisections on a logarithmic scale. The shortest r that has fooled the mean
over the draws is kept. Where there was none, the inputs stay as they were, ``fooled`` is False and c is NaN; inputs
that are got wrong already stay too, with ``fooled`` True.

References: Szegedy et al. 2014, from which the reference solver comes, and Carlini and Wagner 2017 for the margin.

Two ways to lower ``c ||r||_2 + loss`` (E-64) for a batch of examples, each with a c of its own.

``descend`` is Adam with a projection onto the box after every step, all examples at once. ``minimise`` is L-BFGS-B, as
in Szegedy et al. 2014, one example after another. It comes from SciPy: torch's L-BFGS knows no bounds, and putting the
box into a sigmoid would leave pixels at its very edge, most of a digit's, without a gradient.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dubio import functional
from dubio.attacks.attack import Attack, Perturbed, Progress, check_count
from dubio.attacks.gradient import check_steps
from dubio.attacks.target import AttackTarget, LossAndGrad, Model
from dubio.functional.adversarial import AttackLoss, Norm


class Nearest:
    """The smallest perturbation found so far that fools the network; at first none."""

    def __init__(self, inputs: Float[Tensor, "batch ..."], norm: Norm) -> None:
        self._clean, self._norm = inputs, norm
        self.inputs = inputs
        self.size = torch.full_like(functional.adversarial.perturbation_norm(inputs, norm), math.inf)
        self.open = self.size.isinf()
        """Examples that are still searched; the others stay as they are."""

    @property
    def found(self) -> Bool[Tensor, " batch"]:
        """Whether there is one."""
        return self.size.isfinite()

    def consider(self, moved: Float[Tensor, "batch ..."], fooled: Bool[Tensor, " batch"]) -> None:
        """Keep what is better."""
        size = functional.adversarial.perturbation_norm(moved - self._clean, self._norm)
        better = self.open & fooled & (size < self.size)
        self.inputs = torch.where(functional.adversarial.as_rows(better, moved), moved, self.inputs)
        self.size = torch.where(better, size, self.size)


@dataclass(frozen=True)
class DDN(Attack):
    """Decoupled direction and norm: the smallest perturbation in L2.

    Args:
        steps: how many.
        step_size: length of the first step along the gradient; annealed to a hundredth of it.
        radius: of the first sphere.
        gamma: share by which the sphere shrinks after success and grows after failure.
    """

    norm: Norm = "l2"
    steps: int = 100
    step_size: float = 1.0
    radius: float = 1.0
    gamma: float = 0.05

    def __post_init__(self) -> None:
        super().__post_init__()
        check_steps(self.steps, self.step_size)
        check_gamma(self.gamma)
        if self.norm != "l2":
            raise ValueError(f"norm must be 'l2' for DDN, got {self.norm!r}; FMN has both norms")
        if not 0.0 < self.radius < math.inf:
            raise ValueError(f"radius must be positive and finite, got {self.radius}")

    def _num_steps(self) -> int:
        return self.steps

    def _perturb(self, victim: AttackTarget, inputs: Tensor, targets: Tensor, ticker: Progress) -> Perturbed:
        view, moved = victim.look(inputs, targets), inputs
        nearest = Nearest(inputs, self.norm)
        radius = torch.full_like(nearest.size, self.radius)
        for size in annealed(self.step_size, self.step_size / 100.0, self.steps):
            nearest.consider(moved, view.fooled)
            radius = functional.adversarial.next_decoupled_radius(radius, view.fooled, self.gamma)
            ahead = moved - inputs + size * self._direction(victim, view.gradient)
            on_sphere = functional.adversarial.steepest_direction(ahead, self.norm) * functional.adversarial.as_rows(
                radius, inputs
            )
            moved = (inputs + on_sphere).clamp(*self.bounds)
            view = victim.look(moved, targets)
            ticker.tick()
        nearest.consider(moved, view.fooled)
        return Perturbed(nearest.inputs, victim.values(nearest.inputs, targets), nearest.found)

    def _direction(self, victim: AttackTarget, gradient: Tensor) -> Tensor:
        """Along the gradient; where it vanishes, as that of a saturated network does, anywhere."""
        vanished = functional.adversarial.perturbation_norm(gradient, "linf") == 0.0
        anywhere = victim.random(gradient.shape, "normal", gradient)
        chosen = torch.where(functional.adversarial.as_rows(vanished, gradient), anywhere, gradient)
        return functional.adversarial.steepest_direction(chosen, self.norm)


@dataclass(frozen=True)
class FMN(Attack):
    """Fast minimum norm: the smallest perturbation in L2 or Linf.

    Where nothing was found yet, the first order says how far the boundary is; so the loss must be a margin, which is
    zero there.

    Args:
        steps: how many.
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
        check_steps(self.steps, self.step_size)
        check_gamma(self.gamma)
        if not 0.0 < self.last_gamma <= self.gamma:
            raise ValueError(f"last_gamma must be positive and at most gamma = {self.gamma}, got {self.last_gamma}")
        if self.loss == "cross_entropy":
            raise ValueError("loss must be 'margin' or 'dlr' for FMN, being zero at the boundary, got 'cross_entropy'")

    def _num_steps(self) -> int:
        return self.steps

    def _perturb(self, victim: AttackTarget, inputs: Tensor, targets: Tensor, ticker: Progress) -> Perturbed:
        view, moved = victim.look(inputs, targets), inputs
        nearest = Nearest(inputs, self.norm)
        radius = torch.full_like(nearest.size, math.inf)
        sizes = annealed(self.step_size, self.step_size / 100.0, self.steps)
        for size, gamma in zip(sizes, annealed(self.gamma, self.last_gamma, self.steps), strict=True):
            nearest.consider(moved, view.fooled)
            linear = self._linear_distance(moved - inputs, view)
            radius = functional.adversarial.next_boundary_radius(radius, view.fooled, nearest.size, linear, gamma)
            ahead = moved - inputs + size * functional.adversarial.steepest_direction(view.gradient, "l2")
            moved = (inputs + functional.adversarial.project_perturbation(ahead, self.norm, radius)).clamp(*self.bounds)
            view = victim.look(moved, targets)
            ticker.tick()
        nearest.consider(moved, view.fooled)
        return Perturbed(nearest.inputs, victim.values(nearest.inputs, targets), nearest.found)

    def _linear_distance(self, perturbation: Tensor, view: LossAndGrad) -> Tensor:
        """Norm of the perturbation that reaches the boundary to first order."""
        size = functional.adversarial.perturbation_norm(perturbation, self.norm)
        return size + functional.adversarial.boundary_distance(view.values, view.gradient, self.norm)


def annealed(first: float, last: float, steps: int) -> Iterator[float]:
    """Values for so many steps, along half a cosine wave."""
    return (functional.adversarial.cosine_annealed(first, last, k / steps) for k in range(steps))


def check_gamma(gamma: float) -> None:
    """Refuse what is no share by which a radius changes."""
    if not 0.0 < gamma < 1.0:
        raise ValueError(f"gamma must be in (0, 1), got {gamma}")


CHOICES = {
    "mode": ("targeted", "untargeted"),
    "target": ("runner_up", "random", "best_of_all"),
    "solver": ("adam", "lbfgs"),
}


DECADES = 6
"""How often c is multiplied or divided by ten before it is given up."""


START_STD = 1e-3
"""Of the noise that a search starts with, since the gradient of the norm is not defined at zero."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Inputs to move, and where to.

    Success is judged by ``labels``, the true ones or those wanted. ``goals`` are classes to go to on the way, where the
    attack has chosen some itself.
    """

    victim: AttackTarget
    inputs: Float[Tensor, "batch ..."]
    labels: Int[Tensor, " batch"]
    goals: Int[Tensor, " batch"] | None
    bounds: tuple[float, float]

    def look(
        self, moved: Float[Tensor, "batch ..."], c: Float[Tensor, " batch"]
    ) -> tuple[Float[Tensor, " batch"], Bool[Tensor, " batch"], Float[Tensor, "batch ..."]]:
        """What is to be lowered, whether the network is fooled, and the gradient."""
        leaf = moved.detach().requires_grad_(True)
        hinged = self.victim.loss != "cross_entropy"
        with torch.enable_grad():
            values, fooled = self.victim.judge(leaf, self.labels, self.goals)
            lowered = functional.adversarial.minimum_norm_objective(leaf - self.inputs, values, c, hinged)
            gradient = self.victim.gradient(lowered, leaf)
        return lowered.detach(), fooled, gradient

    def row(self, i: int) -> "Problem":
        """The problem of one example."""
        own = slice(i, i + 1)
        victim = replace(self.victim, first_row=self.victim.first_row + i)
        goals = None if self.goals is None else self.goals[own]
        return Problem(victim, self.inputs[own], self.labels[own], goals, self.bounds)


class End(NamedTuple):
    """Where a solver came to."""

    moved: Float[Tensor, "batch ..."]
    fooled: Bool[Tensor, " batch"]
    """Whether the network is fooled there."""
    settled: Bool[Tensor, " batch"]
    """Whether it was there, or shortly before."""


@dataclass(frozen=True)
class MinimumNorm(Attack):
    """The shortest perturbation in L2 that a weight on the distance finds (E-64).

    With a cross-entropy it is the loss itself; a margin or DLR counts up to the boundary and no further (a hinge), so
    that it does not run on without end when a class is to be left.

    Args:
        mode: ``"targeted"`` goes to a class of the attack's choice, ``"untargeted"`` leaves the true one. Either way
            the network is fooled when it no longer says the true class.
        target: the class gone to: ``"runner_up"``, the likeliest after the true one; ``"random"``; or
            ``"best_of_all"``, which goes to each and keeps the nearest. With ``targeted=True`` it is that of the call.
        solver: ``"adam"``, all examples at once; or ``"lbfgs"``, the reference, one example after another and always on
            frozen draws.
        steps: of the solver, for each c.
        step_size: learning rate of Adam.
        c: the first weight of the distance.
        bisections: how often c is bisected once it is known to within a factor of ten.
        search: whether every example gets a c of its own. Without, ``c`` holds for all, and a perturbation is what it
            is where the solver ends: beyond the boundary, by more the smaller c is.
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
        check_steps(self.steps, self.step_size)
        check_count("bisections", self.bisections)
        if self.norm != "l2":
            raise ValueError(f"norm must be 'l2' for MinimumNorm, got {self.norm!r}; FMN has both norms")
        for name, options in CHOICES.items():
            if getattr(self, name) not in options:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {getattr(self, name)!r}")
        if self.targeted and self.mode != "targeted":
            raise ValueError("mode must be 'targeted' where targeted=True, got 'untargeted'")
        if not self.search and self.target == "best_of_all":
            raise ValueError("target must not be 'best_of_all' with search=False, which keeps no nearest perturbation")
        if not 0.0 < self.c < math.inf:
            raise ValueError(f"c must be positive and finite, got {self.c}")

    def _num_steps(self) -> int:
        return DECADES + self.bisections if self.search else 1

    def victim(self, model: Model) -> AttackTarget:
        """The network as this attack looks at it; a line search needs noise that stays."""
        victim = super().victim(model)
        return replace(victim, noise="frozen") if self.solver == "lbfgs" and self.noise == "fresh" else victim

    def _perturb(self, victim: AttackTarget, inputs: Tensor, targets: Tensor, ticker: Progress) -> Perturbed:
        log_probs = functional.uncertainty.predictive_log_probs(victim.log_probs(inputs))
        nearest = Nearest(inputs, self.norm)
        nearest.consider(inputs, (log_probs.argmax(dim=-1) == targets) == self.targeted)
        c = torch.full_like(nearest.size, math.nan)
        all_goals = self._goals(victim, log_probs, targets)
        ticker.expect((len(all_goals) - 1) * self._num_steps())
        for goals in all_goals:
            problem = Problem(victim, inputs, targets, goals, self.bounds)
            if not self.search:
                return self._solve_once(problem, nearest, ticker)
            c = self._search(problem, nearest, c, ticker)
        return Perturbed(nearest.inputs, victim.values(nearest.inputs, targets), nearest.found, c)

    def _solve_once(self, problem: Problem, nearest: Nearest, ticker: Progress) -> Perturbed:
        """One c for all; what fools the network already, and what does not in the end, stays as it was."""
        already = nearest.size == 0.0
        nearest.open = ~already
        c = torch.full_like(nearest.size, self.c)
        end = self._solve(problem, c, nearest)
        ticker.tick()
        counts = end.fooled & ~already
        moved = torch.where(functional.adversarial.as_rows(counts, end.moved), end.moved, problem.inputs)
        values = problem.victim.values(moved, problem.labels)
        return Perturbed(moved, values, counts | already, torch.where(counts, c, math.nan))

    def _search(self, problem: Problem, nearest: Nearest, kept: Tensor, ticker: Progress) -> Tensor:
        """Try one c after another; returns those with which the perturbations now kept were found."""
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
            ticker.tick()
        return kept

    def _solve(self, problem: Problem, c: Tensor, nearest: Nearest) -> End:
        noise = problem.victim.random(problem.inputs.shape, "normal", problem.inputs)
        start = (problem.inputs + START_STD * noise).clamp(*self.bounds)
        if self.solver == "lbfgs":
            return minimise(problem, start, c, nearest, self.steps)
        return descend(problem, start, c, nearest, self.steps, self.step_size)

    def _goals(self, victim: AttackTarget, log_probs: Tensor, labels: Tensor) -> list[Int[Tensor, " batch"] | None]:
        """Classes to go to, one set after another; None where the labels themselves say it."""
        num_classes = log_probs.shape[-1]
        if self.targeted or self.mode == "untargeted":
            return [None]
        if self.target == "best_of_all":
            return [(labels + offset) % num_classes for offset in range(1, num_classes)]
        if self.target == "random":
            uniform = victim.random((len(labels), 1), "uniform", log_probs).squeeze(1)
            return [(labels + 1 + (uniform * (num_classes - 1)).long().clamp_max(num_classes - 2)) % num_classes]
        return [log_probs.scatter(-1, labels.unsqueeze(-1), -math.inf).argmax(dim=-1)]


LATE = 0.9
"""From this share of the steps on, a run that has settled tells whether its c lets the attack succeed."""


def descend(
    problem: Problem,
    start: Float[Tensor, "batch ..."],
    c: Float[Tensor, " batch"],
    nearest: Nearest,
    steps: int,
    step_size: float,
) -> End:
    """Steps of Adam from ``start``. All points on the way that fool the network are shown to ``nearest``."""
    moved = start.clone()
    optimizer = torch.optim.Adam([moved], lr=step_size)
    succeeded = torch.zeros_like(problem.labels, dtype=torch.bool)
    for k in range(steps):
        _, fooled, moved.grad = problem.look(moved, c)
        nearest.consider(moved, fooled)
        if k >= LATE * steps:
            succeeded |= fooled
        optimizer.step()
        moved.clamp_(*problem.bounds)
    _, fooled = problem.victim.judge(moved, problem.labels)
    nearest.consider(moved, fooled)
    return End(moved, fooled, succeeded | fooled)


def minimise(
    problem: Problem, start: Float[Tensor, "batch ..."], c: Float[Tensor, " batch"], nearest: Nearest, steps: int
) -> End:
    """L-BFGS-B from ``start``, one example after another."""
    moved = start.clone()
    rows = {int(i): problem.row(int(i)) for i in nearest.open.nonzero()}
    for i, row in rows.items():
        moved[i : i + 1] = _minimise_one(row, start[i : i + 1], c[i : i + 1], steps)
    problem.victim.forwards += max(row.victim.forwards for row in rows.values())
    problem.victim.backwards += max(row.victim.backwards for row in rows.values())
    _, fooled = problem.victim.judge(moved, problem.labels)
    nearest.consider(moved, fooled)
    return End(moved, fooled, fooled)


def _minimise_one(problem: Problem, start: Tensor, c: Tensor, steps: int) -> Tensor:
    def objective(flat: Any) -> tuple[float, Any]:
        moved = torch.as_tensor(flat, dtype=start.dtype, device=start.device).view_as(start)
        lowered, _, gradient = problem.look(moved, c)
        return lowered.item(), gradient.double().flatten().cpu().numpy()

    bounds = [problem.bounds] * start.numel()
    found = _scipy_minimize()(
        objective,
        start.double().flatten().cpu().numpy(),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": steps},
    )
    return torch.as_tensor(found.x, dtype=start.dtype, device=start.device).view_as(start).clamp(*problem.bounds)


def _scipy_minimize() -> Any:
    try:
        from scipy.optimize import minimize  # type: ignore[import-untyped]
    except ImportError as error:
        raise ImportError(
            "solver='lbfgs' needs SciPy, which is missing: pip install scipy; 'adam' does without"
        ) from error
    return minimize
