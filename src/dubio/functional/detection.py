"""How well a score tells two sets apart: known from never seen, untouched from attacked, right from wrong.

All are functions of the order of the scores alone; equal scores count half. Larger scores should belong to the positive
set.

References: Hanley and McNeil 1982; Davis and Goadrich 2006; Geifman and El-Yaniv 2017 for risk and coverage.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["area_under_risk", "auroc", "average_precision", "false_positive_rate", "risk_coverage"]


def auroc(negative: Float[Tensor, " negative"], positive: Float[Tensor, " positive"]) -> Float[Tensor, ""]:
    """Probability that a positive has a larger score than a negative, by ranks."""
    _check_sets(negative, positive)
    ordered = negative.double().sort().values
    wanted = positive.double().contiguous()
    below = torch.searchsorted(ordered, wanted, right=False)
    not_above = torch.searchsorted(ordered, wanted, right=True)
    return (below + not_above).double().mean() / (2.0 * len(negative))


def average_precision(negative: Float[Tensor, " negative"], positive: Float[Tensor, " positive"]) -> Float[Tensor, ""]:
    """Area under precision and recall: precision at every threshold, weighted by the recall it adds."""
    _check_sets(negative, positive)
    thresholds = positive.double().unique(sorted=True)
    hits = _at_least(positive, thresholds)
    alarms = _at_least(negative, thresholds)
    recall = hits / len(positive)
    added = recall - torch.cat([recall[1:], recall.new_zeros(1)])
    return (added * hits / (hits + alarms)).sum()


def false_positive_rate(
    negative: Float[Tensor, " negative"], positive: Float[Tensor, " positive"], recall: float = 0.95
) -> Float[Tensor, ""]:
    """Share of negatives at or above the largest threshold that at least ``recall`` of the positives reach."""
    _check_sets(negative, positive)
    if not 0.0 < recall <= 1.0:
        raise ValueError(f"recall must be in (0, 1], got {recall}")

    needed = max(1, -(-round(recall * len(positive) * 10**9) // 10**9))  # rounded up, but for rounding errors
    threshold = positive.double().sort(descending=True).values[needed - 1]
    return (negative.double() >= threshold).double().mean()


def risk_coverage(
    confidence: Float[Tensor, " example"], correct: Bool[Tensor, " example"]
) -> tuple[Float[Tensor, " step"], Float[Tensor, " step"]]:
    """Coverage and the error among what is covered, as the threshold on confidence falls.

    Examples of equal confidence are accepted together.
    """
    if confidence.numel() == 0 or confidence.shape != correct.shape:
        raise ValueError(
            f"confidence and correct must be one per example, got shapes {tuple(confidence.shape)} and "
            f"{tuple(correct.shape)}"
        )

    thresholds = confidence.double().unique(sorted=True).flip(0)
    covered = _at_least(confidence, thresholds)
    wrong = _at_least(confidence[~correct], thresholds)
    return covered / len(confidence), wrong / covered


def area_under_risk(confidence: Float[Tensor, " example"], correct: Bool[Tensor, " example"]) -> Float[Tensor, ""]:
    """Mean over all examples of the error among those at least as confident: less is better."""
    coverage, risk = risk_coverage(confidence, correct)
    steps = torch.cat([coverage[:1], coverage.diff()])
    return (steps * risk).sum()


def _at_least(scores: Tensor, thresholds: Float[Tensor, " step"]) -> Float[Tensor, " step"]:
    ordered = scores.double().sort().values
    return (len(scores) - torch.searchsorted(ordered, thresholds, right=False)).double()


def _check_sets(negative: Tensor, positive: Tensor) -> None:
    for name, scores in (("negative", negative), ("positive", positive)):
        if scores.dim() != 1 or scores.numel() == 0:
            raise ValueError(f"{name} must hold one score per example, and at least one, got {tuple(scores.shape)}")
        if bool(scores.isnan().any()):
            raise ValueError(f"{name} must hold numbers, got NaN")
