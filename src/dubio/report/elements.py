"""The content of a report as plain values, and numbers as text.

The page and the JSON file are both made from one ``Report``. The functions that format numbers serve the page, its
tables and the terminal.

Invariants: every number of the page stands in the JSON file; every figure has a summary of what it shows
(``tests/report/test_writing.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal

from dubio.attacks import Accuracy
from dubio.evaluation import Comparison, Estimate

FORMAT = "dubio-report-1"
Mark = Literal["", "best", "tied"]


@dataclass(frozen=True)
class Cell:
    """A field of a table: its text, and the number behind it where there is one."""

    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    mark: Mark = ""
    """``best`` where paired tests find every other worse; ``tied`` where they find no difference from the best."""
    note: str = ""
    """Where the number holds: on which data, at which distance."""
    like: str = ""
    """Only cells of one ``like`` are compared: the same data, the same attack."""


@dataclass(frozen=True)
class Table:
    """Columns and rows."""

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True)
class Column:
    """A number that every run of the headline has, or lacks."""

    name: str
    title: str
    about: str
    better: Literal["more", "less", ""] = ""


@dataclass(frozen=True)
class HeadlineRow:
    """One run."""

    run: str
    method: str
    data: str
    cells: dict[str, Cell]
    stale: tuple[str, ...] = ()
    """What was measured before the network changed, with the command that does it anew."""


@dataclass(frozen=True)
class HeadlineTable:
    """All runs of one kind, side by side."""

    kind: Literal["classification", "regression"]
    columns: tuple[Column, ...]
    rows: tuple[HeadlineRow, ...]
    comparisons: tuple[Comparison, ...] = ()
    """Paired tests of every column, behind ``best`` and ``tied``."""
    unpaired: tuple[str, ...] = ()
    """Commands that would let runs be compared whose files hold no results of single examples."""

    def to_json(self) -> dict[str, Any]:
        """As JSON; rows are called ``runs``."""
        return {"runs" if name == "rows" else name: value for name, value in _as_json(self).items()}


@dataclass(frozen=True)
class Series:
    """A line: points, and where there are ``low`` and ``high`` the band around them."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    style: int | None = None
    """Its colour, dashes and mark; by default those of its place. A run has the same ones in all figures."""


@dataclass(frozen=True)
class Titled:
    """A block with a title and a summary of what it shows."""

    title: str
    summary: str


@dataclass(frozen=True)
class LineChart(Titled):
    """Lines over one axis."""

    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_range: tuple[float, ...] = ()
    y_range: tuple[float, ...] = ()
    """Lowest and highest value shown; by default those of the lines."""
    log_y: bool = False
    diagonal: str = ""
    """What the line y = x would mean; not drawn where empty."""


@dataclass(frozen=True)
class Bars(Titled):
    """How often values fall between edges, for each of several groups, as shares of the group."""

    x_label: str
    y_label: str
    edges: tuple[float, ...]
    groups: dict[str, tuple[float, ...]]
    line: float | None = None
    """Where a threshold lies."""


@dataclass(frozen=True)
class ReliabilityChart(Titled):
    """By bin of confidence, the share of examples, their mean confidence and their accuracy."""

    share: tuple[float, ...]
    confidence: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]


@dataclass(frozen=True)
class Stacks(Titled):
    """Parts of a whole, one bar for each row."""

    x_label: str
    rows: tuple[str, ...]
    parts: dict[str, tuple[float, ...]]


Figure = LineChart | Bars | ReliabilityChart | Stacks
KINDS: dict[type, str] = {LineChart: "lines", ReliabilityChart: "reliability"}
"""Kinds of blocks in the JSON file that are not the name of the class in small letters."""


@dataclass(frozen=True)
class Picture:
    """An image as a ``data:`` address, and what it shows in words."""

    source: str
    summary: str


@dataclass(frozen=True)
class Card:
    """One example: its images and what there is to say."""

    pictures: tuple[Picture, ...]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Gallery(Titled):
    """Examples side by side."""

    cards: tuple[Card, ...]


@dataclass(frozen=True)
class Commands:
    """How to make a run's numbers again."""

    title: str
    lines: tuple[str, ...]
    facts: dict[str, str]


@dataclass(frozen=True)
class Note:
    """A sentence of its own; ``tone`` says whether it warns."""

    text: str
    tone: Literal["plain", "good", "warn"] = "plain"


Block = LineChart | Bars | ReliabilityChart | Stacks | Table | Gallery | Commands | Note


@dataclass(frozen=True)
class Section:
    """One question, and what the runs answer."""

    name: str
    title: str
    about: str
    """What a reader sees here, and what good looks like."""
    blocks: tuple[Block, ...]
    missing: tuple[str, ...] = ()
    """Which command would add what is not there."""


@dataclass(frozen=True)
class Report:
    """A whole report."""

    title: str
    summary: tuple[str, ...]
    headlines: tuple[HeadlineTable, ...]
    sections: tuple[Section, ...]
    made_by: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """As JSON; every block says of which kind it is."""
        headlines = [headline.to_json() for headline in self.headlines]
        return {"format": FORMAT, **_as_json(self), "headlines": headlines}


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


def cell(estimate: Estimate | Accuracy | None, like: str = "", text: Callable[[float], str] = decimal) -> Cell:
    """A number and its interval."""
    if estimate is None:
        return Cell("-")
    return Cell(text(estimate.value), estimate.value, estimate.low, estimate.high, like=like)


def percent_cell(estimate: Estimate | Accuracy | None, like: str = "") -> Cell:
    """A share and its interval, in percent."""
    return cell(estimate, like, percent)


def bytes_text(size: int) -> str:
    """A file's size."""
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def plural(count: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def line_of(name: str, points: Sequence[tuple[float, float]]) -> Series:
    """A line through points."""
    return Series(name, tuple(x for x, _ in points), tuple(y for _, y in points))


def ranges_of(lines: Sequence[Series], text: Callable[[float], str] = number) -> str:
    """The first and the last value of every line: ``first: from 0.9 to 0.5; second: from 0.8 to 0.7``."""
    return "; ".join(f"{line.name}: from {text(line.y[0])} to {text(line.y[-1])}" for line in lines)


def thinned(count: int, most: int = 100) -> list[int]:
    """Which of ``count`` points to show: at most so many, evenly spread, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]


def _as_json(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        name = KINDS.get(type(value), type(value).__name__.lower())
        kind = {"kind": name} if isinstance(value, Block) else {}
        return kind | {field.name: _as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: _as_json(part) for name, part in value.items()}
    return [_as_json(part) for part in value] if isinstance(value, tuple) else value
