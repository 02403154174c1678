"""Formulas of variational inference: posteriors over weights, objectives, penalties, and the scores of pruning.

Posteriors. A weight has mean ``mu`` and standard deviation ``sigma = softplus(rho)`` (E-6, E-15). The complexity cost
is the divergence from a prior, in closed form where one exists (E-7), else by Monte Carlo from the noise itself (E-20).
The scale survives ``rho = -30`` in float32 (T-1, T-7); the closed form equals ``torch.distributions`` (T-2); a mixture
with equal widths is the Gaussian (T-5); a zero variance gives exact values and finite gradients (T-15). References:
Blundell et al. 2015 (Bayes by Backprop); Kingma, Salimans and Welling 2015 (local reparameterisation); Wen et al. 2018
(flipout).

Minibatches. The optimised scalar is the free energy of the batch divided by its number of examples (E-5), so that the
sum over an epoch, each batch weighted by its size, is the free energy of the whole data (E-1; T-8 and T-20). Reference:
Blundell et al. 2015, section 3.4.

Alpha-divergences. ``alpha = 0`` is the mean of the losses (variational inference), ``alpha = 1`` the loss of the mean
likelihood (expectation propagation), ``alpha = 0.5`` lies between (Hellinger). Likelihoods are averaged over draws,
never summed: a sum would depend on the number of draws and diverge as alpha goes to zero. With one draw it is that
draw's loss for every alpha (T-28); it does not rise with alpha and lies between the smallest and the mean loss (T-31).
Reference: Li and Gal 2017, Dropout Inference in Bayesian Neural Networks with Alpha-divergences.

Penalties are sums of squared weights without a factor of one half, which ``weight_decay`` of an optimiser has. The
caller chooses the weights; the specification leaves out biases. Squares are added up in float32 at least. A toy
network's value is computed by hand, with the units of each layer (T-21); the gradient is ``2 W`` (T-34).

Bootstrapped cross-entropy. A label counts for ``beta``, the network's own prediction for the rest. Both forms take
log-probabilities, so that nothing overflows for extreme logits, and give one loss per example (T-69); with ``beta = 1``
both are the cross-entropy (T-70). Reference: Reed et al. 2015, Training Deep Neural Networks on Noisy Labels with
Bootstrapping.

Pruning scores are signal-to-noise ratios or magnitudes (2.8). Exactly ``floor(r n)`` of ``n`` weights are removed,
equal scores by index, and a larger share removes all that a smaller share removes; scaling means and scales by one
constant changes no ranking (T-11). References: Graves 2011, Practical Variational Inference for Neural Networks;
Blundell et al. 2015, section 5.1.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

Values = Float[Tensor, "*shape"]
Scalar = Float[Tensor, ""]
LogProbs = Float[Tensor, "*batch class"]
Targets = Int[Tensor, "*batch"]
PerExample = Float[Tensor, "*batch"]

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)
KlWeighting = Literal["uniform", "geometric", "none"]
SMALLEST_ALPHA = 1e-6
"""Below it, the expansion in alpha is exact to the last digit and the logarithm is not."""


def softplus(rho: Values) -> Values:
    """Positive scale of an unconstrained parameter, ``log(1 + exp(rho))`` (E-6), exact far below zero."""
    return F.softplus(rho)


def inverse_softplus(std: Values) -> Values:
    """The ``rho`` whose softplus is ``std`` (E-6), without overflow for a large ``std``."""
    return std + torch.log(-torch.expm1(-std))


def local_reparameterisation(mean: Values, variance: Values, noise: Values) -> Values:
    """One draw of a layer's outputs from their marginal moments, ``b = gamma + sqrt(delta) * zeta`` (E-25)."""
    return mean + (safe_sqrt(variance) * noise).to(mean.dtype)


def flip(mean: Values, perturbation: Values, signs: Float[Tensor, "*signs"]) -> Values:
    """Outputs under flipout: the shared perturbation, its sign drawn anew for every example and unit."""
    return mean + perturbation * signs


def safe_sqrt(value: Values) -> Values:
    """Square root with exact values and a zero gradient at zero, where the true gradient is infinite."""
    positive = value > 0
    return torch.where(positive, torch.where(positive, value, 1.0).sqrt(), 0.0)


def gaussian_kl(mean: Values, std: Values, prior_mean: Values | float, prior_std: float) -> Values:
    """Divergence of one Gaussian from another, weight by weight (E-7)."""
    ratio = std / prior_std
    distance = (mean - prior_mean) / prior_std
    return 0.5 * (ratio.square() + distance.square() - 1.0) - ratio.log()


def gaussian_kl_gradients(
    mean: Values, std: Values, slope: Values, prior_mean: Values | float, prior_std: float
) -> tuple[Values, Values]:
    """The gradients of ``gaussian_kl`` for ``mean`` and for the parameter of ``std``, whose derivative is ``slope``.

    For a softplus far below zero, ``1 / std`` is large and ``slope`` small: their product is one.
    """
    precision = prior_std**-2
    return (mean - prior_mean) * precision, slope * std * precision - slope / std


