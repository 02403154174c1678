"""Summaries of doubt from the class probabilities of many draws, `(sample, batch, class)`.

Predictive entropy splits into the expected entropy of single draws (noise in the data) and the mutual information
between prediction and draw (the network's own doubt): E-9 to E-14. Entropies are in nats.

Calibrating the mean prediction changes its entropy; the share of it that is mutual information stays
(``calibrated_expected_entropy``).

Invariants: mutual information is never negative and is zero for equal draws (T-68); the log of averaged probabilities
is at least the average of their logs (T-22).
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = [
    "calibrated_expected_entropy",
    "class_variance",
    "energy",
    "entropy",
    "expected_entropy",
    "mutual_information",
    "predictive_log_probs",
    "variation_ratio",
    "shares_of_counts",
    "vote_counts",
    "vote_shares",
]

SMALLEST_PROBABILITY = 1e-8


def predictive_log_probs(log_probs: Float[Tensor, "sample *batch class"]) -> Float[Tensor, "*batch class"]:
    """Log of the mean probability over draws: probabilities are averaged, never logits (E-9, E-14)."""
    return torch.logsumexp(log_probs, dim=0) - math.log(log_probs.shape[0])


def entropy(probs: Float[Tensor, "*batch class"]) -> Float[Tensor, "*batch"]:
    """Entropy in nats, ``-sum p log p`` with p clamped to [1e-8, 1] inside the logarithm (E-10)."""
    return -(probs * probs.clamp(SMALLEST_PROBABILITY, 1.0).log()).sum(dim=-1)


def energy(logits: Float[Tensor, "sample *batch class"]) -> Float[Tensor, "*batch"]:
    """``-logsumexp`` of the logits, averaged over draws: large where no class finds evidence (Liu et al. 2020)."""
    return -torch.logsumexp(logits, dim=-1).mean(dim=0)


def expected_entropy(log_probs: Float[Tensor, "sample *batch class"]) -> Float[Tensor, "*batch"]:
    """Mean over draws of each draw's entropy: the doubt that the data itself carries (E-11)."""
    return entropy(log_probs.exp()).mean(dim=0)


def mutual_information(
    predictive_entropy: Float[Tensor, "*batch"], mean_entropy: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """What the draws disagree about: predictive minus expected entropy, at least zero (E-12).

    What rounding alone can make is zero: else the order of nothing but rounding errors would tell equal draws apart.
    """
    difference = predictive_entropy - mean_entropy
    rounding = 4.0 * torch.finfo(difference.dtype).eps * (1.0 + predictive_entropy)
    return torch.where(difference > rounding, difference, 0.0)


def calibrated_expected_entropy(
    calibrated_entropy: Float[Tensor, "*batch"],
    predictive_entropy: Float[Tensor, "*batch"],
    mean_entropy: Float[Tensor, "*batch"],
) -> Float[Tensor, "*batch"]:
    """The expected entropy of a prediction that was calibrated after averaging over draws.

    Calibration says how large the entropy is, and the draws say which share of it is mutual information: the
    coefficient ``MI / H`` of Theil (1970) is that of the uncalibrated draws. A prediction without entropy has no share
    to keep, and all its calibrated entropy is expected entropy.
    """
    information = mutual_information(predictive_entropy, mean_entropy)
    share = information / predictive_entropy.clamp_min(torch.finfo(predictive_entropy.dtype).tiny)
    return calibrated_entropy * (1.0 - share.clamp_max(1.0))


def class_variance(
    mean_square: Float[Tensor, "*batch class"], mean: Float[Tensor, "*batch class"]
) -> Float[Tensor, "*batch class"]:
    """Variance over draws of each class's probability, divisor S (E-13); zero where it is rounding alone."""
    variance = mean_square - mean.square()
    rounding = 8.0 * torch.finfo(variance.dtype).eps * mean_square
    return torch.where(variance > rounding, variance, 0.0)


def vote_counts(labels: Int[Tensor, "sample *batch"], num_classes: int) -> Int[Tensor, "*batch class"]:
    """How many draws have each class as their most probable one."""
    return torch.nn.functional.one_hot(labels.long(), num_classes).sum(dim=0)


def vote_shares(labels: Int[Tensor, "sample *batch"], num_classes: int) -> Float[Tensor, "*batch class"]:
    """Share of draws whose most probable class is each class; exactly 1 where all agree."""
    return shares_of_counts(vote_counts(labels, num_classes)).float()


def shares_of_counts(counts: Int[Tensor, "*batch class"]) -> Float[Tensor, "*batch class"]:
    """Counts over the last axis as shares of their sum, in float64; exactly 1 where all are of one class."""
    # Divided by a tensor: by a number, a GPU would multiply with its rounded inverse.
    return counts.double() / counts.sum(dim=-1, keepdim=True)


def variation_ratio(votes: Float[Tensor, "*batch class"]) -> Float[Tensor, "*batch"]:
    """Share of draws that do not vote for the most frequent class."""
    return 1.0 - votes.amax(dim=-1)
