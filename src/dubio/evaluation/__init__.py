"""Judge a network: how right it is, how sure, and whether the one follows from the other."""

from dubio.evaluation.comparison import (
    Comparison,
    PairedValues as PairedValues,
    compare,
    compare_pairs as compare_pairs,
    paired_detection as paired_detection,
    paired_shares as paired_shares,
    paired_values as paired_values,
)
from dubio.evaluation.curves import MetricPoint, metric_curve
from dubio.evaluation.evaluating import evaluate
from dubio.evaluation.failures import failures
from dubio.evaluation.gathering import gather as gather
from dubio.evaluation.judging import judge
from dubio.evaluation.measures import real_measures_per_example as real_measures_per_example
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
from dubio.evaluation.words import METRICS as METRICS, SCORE_WORDS as SCORE_WORDS, figure as figure

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
