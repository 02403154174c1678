"""Mixtures of factorised Gaussians with equal weights, the posterior of input noise.

The divergence of a mixture from a Gaussian has no closed form. ``mixture_log_prob`` estimates it from draws; it is at
most the mean of the components' divergences, since a divergence is convex; and the divergence of the one Gaussian that
``averaged_gaussian`` gives is what the reference code computes, though it is not that of the mixture.

Reference: Trinh, Kaski and Heinonen 2020, Scalable Bayesian neural networks by layer-wise input augmentation.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dubio.functional.bayesian import normal_log_prob

__all__ = ["averaged_gaussian", "component_of", "mixture_log_prob"]


def component_of(uniform: Float[Tensor, "*rows"], num_components: int) -> Int[Tensor, "*rows"]:
    """Which component a row is drawn from, from uniform noise in [0, 1)."""
    return (uniform * num_components).long().clamp_max(num_components - 1)


def mixture_log_prob(
    value: Float[Tensor, "*rows channel"],
    means: Float[Tensor, "component channel"],
    stds: Float[Tensor, "component channel"],
) -> Float[Tensor, "*rows"]:
    """Log density of the mixture: channels are independent within a component, not across the mixture."""
    per_component = normal_log_prob(value.unsqueeze(-2), means, stds).sum(dim=-1)
    return torch.logsumexp(per_component, dim=-1) - math.log(len(means))


def averaged_gaussian(
    means: Float[Tensor, "component channel"], stds: Float[Tensor, "component channel"]
) -> tuple[Float[Tensor, " channel"], Float[Tensor, " channel"]]:
    """Mean and standard deviation of the mean of one draw from each component, ``sqrt(sum s_k^2) / K``."""
    return means.mean(dim=0), stds.square().sum(dim=0).sqrt() / len(means)
