"""Judge a network: how right it is, how sure, and whether the one follows from the other."""

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
    Thumbnail,
    UnseenSet,
)

__all__ = [
    "Bins",
    "ClassRow",
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
    "NotableExample",
    "Thumbnail",
    "UnseenSet",
]
