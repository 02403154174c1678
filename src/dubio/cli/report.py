"""``dubio report`` and ``dubio compare``: a page about some runs, and tables of their metrics in the terminal."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.text import Text

from dubio.cli.errors import PartlyFailedError, say
from dubio.cli.runs import find_run
from dubio.cli.terminal import PlainTable, print_lines
from dubio.codec import dump_json
from dubio.report import (
    Cell,
    Column,
    HeadlineTable,
    RunRecord,
    decimal,
    failures_of,
    headlines,
    make_report,
    read_run,
    read_runs,
    unpaired,
    write_report,
)

HIDDEN = ("mae", "std", "parameters", "bytes")
"""Columns that do not fit in the terminal; ``--json`` and the page have them."""
WRAPPED = ("audit", "auroc_entropy", "auroc")
"""Columns whose text may wrap."""
NAME_WIDTH = 16
"""The least width of the names of runs."""
SIGNS = {"": "", "best": "*", "tied": "="}


def report(named: list[str], out: Path | None, title: str | None, quiet: bool, runs: Path) -> None:
    """Write the page about some runs."""
    folders = [find_run(name, runs) for name in named]
    path = out or _default_path(folders, runs)
    folders, errors = _readable(folders, make_report)
    page = write_report(folders, path, title=title)
    _warn(page.headlines)
    if not quiet:
        missing = sorted({command for section in page.sections for command in section.missing})
        if missing:
            say(f"more would be in it after: {'; '.join(missing)}")
        say(f"wrote {path} ({path.stat().st_size / 1e3:.0f} kB) and {path.with_suffix('.json').name} beside it")
        say(f"open {path.resolve().as_uri()}")
    _fail_for(errors)


def compare(named: list[str], as_json: bool, quiet: bool, runs: Path) -> None:
    """Print the main metrics of some runs."""
    folders, errors = _readable([find_run(name, runs) for name in named], headlines)
    records = read_runs(folders)
    results = headlines(records)
    _warn(results)
    if as_json:
        content = {"format": "dubio-comparison-1", "headlines": [headline.to_json() for headline in results]}
        say(dump_json(content, indent=1))
    else:
        console = Console(highlight=False)
        print_lines(console, failures_of(records))
        for headline in results:
            for table in tabulate(headline, console.width):
                console.print(table)
            if not quiet:
                _explain(headline, console)
        print_lines(console, [] if quiet else unpaired(results), soft_wrap=True)
    _fail_for(errors)


def tabulate(headline: HeadlineTable, width: int) -> Iterator[PlainTable]:
    """A headline as tables with intervals below the numbers, as many tables as the width of the columns needs."""
    longest = max(len(part) for row in headline.rows for part in (row.run, f"{row.method}, {row.data}"))
    for columns in _fitting(headline, width):
        table = PlainTable(box=SIMPLE_HEAD, show_edge=False, padding=0)
        left = width - sum(1 + _width(headline, column) for column in columns)
        names = max(NAME_WIDTH, min(left, longest))
        table.add_column("run", overflow="fold", width=names)
        for column in columns:
            wrapped = column.name in WRAPPED
            table.add_column(_title(column), justify="right", no_wrap=not wrapped, width=_width(headline, column))
        for row in headline.rows:
            run = Text(f"{_in_lines(row.run, names)}\n").append(f"{row.method}, {row.data}", "dim")
            table.add_row(run, *(_text(row.cells[column.name]) for column in columns))
        yield table


def _fitting(headline: HeadlineTable, width: int) -> list[list[Column]]:
    """The shown columns in groups that fit beside the names of the runs."""
    groups: list[list[Column]] = [[]]
    left = width - NAME_WIDTH
    for column in headline.columns:
        if column.name in HIDDEN:
            continue
        needed = 1 + _width(headline, column)
        if needed > left and groups[-1]:
            groups.append([])
            left = width - NAME_WIDTH
        groups[-1].append(column)
        left -= needed
    return groups


def _in_lines(name: str, width: int) -> str:
    """A name in lines of at most ``width``, cut after a hyphen, underscore, dot or slash where there is one."""
    lines = []
    while len(name) > width:
        end = max(name.rfind(sign, 0, width) for sign in "-_./") + 1
        lines.append(name[: end or width])
        name = name[end or width :]
    return "\n".join([*lines, name])


def _title(column: Column) -> str:
    """The title of a column, with its condition, such as the epsilon of attacks, on a second line."""
    return column.title.replace(" at ", "\nat ")


def _width(headline: HeadlineTable, column: Column) -> int:
    """The longest line of a column, or the longest word where its text may wrap."""
    texts = [_title(column), *(_text(row.cells[column.name]) for row in headline.rows)]
    return max(len(part) for text in texts for part in (text.split() if column.name in WRAPPED else text.splitlines()))


def _readable(folders: list[Path], make: Callable[[list[RunRecord]], object]) -> tuple[list[Path], list[str]]:
    """The folders of runs that can be read, and the errors of the others; the error of a single run is raised later."""
    if len(folders) == 1:
        return folders, []
    errors: dict[Path, Exception] = {}
    for folder in folders:
        try:
            make([read_run(folder)])
        except (ValueError, OSError) as error:
            errors[folder] = error
    readable = [folder for folder in folders if folder not in errors]
    if not readable:
        raise next(iter(errors.values()))
    return readable, [f"{folder.name} is left out: {error}" for folder, error in errors.items()]


def _fail_for(errors: Sequence[str]) -> None:
    """Name the runs that cannot be read, and end with the exit code of a part that failed."""
    for error in errors:
        say(f"error: {error}", err=True)
    if errors:
        raise PartlyFailedError("\n".join(errors))


def _warn(results: Sequence[HeadlineTable]) -> None:
    """Warn about numbers of a network that has changed since."""
    for row in (row for headline in results for row in headline.rows):
        for text in row.stale:
            say(f"warning: {row.run}: {text}", err=True)


def _text(cell: Cell) -> str:
    parts = [f"{SIGNS[cell.mark]}{cell.text}"]
    if cell.low is not None and cell.high is not None:
        low, high = (f"{100 * end:.0f}" if "%" in cell.text else _bare(end) for end in (cell.low, cell.high))
        parts.append(f"{low} {high}" if cell.low < 0.0 or "e" in high else f"{low}-{high}")
    return "\n".join([*parts, *([cell.note] if cell.note else [])])


def _bare(value: float) -> str:
    """A number without the zero before the decimal point, to save space."""
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 1.0 else decimal(value)


def _explain(headline: HeadlineTable, console: Console) -> None:
    """Print what the columns and marks mean, and which runs have no evaluation."""
    lines = [f"{column.title}: {column.about}" for column in headline.columns if column.name not in HIDDEN]
    lines.append("Below a number stands its interval at 95 %.")
    if any(cell.mark for row in headline.rows for cell in row.cells.values()):
        tests = ", ".join(dict.fromkeys(pair.test for pair in headline.comparisons))
        lines.append(f"* is best, = does not differ significantly from the best: paired tests ({tests}), Holm, 5 %.")
    print_lines(console, lines)
    for row in headline.rows:
        if all(row.cells[name].value is None for name in row.cells if name not in ("parameters", "bytes", "r_pred")):
            print_lines(console, [f"{row.run} was not evaluated yet: dubio evaluate {row.run}"], soft_wrap=True)


def _default_path(folders: Sequence[Path], runs: Path) -> Path:
    """In the folder of a single run; for several in the folder that holds all of them, else in that of the runs."""
    if len(folders) == 1:
        return folders[0] / "report.html"
    parents = {os.path.normpath(folder.parent) for folder in folders}
    return (Path(parents.pop()) if len(parents) == 1 else runs) / "report.html"
