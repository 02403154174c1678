"""A number of several evaluations against what they differ in: label noise, size of a network, share removed."""

from collections.abc import Mapping
from dataclasses import dataclass

from dubio.evaluation.values import Estimate, Evaluation

__all__ = ["MetricPoint", "metric_curve"]


@dataclass(frozen=True)
class MetricPoint:
    """One point of a curve."""

    x: float
    estimate: Estimate


def metric_curve(evaluations: Mapping[float, Evaluation], metric: str = "accuracy") -> tuple[MetricPoint, ...]:
    """One metric of several evaluations, in rising order of what they differ in.

    For networks trained with wrong labels, ``{0.0: clean, 0.2: noisy, ...}`` gives the curve over label noise. All must
    have been judged on the same data, or the points cannot be compared.
    """
    if not evaluations:
        raise ValueError("evaluations must hold at least one evaluation, got none")
    for x, evaluation in evaluations.items():
        if metric not in evaluation.metrics:
            raise ValueError(f"metric must be one of {', '.join(evaluation.metrics)} at {x:g}, got {metric!r}")
    judged_on = {evaluation.data.fingerprint for evaluation in evaluations.values()}
    if len(judged_on) > 1:
        raise ValueError(f"evaluations must be of the same data to make a curve, got {len(judged_on)} different sets")
    return tuple(MetricPoint(x, evaluations[x].metrics[metric]) for x in sorted(evaluations))
