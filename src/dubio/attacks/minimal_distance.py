"""The nearest inputs that a network gets wrong: DDN (Rony et al. 2019) and FMN (Pintor et al. 2021).

Both walk along the boundary on a sphere that shrinks while the walk succeeds and grows while it fails. The smallest
perturbation by which the mean over the draws was fooled on the way is kept. Where there was none, the result is the
inputs as they were, with ``fooled`` False: a failure is never counted as success. Inputs that are got wrong already
stay as they are too, with ``fooled`` True.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dubio import functional
from dubio.attacks.attack import Attack, Perturbed
from dubio.attacks.gradient import check_steps
from dubio.attacks.progress import Ticker
from dubio.attacks.victims import Victim, View
from dubio.functional.adversarial import AttackLoss, Norm

__all__ = ["Ddn", "Fmn", "Nearest"]


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
class Ddn(Attack):
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
            raise ValueError(f"norm must be 'l2' for Ddn, got {self.norm!r}; Fmn has both norms")
        if not 0.0 < self.radius < math.inf:
            raise ValueError(f"radius must be positive and finite, got {self.radius}")

    def _num_steps(self) -> int:
        return self.steps

    def _perturb(self, victim: Victim, inputs: Tensor, targets: Tensor, ticker: Ticker) -> Perturbed:
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

    def _direction(self, victim: Victim, gradient: Tensor) -> Tensor:
        """Along the gradient; where it vanishes, as that of a saturated network does, anywhere."""
        vanished = functional.adversarial.perturbation_norm(gradient, "linf") == 0.0
        anywhere = victim.random(gradient.shape, "normal", gradient)
        chosen = torch.where(functional.adversarial.as_rows(vanished, gradient), anywhere, gradient)
        return functional.adversarial.steepest_direction(chosen, self.norm)


@dataclass(frozen=True)
class Fmn(Attack):
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
            raise ValueError("loss must be 'margin' or 'dlr' for Fmn, being zero at the boundary, got 'cross_entropy'")

    def _num_steps(self) -> int:
        return self.steps

    def _perturb(self, victim: Victim, inputs: Tensor, targets: Tensor, ticker: Ticker) -> Perturbed:
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

    def _linear_distance(self, perturbation: Tensor, view: View) -> Tensor:
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
