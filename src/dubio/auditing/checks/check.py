"""What all checks share: a number, a name, whether it is required, and how a finding becomes a record."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dubio.auditing.bench import Bench
from dubio.auditing.values import CurvePoint, Verdict

__all__ = ["Check", "Finding", "curve", "points"]


@dataclass(frozen=True)
class Finding:
    """What a check found."""

    status: Verdict
    words: str
    value: float | None = None
    limit: float | None = None
    curve: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True)
class Check:
    """One question of an audit."""

    id: str
    name: str
    required: bool
    question: str
    """What it asks and why, for a reader who has never heard of it."""
    run: Callable[[Bench], Finding]


def points(share: float) -> str:
    """A share in points of a percent."""
    return f"{100.0 * share:.1f} points"


def curve(xs: Sequence[float], accuracies: Sequence[float]) -> tuple[CurvePoint, ...]:
    """Points of a curve."""
    return tuple(CurvePoint(float(x), accuracy) for x, accuracy in zip(xs, accuracies, strict=True))
