"""Gaussian posteriors over weights, their priors, and the three ways to draw through a layer.

A weight has mean ``mu`` and standard deviation ``sigma = softplus(rho)`` (E-6, E-15). The complexity cost is the
divergence from a prior, in closed form where one exists (E-7), else by Monte Carlo from the noise itself (E-20).

Invariants and the tests that hold them: the scale survives ``rho = -30`` in float32 (T-1, T-7); the closed form equals
``torch.distributions`` (T-2); a mixture with equal widths is the Gaussian (T-5); a zero variance gives exact values and
finite gradients (T-15).

References: Blundell et al. 2015 (Bayes by Backprop); Kingma, Salimans and Welling 2015 (local reparameterisation);
Wen et al. 2018 (flipout).
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

__all__ = [
    "flip",
    "gaussian_kl",
    "inverse_softplus",
    "local_reparameterisation",
    "monte_carlo_kl",
    "normal_entropy",
    "normal_log_prob",
    "posterior_log_prob",
    "safe_sqrt",
    "scale_mixture_log_prob",
    "softplus",
]

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def softplus(rho: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Positive scale of an unconstrained parameter, ``log(1 + exp(rho))`` (E-6), exact far below zero."""
    return F.softplus(rho)


def inverse_softplus(std: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The ``rho`` whose softplus is ``std`` (E-6), without overflow for a large ``std``."""
    return std + torch.log(-torch.expm1(-std))


def local_reparameterisation(
    mean: Float[Tensor, "*shape"], variance: Float[Tensor, "*shape"], noise: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """One draw of a layer's outputs from their marginal moments, ``b = gamma + sqrt(delta) * zeta`` (E-25)."""
    return mean + (safe_sqrt(variance) * noise).to(mean.dtype)


def flip(
    mean: Float[Tensor, "*shape"], perturbation: Float[Tensor, "*shape"], signs: Float[Tensor, "*signs"]
) -> Float[Tensor, "*shape"]:
    """Outputs under flipout: the shared perturbation, its sign drawn anew for every example and unit."""
    return mean + perturbation * signs


def safe_sqrt(value: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Square root with exact values and a zero gradient at zero, where the true gradient is infinite."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1.0).sqrt(), 0.0)


def gaussian_kl(
    mean: Float[Tensor, "*shape"],
    std: Float[Tensor, "*shape"],
    prior_mean: Float[Tensor, "*shape"] | float,
    prior_std: float,
) -> Float[Tensor, "*shape"]:
    """Divergence of one Gaussian from another, weight by weight (E-7)."""
    ratio = std / prior_std
    distance = (mean - prior_mean) / prior_std
    return 0.5 * (ratio.square() + distance.square() - 1.0) - ratio.log()


def normal_log_prob(
    value: Float[Tensor, "..."], mean: Float[Tensor, "..."] | float, std: Float[Tensor, "..."] | float
) -> Float[Tensor, "..."]:
    """Log density of ``N(mean, std^2)``, element by element (E-17)."""
    log_std = std.log() if isinstance(std, Tensor) else math.log(std)
    return -0.5 * ((value - mean) / std).square() - log_std - HALF_LOG_TWO_PI


def normal_entropy(std: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Entropy of ``N(., std^2)`` in nats, element by element, ``log std + (1 + log 2 pi) / 2`` (E-8)."""
    return std.log() + (0.5 + HALF_LOG_TWO_PI)


def scale_mixture_log_prob(
    value: Float[Tensor, "*shape"], weight: float, wide_std: float, narrow_std: float
) -> Float[Tensor, "*shape"]:
    """Log density of ``weight * N(0, wide_std^2) + (1 - weight) * N(0, narrow_std^2)`` (E-18)."""
    wide = normal_log_prob(value, 0.0, wide_std)
    if weight == 1.0:
        return wide
    narrow = normal_log_prob(value, 0.0, narrow_std)
    return torch.logaddexp(math.log(weight) + wide, math.log1p(-weight) + narrow)


def posterior_log_prob(std: Float[Tensor, "*shape"], noise: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Log density of the drawn weight under its own posterior, from the noise and never from the weight (E-20).

    ``(w - mu) / sigma`` loses every digit in float32 once sigma is small beside mu; the noise itself does not.
    """
    return -std.log() - 0.5 * noise.square() - HALF_LOG_TWO_PI


def monte_carlo_kl(
    std: Float[Tensor, "*shape"], noise: Float[Tensor, "*shape"], prior_log_prob: Float[Tensor, "*shape"]
) -> Float[Tensor, "*shape"]:
    """One draw's estimate of the divergence, ``log q - log p``, weight by weight (E-19)."""
    return posterior_log_prob(std, noise) - prior_log_prob
