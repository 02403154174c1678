"""Formulas of noise: Gaussian activations, noise on deterministic weights, mixtures of Gaussians, and dropout.

Activations. ``z = mean + std * noise`` with a scale that depends on the input. SE-SNN rewards the entropy of the scale
up to a margin (E-56), VIB penalises the divergence from a standard normal (E-57), PNI learns how much of a weight's own
spread is added to it (E-58). Entropies are those of ``torch.distributions`` (T-57); the divergence is summed over
dimensions and left per example (T-58); the spread of a weight carries no gradient (T-56); all pairs of Gaussians equal
the formulas pair by pair. References: Yu et al. 2021 (SE-SNN); Alemi et al. 2017 (deep VIB); He et al. 2019 (PNI).

Mixtures of factorised Gaussians with equal weights are the posterior of input noise. Their divergence from a Gaussian
has no closed form. ``mixture_log_prob`` estimates it from draws; it is at most the mean of the components' divergences,
since a divergence is convex. The reference code uses the divergence of the single Gaussian that ``averaged_gaussian``
gives, which is not that of the mixture. Reference: Trinh, Kaski and Heinonen 2020, Scalable Bayesian neural networks by
layer-wise input augmentation.

Dropout is a function of uniform noise: values below the rate are dropped, the others scaled so that means stay. With
noise off the layer is the identity, so that no factor is left for evaluation (the reference code of Li and Gal 2017 has
one, which would scale twice). References: Srivastava et al. 2014; Klambauer et al. 2017 for the alpha form, which keeps
the variance too.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dubio.functional.variational import gaussian_kl, normal_log_prob, softplus
from dubio.functional.wasserstein import at_least_float32, not_negative, squared_distances

Values = Float[Tensor, "*shape"]
Rows = Float[Tensor, "*batch dim"]
Classes = Float[Tensor, "class dim"]
Components = Float[Tensor, "component channel"]

SMALLEST_STD = 1e-6
BOTTLENECK_SHIFT = 5.0
SELU_FLOOR = -1.7580993408473766
"""What a SELU gives far below zero: minus its scale times its alpha."""


def gaussian_activation(mean: Values, std: Values, noise: Values) -> Values:
    """One draw of an activation, ``z = mean + std * noise`` (E-55)."""
    return mean + std * noise


def activation_std(rho: Values) -> Values:
    """The scale of SE-SNN, ``softplus(rho) + 1e-6`` (E-55): never so small that its logarithm is lost."""
    return softplus(rho) + SMALLEST_STD


def bottleneck_std(rho: Values) -> Values:
    """The scale of deep VIB, ``softplus(rho - 5)`` (with E-57): a fresh network is nearly deterministic."""
    return softplus(rho - BOTTLENECK_SHIFT)


def entropy_margin(std: Rows, margin: float) -> Float[Tensor, "*batch"]:
    """``max(0, margin - mean_j log std_j)`` for each example (E-56)."""
    return (margin - std.log().mean(dim=-1)).relu()


def standard_normal_kl(mean: Rows, std: Rows) -> Float[Tensor, "*batch"]:
    """Divergence of ``N(mean, std^2)`` from ``N(0, I)``, summed over dimensions (E-7, E-57)."""
    return gaussian_kl(mean, std, 0.0, 1.0).sum(dim=-1)


def parametric_noise(weight: Values, scale: Float[Tensor, "*scale"], noise: Values) -> Values:
    """What is added to ``W``: ``scale * s_W * noise``, ``s_W`` the deviation of all entries, without gradient (E-58).

    The scale is one number for the layer, one for each channel or one for each entry: it is broadcast.
    """
    if weight.numel() < 2:
        raise ValueError(f"weight must have at least 2 entries to have a spread, got {weight.numel()}; leave it out")

    return scale * (weight.detach().std() * noise)


def gaussian_wasserstein_matrix(
    mean: Rows, std: Rows, class_mean: Classes, class_std: Classes
) -> Float[Tensor, "*batch class"]:
    """Squared 2-Wasserstein distance of diagonal Gaussians, ``|m - m_j|^2 + |s - s_j|^2``, for every pair (14.1)."""
    return squared_distances(torch.cat([mean, std], dim=-1), torch.cat([class_mean, class_std], dim=-1))


def gaussian_kl_matrix(mean: Rows, std: Rows, class_mean: Classes, class_std: Classes) -> Float[Tensor, "*batch class"]:
    """Divergence ``KL[N(mean, std^2) || N(class_mean, class_std^2)]`` for every pair (E-7, 14.1), by matrix products.

    The square is expanded about the mean of the classes, as in ``squared_distances``: in float32 it is off by a few
    1e-7 of ``|(class_mean - centre) / class_std|^2``, which is much for classes hundreds of deviations apart.
    """
    with torch.autocast(mean.device.type, enabled=False):
        mean, std = at_least_float32(mean), at_least_float32(std)
        class_mean, class_std = at_least_float32(class_mean), at_least_float32(class_std)
        centre = class_mean.mean(dim=0).detach()
        mean, class_mean = mean - centre, class_mean - centre
        precision = class_std.square().reciprocal()
        squares = (std.square() + mean.square()) @ precision.mT - 2.0 * (mean @ (class_mean * precision).mT)
        class_terms = (class_mean.square() * precision + 2.0 * class_std.log() - 1.0).sum(dim=-1)
        return not_negative(0.5 * (squares + class_terms) - std.log().sum(dim=-1, keepdim=True))


def component_of(uniform: Float[Tensor, "*rows"], num_components: int) -> Int[Tensor, "*rows"]:
    """Which component a row is drawn from, from uniform noise in [0, 1)."""
    return (uniform * num_components).long().clamp_max(num_components - 1)


def mixture_log_prob(
    value: Float[Tensor, "*rows channel"], means: Components, stds: Components
) -> Float[Tensor, "*rows"]:
    """Log density of the mixture: channels are independent within a component, not across the mixture."""
    per_component = normal_log_prob(value.unsqueeze(-2), means, stds).sum(dim=-1)
    return torch.logsumexp(per_component, dim=-1) - math.log(len(means))


def averaged_gaussian(
    means: Components, stds: Components
) -> tuple[Float[Tensor, " channel"], Float[Tensor, " channel"]]:
    """Mean and standard deviation of the mean of one draw from each component, ``sqrt(sum s_k^2) / K``."""
    return means.mean(dim=0), stds.square().sum(dim=0).sqrt() / len(means)


def dropout(input: Values, uniform: Float[Tensor, "*mask"], rate: float) -> Values:
    """Inverted dropout: zero with probability ``rate``, else divided by ``1 - rate``."""
    return torch.where(uniform < rate, 0.0, input * (1.0 / (1.0 - rate)))


def alpha_dropout(input: Values, uniform: Float[Tensor, "*mask"], rate: float) -> Values:
    """Dropout to the floor of a SELU, then shifted and scaled so that zero mean and unit variance stay."""
    scale = 1.0 / math.sqrt((1.0 - rate) * (1.0 + rate * SELU_FLOOR**2))
    shift = -scale * SELU_FLOOR * rate
    return torch.where(uniform < rate, SELU_FLOOR, input) * scale + shift