def normal_log_prob(
    value: Float[Tensor, "..."], mean: Float[Tensor, "..."] | float, std: Float[Tensor, "..."] | float
) -> Float[Tensor, "..."]:
    """Log density of ``N(mean, std^2)``, element by element (E-17)."""
    log_std = std.log() if isinstance(std, Tensor) else math.log(std)
    return -0.5 * ((value - mean) / std).square() - log_std - HALF_LOG_TWO_PI


def normal_entropy(std: Values) -> Values:
    """Entropy of ``N(., std^2)`` in nats, element by element, ``log std + (1 + log 2 pi) / 2`` (E-8)."""
    return std.log() + (0.5 + HALF_LOG_TWO_PI)


def scale_mixture_log_prob(value: Values, weight: float, wide_std: float, narrow_std: float) -> Values:
    """Log density of ``weight * N(0, wide_std^2) + (1 - weight) * N(0, narrow_std^2)`` (E-18)."""
    wide = normal_log_prob(value, 0.0, wide_std)
    if weight == 1.0:
        return wide
    narrow = normal_log_prob(value, 0.0, narrow_std)
    return torch.logaddexp(math.log(weight) + wide, math.log1p(-weight) + narrow)


def scale_mixture_slope(value: Values, weight: float, wide_std: float, narrow_std: float) -> Values:
    """Minus the derivative of ``scale_mixture_log_prob``: the value times the mean precision of its components."""
    wide, narrow = wide_std**-2, narrow_std**-2
    odds = math.log(weight) - math.log1p(-weight) + math.log(narrow_std) - math.log(wide_std)
    log_odds = odds - 0.5 * (wide - narrow) * value.square()
    return value * (torch.sigmoid(log_odds) * wide + torch.sigmoid(-log_odds) * narrow)


def posterior_log_prob(std: Values, noise: Values) -> Values:
    """Log density of the drawn weight under its own posterior, from the noise and never from the weight (E-20).

    ``(w - mu) / sigma`` loses every digit in float32 once sigma is small beside mu; the noise itself does not.
    """
    return -std.log() - 0.5 * noise.square() - HALF_LOG_TWO_PI


def monte_carlo_kl(std: Values, noise: Values, prior_log_prob: Values) -> Values:
    """One draw's estimate of the divergence, ``log q - log p``, weight by weight (E-19)."""
    return posterior_log_prob(std, noise) - prior_log_prob


def kl_share(
    scheme: KlWeighting, batch_index: int | Tensor, num_batches: int, batch_share: float | None = None
) -> float | Tensor:
    """The part ``pi_i`` of the divergence that batch ``batch_index`` (from 0) of an epoch carries; the parts sum to 1.

    ``uniform`` gives each batch its share of the data, ``batch_share`` (default ``1 / num_batches``, E-3);
    ``geometric`` halves from batch to batch (E-4); ``none`` leaves the divergence out. ``batch_index`` may be a tensor,
    which is not looked at: a step that is captured once reads another number each time.
    """
    if not isinstance(batch_index, Tensor) and not 0 <= batch_index < num_batches:
        raise ValueError(f"batch_index must be in [0, num_batches = {num_batches}), got {batch_index}")
    if batch_share is not None and not 0.0 < batch_share <= 1.0:
        raise ValueError(f"batch_share must be in (0, 1], got {batch_share}")
    if scheme == "uniform":
        return 1.0 / num_batches if batch_share is None else batch_share
    if scheme == "geometric":
        # 2^(M-i) / (2^M - 1) with i from 1, divided by 2^M above and below: the plain form overflows past M = 1023.
        share: float | Tensor = 2.0 ** -(batch_index + 1) / (1.0 - 2.0**-num_batches)
        return share
    if scheme == "none":
        return 0.0
    raise ValueError(f"kl weighting must be 'uniform', 'geometric' or 'none', got {scheme!r}")


def minibatch_cost(
    nll_per_example: Float[Tensor, "sample batch"], divergence: Scalar, share: float | Tensor, beta: float = 1.0
) -> Scalar:
    """The batch's cost per example: the mean over draws of each draw's own cost, plus the divergence's part (E-5)."""
    batch_size = nll_per_example.shape[1]
    return nll_per_example.mean() + beta * share / batch_size * divergence


def warmup_share(epoch: float | Tensor, warmup: int) -> float | Tensor:
    """How much of the divergence counts after so many epochs: it grows evenly from nothing over ``warmup`` of them."""
    if warmup == 0:
        return 1.0
    return (epoch / warmup).clamp(max=1.0) if isinstance(epoch, Tensor) else min(1.0, epoch / warmup)


def weighted_divergence(
    divergence: Scalar, beta: float | Tensor, entropy: Scalar | None = None, gamma: float = 0.0
) -> Scalar:
    """``beta * KL - gamma * H``: the same as ``(beta + gamma) log q - beta log p`` in expectation (E-46, T-45)."""
    return beta * divergence if entropy is None else beta * divergence - gamma * entropy


