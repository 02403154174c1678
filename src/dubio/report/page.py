"""Write a report: the page, and the same as JSON beside it.

A report as one HTML page that needs nothing but itself: no script, no address outside, light and dark.

The numbers of a figure as a table, for those who want them exactly or cannot see the figure.

Which sections a report has, in which order, and what a run would need to be in them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from dubio.codec import dump_json, printable, write_atomically
from dubio.report import (
    robustness as attacked,
    robustness as audited,
    sections as detailed,
    sections as judged,
    sections as learned,
    sections as strange,
)
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
    Stacks,
    Table,
    decimal,
    listed,
    number,
    percent,
)
from dubio.report.runs import RunRecord, read_runs
from dubio.report.summary import headlines, summarise
from dubio.version import versions


def write_report(folders: Sequence[str | Path], path: str | Path, *, title: str | None = None) -> Report:
    """Make a report from the folders of runs and write it; no network and no data are loaded.

    Args:
        folders: one or more run folders, in the order in which they are to appear.
        path: the page to write, ending in ``.html``; the same as JSON goes beside it, ending in ``.json``.
        title: what stands at the top; by default the names of the runs.
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
    """The page. Names of runs and classes are text from elsewhere: markup in it is escaped, and control characters."""
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise ImportError("a report needs jinja2, which is missing: pip install jinja2") from None
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_joined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        draw=lambda figure: Markup(draw(figure)), kind_of=_kind, interval=_interval, tabulate=tabulate
    )
    source = files("dubio.report").joinpath("page.html.jinja").read_text(encoding="utf-8")
    return printable(environment.from_string(source).render(report=report))


def _joined(value: Any) -> Any:
    """Text whose percent signs stay on the line of their numbers."""
    return value.replace(" %", "\u00a0%") if isinstance(value, str) else value


def _kind(block: Block) -> str:
    """How the page shows a block."""
    return "figure" if isinstance(block, LineChart | Bars | ReliabilityChart | Stacks) else type(block).__name__.lower()


def _interval(cell: Cell) -> str:
    if cell.low is None or cell.high is None:
        return ""
    if "%" in cell.text:
        return f"{percent(cell.low).removesuffix(' %')} to {percent(cell.high)}"
    return f"{decimal(cell.low)} to {decimal(cell.high)}"


def tabulate(figure: Figure) -> Table:
    """A figure's numbers."""
    caption = f"{figure.title}: the numbers"
    if isinstance(figure, LineChart):
        return _of_lines(figure, caption)
    if isinstance(figure, Bars):
        columns = (f"{figure.x_label} from", "to", *(f"{figure.y_label}: {name}" for name in figure.groups))
        groups = zip(*figure.groups.values(), strict=True)
        rows = [(*bounds, *values) for bounds, values in zip(pairwise(figure.edges), groups, strict=True)]
        return Table(caption, columns, tuple(tuple(map(_cell, row)) for row in rows))
    if isinstance(figure, ReliabilityChart):
        found = zip(figure.share, figure.confidence, figure.accuracy, strict=True)
        filled = [tuple(map(_cell, row)) for row in found if row[1] is not None]
        return Table(caption, ("share of examples", "mean confidence", "accuracy"), tuple(filled))
    parts = zip(figure.rows, zip(*figure.parts.values(), strict=True), strict=True)
    rows_of_parts = tuple((Cell(name), *map(_cell, values)) for name, values in parts)
    return Table(caption, ("", *figure.parts), rows_of_parts)


