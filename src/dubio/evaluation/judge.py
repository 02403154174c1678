"""``judge``: metrics of predictions against targets, with intervals.

Predicted classes and predicted numbers have the same three sources of error in every number: the choice of examples
(an interval, by bootstrap), the choice of draws (a standard error, by the jackknife over groups of draws), and the
number of draws (the change with twice as many). ``judge_unseen`` measures how well each score of uncertainty detects
unseen data.

Invariants: judging stored predictions gives the same numbers as ``evaluate``; cutting the data changes nothing
(``tests/evaluation/test_evaluating.py``).
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from dubio import functional
from dubio.data import fingerprint_of
from dubio.evaluation.comparison import class_values, detection_values, real_values
from dubio.evaluation.metrics import (
    class_measures,
    class_table,
    histogram,
    mean_over_outputs,
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

LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Levels of the intervals of predicted numbers."""
LEVEL = 0.95
"""Level of the intervals of metrics."""
CHUNK = 100
"""Resamples at a time."""
NUM_GROUPS = 10
"""Groups of draws for the jackknife."""
ENOUGH_OF_INTERVAL, ENOUGH_OF_VALUE = 0.25, 0.01
DECISIVE = ("accuracy", "nll", "brier", "ece", "aurc", "rmse", "crps")
"""Metrics that must not move for the draws to be enough."""
SCORES: dict[str, Callable[[ClassificationPredictive], Tensor | None]] = {
    "entropy": lambda pred: pred.entropy,
    "mutual_information": lambda pred: pred.mutual_information,
    "lack_of_confidence": lambda pred: 1.0 - pred.confidence,
    "top_std": lambda pred: pred.top_std,
    "variation_ratio": lambda pred: pred.variation_ratio,
    "energy": lambda pred: pred.energy,
}
"""Scores of uncertainty; ``energy`` is None for networks without logits."""

Measure = Callable[[Tensor | None], dict[str, Tensor]]
"""From weights of the examples, or None, to metrics."""
Estimator = Callable[..., dict[str, Estimate]]
"""``estimates`` with a number of resamples and a seed."""


