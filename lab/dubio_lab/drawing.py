"""Pictures of records: curves with a line for each cell, and tables too wide to be read.

A line is the mean over seeds, and its band one standard error of that mean to either side; of a single seed, what the
curve ``NAME_error`` says. Where seeds were measured at different places, they are averaged where all of them were,
between the places of each in straight lines.

Invariants: what is drawn are means of the records that ``tabulate`` counts, and a picture of records that were made
under an earlier spec says so above it (``lab/tests/test_drawing.py``).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dubio.plots import blank_figure, write
from dubio_lab.panels import SIZE, WIDTH, Lines, MeanCurve, add_note, draw_panels, finish, name_axes
from dubio_lab.results import Curve, Result
from dubio_lab.spec import ExperimentSpec
from dubio_lab.tables import Row, earlier_note, results_that_count, tabulate

__all__ = ["MeanCurve", "draw_curves", "draw_heat_map", "mean_curve"]

ROW_HEIGHT = 0.3  # inches, of a heat map
ALL_CELLS = "all cells"  # the name of a line that is the same for all of them
DIAGONAL = "dashed: both axes equal"
ALONG = re.compile(r",? by ([^,;]+)")  # in the words of a curve: what it is measured along


def draw_curves(
    spec: ExperimentSpec,
    results: Sequence[Result],
    names: Sequence[str],
    path: str | Path,
    *,
    groups: Mapping[str, Mapping[str, str]] | None = None,
    heights: Mapping[str, tuple[float, float]] | None = None,
    diagonal: Sequence[str] = (),
) -> Any:
    """Draw curves, one panel for each and in it one line for each cell; gives matplotlib's figure.

    Args:
        spec: says in words what each curve is; what follows "by" in them is written along the axis.
        results: the records to draw.
        names: which curves of the spec.
        path: where the picture goes; its ending says of which kind it is.
        groups: in words, the panels of each curve, and for each its lines with the cells that they are of; cells in no
            group are left out, and so are groups without records. None: one panel with all cells.
        heights: the lowest and highest number that panels of a curve show, where not all are shown.
        diagonal: curves beside which the line is drawn where both axes are equal.
    """
    unknown = [name for name in names if name not in spec.curves]
    if unknown or not names:
        raise ValueError(f"names must be curves of {spec.name}, {', '.join(spec.curves) or 'none'}, got {[*names]}")
    shown = groups or {"": {cell.name: cell.name for cell in spec.cells}}
    cells = [cell for lines in shown.values() for cell in lines.values()]
    strangers = [cell for cell in cells if cell not in {one.name for one in spec.cells}]
    if strangers:
        raise ValueError(f"groups must hold cells of {spec.name}, got {strangers[0]}")
    every = {(name, group): _lines(spec, results, name, own) for name in names for group, own in shown.items()}
    panels = {place: lines for place, lines in every.items() if lines}
    empty = [name for name in names if name not in {own for own, _ in panels}]
    if empty:
        raise ValueError(f"results must hold the curve {empty[0]} of {spec.name}, got none with it")

    figure, all_axes = draw_panels([*panels.values()], [*(line for own in shown.values() for line in own), ALL_CELLS])
    for axes, (name, group) in zip(all_axes, panels, strict=True):
        along = ALONG.search(spec.curves[name])
        what = ALONG.sub("", spec.curves[name], count=1)
        if name in diagonal:
            what = f"{what} ({DIAGONAL})"
            _draw_diagonal(axes)
        name_axes(axes, what, along[1] if along else "", group)
        if heights and name in heights:
            axes.set_ylim(heights[name])
    drawn = [one for one in results if one.cell in cells and any(name in one.curves for name in names)]
    return finish(figure, all_axes, path, earlier_note(tabulate(spec, drawn)))


def draw_heat_map(spec: ExperimentSpec, results: Sequence[Result], names: Sequence[str], path: str | Path) -> Any:
    """Draw a table as a picture, cells by metrics: what was published, where something was, and below it ours.

    Gives matplotlib's figure. All numbers share one scale of colours.

    Args:
        spec: says which cells there are, and what was published.
        results: the records to draw.
        names: which metrics, of one unit.
        path: where the picture goes; its ending says of which kind it is.
    """
    unknown = [name for name in names if name not in spec.metrics]
    if unknown or not names:
        raise ValueError(f"names must be metrics of {spec.name}, {', '.join(spec.metrics)}, got {[*names]}")
    rows = [row for row in tabulate(spec, results) if row.metric in names]
    if not rows:
        raise ValueError(f"results must hold metrics of {spec.name} among {', '.join(names)}, got none")

    tables = {"published": _table(rows, names, "published"), "ours": _table(rows, names, "mean")}
    shown = {title: (cells, table) for title, (cells, table) in tables.items() if cells}
    heights = [ROW_HEIGHT * len(cells) + 1.0 for cells, _ in shown.values()]
    figure = blank_figure(WIDTH, sum(heights))
    all_axes = figure.subplots(len(shown), squeeze=False, height_ratios=heights).flat
    low, high = (bound([bound(table) for _, table in shown.values()]) for bound in (np.nanmin, np.nanmax))
    for axes, (title, (cells, table)) in zip(all_axes, shown.items(), strict=True):
        axes.imshow(table, cmap="Blues", vmin=low, vmax=high, aspect="auto")
        axes.set_title(title, loc="left", fontsize=SIZE)
        axes.set_xticks(range(len(names)), [name.replace("_", " ") for name in names], rotation=30, ha="right")
        axes.set_yticks(range(len(cells)), cells)
        axes.tick_params(length=0, labelsize=SIZE - 2)
        axes.spines[:].set_visible(False)
        _write_numbers(axes, table, low + 0.6 * (high - low))
    add_note(figure, earlier_note(rows))
    write(figure, path)
    return figure


def mean_curve(curves: Sequence[Curve]) -> MeanCurve:
    """The mean of curves and its standard error, at the places that all of them reach.

    Args:
        curves: one for each seed. Where their places differ, each must have its places in rising order.
    """
    x = np.array(curves[0].x)
    if all(curve.x == curves[0].x for curve in curves):
        heights = np.array([curve.y for curve in curves])
    else:
        if not all(first < second for curve in curves for first, second in pairwise(curve.x)):
            raise ValueError("x of curves must rise where it differs between seeds, got one that does not")
        low, high = max(curve.x[0] for curve in curves), min(curve.x[-1] for curve in curves)
        if low > high:
            raise ValueError(f"curves must overlap to be averaged, got one from {low:g} on and one up to {high:g}")
        x = np.unique(np.concatenate([curve.x for curve in curves]))
        x = x[(x >= low) & (x <= high)]
        heights = np.array([np.interp(x, curve.x, curve.y) for curve in curves])
    error = tuple((heights.std(axis=0, ddof=1) / len(curves) ** 0.5).tolist()) if len(curves) > 1 else None
    return MeanCurve(tuple(x.tolist()), tuple(heights.mean(axis=0).tolist()), error)


def _lines(spec: ExperimentSpec, results: Sequence[Result], name: str, cells: Mapping[str, str]) -> Lines:
    """The lines whose cells have the curve, by their names."""
    lines = {}
    cells_by_name = {cell.name: cell for cell in spec.cells}
    for line, cell in ((line, cells_by_name[cell]) for line, cell in cells.items()):
        own = [one.curves for one in results_that_count(spec, cell, results) if name in one.curves]
        if not own:
            continue
        try:
            lines[line] = mean_curve([curves[name] for curves in own])
        except ValueError as error:
            raise ValueError(f"{name} of {cell.name} in {spec.name} cannot be drawn: {error}") from error
        if len(own) == 1 and f"{name}_error" in own[0]:
            lines[line] = replace(lines[line], standard_error=own[0][f"{name}_error"].y)
    alike = len(lines) > 1 and len({*lines.values()}) == 1
    return {ALL_CELLS: next(iter(lines.values()))} if alike else lines


def _draw_diagonal(axes: Any) -> None:
    """The line where both axes are equal, as far as the lines of a panel go."""
    places = [place for line in axes.lines for place in line.get_xdata()]
    ends = (min(places), max(places))
    axes.plot(ends, ends, color="black", linestyle="--", linewidth=1.0, zorder=1, label="_diagonal")


def _table(rows: Sequence[Row], names: Sequence[str], field: str) -> tuple[list[str], Any]:
    """Cells for which a field of the rows is known, and its values by cell and metric; NaN where there is none."""
    values = {(row.cell, row.metric): getattr(row, field) for row in rows if getattr(row, field) is not None}
    cells = [*dict.fromkeys(cell for cell, _ in values)]
    return cells, np.array([[values.get((cell, name), np.nan) for name in names] for cell in cells])


def _write_numbers(axes: Any, table: Any, dark: float) -> None:
    """Each number in its field, white from ``dark`` on."""
    for (row, column), value in np.ndenumerate(table):
        if not np.isnan(value):
            colour = "white" if value > dark else "black"
            axes.text(column, row, f"{value:.3g}", color=colour, fontsize=SIZE - 2, ha="center", va="center")