def _of_lines(figure: LineChart, caption: str) -> Table:
    """One column for each line where all have the same places; else one row for each point."""
    first = figure.series[0].x
    if all(series.x == first and not series.low for series in figure.series):
        columns = (figure.x_label, *(series.name for series in figure.series))
        rows = zip(first, *(series.y for series in figure.series), strict=True)
        return Table(caption, columns, tuple(tuple(map(_cell, row)) for row in rows))
    bounded = any(series.low for series in figure.series)
    found = []
    for series in figure.series:
        none = (None,) * len(series.x)
        for x, y, *ends in zip(series.x, series.y, series.low or none, series.high or none, strict=True):
            found.append((Cell(series.name), _cell(x), _cell(y), *(map(_cell, ends) if bounded else ())))
    ends_named = ("95 % from", "to") if bounded else ()
    return Table(caption, ("", figure.x_label, figure.y_label, *ends_named), tuple(found))


def _cell(value: float | None) -> Cell:
    return Cell(number(value), value)


Maker = Callable[[Sequence[RunRecord]], Section]


EVALUATE, ATTACK, PRUNE, AUDIT = "dubio evaluate", "dubio attack", "dubio prune", "dubio audit"


FILES = {EVALUATE: "evaluation", ATTACK: "attacks", PRUNE: "pruning", AUDIT: "audit"}


CLASSES, BOTH = ("classification",), ("classification", "regression")


SECTIONS: tuple[tuple[Maker, str, tuple[str, ...]], ...] = (
    (judged.reliability, EVALUATE, CLASSES),
    (judged.confidence, EVALUATE, CLASSES),
    (judged.risk_coverage, EVALUATE, CLASSES),
    (judged.intervals, EVALUATE, ("regression",)),
    (judged.uncertainty, EVALUATE, CLASSES),
    (strange.unseen, EVALUATE, CLASSES),
    (strange.corruptions, EVALUATE, CLASSES),
    (strange.wrong_labels, EVALUATE, ()),
    (detailed.notable, EVALUATE, CLASSES),
    (detailed.classes, EVALUATE, CLASSES),
    (detailed.metrics, EVALUATE, BOTH),
    (attacked.attacks, ATTACK, CLASSES),
    (attacked.before_and_after, ATTACK, CLASSES),
    (audited.audits, AUDIT, ()),
    (learned.pruning, PRUNE, BOTH),
)
"""What makes a section, the command whose file it is made from, and for which kinds of networks it may be missing."""


def make_report(records: Sequence[RunRecord], title: str | None = None) -> Report:
    """All that a report says of some runs."""
    tables = headlines(records)
    sections = [_with_missing(make(records), records, command, kinds) for make, command, kinds in SECTIONS]
    shown = [section for section in sections if section.blocks or section.missing]
    told, names = _missing_once(shown), [record.name for record in records]
    return Report(
        title=title or f"Report on {listed(names) if len(names) <= 3 else f'{len(names)} networks'}",
        summary=summarise(records, tables),
        headlines=tables,
        sections=tuple(_with_styles(part, names) for part in (*told, learned.training(records), reproduction(records))),
        made_by=versions(),
    )


def _with_styles(section: Section, names: list[str]) -> Section:
    """The section with lines that look the same in all figures where they are of the same run."""
    blocks = [
        replace(
            block,
            series=tuple(
                replace(series, style=names.index(series.name)) if series.name in names else series
                for series in block.series
            ),
        )
        if isinstance(block, LineChart)
        else block
        for block in section.blocks
    ]
    return replace(section, blocks=tuple(blocks))


def _with_missing(section: Section, records: Sequence[RunRecord], command: str, kinds: tuple[str, ...]) -> Section:
    """The section, and the commands that would add runs to it."""
    lacking = [record for record in records if record.kind in kinds and not getattr(record, FILES[command])]
    return replace(section, missing=tuple(f"{command} {record.folder.resolve().name}" for record in lacking))


def _missing_once(sections: list[Section]) -> list[Section]:
    """Sections with anything to show; what a command would add is said where it would first appear."""
    told: set[str] = set()
    kept = []
    for section in sections:
        missing = tuple(command for command in section.missing if command not in told)
        told |= set(missing)
        if section.blocks or missing:
            kept.append(replace(section, missing=missing))
    return kept
