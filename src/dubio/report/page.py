"""The report as one HTML page and as JSON beside it, and the sections that it has.

The page loads nothing: it has no script and no external address, and serves light and dark themes. Every figure has a
table of its numbers.

Invariants: names of runs and classes are text, and markup in them is escaped (``tests/report/test_writing.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from dubio.checks import listed
from dubio.codec import dump_json, printable, write_atomically
from dubio.report import robustness, sections
from dubio.report.charts import draw
from dubio.report.commands import reproduction
from dubio.report.elements import (
    Bars,
    Block,
    Cell,
    Figure,
    LineChart,
    ReliabilityChart,
    Report,
    Section,
    Table,
    decimal,
    number,
    percent,
)
from dubio.report.runs import RunRecord, read_runs
from dubio.report.summary import headlines, summarise
from dubio.version import versions

EVALUATE, ATTACK, PRUNE, AUDIT = "dubio evaluate", "dubio attack", "dubio prune", "dubio audit"
FILES = {EVALUATE: "evaluation", ATTACK: "attacks", PRUNE: "pruning", AUDIT: "audit"}
"""By command, the field of ``RunRecord`` with its results."""
CLASSES, BOTH = ("classification",), ("classification", "regression")
SECTIONS: tuple[tuple[str, tuple[str, ...], tuple[Callable[[Sequence[RunRecord]], Section], ...]], ...] = (
    (EVALUATE, CLASSES, (sections.reliability, sections.confidence, sections.risk_coverage)),
    (EVALUATE, ("regression",), (sections.intervals,)),
    (EVALUATE, CLASSES, (sections.uncertainty, sections.unseen, sections.corruptions)),
    (EVALUATE, (), (sections.wrong_labels,)),
    (EVALUATE, CLASSES, (sections.notable, sections.classes)),
    (EVALUATE, BOTH, (sections.metrics,)),
    (ATTACK, CLASSES, (robustness.attacks, robustness.before_and_after)),
    (AUDIT, (), (robustness.audits,)),
    (PRUNE, BOTH, (sections.pruning,)),
)
"""In the order of the page: the command whose results sections show, the kinds of networks that lack them without those
results, and the functions that make them."""


def write_report(folders: Sequence[str | Path], path: str | Path, *, title: str | None = None) -> Report:
    """Write a report on runs from the files in their folders; no network and no data are loaded.

    Args:
        folders: one or more run folders, in the order of the report.
        path: the page to write, ending in ``.html``; the JSON file goes beside it, ending in ``.json``.
        title: the title; by default the names of the runs.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise ValueError(f"path must end in .html, got {str(path)!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to")
    report = make_report(read_runs(folders), title)
    page, data = render(report), dump_json(report.to_json(), indent=1)
    write_atomically(path.with_suffix(".json"), f"{data}\n".encode())
    write_atomically(path, page.encode())
    return report


def render(report: Report) -> str:
    """The page as HTML. Markup and control characters in names of runs and classes are escaped."""
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise ImportError("a report needs jinja2, which is missing: pip install jinja2") from None
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_unbroken, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        draw=lambda figure: Markup(draw(figure)), kind_of=_kind, interval=_interval, tabulate=tabulate
    )
    source = files("dubio.report").joinpath("page.html.jinja").read_text(encoding="utf-8")
    return printable(environment.from_string(source).render(report=report))


def tabulate(figure: Figure) -> Table:
    """The numbers of a figure."""
    if isinstance(figure, LineChart):
        columns, rows = _line_rows(figure)
    elif isinstance(figure, Bars):
        columns = (f"{figure.x_label} from", "to", *(f"{figure.y_label}: {name}" for name in figure.groups))
        groups = zip(*figure.groups.values(), strict=True)
        rows = [(*bounds, *values) for bounds, values in zip(pairwise(figure.edges), groups, strict=True)]
    elif isinstance(figure, ReliabilityChart):
        columns = ("share of examples", "mean confidence", "accuracy")
        bins = zip(figure.share, figure.confidence, figure.accuracy, strict=True)
        rows = [row for row in bins if row[1] is not None]
    else:
        columns = ("", *figure.parts)
        rows = list(zip(figure.rows, *figure.parts.values(), strict=True))
    cells = tuple(
        tuple(Cell(value) if isinstance(value, str) else Cell(number(value), value) for value in row) for row in rows
    )
    return Table(f"{figure.title}: the numbers", columns, cells)


def make_report(records: Sequence[RunRecord], title: str | None = None) -> Report:
    """The whole report on some runs."""
    tables, names = headlines(records), [run.name for run in records]
    made = _with_missing_once([(make(records), *needs) for *needs, makes in SECTIONS for make in makes], records)
    shown = (*made, sections.training(records), reproduction(records))
    return Report(
        title=title or f"Report on {listed(names, 'and') if len(names) <= 3 else f'{len(names)} networks'}",
        summary=summarise(records, tables),
        headlines=tables,
        sections=tuple(_with_styles(section, names) for section in shown),
        made_by=versions(),
    )


def _unbroken(value: Any) -> Any:
    """Text in which no line breaks between a number and its percent sign."""
    return value.replace(" %", "\u00a0%") if isinstance(value, str) else value


def _kind(block: Block) -> str:
    """How the page shows a block."""
    return "figure" if isinstance(block, Figure) else type(block).__name__.lower()


def _interval(cell: Cell) -> str:
    if cell.low is None or cell.high is None:
        return ""
    if "%" in cell.text:
        return f"{percent(cell.low).removesuffix(' %')} to {percent(cell.high)}"
    return f"{decimal(cell.low)} to {decimal(cell.high)}"


def _line_rows(figure: LineChart) -> tuple[tuple[str, ...], list[tuple[str | float | None, ...]]]:
    """One column for each line if all have the same places and no bands; else one row for each point."""
    first = figure.series[0].x
    if all(series.x == first and not series.low for series in figure.series):
        names = (series.name for series in figure.series)
        return (figure.x_label, *names), list(zip(first, *(series.y for series in figure.series), strict=True))
    has_bands = any(series.low for series in figure.series)
    rows: list[tuple[str | float | None, ...]] = []
    for series in figure.series:
        none = (None,) * len(series.x)
        ends = (series.low or none, series.high or none) if has_bands else ()
        rows += [(series.name, *values) for values in zip(series.x, series.y, *ends, strict=True)]
    return ("", figure.x_label, figure.y_label, *(("95 % from", "to") if has_bands else ())), rows


def _with_styles(section: Section, names: list[str]) -> Section:
    """The section with the same style for the lines of a run in all figures."""
    styles = {name: place for place, name in enumerate(names)}
    blocks = [
        replace(block, series=tuple(replace(line, style=styles.get(line.name, line.style)) for line in block.series))
        if isinstance(block, LineChart)
        else block
        for block in section.blocks
    ]
    return replace(section, blocks=tuple(blocks))


def _with_missing_once(made: list[Any], records: Sequence[RunRecord]) -> list[Section]:
    """Sections with blocks or with commands that add some; each command is named in the first section it adds to."""
    named: set[str] = set()
    kept = []
    for section, command, kinds in made:
        lacking = [run for run in records if run.kind in kinds and not getattr(run, FILES[command])]
        commands = (f"{command} {run.folder.resolve().name}" for run in lacking)
        missing = tuple(line for line in commands if line not in named)
        named |= set(missing)
        if section.blocks or missing:
            kept.append(replace(section, missing=missing))
    return kept
