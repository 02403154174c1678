"""How well a score tells two sets apart: known from never seen, untouched from attacked, right from wrong.

All are functions of the order of the scores alone; equal scores count half. Larger scores should belong to the positive
set. Examples may have weights, and several sets of weights at once, `(resample, example)`: an example of weight 2
counts as two of it (``test_weights_are_repetitions``), which is how a bootstrap asks for all its resamples together.

References: Hanley and McNeil 1982; Davis and Goadrich 2006; Geifman and El-Yaniv 2017 for risk and coverage.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = [
    "Detection",
    "area_under_risk",
    "auroc",
    "average_precision",
    "detection",
    "false_positive_rate",
    "risk_coverage",
]


class Detection(NamedTuple):
    """How well a score tells two sets apart."""

    auroc: Float[Tensor, "*resample"]
    average_precision: Float[Tensor, "*resample"]
    false_positive_rate: Float[Tensor, "*resample"]


def detection(
    negative: Float[Tensor, " negative"],
    positive: Float[Tensor, " positive"],
    negative_weight: Float[Tensor, "*resample negative"] | None = None,
    positive_weight: Float[Tensor, "*resample positive"] | None = None,
    *,
    recall: float = 0.95,
) -> Detection:
    """All three from one sorting.

    The first is the probability that a positive has a larger score than a negative. The second weights precision at
    every threshold by the recall it adds. The third is the share of negatives at or above the largest threshold that
    at least ``recall`` of the positives reach.
    """
    if not 0.0 < recall <= 1.0:
        raise ValueError(f"recall must be in (0, 1], got {recall}")
    _check_sets(negative, positive)

    thresholds = torch.cat([negative, positive]).double().unique(sorted=True)
    raised = _weight_at_least(negative, thresholds, negative_weight)
    found = _weight_at_least(positive, thresholds, positive_weight)
    hits, alarms = (
        amount - torch.cat([amount[..., 1:], torch.zeros_like(amount[..., :1])], dim=-1) for amount in (found, raised)
    )
    below = raised[..., :1] - raised + 0.5 * alarms
    area = (hits * below).sum(dim=-1) / (found[..., 0] * raised[..., 0])

    precision = found / (found + raised).clamp_min(torch.finfo(found.dtype).tiny)
    needed = recall * found[..., :1] * (1.0 - 1e-12)  # 95 % of 20 is 19, whatever rounding makes of it
    largest = (found >= needed).sum(dim=-1, keepdim=True) - 1
    alarmed = (raised.gather(-1, largest) / raised[..., :1]).squeeze(-1)
    return Detection(area, (hits * precision).sum(dim=-1) / found[..., 0], alarmed)


def auroc(negative: Float[Tensor, " negative"], positive: Float[Tensor, " positive"]) -> Float[Tensor, ""]:
    """Probability that a positive has a larger score than a negative."""
    return detection(negative, positive).auroc


def average_precision(negative: Float[Tensor, " negative"], positive: Float[Tensor, " positive"]) -> Float[Tensor, ""]:
    """Area under precision and recall."""
    return detection(negative, positive).average_precision


def false_positive_rate(
    negative: Float[Tensor, " negative"], positive: Float[Tensor, " positive"], recall: float = 0.95
) -> Float[Tensor, ""]:
    """Share of negatives that raise an alarm where ``recall`` of the positives do."""
    return detection(negative, positive, recall=recall).false_positive_rate


def risk_coverage(
    confidence: Float[Tensor, " example"],
    correct: Bool[Tensor, " example"],
    weight: Float[Tensor, "*resample example"] | None = None,
) -> tuple[Float[Tensor, "*resample step"], Float[Tensor, "*resample step"]]:
    """Coverage and the error among what is covered, as the threshold on confidence falls.

    Examples of equal confidence are accepted together.
    """
    if confidence.numel() == 0 or confidence.shape != correct.shape:
        raise ValueError(
            f"confidence and correct must be one per example, got shapes {tuple(confidence.shape)} and "
            f"{tuple(correct.shape)}"
        )

    thresholds = confidence.double().unique(sorted=True).flip(0)
    own = torch.ones_like(confidence, dtype=torch.float64) if weight is None else weight.double()
    covered = _weight_at_least(confidence, thresholds, own)
    wrong = _weight_at_least(confidence, thresholds, own * ~correct)
    return covered / covered[..., -1:], wrong / covered.clamp_min(torch.finfo(covered.dtype).tiny)


def area_under_risk(
    confidence: Float[Tensor, " example"],
    correct: Bool[Tensor, " example"],
    weight: Float[Tensor, "*resample example"] | None = None,
) -> Float[Tensor, "*resample"]:
    """Mean over all examples of the error among those at least as confident: less is better."""
    coverage, risk = risk_coverage(confidence, correct, weight)
    steps = torch.cat([coverage[..., :1], coverage.diff(dim=-1)], dim=-1)
    return (steps * risk).sum(dim=-1)


def _weight_at_least(
    scores: Float[Tensor, " example"],
    thresholds: Float[Tensor, " step"],
    weight: Float[Tensor, "*resample example"] | None = None,
) -> Float[Tensor, "*resample step"]:
    """Weight of the examples whose score is at or above each threshold."""
    ordered, order = scores.double().sort()
    first = torch.searchsorted(ordered, thresholds.contiguous(), right=False)
    if weight is None:
        return (len(scores) - first).double()
    reached = weight.double()[..., order].flip(-1).cumsum(dim=-1).flip(-1)
    return torch.cat([reached, torch.zeros_like(reached[..., :1])], dim=-1)[..., first]


def _check_sets(negative: Tensor, positive: Tensor) -> None:
    for name, scores in (("negative", negative), ("positive", positive)):
        if scores.dim() != 1 or scores.numel() == 0:
            raise ValueError(f"{name} must hold one score per example, and at least one, got {tuple(scores.shape)}")
        if bool(scores.isnan().any()):
            raise ValueError(f"{name} must hold numbers, got NaN")
