"""Calibration: whether predictions made with confidence c are right with probability c.

Confidences are counted in equal bins. Counts and sums are added up over batches and divided at the end, so that cutting
the data changes nothing (T-66); the mean of batches' errors would be too large. A bin's weight is its share of the
examples (a document prints one over it, T-65).

References: Naeini, Cooper and Hauskrecht 2015; Guo et al. 2017; Nixon et al. 2019 for the adaptive and class-wise
forms; Brier 1950.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = [
    "BinSums",
    "Reliability",
    "adaptive_calibration_error",
    "bin_sums",
    "brier_score",
    "calibration_error",
    "classwise_calibration_error",
    "matching_share",
    "reliability",
]

NUM_BINS = 15


class BinSums(NamedTuple):
    """What is added up over batches, by bin."""

    size: Float[Tensor, "*resample bin"]
    confidence: Float[Tensor, "*resample bin"]
    correct: Float[Tensor, "*resample bin"]

    def plus(self, other: "BinSums") -> "BinSums":
        """The sums over both."""
        return BinSums(*(one + another for one, another in zip(self, other, strict=True)))


class Reliability(NamedTuple):
    """What a reliability plot shows, by bin; accuracy and confidence are NaN where a bin is empty."""

    share: Float[Tensor, " bin"]
    confidence: Float[Tensor, " bin"]
    accuracy: Float[Tensor, " bin"]


def bin_sums(
    confidence: Float[Tensor, " example"],
    correct: Bool[Tensor, " example"],
    num_bins: int = NUM_BINS,
    weight: Float[Tensor, "*resample example"] | None = None,
) -> BinSums:
    """Sums over the bins ``((k-1)/K, k/K]``; a confidence of 0 goes into the first, one of 1 into the last.

    An example of weight 2 counts as two of it.
    """
    _check_bins(num_bins)
    if confidence.numel() and not 0.0 <= float(confidence.min()) <= float(confidence.max()) <= 1.0 + 1e-6:
        raise ValueError(f"confidence must be in [0, 1], got {float(confidence.min())} to {float(confidence.max())}")

    exact = confidence.double()
    place = (torch.ceil(exact * num_bins).long() - 1).clamp(0, num_bins - 1)

    own = torch.ones_like(exact) if weight is None else weight.double()
    members = torch.nn.functional.one_hot(place, num_bins).double()  # summing by a matrix takes all resamples at once
    return BinSums(own @ members, own @ (members * exact[:, None]), own @ (members * correct.double()[:, None]))


def calibration_error(sums: BinSums) -> Float[Tensor, "*resample"]:
    """``sum_k |B_k| / n |acc(B_k) - conf(B_k)|``; empty bins add nothing (E-65)."""
    gaps = (sums.correct - sums.confidence).abs()  # a bin's size times its gap
    return gaps.sum(dim=-1) / sums.size.sum(dim=-1).clamp_min(1.0)


def reliability(sums: BinSums) -> Reliability:
    """Share, mean confidence and accuracy of every bin."""
    return Reliability(
        sums.size / sums.size.sum().clamp_min(1.0), sums.confidence / sums.size, sums.correct / sums.size
    )


def matching_share(sums: BinSums, tolerance: float) -> Float[Tensor, "*resample"]:
    """Share of the examples whose bin is right as often as it is confident, to within ``tolerance``."""
    matches = (sums.correct - sums.confidence).abs() <= tolerance * sums.size
    return (matches * sums.size).sum(dim=-1) / sums.size.sum(dim=-1).clamp_min(1.0)


def adaptive_calibration_error(
    confidence: Float[Tensor, " example"],
    correct: Bool[Tensor, " example"],
    num_bins: int = NUM_BINS,
    weight: Float[Tensor, "*resample example"] | None = None,
) -> Float[Tensor, "*resample"]:
    """The same with bins of equal numbers of examples, in the order of their confidence; the first take what is over.

    An example of weight 2 counts as two of it, which may lie in two bins.
    """
    _check_bins(num_bins)
    ordered, order = confidence.double().sort(stable=True)
    own = torch.ones_like(ordered) if weight is None else weight.double()[..., order]
    ends = own.cumsum(dim=-1)
    total = ends[..., -1:]
    bins = torch.arange(num_bins + 1, dtype=torch.float64, device=ordered.device)
    size = (total / num_bins).floor()
    edges = bins * size + torch.minimum(bins, total - num_bins * size)
    gaps = ordered - correct[order].double()

    # The sum of the gaps up to an edge: of whole examples before it, and of a part of the one that it cuts.
    cut = torch.searchsorted(ends, edges.contiguous()).clamp_max(len(ordered) - 1)
    sums = (own * gaps).cumsum(dim=-1)
    up_to = sums.gather(-1, cut) - (ends.gather(-1, cut) - edges) * gaps[cut]
    return up_to.diff(dim=-1).abs().sum(dim=-1) / total.squeeze(-1)


def classwise_calibration_error(
    probs: Float[Tensor, "example class"],
    targets: Int[Tensor, " example"],
    num_bins: int = NUM_BINS,
    weight: Float[Tensor, "*resample example"] | None = None,
) -> Float[Tensor, "*resample"]:
    """Mean over classes of the error of each class's probability for being the class."""
    errors = [
        calibration_error(bin_sums(probs[:, label], targets == label, num_bins, weight))
        for label in range(probs.shape[1])
    ]
    return torch.stack(errors).mean(dim=0)


def brier_score(probs: Float[Tensor, "*batch class"], targets: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """``sum_k (p_k - [k = y])^2`` for each example: 0 is certain and right, 2 certain and wrong."""
    wanted = torch.nn.functional.one_hot(targets.long(), probs.shape[-1]).to(probs.dtype)
    return (probs - wanted).square().sum(dim=-1)


def _check_bins(num_bins: int) -> None:
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1, got {num_bins}")
