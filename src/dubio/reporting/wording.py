"""Numbers as text, the same on the page, in tables and in the terminal."""

from collections.abc import Sequence

from dubio.evaluation import Estimate
from dubio.reporting.values import Cell

__all__ = [
    "bytes_text",
    "cell",
    "decimal",
    "listed",
    "number",
    "percent",
    "percent_cell",
    "plural",
    "points",
    "thinned",
]


def number(value: float | None) -> str:
    """A number in at most five signs or so; ``-`` for none."""
    if value is None:
        return "-"
    size = abs(value)
    if size < 1e-6 or (float(value).is_integer() and size < 1e6):
        return f"{value:.0f}"
    if size >= 1e6 or size < 5e-4:
        return f"{value:.2e}"
    digits = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"


def percent(share: float | None) -> str:
    """A share in percent."""
    return "-" if share is None else f"{100 * share:.1f} %"


def points(share: float) -> str:
    """A difference of shares in points of percent."""
    return f"{100 * share:.1f} points"


def decimal(value: float) -> str:
    """A number with three decimals, or in at most seven signs where it is large."""
    return f"{value:.3f}" if abs(value) < 1000.0 else f"{value:.1f}" if abs(value) < 1e5 else f"{value:.2e}"


def cell(estimate: Estimate | None, like: str = "") -> Cell:
    """A number and its interval."""
    if estimate is None:
        return Cell("-")
    return Cell(decimal(estimate.value), estimate.value, estimate.low, estimate.high, like=like)


def percent_cell(estimate: Estimate | None, like: str = "") -> Cell:
    """A share and its interval, in percent."""
    if estimate is None:
        return Cell("-")
    return Cell(percent(estimate.value), estimate.value, estimate.low, estimate.high, like=like)


def bytes_text(size: int | None) -> str:
    """A file's size."""
    if size is None:
        return "-"
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def plural(count: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def thinned(count: int, most: int = 100) -> list[int]:
    """Which of ``count`` points to show: at most so many, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]
