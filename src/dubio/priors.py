"""Priors over weights: frozen values with a density and, where it exists, a closed form of the divergence.

``CentredNormal`` is centred on the weights of the network that was converted; the posterior keeps those weights.
The widths of priors are not trained.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from dubio import functional
from dubio.checks import check_finite, check_positive

__all__ = ["CentredNormal", "Normal", "Prior", "ScaleMixture"]

Weights = Float[Tensor, "*shape"]


@dataclass(frozen=True)
class Normal:
    """``N(mean, std^2)`` for every weight (E-17)."""

    mean: float = 0.0
    std: float = 1.0
    has_closed_divergence: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_finite("mean of a prior", self.mean)
        check_positive("std of a prior", self.std)

    @property
    def parameters(self) -> tuple[float, ...]:
        """Mean and standard deviation."""
        return self.mean, self.std

    def log_prob(self, weight: Weights, centre: Weights | None) -> Weights:
        """Log density, element by element."""
        return functional.variational.normal_log_prob(weight, self.mean, self.std)

    def divergence(self, mean: Weights, std: Weights, centre: Weights | None) -> Weights:
        """Divergence of ``N(mean, std^2)`` from this prior, weight by weight."""
        return functional.variational.gaussian_kl(mean, std, self.mean, self.std)


@dataclass(frozen=True)
class CentredNormal:
    """``N(w0, std^2)``, with ``w0`` the weight of the network that was converted: weights stay near it."""

    std: float = 0.1
    has_closed_divergence: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("std of a prior", self.std)

    @property
    def parameters(self) -> tuple[float, ...]:
        """Standard deviation, after a mean that the weights of the converted network replace."""
        return 0.0, self.std

    def log_prob(self, weight: Weights, centre: Weights | None) -> Weights:
        """Log density, element by element."""
        assert centre is not None
        return functional.variational.normal_log_prob(weight, centre, self.std)

    def divergence(self, mean: Weights, std: Weights, centre: Weights | None) -> Weights:
        """Divergence of ``N(mean, std^2)`` from this prior, weight by weight."""
        assert centre is not None
        return functional.variational.gaussian_kl(mean, std, centre, self.std)


@dataclass(frozen=True)
class ScaleMixture:
    """``weight * N(0, wide_std^2) + (1 - weight) * N(0, narrow_std^2)`` for every weight (E-18).

    The defaults are those of Blundell et al. 2015 as most of their experiments use them: 1/2, exp(-1), exp(-7). The
    divergence has no closed form (but for the two cases in which the mixture is a Gaussian) and is estimated by Monte
    Carlo.
    """

    weight: float = 0.5
    wide_std: float = math.exp(-1)
    narrow_std: float = math.exp(-7)

    def __post_init__(self) -> None:
        if not 0.0 < self.weight <= 1.0:
            raise ValueError(f"weight of the wide component must be in (0, 1], got {self.weight}")
        check_positive("wide_std of a prior", self.wide_std)
        check_positive("narrow_std of a prior", self.narrow_std)
        if self.narrow_std > self.wide_std:
            raise ValueError(f"narrow_std must be at most wide_std = {self.wide_std}, got {self.narrow_std}")

    @property
    def parameters(self) -> tuple[float, ...]:
        """Weight of the wide component, and both standard deviations."""
        return self.weight, self.wide_std, self.narrow_std

    @property
    def std(self) -> float:
        """Standard deviation of the mixture."""
        return math.sqrt(self.weight * self.wide_std**2 + (1.0 - self.weight) * self.narrow_std**2)

    @property
    def has_closed_divergence(self) -> bool:
        """True only where the mixture is a Gaussian."""
        return self.weight == 1.0 or self.narrow_std == self.wide_std

    def log_prob(self, weight: Weights, centre: Weights | None) -> Weights:
        """Log density, element by element."""
        return functional.variational.scale_mixture_log_prob(weight, self.weight, self.wide_std, self.narrow_std)

    def divergence(self, mean: Weights, std: Weights, centre: Weights | None) -> Weights:
        """Divergence of ``N(mean, std^2)`` from this prior, weight by weight, where the mixture is a Gaussian."""
        if not self.has_closed_divergence:
            raise ValueError("the divergence from a scale mixture has no closed form; it is estimated from draws")
        return functional.variational.gaussian_kl(mean, std, 0.0, self.wide_std)


Prior = Normal | CentredNormal | ScaleMixture
