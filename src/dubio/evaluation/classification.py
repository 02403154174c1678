"""Predicted classes, judged against the true ones."""

import dataclasses
import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dubio import functional
from dubio.evaluation.comparison import class_values
from dubio.evaluation.describing import (
    class_table,
    confidence_histogram,
    doubt_by_group,
    notable_examples,
    reliability_bins,
    risk_curve,
)
from dubio.evaluation.estimating import NUM_GROUPS, can_group, check_draws, estimates
from dubio.evaluation.measures import class_measures, weighted_mean
from dubio.evaluation.values import DataRecord, Evaluation
from dubio.prediction import ClassPredictive

__all__ = ["in_rows", "judge_classes"]


def judge_classes(
    found: ClassPredictive,
    targets: Tensor,
    record: DataRecord,
    again: ClassPredictive | None,
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
        doubt=doubt_by_group(found, correct),
        classes=class_table(found.log_probs, labels, names),
        notable=notable_examples(found, labels, names, inputs),
        per_example=class_values(correct, -found.log_probs.gather(-1, labels[:, None]).squeeze(-1), confidence),
    )


def in_rows(found: ClassPredictive) -> ClassPredictive:
    """Predictions of one target each, on the CPU; yes or no of one output is two classes."""
    rows = found.in_rows()
    own = {field.name: getattr(rows, field.name) for field in dataclasses.fields(rows)}
    here: dict[str, Any] = {name: value.detach().cpu() for name, value in own.items() if isinstance(value, Tensor)}
    return dataclasses.replace(rows, **here)


def _measures(
    found: ClassPredictive, labels: Int[Tensor, " example"], weight: Float[Tensor, "resample example"] | None
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


def _left_out(found: ClassPredictive, labels: Int[Tensor, " example"]) -> list[dict[str, Tensor]] | None:
    """The measures with each group of draws left out."""
    if found.samples is None or not can_group(found.num_samples):
        return None
    groups = functional.statistics.group_means(found.samples.double(), NUM_GROUPS)
    return [class_measures(found.calibrated(part), labels) for part in functional.statistics.left_out_means(groups)]


def _average(found: ClassPredictive, again: ClassPredictive) -> Float[Tensor, "example class"]:
    """Log of the mean probability over both, calibrated as each is."""
    both = [
        part.log_probs if part.uncalibrated_log_probs is None else part.uncalibrated_log_probs
        for part in (found, again)
    ]
    return found.calibrated(torch.logaddexp(both[0].double(), both[1].double()) - math.log(2.0))


def _labels(targets: Tensor, found: ClassPredictive) -> Int[Tensor, " example"]:
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
