"""What an attacker raises, and how far one may go: losses over many draws, norms, projections.

Losses are per example and larger is worse for the network. Each can be taken of the log of the mean probability over
draws (``predictive``), of each draw and then averaged (``expected``), of the mean logits (``mean_logit``), or of the
shares of draws that vote for each class (``votes``), which is all that an attacker without gradients may see.
Log-probabilities serve as logits throughout: they differ by a constant per draw and example, to which none of the
losses is sensitive.
"""

import functools
from typing import Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from dubio.functional.uncertainty import predictive_log_probs, vote_counts

__all__ = [
    "AttackLoss",
    "AttackObjective",
    "Norm",
    "as_rows",
    "attack_loss",
    "averaged_attack_loss",
    "distortion",
    "perturbation_norm",
    "project_inputs",
    "project_perturbation",
    "random_perturbation",
    "steepest_direction",
    "vote_log_shares",
]

AttackObjective = Literal["predictive", "expected", "mean_logit", "votes"]
AttackLoss = Literal["cross_entropy", "margin", "dlr"]
Norm = Literal["linf", "l2"]

TINY = 1e-12
INSIDE = 1.0 - 1e-6
"""What a scaled perturbation keeps of its radius, so that rounding cannot carry it out of the ball."""


def averaged_attack_loss(
    log_probs: Float[Tensor, "sample batch class"],
    targets: Int[Tensor, " batch"],
    objective: AttackObjective,
    loss: AttackLoss,
) -> Float[Tensor, " batch"]:
    """The attacker's loss per example, over all draws."""
    if objective == "predictive":
        return attack_loss(predictive_log_probs(log_probs), targets, loss)
    if objective == "mean_logit":
        return attack_loss(log_probs.mean(dim=0), targets, loss)
    if objective == "votes":
        return attack_loss(vote_log_shares(log_probs), targets, loss)
    return attack_loss(log_probs, targets.expand(log_probs.shape[:-1]), loss).mean(dim=0)


def vote_log_shares(log_probs: Float[Tensor, "sample batch class"]) -> Float[Tensor, "batch class"]:
    """Logarithm of the share of draws that vote for each class, half a vote added to all: without a gradient."""
    num_samples, _, num_classes = log_probs.shape
    counts = vote_counts(log_probs.argmax(dim=-1), num_classes)
    return torch.log((counts + 0.5) / (num_samples + 0.5 * num_classes)).to(log_probs.dtype)


def attack_loss(
    logits: Float[Tensor, "*batch class"], targets: Int[Tensor, "*batch"], loss: AttackLoss
) -> Float[Tensor, "*batch"]:
    """Cross-entropy, margin ``max_k z_k - z_y``, or the difference of logits ratio (Croce and Hein 2020)."""
    index = targets.unsqueeze(-1)
    if loss == "cross_entropy":
        return -logits.log_softmax(dim=-1).gather(-1, index).squeeze(-1)
    own = logits.gather(-1, index).squeeze(-1)
    margin = logits.scatter(-1, index, -torch.inf).amax(dim=-1) - own
    if loss == "margin":
        return margin
    top = logits.topk(min(3, logits.shape[-1]), dim=-1).values
    return margin / (top[..., 0] - top[..., -1] + TINY)


def perturbation_norm(perturbation: Float[Tensor, "batch *shape"], norm: Norm) -> Float[Tensor, " batch"]:
    """Size of each example's perturbation."""
    flat = perturbation.flatten(1)
    return flat.abs().amax(dim=1) if norm == "linf" else flat.norm(dim=1)


def distortion(perturbation: Float[Tensor, "batch *shape"]) -> Float[Tensor, ""]:
    """Mean over examples of the root mean square of what was added, ``sqrt(||r||^2 / d)`` (E-27)."""
    return perturbation.flatten(1).square().mean(dim=1).sqrt().mean()


def steepest_direction(gradient: Float[Tensor, "batch *shape"], norm: Norm) -> Float[Tensor, "batch *shape"]:
    """The step of norm one along which a loss with this gradient grows fastest; none where the gradient vanishes.

    Tiny is not vanished: the gradient of a very sure network, 1e-30 say, is scaled before its squares are summed.
    """
    if norm == "linf":
        return gradient.sign()
    largest = as_rows(perturbation_norm(gradient, "linf"), gradient)
    scaled = gradient / largest.clamp_min(torch.finfo(gradient.dtype).tiny)
    return scaled / as_rows(perturbation_norm(scaled, norm), scaled).clamp_min(TINY)


def project_perturbation(
    perturbation: Float[Tensor, "batch *shape"], norm: Norm, epsilon: float | Float[Tensor, " batch"]
) -> Float[Tensor, "batch *shape"]:
    """The nearest perturbation of norm at most ``epsilon``."""
    radius = as_rows(epsilon, perturbation) if isinstance(epsilon, Tensor) else epsilon
    if norm == "linf":
        return perturbation.clamp(-radius, radius)  # type: ignore[arg-type]
    size = as_rows(perturbation_norm(perturbation, norm), perturbation)
    return perturbation * (INSIDE * radius / size.clamp_min(TINY)).clamp_max(1.0)


def project_inputs(
    candidate: Float[Tensor, "batch *shape"], inputs: Float[Tensor, "batch *shape"], norm: Norm, epsilon: float
) -> Float[Tensor, "batch *shape"]:
    """The nearest point at most ``epsilon`` from the inputs: not by rounding either (E-63).

    The sum of an input and an allowed perturbation is rounded, perhaps out of the ball. The next number towards the
    input is not.
    """
    radius = _rounded_down(epsilon, inputs.dtype)
    within = inputs + project_perturbation(candidate - inputs, norm, radius)
    distance = (within.double() - inputs.double()).abs()
    if norm == "l2":
        distance = as_rows(perturbation_norm(distance, norm), within)
    return torch.where(distance > epsilon, torch.nextafter(within, inputs), within)


def random_perturbation(
    uniform: Float[Tensor, "batch *shape"], normal: Float[Tensor, "batch *shape"], norm: Norm, epsilon: float
) -> Float[Tensor, "batch *shape"]:
    """A random point of the ball, from uniform numbers in [0, 1] and normal ones: evenly spread in either norm."""
    if norm == "linf":
        return (2.0 * uniform - 1.0) * epsilon
    dimensions = normal[0].numel()
    radius = uniform.flatten(1)[:, :1].pow(1.0 / dimensions)
    return steepest_direction(normal, norm) * epsilon * as_rows(radius.squeeze(1), normal)


def as_rows(values: Shaped[Tensor, " batch"], like: Shaped[Tensor, "batch *shape"]) -> Shaped[Tensor, "batch ..."]:
    """One value per example, with axes of length one to meet its elements."""
    return values.reshape(-1, *[1] * (like.dim() - 1))


@functools.cache
def _rounded_down(value: float, dtype: torch.dtype) -> float:
    """The largest number of this type that is not above the value."""
    rounded = torch.tensor(value, dtype=dtype, device="cpu")
    return (rounded if rounded.item() <= value else torch.nextafter(rounded, torch.zeros_like(rounded))).item()
