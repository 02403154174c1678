"""A number and where it comes from: the record of one cell of an experiment, for one seed."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from dubio import version
from dubio.codec import Record
from dubio_lab.spec import Variant

__all__ = ["Curve", "Findings", "Measured", "Result", "commit_here"]


@dataclass(frozen=True)
class Measured:
    """A number, its standard error where it has one, and what it was taken over."""

    value: float
    standard_error: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class Curve:
    """Numbers along an axis: a line of a figure."""

    x: tuple[float, ...]
    y: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.x or len(self.x) != len(self.y):
            raise ValueError(f"x and y of a curve must have the same length, got {len(self.x)} and {len(self.y)}")


@dataclass(frozen=True)
class Findings:
    """What a protocol found in one trial."""

    metrics: dict[str, Measured]
    curves: dict[str, Curve] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    """What is said in words: a verdict, and why."""

    def __or__(self, other: "Findings") -> "Findings":
        """Both; what is in both is an error."""
        for own, added in ((self.metrics, other.metrics), (self.curves, other.curves), (self.notes, other.notes)):
            twice = {*own} & {*added}
            if twice:
                raise ValueError(f"{min(twice)} was found twice")
        return Findings(
            {**self.metrics, **other.metrics}, {**self.curves, **other.curves}, {**self.notes, **other.notes}
        )


@dataclass(frozen=True)
class Result(Record):
    """What came of one cell with one seed."""

    format: ClassVar = "dubio-result-1"
    called: ClassVar = "the result of an experiment"

    spec: str
    digest: str
    """Of what it depends on: see ``Spec.digest_of``."""
    cell: str
    seed: int
    variant: Variant
    settings: dict[str, Any]
    metrics: dict[str, Measured]
    curves: dict[str, Curve]
    notes: dict[str, str]
    published: dict[str, float]
    source: str
    attempts: int
    """How often this cell was run with this seed, under this spec or one before it."""
    seconds: float
    commit: str | None
    versions: dict[str, str]
    hardware: str
    origins: dict[str, str] = field(default_factory=dict)
    """Commit and hardware of what it took from others: trained networks, perturbed images."""


def commit_here() -> str | None:
    """The commit that a record names: that of dubio and of this package, None unless one checkout holds both."""
    of_dubio, of_the_laboratory = version.commit_here(), version.commit_here(__file__)
    return of_dubio if of_dubio == of_the_laboratory else None