def alpha_energy(losses: Float[Tensor, "sample *batch"], alpha: float) -> PerExample:
    """``-(1/alpha) log mean_k exp(-alpha l_k)`` (E-30); for alpha near 0, its expansion (E-31, E-32)."""
    if abs(alpha) < SMALLEST_ALPHA:
        return losses.mean(dim=0) - 0.5 * alpha * losses.var(dim=0, correction=0)
    # Measured from the draw that counts most, nothing overflows and nothing is lost to rounding where alpha is small.
    anchor = (losses.amin(dim=0) if alpha > 0.0 else losses.amax(dim=0)).detach()
    return anchor - torch.expm1(-alpha * (losses - anchor)).mean(dim=0).log1p() / alpha


def weight_penalty(weights: Sequence[Tensor]) -> Scalar:
    """``sum_i ||W_i||_F^2`` (in E-33)."""
    return scaled_weight_penalty(weights, [1] * len(weights))


def scaled_weight_penalty(weights: Sequence[Tensor], num_units: Sequence[int]) -> Scalar:
    """``sum_l (1 / |l|) sum_{w in l} w^2`` (in E-26), ``|l|`` the number of units (outputs) of the layer."""
    if not weights:
        raise ValueError("weights must hold at least one tensor, got none; leave out the penalty")
    if len(num_units) != len(weights):
        raise ValueError(f"num_units must have one number for each of {len(weights)} weights, got {len(num_units)}")

    exact = [weight.to(torch.promote_types(weight.dtype, torch.float32)) for weight in weights]
    return torch.stack([w.square().sum() / units for w, units in zip(exact, num_units, strict=True)]).sum()


def bootstrap_counts(
    num_examples: int, num_members: int, generator: torch.Generator
) -> Float[Tensor, "example member"]:
    """How often each member of a bagged ensemble sees each example: as many draws with replacement as examples."""
    chosen = torch.randint(num_examples, (num_members, num_examples), generator=generator)
    return torch.stack([row.bincount(minlength=num_examples) for row in chosen], dim=1).float()


def soft_bootstrap(log_probs: LogProbs, targets: Targets, beta: float = 0.95, detach: bool = False) -> PerExample:
    """``-sum_k (beta t_k + (1 - beta) q_k) log q_k`` (E-68).

    The gradient flows through the weight ``q_k`` too, which makes the second term a penalty on entropy; with ``detach``
    that weight is a constant.
    """
    _check_share(beta)

    probs = log_probs.exp()
    finite = log_probs.clamp_min(torch.finfo(log_probs.dtype).min)  # a class ruled out has p log p = 0, not 0 * inf
    entropy = -((probs.detach() if detach else probs) * finite).sum(dim=-1)
    return beta * _cross_entropy(log_probs, targets) + (1.0 - beta) * entropy


def hard_bootstrap(log_probs: LogProbs, targets: Targets, beta: float = 0.8) -> PerExample:
    """``-sum_k (beta t_k + (1 - beta) [k = argmax q]) log q_k``, the most probable class a constant (E-69)."""
    _check_share(beta)

    hard_loss = -log_probs.max(dim=-1).values
    return beta * _cross_entropy(log_probs, targets) + (1.0 - beta) * hard_loss


def _cross_entropy(log_probs: LogProbs, targets: Targets) -> PerExample:
    return -log_probs.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)


def _check_share(beta: float) -> None:
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta must be in [0, 1], got {beta}; 1 is the cross-entropy")


def signal_to_noise(mean: Values, std: Values) -> Values:
    """``|mu| / sigma`` (E-22), in float32 at least; zero for a weight that is always zero."""
    dtype = torch.promote_types(mean.dtype, torch.float32)
    return torch.where(mean == 0.0, 0.0, mean.to(dtype).abs() / std.to(dtype))


def decibels(ratio: Values) -> Values:
    """``10 log10(ratio)`` (E-22)."""
    return 10.0 * torch.log10(ratio)


def num_removed(count: int, fraction: float) -> int:
    """``floor(r n)`` of the decimal number that was written: 0.29 of 100 is 29."""
    from fractions import Fraction  # its import is slow, and nothing else needs it

    return math.floor(Fraction(str(float(fraction))) * count)


def lowest_scores(scores: Float[Tensor, " weight"], count: int) -> Bool[Tensor, " weight"]:
    """Which ``count`` scores are lowest; of equal ones those with the lower index."""
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen[scores.argsort(stable=True)[:count]] = True
    return chosen


def units_kept(scores: Sequence[Float[Tensor, " _"]], count: int) -> list[Int[Tensor, " _"]]:
    """Which units stay in each layer when the ``count`` lowest of all layers go, but the best of each layer stays."""
    joined = torch.cat([layer.index_fill(0, layer.argmax(), math.inf) for layer in scores])
    gone = lowest_scores(joined, min(count, len(joined) - len(scores)))
    return [(~part).nonzero().flatten() for part in gone.split([len(layer) for layer in scores])]


def unit_scores(scores: Float[Tensor, "unit *weights"]) -> Float[Tensor, " unit"]:
    """The mean score of the weights of each unit."""
    return scores.flatten(1).mean(dim=1)
