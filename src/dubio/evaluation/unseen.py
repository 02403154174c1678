"""Whether doubt finds data that the network has never seen: each score of doubt, on each unseen set."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from dubio import functional
from dubio.evaluation.comparison import detection_values
from dubio.evaluation.describing import histogram
from dubio.evaluation.estimating import LEVEL, resamples
from dubio.evaluation.values import DataRecord, DetectionScore, Estimate, UnseenSet
from dubio.prediction import ClassPredictive

__all__ = ["SCORES", "judge_unseen"]

SCORES: dict[str, Callable[[ClassPredictive], Tensor | None]] = {
    "entropy": lambda found: found.entropy,
    "mutual_information": lambda found: found.mutual_information,
    "lack_of_confidence": lambda found: 1.0 - found.confidence,
    "top_std": lambda found: found.top_std,
    "variation_ratio": lambda found: found.variation_ratio,
    "energy": lambda found: found.energy,
}
"""Scores of doubt; ``energy`` is not there for networks without logits."""


def judge_unseen(
    known: ClassPredictive, unseen: ClassPredictive, record: DataRecord, num_resamples: int, seed: int = 0
) -> UnseenSet:
    """How well each score tells unseen inputs (the positives) from known ones."""
    scores = {}
    for name, score in SCORES.items():
        negative, positive = score(known), score(unseen)
        if negative is not None and positive is not None:
            scores[name] = _judge_score(name, negative.cpu(), positive.cpu(), num_resamples, seed)
    return UnseenSet(len(unseen.label), record.fingerprint, scores, record.order)


def _judge_score(
    name: str, negative: Float[Tensor, " known"], positive: Float[Tensor, " unseen"], num_resamples: int, seed: int
) -> DetectionScore:
    found = functional.uncertainty.detection(negative, positive)
    resampled = []
    if num_resamples > 0:
        weights = zip(
            resamples(len(negative), num_resamples, 2 * seed),
            resamples(len(positive), num_resamples, 2 * seed + 1),
            strict=True,
        )
        resampled = [functional.uncertainty.detection(negative, positive, *own) for own in weights]
    placements = detection_values(name, negative, positive)
    auroc, aupr, fpr95 = (_estimate(value, [part[place] for part in resampled]) for place, value in enumerate(found))
    return DetectionScore(auroc, aupr, fpr95, histogram({"known": negative, "unseen": positive}), placements)


def _estimate(value: Tensor, resampled: list[Tensor]) -> Estimate:
    if not resampled:
        return Estimate(value.item())
    return Estimate(value.item(), *functional.statistics.bootstrap_interval(value.item(), torch.cat(resampled), LEVEL))