def judge(
    predictive: Predictive,
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
        predictive: the result of ``predict``. With ``keep_samples=True`` metrics have a standard error over draws.
        targets: labels or values, a row for each prediction.
        again: a prediction with as many draws of another seed, which shows whether the first were enough.
        inputs: the inputs of the predictions, to show images of.
        classes: names of the classes; numbers by default.
        record: description of the data.
        num_resamples: resamples for intervals over examples; 0 for none.
        seed: the seed of the resamples.
    """
    if num_resamples < 0:
        raise ValueError(f"num_resamples must be at least 0, got {num_resamples}")
    if again is not None and type(again) is not type(predictive):
        kinds = f"{type(predictive).__name__}, got {type(again).__name__}"
        raise TypeError(f"again must be of the kind of predictive, {kinds}")
    estimate = partial(estimates, num_resamples=num_resamples, seed=seed)
    with torch.device("cpu"):  # predictions are moved there, whatever the default device is
        if isinstance(predictive, ClassificationPredictive):
            fingerprint = fingerprint_of(predictive.log_probs, targets)
            record = record or DataRecord("data", len(targets), fingerprint, tuple(classes))
            assert again is None or isinstance(again, ClassificationPredictive)
            return _judge_classes(predictive, targets, record, again, inputs, estimate)
        if isinstance(predictive, RegressionPredictive):
            record = record or DataRecord("data", len(targets), fingerprint_of(predictive.mean, targets))
            assert again is None or isinstance(again, RegressionPredictive)
            return _judge_reals(predictive, targets, record, again, estimate)
    raise TypeError(f"predictive must be what dubio.predict gives, got {type(predictive).__name__}")


def judge_unseen(
    seen: ClassificationPredictive, unseen: ClassificationPredictive, record: DataRecord, num_resamples: int, seed: int
) -> UnseenSet:
    """How well each score separates unseen inputs (the positives) from those of the data."""
    scores = {}
    for name, score in SCORES.items():
        negative, positive = score(seen), score(unseen)
        if negative is not None and positive is not None:
            scores[name] = _judge_score(name, negative.cpu(), positive.cpu(), num_resamples, seed)
    return UnseenSet(len(unseen.label), record.fingerprint, scores, record.order)


def in_rows(predictive: ClassificationPredictive) -> ClassificationPredictive:
    """Predictions of one target each, on the CPU; a single output for yes or no becomes two classes."""
    rows = predictive.in_rows()
    values = {field.name: getattr(rows, field.name) for field in dataclasses.fields(rows)}
    on_cpu: dict[str, Any] = {name: value.detach().cpu() for name, value in values.items() if isinstance(value, Tensor)}
    return dataclasses.replace(rows, **on_cpu)


def estimates(
    measure: Measure,
    num_examples: int,
    num_resamples: int,
    *,
    left_out: list[dict[str, Tensor]] | None = None,
    doubled: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> dict[str, Estimate]:
    """All metrics of a measure with their errors.

    Args:
        measure: from weights of the examples to metrics.
        num_examples: how many examples there are.
        num_resamples: resamples for intervals over examples; 0 for none.
        left_out: the metrics without each group of draws, for standard errors over draws.
        doubled: the metrics from twice as many draws.
        seed: the seed of the resamples.
    """
    values = {name: float(value) for name, value in measure(None).items()}
    if infinite := [name for name, value in values.items() if not math.isfinite(value)]:
        raise ValueError(
            f"{infinite[0]} is not finite: the network gives some target a probability of zero; bound its logits, or "
            "leave such examples out"
        )
    resampled = [measure(weight) for weight in resamples(num_examples, num_resamples, seed)]
    result = {}
    for name, value in values.items():
        groups = [part[name].cpu() for part in left_out or () if name in part]
        result[name] = dataclasses.replace(
            _with_interval(value, [part[name].cpu() for part in resampled]),
            draw_error=functional.statistics.jackknife_error(torch.stack(groups)) if groups else None,
            doubled=float(doubled[name]) if doubled is not None and name in doubled else None,
        )
    return result


def resamples(num_examples: int, num_resamples: int, seed: int) -> Iterator[Float[Tensor, "resample example"]]:
    """Weights of bootstrap resamples, ``CHUNK`` at a time."""
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, num_resamples, CHUNK):
        yield functional.statistics.resample_weights(num_examples, min(CHUNK, num_resamples - start), generator)


def _judge_classes(
    predictive: ClassificationPredictive,
    targets: Tensor,
    record: DataRecord,
    again: ClassificationPredictive | None,
    inputs: Any,
    estimate: Estimator,
) -> Evaluation:
    pred = in_rows(predictive)
    labels = _labels(targets, pred)
    names = _class_names(record.classes, pred.log_probs.shape[-1])
    correct, confidence = pred.label == labels, pred.confidence
    left_out = None
    if pred.samples is not None and pred.num_samples >= 2 * NUM_GROUPS:
        groups = functional.statistics.group_means(pred.samples.double(), NUM_GROUPS)
        means = functional.statistics.left_out_means(groups)
        left_out = [class_measures(pred.calibrated(mean), labels) for mean in means]
    doubled = None if again is None else class_measures(_average(pred, in_rows(again)), labels)
    metrics = estimate(partial(_class_metrics, pred, labels), len(labels), left_out=left_out, doubled=doubled)
    draws = None if doubled is None else _check_draws(metrics, pred.num_samples)
    data = dataclasses.replace(record, classes=names)
    return dataclasses.replace(
        Evaluation("classification", data, pred.num_samples, pred.seed, 0.0, metrics, draws),
        reliability=reliability_bins(confidence, correct),
        confidence=histogram({"right": confidence[correct], "wrong": confidence[~correct]}, 20, (0.0, 1.0)),
        risk_coverage=risk_curve(confidence, correct),
        uncertainty=uncertainty_by_group(pred, correct),
        classes=class_table(pred.log_probs, labels, names),
        notable=notable_examples(pred, labels, names, inputs),
        per_example=class_values(correct, -_of_labels(pred.log_probs, labels), confidence),
    )


def _class_metrics(
    pred: ClassificationPredictive, labels: Int[Tensor, " example"], weight: Float[Tensor, "resample example"] | None
) -> dict[str, Tensor]:
    """All metrics of predicted classes, those of single draws and of decisions included."""
    per_example = {
        "expected_entropy": pred.expected_entropy,
        "mutual_information": pred.mutual_information,
        "single_draw_accuracy": _of_labels(pred.votes, labels),
    }
    if pred.prediction_sets is not None:
        per_example["set_coverage"] = _of_labels(pred.sets, labels).double()
        per_example["set_size"] = pred.sets.sum(dim=-1).double()
    if pred.threshold is not None:
        per_example["accepted_share"] = pred.accepted.double()
    means = {name: weighted_mean(values, weight) for name, values in per_example.items()}
    if pred.threshold is not None and bool(pred.accepted.any()):  # without accepted examples there is no error
        wrong = weighted_mean(pred.accepted.double() * (pred.label != labels), weight)
        means["accepted_error"] = wrong / means["accepted_share"].clamp_min(1.0 / len(labels))
    return class_measures(pred.log_probs, labels, weight) | means


def _of_labels(values: Shaped[Tensor, "example class"], labels: Int[Tensor, " example"]) -> Shaped[Tensor, " example"]:
    return values.gather(-1, labels[:, None]).squeeze(-1)


def _average(first: ClassificationPredictive, second: ClassificationPredictive) -> Float[Tensor, "example class"]:
    """Log of the mean probability of both, calibrated as each is."""
    log_probs = [
        (part.log_probs if part.uncalibrated_log_probs is None else part.uncalibrated_log_probs).double()
        for part in (first, second)
    ]
    return first.calibrated(torch.logaddexp(*log_probs) - math.log(2.0))


def _labels(targets: Tensor, pred: ClassificationPredictive) -> Int[Tensor, " example"]:
    num_examples, num_classes = pred.log_probs.shape
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


def _class_names(names: tuple[str, ...], count: int) -> tuple[str, ...]:
    if not names:
        return tuple(map(str, range(count)))
    if len(names) != count or len(set(names)) < count:
        what = f"{len(names)} names" if len(names) != count else f"a name twice in {names}"
        raise ValueError(f"classes must name all {count} classes of the predictions, each by its own name, got {what}")
    return names


def _judge_reals(
    pred: RegressionPredictive,
    targets: Tensor,
    record: DataRecord,
    again: RegressionPredictive | None,
    estimate: Estimator,
) -> Evaluation:
    values = _values(targets, pred)
    means, stds = _draws(pred)
    per_example = real_measures_per_example(means, stds, values) | {
        name: mean_over_outputs(getattr(pred, name).cpu().double())
        for name in ("std", "aleatoric_std", "epistemic_std")
    }
    doubled = None
    if again is not None:
        all_means, all_stds = (torch.cat(parts) for parts in zip((means, stds), _draws(again), strict=True))
        doubled = real_measures(real_measures_per_example(all_means, all_stds, values))
    left_out = None
    if len(means) >= 2 * NUM_GROUPS:
        group = torch.arange(len(means) // NUM_GROUPS * NUM_GROUPS) // (len(means) // NUM_GROUPS)
        kept = [(group != left).nonzero().squeeze(-1) for left in range(NUM_GROUPS)]
        left_out = [real_measures(real_measures_per_example(means[rows], stds[rows], values)) for rows in kept]
    metrics = estimate(partial(real_measures, per_example), len(values), left_out=left_out, doubled=doubled)
    draws = None if doubled is None else _check_draws(metrics, pred.num_samples)
    return dataclasses.replace(
        Evaluation("regression", record, pred.num_samples, pred.seed, 0.0, metrics, draws),
        per_example=real_values(per_example),
        baseline={"rmse": float(values.double().var(dim=0, correction=0).mean().sqrt())},
        intervals=tuple(_interval_row(pred, values, level, estimate) for level in LEVELS),
    )


def _interval_row(
    pred: RegressionPredictive, values: Float[Tensor, "example *rest"], level: float, estimate: Estimator
) -> IntervalRow:
    low, high = (end.cpu() for end in pred.interval(level))
    inside = mean_over_outputs(((low <= values) & (values <= high)).double())
    width = mean_over_outputs((high - low).double())
    parts = {"coverage": inside, "width": width}
    row = estimate(lambda weight: {name: weighted_mean(part, weight) for name, part in parts.items()}, len(values))
    return IntervalRow(level, row["coverage"], row["width"])


def _draws(pred: RegressionPredictive) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of the single draws."""
    if pred.samples is None or pred.sample_stds is None:
        raise ValueError("predictions must hold the single draws to be judged: predict with keep_samples=True")
    return pred.samples.cpu(), pred.sample_stds.cpu()


def _values(targets: Tensor, pred: RegressionPredictive) -> Float[Tensor, "example *rest"]:
    """Targets in the shape of the predictions; numbers and rows of one number are the same."""
    shape = tuple(pred.mean.shape)
    if tuple(targets.shape) not in (shape, (*shape, 1), shape[:1] if shape[1:] == (1,) else shape):
        raise ValueError(f"targets must have the shape of the predictions, {shape}, got {tuple(targets.shape)}")
    if targets.dtype == torch.bool:
        raise TypeError(f"targets must be real numbers, got {targets.dtype}")
    return targets.cpu().to(pred.mean.dtype).reshape(shape)


def _judge_score(
    name: str, negative: Float[Tensor, " seen"], positive: Float[Tensor, " unseen"], num_resamples: int, seed: int
) -> DetectionScore:
    detection = functional.uncertainty.detection
    seeds = ((negative, 2 * seed), (positive, 2 * seed + 1))
    weights = (resamples(len(values), num_resamples, start) for values, start in seeds)
    resampled = [detection(negative, positive, *pair) for pair in zip(*weights, strict=True)]
    auroc, aupr, fpr95 = (
        _with_interval(value.item(), [part[place] for part in resampled])
        for place, value in enumerate(detection(negative, positive))
    )
    counts = histogram({"known": negative, "unseen": positive})
    return DetectionScore(auroc, aupr, fpr95, counts, detection_values(name, negative, positive))


def _with_interval(value: float, resampled: list[Tensor]) -> Estimate:
    if not resampled:
        return Estimate(value)
    return Estimate(value, *functional.statistics.bootstrap_interval(value, torch.cat(resampled), LEVEL))


def _check_draws(metrics: Mapping[str, Estimate], num_samples: int) -> DrawCheck:
    """The metric that moves most with twice as many draws, and whether it moves little."""
    changes = {
        name: (estimate.doubled - estimate.value, _tolerance(estimate))
        for name, estimate in metrics.items()
        if name in DECISIVE and estimate.doubled is not None
    }
    relative = {name: abs(change) / tolerance for name, (change, tolerance) in changes.items()}
    metric = max(relative, key=relative.__getitem__)
    return DrawCheck(num_samples, metric, changes[metric][0], relative[metric] <= 1.0)


def _tolerance(estimate: Estimate) -> float:
    """The largest change with twice as many draws that counts as little."""
    if estimate.low is not None and estimate.high is not None and estimate.high > estimate.low:
        return ENOUGH_OF_INTERVAL * 0.5 * (estimate.high - estimate.low)
    return max(ENOUGH_OF_VALUE * abs(estimate.value), 1e-12)
