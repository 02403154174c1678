"""Regression: its predictive distribution, a mixture of one Gaussian per draw, and the curve it is tried on.

The mixture's quantiles have no closed form; they are found by bisection of its distribution function, which is exact to
the resolution of the number format (tested against SciPy). The curve is that of Blundell et al. 2015, section 5.2.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dubio.functional.bayesian import normal_log_prob

__all__ = ["beta_nll", "central_interval", "mixture_cdf", "mixture_quantile", "regression_curve"]


def beta_nll(
    targets: Float[Tensor, "..."], means: Float[Tensor, "*draws"], stds: Float[Tensor, "*draws"], beta: float
) -> Float[Tensor, "*draws"]:
    """Negative log density of ``N(means, stds^2)``, weighted by the variance to the power of ``beta`` (a constant).

    The gradient of a mean is ``(mean - target) / variance ** (1 - beta)``: at 0 it is that of the likelihood, which
    hardly moves a mean whose variance is large; at 1 that of the squared error. Seitzer et al. 2022, "On the Pitfalls
    of Heteroscedastic Uncertainty Estimation with Probabilistic Neural Networks", equation 6.
    """
    loss = -normal_log_prob(targets, means, stds)
    return loss if beta == 0.0 else loss * stds.detach().pow(2.0 * beta)


def mixture_cdf(
    value: Float[Tensor, "*batch"],
    means: Float[Tensor, "sample *batch"],
    stds: Float[Tensor, "sample *batch"],
) -> Float[Tensor, "*batch"]:
    """Probability that the equal mixture of ``N(means, stds^2)`` lies below ``value``."""
    below: Tensor = torch.special.ndtr((value - means) / stds)
    return below.mean(dim=0)


def mixture_quantile(
    level: float, means: Float[Tensor, "sample *batch"], stds: Float[Tensor, "sample *batch"]
) -> Float[Tensor, "*batch"]:
    """The value below which the equal mixture of ``N(means, stds^2)`` has probability ``level``."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"quantile level must be in (0, 1), got {level}")
    means, stds = means.double(), stds.double()

    # Every component's own quantile brackets the mixture's.
    own = means + stds * torch.special.ndtri(torch.tensor(level, dtype=torch.float64, device=means.device))
    low: Tensor = own.amin(dim=0)
    high: Tensor = own.amax(dim=0)
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = mixture_cdf(middle, means, stds) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)


def central_interval(
    draws: Float[Tensor, "sample *batch"], level: float
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """The edges between which the middle share ``level`` of some draws lies; between two draws, a straight line."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be in (0, 1), got {level}")
    low, high = draws.quantile(draws.new_tensor([0.5 - level / 2, 0.5 + level / 2]), dim=0)
    return low, high


def regression_curve(x: Float[Tensor, "*batch"], noise: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """``x + 0.3 sin(2 pi (x + e)) + 0.3 sin(4 pi (x + e)) + e`` (E-29): the same noise ``e`` enters three times."""
    phase = 2.0 * math.pi * (x + noise)
    return x + 0.3 * torch.sin(phase) + 0.3 * torch.sin(2.0 * phase) + noise
