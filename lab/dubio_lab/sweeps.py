"""Pictures of numbers along cells: a line goes through all cells called ``NAME-NUMBER`` that share a name.

A point is the mean over seeds, and the band one standard error of that mean to either side; of a single seed, what its
record says. A difference is taken seed by seed, and then averaged: what seeds have in common drops out of its band.

Invariants: what is drawn are numbers of the records that ``tabulate`` counts; a difference is between records of one
seed; a picture of records that were made under an earlier spec says so above it
(``lab/tests/test_drawing.py``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dubio_lab.panels import SIZE, Lines, MeanCurve, draw_panels, finish, name_axes
from dubio_lab.results import Measured, Result
from dubio_lab.spec import ExperimentSpec
from dubio_lab.tables import Row, earlier_note, results_that_count, tabulate

__all__ = ["draw_sweep"]

SWEPT = re.compile(r"(.+)-(\d+(?:\.\d+)?)")  # the name of a cell of which there are several, with its number
PUBLISHED = "_published"  # circles; a name that begins so is not written beside the end of a line


def draw_sweep(
    spec: ExperimentSpec,
    results: Sequence[Result],
    names: Sequence[str],
    along: str,
    path: str | Path,
    *,
    lines: Mapping[str, str] | None = None,
    less: str | None = None,
    left_of: float | None = None,
) -> Any:
    """Draw numbers of cells called ``NAME-NUMBER`` over that number, one panel for each metric, one line for each name.

    Gives matplotlib's figure. Circles are what was published.

    Args:
        spec: says which cells there are, and what was published.
        results: the records to draw.
        names: which metrics of the spec.
        along: what the number is, in words.
        path: where the picture goes; its ending says of which kind it is.
        lines: what lines are called, where not as in the names of their cells.
        less: a cell, or a line, whose cells have the same numbers: a further panel for each metric shows by how much it
            is above that, paired by seed. Cells that share no seed with it are left out there.
        left_of: the axis is what the number leaves of this, falling, on a logarithmic scale; None: the number itself.
    """
    unknown = [name for name in names if name not in spec.metrics]
    if unknown or not names:
        raise ValueError(f"names must be metrics of {spec.name}, {', '.join(spec.metrics)}, got {[*names]}")
    measured = [row for row in tabulate(spec, results) if row.metric in names]
    rows = [row for row in measured if SWEPT.fullmatch(row.cell)]
    if not rows:
        raise ValueError(f"results must hold cells of {spec.name} called NAME-NUMBER, got none")
    beyond = [row.cell for row in rows if left_of is not None and _place(row)[1] >= left_of]
    if beyond:
        raise ValueError(f"left_of must be above the numbers of all cells, got {left_of:g} and {beyond[0]}")

    words = lines or {}
    kinds = {"": rows}
    if less is not None:
        kinds[f" less that of {words.get(less, less)}"] = _differences(spec, results, less)
    every = [(kind, name, [row for row in own if row.metric == name]) for kind, own in kinds.items() for name in names]
    panels = [panel for panel in every if panel[-1]]
    order = [words.get(line, line) for line, _ in map(_place, rows)]
    figure, all_axes = draw_panels([_swept(panel_rows, words, left_of) for _, _, panel_rows in panels], order)
    for axes, (kind, name, panel_rows) in zip(all_axes, panels, strict=True):
        _draw_circles(axes, panel_rows, words, left_of)
        if kind:
            axes.axhline(0.0, color="black", linewidth=0.8, zorder=1, label="_zero")
        name_axes(axes, name.replace("_", " ") + kind, along)
        if left_of is not None:
            _let_fall(axes)
    _name_circles(all_axes)
    return finish(figure, all_axes, path, earlier_note([row for row in measured if row in rows or row.cell == less]))


def _place(row: Row) -> tuple[str, float]:
    """Which line a row is on, and its number."""
    match = SWEPT.fullmatch(row.cell)
    assert match is not None
    return match[1], float(match[2])


def _along(row: Row, left_of: float | None) -> float:
    """Where a row is drawn."""
    return _place(row)[1] if left_of is None else left_of - _place(row)[1]


def _swept(rows: Sequence[Row], words: Mapping[str, str], left_of: float | None) -> Lines:
    """The lines of a metric, each along the numbers of its cells."""
    lines = {}
    for name in dict.fromkeys(_place(row)[0] for row in rows):
        own = sorted((row for row in rows if _place(row)[0] == name), key=_place)
        errors = [row.standard_error for row in own]
        present = tuple(error for error in errors if error is not None)
        x, y = tuple(_along(row, left_of) for row in own), tuple(row.mean for row in own)
        lines[words.get(name, name)] = MeanCurve(x, y, present if len(present) == len(errors) else None)
    return lines


def _differences(spec: ExperimentSpec, results: Sequence[Result], less: str) -> list[Row]:
    """The rows of swept cells, each number less that of the same seed in another cell; without published numbers."""
    counted = {cell.name: results_that_count(spec, cell, results) for cell in spec.cells}
    swept = {name: match for name in counted if (match := SWEPT.fullmatch(name))}
    if less not in counted and less not in {match[1] for match in swept.values()}:
        raise ValueError(f"less must be a cell of {spec.name}, or the NAME of cells called NAME-NUMBER, got {less}")
    paired = []
    for name, match in swept.items():
        others = counted.get(less if less in counted else f"{less}-{match[2]}", [])
        base = {other.seed: other.metrics for other in others}
        for one in counted[name]:
            shared = one.metrics.keys() & base.get(one.seed, {}).keys()
            above = {metric: Measured(one.metrics[metric].value - base[one.seed][metric].value) for metric in shared}
            paired.append(replace(one, metrics=above))
    return [replace(row, published=None) for row in tabulate(spec, paired)]


def _draw_circles(axes: Any, rows: Sequence[Row], words: Mapping[str, str], left_of: float | None) -> None:
    """What was published, in the colours of the lines that it belongs to."""
    for line in axes.lines[:]:
        compared = [row for row in rows if row.published is not None]
        own = [row for row in compared if words.get(_place(row)[0], _place(row)[0]) == line.get_label()]
        if own:
            places, heights = [_along(row, left_of) for row in own], [row.published for row in own]
            axes.plot(places, heights, "o", mfc="none", color=line.get_color(), label=PUBLISHED)


def _name_circles(all_axes: Sequence[Any]) -> None:
    """Say once what circles are; a line that is alone has its name beside them."""
    named = {line.get_label(): line for axes in all_axes for line in axes.lines if line.get_label()[0] != "_"}
    with_circles = [axes for axes in all_axes if any(line.get_label() == PUBLISHED for line in axes.lines)]
    if with_circles:
        circles = next(line for line in with_circles[0].lines if line.get_label() == PUBLISHED)
        handles = {**(named if len(named) == 1 else {}), PUBLISHED.strip("_"): circles}
        with_circles[0].legend([*handles.values()], [*handles], frameon=False, fontsize=SIZE - 1)


def _let_fall(axes: Any) -> None:
    """A logarithmic axis from much on the left to little on the right, with numbers that can be read."""
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.invert_xaxis()
