"""Two ways to lower ``c ||r||_2 + loss`` (E-64) for a batch of examples, each with a c of its own.

``descend`` is Adam with a projection onto the box after every step, all examples at once. ``minimise`` is L-BFGS-B, as
in Szegedy et al. 2014, one example after another. It comes from SciPy: torch's L-BFGS knows no bounds, and putting the
box into a sigmoid would leave pixels at its very edge, most of a digit's, without a gradient.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dubio import functional
from dubio.attacks.minimal_distance import Nearest
from dubio.attacks.victims import Victim

__all__ = ["End", "Problem", "descend", "minimise"]

LATE = 0.9
"""From this share of the steps on, a run that has settled tells whether its c lets the attack succeed."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Inputs to move, and where to.

    Success is judged by ``labels``, the true ones or those wanted. ``goals`` are classes to go to on the way, where the
    attack has chosen some itself.
    """

    victim: Victim
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
