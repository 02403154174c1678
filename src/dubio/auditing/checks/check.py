"""What all checks share: a number, a name, whether it is required, and what it found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dubio.auditing.bench import Attempt, Bench
from dubio.auditing.values import CurvePoint, Verdict
from dubio.functional.statistics import PairedDifference

__all__ = ["NO_GRADIENT", "Check", "Finding", "curve", "fall_within", "points"]

NO_GRADIENT = "The network has no gradient to follow: it hides how its output depends on its input."


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
    question: str
    """What it asks and why, for a reader who has never heard of it."""
    passes_when: str
    run: Callable[[Bench], Finding]
    required: bool = False
    may_be_skipped: bool = False
    """Whether it is required only where it can be made."""


def fall_within(
    fall: PairedDifference, limit: float, words: str, more: str, shown: tuple[CurvePoint, ...] = ()
) -> Finding:
    """Whether a fall of the accuracy is surely within a limit; if not, whether the fall or the doubt is too large."""
    way = "rises" if fall.value < 0.0 else "falls"
    told = f"{words} {way} by {points(abs(fall.value))} (a fall of at most {points(max(fall.high, 0.0))})."
    if fall.high <= limit:
        return Finding("pass", told, fall.high, limit, shown)
    reason = more if fall.value > limit else f"More than {points(limit)} cannot be excluded: more images would tell."
    return Finding("fail", f"{told} {reason}", fall.high, limit, shown)


def points(share: float) -> str:
    """A share in points of a percent."""
    return f"{100.0 * share:.1f} points"


def curve(xs: Sequence[float], attempts: Sequence[Attempt]) -> tuple[CurvePoint, ...]:
    """What attempts left, at each setting of what a check varies."""
    return tuple(CurvePoint(float(x), attempt.accuracy) for x, attempt in zip(xs, attempts, strict=True))
