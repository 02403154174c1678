"""Paired tests of evaluations on the same examples, and curves over several evaluations.

Accuracies are compared by McNemar's exact test, means over examples by Student's paired test, calibration errors by a
paired bootstrap, and areas under ROC curves by DeLong's test. p-values are corrected for the number of pairs (Holm).

Invariants: values are compared only if both evaluations have the same examples in the same order; an evaluation
compared with itself gives p = 1 (``tests/evaluation/test_comparison.py``).
"""

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dubio import functional
from dubio.evaluation.records import Estimate, Evaluation, PerExample

Kind = Literal["share", "mean", "calibration", "area"]
TESTS = {"share": "McNemar", "mean": "paired t-test", "calibration": "paired bootstrap", "area": "DeLong"}
"""The test of each kind of metric."""
DTYPES: dict[str, str] = {"float16": "<f2", "float32": "<f4"}
PAIRED_SCORES = ("entropy", "mutual_information")
"""Scores whose areas under the ROC curve can be compared."""
MEANS = {"nll": "nll", "rmse": "square", "mae": "mae", "crps": "crps"}
"""Metrics compared by means over examples, and the names of the stored values; RMSE by squared errors."""
RESAMPLES, CHUNK = 500, 100


@dataclass(frozen=True, eq=False)
class PairedValues:
    """Results of one network on single examples."""

    examples: str
    """Hash of the examples in their order; only values of the same examples are compared."""
    kind: Kind
    values: tuple[Tensor, ...]


@dataclass(frozen=True)
class Comparison:
    """A paired test of one metric of two networks."""

    metric: str
    first: str
    second: str
    p_value: float
    """Corrected for the number of pairs."""
    test: str
    num_pairs: int

    def between(self, first: str, second: str) -> bool:
        """Whether it compares these two networks."""
        return {self.first, self.second} == {first, second}

    def __str__(self) -> str:
        correction = f", Holm over {self.num_pairs} pairs" if self.num_pairs > 1 else ""
        shown = "p < 0.0001" if self.p_value < 1e-4 else f"p = {self.p_value:.2g}"
        return f"{shown}, {self.test}{correction}"


@dataclass(frozen=True)
class MetricPoint:
    """One point of a curve."""

    x: float
    estimate: Estimate


def compare(evaluations: Mapping[str, Evaluation], metric: str = "accuracy") -> tuple[Comparison, ...]:
    """Test every pair of evaluations of the same data for a difference in one metric.

    Args:
        evaluations: by name, at least two.
        metric: ``accuracy``, ``nll``, ``ece``, ``rmse``, ``mae`` or ``crps``.

    Raises:
        ValueError: the metric has no paired test, or the evaluations are of other data, or from a version that stored
            no results of single examples.
    """
    if len(evaluations) < 2:
        raise ValueError(f"evaluations must be at least two to be compared, got {len(evaluations)}")
    if metric not in ("accuracy", "ece", *MEANS):
        raise ValueError(f"metric must be one of accuracy, ece, {', '.join(MEANS)}, got {metric!r}")
    paired = {name: paired_values(evaluation, metric) for name, evaluation in evaluations.items()}
    usable = {name: values for name, values in paired.items() if values is not None}
    if len(usable) < len(paired):
        missing = next(name for name in paired if name not in usable)
        raise ValueError(f"evaluation {missing!r} holds no {metric} of single examples; evaluate the network again")
    if len({values.examples for values in usable.values()}) > 1:
        raise ValueError("evaluations must be of the same examples in the same order to be compared, got others")
    return compare_pairs(metric, usable)


def metric_curve(evaluations: Mapping[float, Evaluation], metric: str = "accuracy") -> tuple[MetricPoint, ...]:
    """One metric of several evaluations, in increasing order of the value that they differ in.

    For networks trained with wrong labels, ``{0.0: clean, 0.2: noisy, ...}`` gives the curve over label noise. All
    evaluations must be of the same data.
    """
    if not evaluations:
        raise ValueError("evaluations must hold at least one evaluation, got none")
    for x, evaluation in evaluations.items():
        if metric not in evaluation.metrics:
            raise ValueError(f"metric must be one of {', '.join(evaluation.metrics)} at {x:g}, got {metric!r}")
    num_sets = len({evaluation.data.fingerprint for evaluation in evaluations.values()})
    if num_sets > 1:
        raise ValueError(f"evaluations must be of the same data to make a curve, got {num_sets} different sets")
    return tuple(MetricPoint(x, evaluations[x].metrics[metric]) for x in sorted(evaluations))


def compare_pairs(metric: str, values: Mapping[str, PairedValues]) -> tuple[Comparison, ...]:
    """Test every pair of networks; all values must be of the same examples and of one kind."""
    if len(values) < 2:
        return ()
    kind = next(iter(values.values())).kind
    pairs = list(combinations(values, 2))
    if kind == "calibration":
        raw = _test_calibration(list(values), [values[name].values for name in values], pairs)
    else:
        raw = [_test(kind, values[first].values, values[second].values) for first, second in pairs]
    return tuple(
        Comparison(metric, first, second, p_value, TESTS[kind], len(pairs))
        for (first, second), p_value in zip(pairs, functional.statistics.holm(raw), strict=True)
    )


