"""Scores of predictive distributions for real targets: the continuous ranked probability score.

Reference: Grimit et al. 2006 for mixtures of Gaussians; Gneiting and Raftery 2007.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dubio.functional.bayesian import safe_sqrt

__all__ = ["crps_mixture"]


def crps_mixture(
    means: Float[Tensor, "sample *batch"], stds: Float[Tensor, "sample *batch"], targets: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """``E|X - y| - E|X - X'| / 2`` for the mixture of the draws' Gaussians, in closed form; less is better.

    In the unit of the targets: for a single point it is the absolute error.
    """
    error = _mean_absolute(means - targets, stds).mean(dim=0)
    spread = torch.zeros_like(error)
    for mean, std in zip(means, stds, strict=True):  # no array over all pairs of draws
        spread = spread + _mean_absolute(means - mean, safe_sqrt(stds.square() + std.square())).mean(dim=0)
    return error - 0.5 * spread / len(means)


def _mean_absolute(mean: Float[Tensor, "*shape"], std: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """``E|Z|`` of a Gaussian."""
    scaled = mean / std.clamp_min(torch.finfo(std.dtype).tiny)
    density = torch.exp(-0.5 * scaled.square()) / math.sqrt(2.0 * math.pi)
    return 2.0 * std * density + mean * torch.erf(scaled / math.sqrt(2.0))
