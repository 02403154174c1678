"""The minimum-norm perturbation of E-64: a weight on the distance, searched for each example.

    r* = argmin_r  c ||r||_2 + CE(f(x + r), t)     with x + r in the box

A large c keeps r short, a small one lets it reach the boundary. Each example has its own: ten times more while the
attack succeeds, a tenth while it fails, then bisections on a logarithmic scale. The shortest r that has fooled the mean
over the draws is kept. Where there was none, the inputs stay as they were, ``fooled`` is False and c is NaN; inputs
that are got wrong already stay too, with ``fooled`` True.

References: Szegedy et al. 2014, from which the reference solver comes, and Carlini and Wagner 2017 for the margin.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from dubio import functional
from dubio.attacks.attack import Attack, Perturbed, check_count
from dubio.attacks.gradient import check_steps
from dubio.attacks.minimal_distance import Nearest
from dubio.attacks.progress import Ticker
from dubio.attacks.solvers import End, Problem, descend, minimise
from dubio.attacks.victims import Model, Victim
from dubio.functional.adversarial import Norm

__all__ = ["MinimumNorm"]

CHOICES = {
    "mode": ("targeted", "untargeted"),
    "target": ("runner_up", "random", "best_of_all"),
    "solver": ("adam", "lbfgs"),
}
DECADES = 6
"""How often c is multiplied or divided by ten before it is given up."""
START_STD = 1e-3
"""Of the noise that a search starts with, since the gradient of the norm is not defined at zero."""


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
            raise ValueError(f"norm must be 'l2' for MinimumNorm, got {self.norm!r}; Fmn has both norms")
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

    def victim(self, model: Model) -> Victim:
        """The network as this attack looks at it; a line search needs noise that stays."""
        victim = super().victim(model)
        return replace(victim, noise="frozen") if self.solver == "lbfgs" and self.noise == "fresh" else victim

    def _perturb(self, victim: Victim, inputs: Tensor, targets: Tensor, ticker: Ticker) -> Perturbed:
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

    def _solve_once(self, problem: Problem, nearest: Nearest, ticker: Ticker) -> Perturbed:
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

    def _search(self, problem: Problem, nearest: Nearest, kept: Tensor, ticker: Ticker) -> Tensor:
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

    def _goals(self, victim: Victim, log_probs: Tensor, labels: Tensor) -> list[Int[Tensor, " batch"] | None]:
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