def paired_values(evaluation: Evaluation, metric: str) -> PairedValues | None:
    """Results of single examples for a metric; None if the evaluation has none."""
    order, stored = evaluation.data.order, evaluation.per_example
    names = {"accuracy": ("correct",), "ece": ("confidence", "correct")}.get(metric, (MEANS.get(metric, ""),))
    if not order or any(name not in stored for name in names):
        return None
    kinds: dict[str, Kind] = {"accuracy": "share", "ece": "calibration"}
    return PairedValues(order, kinds.get(metric, "mean"), tuple(unpack(stored[name]) for name in names))


def paired_detection(evaluation: Evaluation, unseen: str, score: str) -> PairedValues | None:
    """Results of single examples for the area of a score; None if the evaluation has none."""
    dataset = evaluation.unseen[unseen]
    stored = dataset.scores[score].placements if score in dataset.scores else {}
    if not evaluation.data.order or not dataset.order or not stored:
        return None
    parts = tuple(unpack(stored[name]).double() for name in ("known", "unseen"))
    return PairedValues(f"{evaluation.data.order} {dataset.order}", "area", parts)


def paired_shares(right: Sequence[int], examples: str) -> PairedValues:
    """Right and wrong on single examples, such as under attack."""
    return PairedValues(examples, "share", (torch.tensor(right, dtype=torch.bool),))


def class_values(
    correct: Bool[Tensor, " example"], nll: Float[Tensor, " example"], confidence: Float[Tensor, " example"]
) -> dict[str, PerExample]:
    """Results of single examples that an evaluation of classes stores."""
    return {"correct": pack(correct, "bits"), "nll": pack(nll, "float32"), "confidence": pack(confidence, "float32")}


def real_values(per_example: Mapping[str, Float[Tensor, " example"]]) -> dict[str, PerExample]:
    """Results of single examples that an evaluation of numbers stores."""
    return {name: pack(per_example[name], "float32") for name in MEANS.values()}


def detection_values(
    name: str, seen: Float[Tensor, " seen"], unseen: Float[Tensor, " unseen"]
) -> dict[str, PerExample]:
    """Results of single examples that an evaluation stores for a score; empty for scores that are not compared."""
    if name not in PAIRED_SCORES:
        return {}
    placements = functional.statistics.auroc_placements(seen, unseen)
    return {group: pack(part, "float16") for group, part in zip(("known", "unseen"), placements, strict=True)}


def pack(values: Tensor, dtype: Literal["bits", "float16", "float32"]) -> PerExample:
    """Encode one number for each example as text."""
    array = values.detach().cpu().numpy()
    if dtype == "bits":
        content = np.packbits(array.astype(bool))
    else:
        largest = np.finfo(DTYPES[dtype]).max
        content = array.clip(-largest, largest).astype(DTYPES[dtype])
    return PerExample(dtype, len(array), base64.b64encode(content.tobytes()).decode())


def unpack(stored: PerExample) -> Tensor:
    """Decode one number for each example from text.

    Raises:
        ValueError: the text does not hold that many numbers.
    """
    content = base64.b64decode(stored.content, validate=True)
    size = -(-stored.count // 8) if stored.dtype == "bits" else stored.count * np.dtype(DTYPES[stored.dtype]).itemsize
    if len(content) != size or stored.count < 1:
        raise ValueError(f"values of {stored.count} examples must take {size} bytes, got {len(content)}")
    if stored.dtype == "bits":
        bits = np.unpackbits(np.frombuffer(content, dtype=np.uint8))[: stored.count]
        return torch.from_numpy(bits.astype(bool))
    numbers = np.frombuffer(content, dtype=DTYPES[stored.dtype]).astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError("values of examples must be finite")
    return torch.from_numpy(numbers)


def _test(kind: Kind, first: tuple[Tensor, ...], second: tuple[Tensor, ...]) -> float:
    if kind == "share":
        return functional.statistics.mcnemar(first[0], second[0])
    if kind == "mean":
        return functional.statistics.paired_mean_test(first[0], second[0])
    return functional.statistics.paired_auroc_test((first[0], first[1]), (second[0], second[1]))


def _test_calibration(
    names: list[str], values: Sequence[tuple[Tensor, ...]], pairs: Sequence[tuple[str, str]]
) -> list[float]:
    """p-values of differences of calibration errors, from the same resamples of the examples for all networks."""
    generator = torch.Generator().manual_seed(0)
    count = len(values[0][0])

    def errors(weight: Tensor | None) -> Tensor:
        sums = (functional.calibration.bin_sums(confidence, correct, weight=weight) for confidence, correct in values)
        return torch.stack([functional.calibration.calibration_error(part) for part in sums])

    chunks = (functional.statistics.resample_weights(count, CHUNK, generator) for _ in range(RESAMPLES // CHUNK))
    resampled = dict(zip(names, torch.cat([errors(weight) for weight in chunks], dim=-1), strict=True))
    exact = dict(zip(names, errors(None), strict=True))
    p_values = []
    for first, second in pairs:
        spread = (resampled[first] - resampled[second]).std().item()
        difference = (exact[first] - exact[second]).item()
        p_values.append(functional.statistics.normal_test(difference, spread if math.isfinite(spread) else 0.0))
    return p_values
