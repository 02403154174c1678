"""Probabilities made milder or sharper after training: one temperature, or a scale and a bias for each class.

``p = softmax(z / T)`` with ``z = log p`` of the mean prediction, or of each draw before averaging (E-66); the same
numbers as with logits, since a constant for all classes changes nothing.

Invariants: a temperature never changes which class is most probable; at ``T = 1``, and at scale 1 and bias 0, nothing
changes (T-67, ``tests/functional/test_scaling.py``).

References: Guo et al. 2017.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dubio.functional.uncertainty import predictive_log_probs

__all__ = [
    "bounded_temperature",
    "class_nll",
    "departure_from_identity",
    "scaled_log_probs",
    "scaled_mixture",
    "vector_scaled_log_probs",
]

SMALLEST_LOG_PROB = -1e4
"""A class that is impossible stays so, and no infinity meets a zero."""


def scaled_log_probs(
    log_probs: Float[Tensor, "*batch class"], temperature: Float[Tensor, ""] | float
) -> Float[Tensor, "*batch class"]:
    """``log softmax(z / T)`` (E-66)."""
    return (log_probs.clamp_min(SMALLEST_LOG_PROB) / temperature).log_softmax(dim=-1)


def scaled_mixture(
    samples: Float[Tensor, "sample *batch class"], temperature: Float[Tensor, ""] | float
) -> Float[Tensor, "*batch class"]:
    """Log of the mean over draws of the scaled probabilities of each."""
    return predictive_log_probs(scaled_log_probs(samples, temperature))


def vector_scaled_log_probs(
    log_probs: Float[Tensor, "*batch class"], scale: Float[Tensor, " class"], bias: Float[Tensor, " class"]
) -> Float[Tensor, "*batch class"]:
    """``log softmax(scale z + bias)``, class by class (Guo et al. 2017, section 4.2)."""
    return (log_probs.clamp_min(SMALLEST_LOG_PROB) * scale + bias).log_softmax(dim=-1)


def class_nll(log_probs: Float[Tensor, "example class"], targets: Int[Tensor, " example"]) -> Float[Tensor, ""]:
    """Mean negative log-probability of the target classes (E-14)."""
    return -log_probs.gather(-1, targets.unsqueeze(-1)).mean()


def bounded_temperature(free: Float[Tensor, ""], largest: float) -> Float[Tensor, ""]:
    """A temperature from any number: near 0 its exponential, and never beyond ``1 / largest`` and ``largest``."""
    bound = torch.tensor(largest, dtype=free.dtype).log()
    return (bound * torch.tanh(free / bound)).exp()


def departure_from_identity(scale: Float[Tensor, " class"], bias: Float[Tensor, " class"]) -> Float[Tensor, ""]:
    """Mean over classes of how far, squared, a vector scaling is from changing nothing."""
    return ((scale - 1.0).square() + bias.square()).mean()
