"""A number and where it comes from: the record of one cell of an experiment, for one seed."""

from dataclasses import dataclass
from typing import Any, ClassVar

from dubio.persistence.records import Record

__all__ = ["Measured", "Result"]


@dataclass(frozen=True)
class Measured:
    """A number, its standard error where it has one, and what it was taken over."""

    value: float
    standard_error: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class Result(Record):
    """What came of one cell with one seed."""

    format: ClassVar = "dubio-result-1"
    called: ClassVar = "the result of an experiment"

    spec: str
    spec_digest: str
    cell: str
    seed: int
    tiny: bool
    settings: dict[str, Any]
    metrics: dict[str, Measured]
    published: dict[str, float]
    source: str
    attempts: int
    """How often this cell was run with this seed, under this spec or one before it."""
    seconds: float
    commit: str | None
    versions: dict[str, str]
    hardware: str
