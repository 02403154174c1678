"""Rows of a record of dubio beside other libraries: found, and their numbers in words."""

import math
from collections.abc import Iterable
from typing import Any

__all__ = ["Row", "draws_of", "find", "number", "of", "ratio"]

Row = dict[str, Any]


def of(rows: Iterable[Row], net: str) -> list[Row]:
    """Those of a network."""
    return [row for row in rows if row["net"] == net]


def find(rows: Iterable[Row], label: str, num_samples: int | None = None) -> Row | None:
    """That of a contestant, with some number of draws or with any; None where there is none."""
    own = (row for row in rows if row["contestant"] == label and num_samples in (None, row.get("num_samples")))
    return next(own, None)


def draws_of(rows: Iterable[Row]) -> list[int]:
    """All numbers of draws."""
    return sorted({row["num_samples"] for row in rows})


def number(value: float) -> str:
    """Three figures, and all of those before the point."""
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def ratio(value: float) -> str:
    """Two figures: times on a machine with other work are not known better."""
    digits = 1 - math.floor(math.log10(float(f"{value:.1e}")))
    return f"{round(value, digits):,.{max(digits, 0)}f}"
