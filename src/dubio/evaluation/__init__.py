"""Judge a network: how right it is, how sure, and whether the one follows from the other."""

from dubio.evaluation.comparison import Comparison, compare
from dubio.evaluation.curves import MetricPoint, metric_curve
from dubio.evaluation.evaluating import evaluate
from dubio.evaluation.failures import failures
from dubio.evaluation.judging import judge
from dubio.evaluation.unseen import SCORES
from dubio.evaluation.values import (
    Bins,
    ClassRow,
    CorruptionPoint,
    Curve,
    DataRecord,
    DetectionScore,
    Doubt,
    DrawCheck,
    Estimate,
    Evaluation,
    Histogram,
    IntervalRow,
    NotableExample,
    PerExample,
    Thumbnail,
    UnseenSet,
)

__all__ = [
    "SCORES",
    "Bins",
    "ClassRow",
    "Comparison",
    "CorruptionPoint",
    "Curve",
    "DataRecord",
    "DetectionScore",
    "Doubt",
    "DrawCheck",
    "Estimate",
    "Evaluation",
    "Histogram",
    "IntervalRow",
    "MetricPoint",
    "NotableExample",
    "PerExample",
    "Thumbnail",
    "UnseenSet",
    "compare",
    "evaluate",
    "failures",
    "judge",
    "metric_curve",
]
