"""Predictions judged against targets, whoever made the predictions.

Predicted classes, judged against the true ones.

Predicted numbers, judged against the true ones.

Whether doubt finds data that the network has never seen: each score of doubt, on each unseen set.

Numbers with what makes them unsure: other examples, other draws, more draws.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dubio import functional
from dubio.data import fingerprint_of
from dubio.evaluation.comparison import class_values, detection_values, real_values
from dubio.evaluation.metrics import (
    class_measures,
    class_table,
    confidence_histogram,
    histogram,
    notable_examples,
    real_measures,
    real_measures_per_example,
    reliability_bins,
    risk_curve,
    uncertainty_by_group,
    weighted_mean,
)
from dubio.evaluation.records import DataRecord, DetectionScore, DrawCheck, Estimate, Evaluation, IntervalRow, UnseenSet
from dubio.prediction import ClassificationPredictive, Predictive, RegressionPredictive


def judge(
    found: Predictive,
    targets: Tensor,
    *,
    again: Predictive | None = None,
    inputs: Any = None,
    classes: Sequence[str] = (),
    record: DataRecord | None = None,
    num_resamples: int = 300,
    seed: int = 0,
) -> Evaluation:
    """Judge predictions; ``evaluate`` makes them first.

    Args:
        found: what ``predict`` gave. How far other draws would move a number is told with ``keep_samples=True``.
        targets: labels or values, a row for each prediction.
        again: as many draws again, of another seed, to tell whether the first were enough.
        inputs: what was predicted from, to show images of.
        classes: names of the classes; numbers by default.
        record: what is written down about the data.
        num_resamples: resamples for intervals over examples; 0 for none.
        seed: which resamples.
    """
    if num_resamples < 0:
        raise ValueError(f"num_resamples must be at least 0, got {num_resamples}")
    if again is not None and type(again) is not type(found):
        raise TypeError(f"again must be of the kind of found, {type(found).__name__}, got {type(again).__name__}")
    with torch.device("cpu"):  # where the numbers of predictions are, whatever the default device is
        if isinstance(found, ClassificationPredictive):
            own = fingerprint_of(found.log_probs, targets)
            record = record or DataRecord("data", len(targets), own, tuple(classes))
            assert again is None or isinstance(again, ClassificationPredictive)
            return judge_classes(found, targets, record, again, inputs, num_resamples, seed)
        if isinstance(found, RegressionPredictive):
            record = record or DataRecord("data", len(targets), fingerprint_of(found.mean, targets))
            assert again is None or isinstance(again, RegressionPredictive)
            return judge_reals(found, targets, record, again, num_resamples, seed)
    raise TypeError(f"found must be what dubio.predict gives, got {type(found).__name__}")


def judge_classes(
    found: ClassificationPredictive,
    targets: Tensor,
    record: DataRecord,
    again: ClassificationPredictive | None,
    inputs: Any,
    num_resamples: int,
    seed: int,
) -> Evaluation:
    """Judge predicted classes."""
    found = in_rows(found)
    labels = _labels(targets, found)
    names = _names(record.classes, found.log_probs.shape[-1])
    correct, confidence = found.label == labels, found.confidence
    metrics = estimates(
        lambda weight: _measures(found, labels, weight),
        len(labels),
        num_resamples,
        left_out=_left_out(found, labels),
        doubled=None if again is None else class_measures(_average(found, in_rows(again)), labels),
        seed=seed,
    )
    return Evaluation(
        kind="classification",
        data=dataclasses.replace(record, classes=names),
        num_samples=found.num_samples,
        seed=found.seed,
        seconds=0.0,
        metrics=metrics,
        draws=None if again is None else check_draws(metrics, found.num_samples),
        reliability=reliability_bins(confidence, correct),
        confidence=confidence_histogram(confidence, correct),
        risk_coverage=risk_curve(confidence, correct),
        uncertainty=uncertainty_by_group(found, correct),
        classes=class_table(found.log_probs, labels, names),
        notable=notable_examples(found, labels, names, inputs),
        per_example=class_values(correct, -found.log_probs.gather(-1, labels[:, None]).squeeze(-1), confidence),
    )


def in_rows(found: ClassificationPredictive) -> ClassificationPredictive:
    """Predictions of one target each, on the CPU; yes or no of one output is two classes."""
    rows = found.in_rows()
    own = {field.name: getattr(rows, field.name) for field in dataclasses.fields(rows)}
    here: dict[str, Any] = {name: value.detach().cpu() for name, value in own.items() if isinstance(value, Tensor)}
    return dataclasses.replace(rows, **here)


def _measures(
    found: ClassificationPredictive, labels: Int[Tensor, " example"], weight: Float[Tensor, "resample example"] | None
) -> dict[str, Tensor]:
    """All numbers, those about single draws as well."""
    means = {
        "expected_entropy": found.expected_entropy,
        "mutual_information": found.mutual_information,
        "single_draw_accuracy": found.votes.gather(-1, labels[:, None]).squeeze(-1),
    }
    if found.prediction_sets is not None:
        means["set_coverage"] = found.sets.gather(-1, labels[:, None]).squeeze(-1).double()
        means["set_size"] = found.sets.sum(dim=-1).double()
    if found.threshold is not None:
        means["accepted_share"] = found.accepted.double()
    own = {name: weighted_mean(values, weight) for name, values in means.items()}
    if found.threshold is not None and bool(found.accepted.any()):  # among none there is no error
        wrong = weighted_mean(found.accepted.double() * (found.label != labels), weight)
        own["accepted_error"] = wrong / own["accepted_share"].clamp_min(1.0 / len(labels))
    return class_measures(found.log_probs, labels, weight) | own


def _left_out(found: ClassificationPredictive, labels: Int[Tensor, " example"]) -> list[dict[str, Tensor]] | None:
    """The measures with each group of draws left out."""
    if found.samples is None or not can_group(found.num_samples):
        return None
    groups = functional.statistics.group_means(found.samples.double(), NUM_GROUPS)
    return [class_measures(found.calibrated(part), labels) for part in functional.statistics.left_out_means(groups)]


def _average(found: ClassificationPredictive, again: ClassificationPredictive) -> Float[Tensor, "example class"]:
    """Log of the mean probability over both, calibrated as each is."""
    both = [
        part.log_probs if part.uncalibrated_log_probs is None else part.uncalibrated_log_probs
        for part in (found, again)
    ]
    return found.calibrated(torch.logaddexp(both[0].double(), both[1].double()) - math.log(2.0))


def _labels(targets: Tensor, found: ClassificationPredictive) -> Int[Tensor, " example"]:
    num_examples, num_classes = found.log_probs.shape
    labels = targets.cpu().squeeze(1) if targets.dim() == 2 and targets.shape[1] == 1 else targets.cpu()
    if labels.shape != (num_examples,):
        raise ValueError(f"targets must be one label for each of {num_examples} examples, got {tuple(targets.shape)}")
    is_whole = not labels.is_complex() and not (labels.is_floating_point() and bool((labels != labels.round()).any()))
    if not is_whole or (labels.dtype == torch.bool and num_classes != 2):
        raise TypeError(f"targets must be whole numbers that name classes, got {targets.dtype}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= num_classes:
        raise ValueError(f"targets must name classes from 0 to {num_classes - 1}, got {low if low < 0 else high}")
    return labels.long()


def _names(given: tuple[str, ...], count: int) -> tuple[str, ...]:
    if not given:
        return tuple(str(number) for number in range(count))
    if len(given) != count or len(set(given)) < count:
        what = f"{len(given)} names" if len(given) != count else f"a name twice in {given}"
        raise ValueError(f"classes must name all {count} classes of the predictions, each by its own name, got {what}")
    return given


LEVELS = (0.5, 0.8, 0.9, 0.95)


Draws = tuple[Float[Tensor, "sample example *rest"], Float[Tensor, "sample example *rest"]]


def judge_reals(
    found: RegressionPredictive,
    targets: Tensor,
    record: DataRecord,
    again: RegressionPredictive | None,
    num_resamples: int,
    seed: int,
) -> Evaluation:
    """Judge predicted numbers."""
    wanted = _values(targets, found)
    means, stds = _draws(found)
    per_example = real_measures_per_example(means, stds, wanted) | {
        name: getattr(found, name).cpu().double().reshape(len(wanted), -1).mean(dim=1)
        for name in ("std", "aleatoric_std", "epistemic_std")
    }
    doubled = None
    if again is not None:
        more_means, more_stds = _draws(again)
        both = torch.cat([means, more_means]), torch.cat([stds, more_stds])
        doubled = real_measures(real_measures_per_example(*both, wanted))
    metrics = estimates(
        lambda weight: real_measures(per_example, weight),
        len(wanted),
        num_resamples,
        left_out=_left_out_values(means, stds, wanted),
        doubled=doubled,
        seed=seed,
    )
    return Evaluation(
        kind="regression",
        data=record,
        num_samples=found.num_samples,
        seed=found.seed,
        seconds=0.0,
        metrics=metrics,
        draws=None if doubled is None else check_draws(metrics, found.num_samples),
        per_example=real_values(per_example),
        baseline={"rmse": float(wanted.double().var(dim=0, correction=0).mean().sqrt())},
        intervals=tuple(_interval_row(found, wanted, level, num_resamples, seed) for level in LEVELS),
    )


def _interval_row(
    found: RegressionPredictive, wanted: Float[Tensor, "example *rest"], level: float, num_resamples: int, seed: int
) -> IntervalRow:
    low, high = (end.cpu() for end in found.interval(level))
    inside = ((low <= wanted) & (wanted <= high)).double().reshape(len(wanted), -1).mean(dim=1)
    width = (high - low).double().reshape(len(wanted), -1).mean(dim=1)
    row = estimates(
        lambda weight: {"coverage": weighted_mean(inside, weight), "width": weighted_mean(width, weight)},
        len(wanted),
        num_resamples,
        seed=seed,
    )
    return IntervalRow(level, row["coverage"], row["width"])


def _left_out_values(means: Tensor, stds: Tensor, wanted: Tensor) -> list[dict[str, Tensor]] | None:
    """The measures with each group of draws left out."""
    if not can_group(len(means)):
        return None
    size = len(means) // NUM_GROUPS
    numbers = torch.arange(size * NUM_GROUPS)
    others = [numbers[numbers // size != group] for group in range(NUM_GROUPS)]
    return [real_measures(real_measures_per_example(means[rows], stds[rows], wanted)) for rows in others]


def _draws(found: RegressionPredictive) -> Draws:
    if found.samples is None or found.sample_stds is None:
        raise ValueError("predictions must hold the single draws to be judged: predict with keep_samples=True")
    return found.samples.cpu(), found.sample_stds.cpu()


def _values(targets: Tensor, found: RegressionPredictive) -> Float[Tensor, "example *rest"]:
    """Targets in the shape of the predictions: numbers and rows of one number are the same."""
    wanted = tuple(found.mean.shape)
    if tuple(targets.shape) not in (wanted, (*wanted, 1), wanted[:1] if wanted[1:] == (1,) else wanted):
        raise ValueError(f"targets must have the shape of the predictions, {wanted}, got {tuple(targets.shape)}")
    if targets.dtype == torch.bool:
        raise TypeError(f"targets must be real numbers, got {targets.dtype}")
    return targets.cpu().to(found.mean.dtype).reshape(wanted)


SCORES: dict[str, Callable[[ClassificationPredictive], Tensor | None]] = {
    "entropy": lambda found: found.entropy,
    "mutual_information": lambda found: found.mutual_information,
    "lack_of_confidence": lambda found: 1.0 - found.confidence,
    "top_std": lambda found: found.top_std,
    "variation_ratio": lambda found: found.variation_ratio,
    "energy": lambda found: found.energy,
}
"""Scores of doubt; ``energy`` is not there for networks without logits."""


def judge_unseen(
    known: ClassificationPredictive,
    unseen: ClassificationPredictive,
    record: DataRecord,
    num_resamples: int,
    seed: int = 0,
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


Measure = Callable[[Tensor | None], dict[str, Tensor]]
"""Weights of the examples, or None, to numbers."""


CHUNK = 100
"""Resamples at a time."""


LEVEL = 0.95


NUM_GROUPS = 10
"""Groups of draws, each left out once."""


ENOUGH_OF_INTERVAL, ENOUGH_OF_VALUE = 0.25, 0.01


JUDGED_BY = ("accuracy", "nll", "brier", "ece", "aurc", "rmse", "crps")
"""What must not move for the draws to be enough."""


def estimates(
    measure: Measure,
    num_examples: int,
    num_resamples: int,
    *,
    left_out: list[dict[str, Tensor]] | None = None,
    doubled: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> dict[str, Estimate]:
    """All numbers of a measure, with intervals over examples where resamples are asked for.

    ``left_out`` are the numbers with each group of draws left out, ``doubled`` those from twice as many draws.
    """
    found = {name: Estimate(float(value)) for name, value in measure(None).items()}
    if infinite := [name for name, estimate in found.items() if not math.isfinite(estimate.value)]:
        raise ValueError(
            f"{infinite[0]} is not finite: the network gives some target a probability of zero; bound its logits, or "
            "leave such examples out"
        )
    if num_resamples > 0:
        resampled = [measure(weight) for weight in resamples(num_examples, num_resamples, seed)]
        for name in found:
            values = torch.cat([part[name].cpu() for part in resampled])
            low, high = functional.statistics.bootstrap_interval(found[name].value, values, LEVEL)
            found[name] = replace(found[name], low=low, high=high)
    for name in found:
        if left_out is not None and name in left_out[0]:
            values = torch.stack([part[name].cpu() for part in left_out])
            found[name] = replace(found[name], draw_error=functional.statistics.jackknife_error(values))
        if doubled is not None and name in doubled:
            found[name] = replace(found[name], doubled=float(doubled[name]))
    return found


def can_group(num_samples: int) -> bool:
    """Whether there are draws enough to leave groups of them out."""
    return num_samples >= 2 * NUM_GROUPS


def resamples(num_examples: int, num_resamples: int, seed: int) -> Iterator[Float[Tensor, "resample example"]]:
    """Weights of bootstrap resamples, some at a time."""
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, num_resamples, CHUNK):
        yield functional.statistics.resample_weights(num_examples, min(CHUNK, num_resamples - start), generator)


def check_draws(found: Mapping[str, Estimate], num_samples: int) -> DrawCheck:
    """Which number moves most when there are twice as many draws, and whether that is little."""
    moved = {
        name: _movement(estimate)
        for name, estimate in found.items()
        if name in JUDGED_BY and estimate.doubled is not None
    }
    metric = max(moved, key=lambda name: moved[name])
    estimate = found[metric]
    assert estimate.doubled is not None
    return DrawCheck(num_samples, metric, estimate.doubled - estimate.value, moved[metric] <= 1.0)


def _movement(estimate: Estimate) -> float:
    """The change from S to 2S draws, in parts of what is still little."""
    assert estimate.doubled is not None
    change = abs(estimate.doubled - estimate.value)
    if estimate.low is not None and estimate.high is not None and estimate.high > estimate.low:
        return change / (ENOUGH_OF_INTERVAL * 0.5 * (estimate.high - estimate.low))
    return change / max(ENOUGH_OF_VALUE * abs(estimate.value), 1e-12)
