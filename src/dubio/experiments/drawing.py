"""Pictures of records: curves with a line for each cell, numbers along cells, and tables too wide to be read.

A line is the mean over seeds, and its band one standard error of that mean to either side; of a single seed, what the
curve ``NAME_error`` says. Where seeds were measured at different places, they are averaged where all of them were,
between the places of each in straight lines.

Invariants: what is drawn are means of the records that ``tabulate`` counts (``tests/experiments/test_drawing.py``).
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dubio.experiments.panels import SIZE, WIDTH, Lines, MeanCurve, draw_panels, finish, name_axes
from dubio.experiments.results import Curve, Result
from dubio.experiments.spec import Spec
from dubio.experiments.tables import Row, results_that_count, tabulate
from dubio.pictures.figures import blank_figure, write

__all__ = ["MeanCurve", "draw_curves", "draw_heat_map", "draw_sweep", "mean_curve"]

ROW_HEIGHT = 0.3  # inches, of a heat map
ALL_CELLS = "all cells"  # the name of a line that is the same for all of them
ALONG = re.compile(r",? by ([^,;]+)")  # in the words of a curve: what it is measured along
SWEPT = re.compile(r"(.+)-(\d+(?:\.\d+)?)")  # the name of a cell of which there are several, with its number


def draw_curves(spec: Spec, results: Sequence[Result], names: Sequence[str], path: str | Path) -> Any:
    """Draw curves, one panel for each and in it one line for each cell; gives matplotlib's figure.

    Args:
        spec: says in words what each curve is; what follows "by" in them is written along the axis.
        results: the records to draw.
        names: which curves of the spec.
        path: where the picture goes; its ending says of which kind it is.
    """
    unknown = [name for name in names if name not in spec.curves]
    if unknown or not names:
        raise ValueError(f"names must be curves of {spec.name}, {', '.join(spec.curves) or 'none'}, got {[*names]}")
    panels = {name: _lines(spec, results, name) for name in names}
    empty = [name for name in names if not panels[name]]
    if empty:
        raise ValueError(f"results must hold the curve {empty[0]} of {spec.name}, got none with it")
    figure, all_axes = draw_panels(panels, [*(cell.name for cell in spec.cells), ALL_CELLS])
    for axes, name in zip(all_axes, names, strict=True):
        along = ALONG.search(spec.curves[name])
        name_axes(axes, ALONG.sub("", spec.curves[name], count=1), along[1] if along else "")
    return finish(figure, all_axes, path)


def draw_sweep(spec: Spec, results: Sequence[Result], names: Sequence[str], along: str, path: str | Path) -> Any:
    """Draw numbers of cells called ``NAME-NUMBER`` over that number, one panel for each metric, one line for each name.

    Gives matplotlib's figure. Circles are what was published.

    Args:
        spec: says which cells there are, and what was published.
        results: the records to draw.
        names: which metrics of the spec.
        along: what the number is, in words.
        path: where the picture goes; its ending says of which kind it is.
    """
    unknown = [name for name in names if name not in spec.metrics]
    if unknown or not names:
        raise ValueError(f"names must be metrics of {spec.name}, {', '.join(spec.metrics)}, got {[*names]}")
    rows = [row for row in tabulate(spec, results) if row.metric in names and SWEPT.fullmatch(row.cell)]
    if not rows:
        raise ValueError(f"results must hold cells of {spec.name} called NAME-NUMBER, got none")
    panels = {name: _swept([row for row in rows if row.metric == name]) for name in names}
    figure, all_axes = draw_panels(panels, [*dict.fromkeys(_place(row)[0] for row in rows)])
    for axes, name in zip(all_axes, names, strict=True):
        known = [row for row in rows if row.metric == name and row.published is not None]
        for line in axes.lines[:]:
            own = [row for row in known if _place(row)[0] == line.get_label()]
            places, heights = [_place(row)[1] for row in own], [row.published for row in own]
            axes.plot(places, heights, "o", mfc="none", color=line.get_color(), label="_published")
        name_axes(axes, name.replace("_", " ") + (" (circles: published)" if known else ""), along)
    return finish(figure, all_axes, path)


def draw_heat_map(spec: Spec, results: Sequence[Result], names: Sequence[str], path: str | Path) -> Any:
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


def _lines(spec: Spec, results: Sequence[Result], name: str) -> Lines:
    """The line of every cell that has the curve, by its name."""
    lines = {}
    for cell in spec.cells:
        own = [one.curves for one in results_that_count(spec, cell, results) if name in one.curves]
        if not own:
            continue
        try:
            lines[cell.name] = mean_curve([curves[name] for curves in own])
        except ValueError as error:
            raise ValueError(f"{name} of {cell.name} in {spec.name} cannot be drawn: {error}") from error
        if len(own) == 1 and f"{name}_error" in own[0]:
            lines[cell.name] = replace(lines[cell.name], standard_error=own[0][f"{name}_error"].y)
    alike = len(lines) > 1 and len({*lines.values()}) == 1
    return {ALL_CELLS: next(iter(lines.values()))} if alike else lines


def _place(row: Row) -> tuple[str, float]:
    """Which line a row is on, and where."""
    found = SWEPT.fullmatch(row.cell)
    assert found is not None
    return found[1], float(found[2])


def _swept(rows: Sequence[Row]) -> Lines:
    """The lines of a metric, each along the numbers of its cells."""
    lines = {}
    for name in dict.fromkeys(_place(row)[0] for row in rows):
        own = sorted((row for row in rows if _place(row)[0] == name), key=_place)
        errors = [row.standard_error for row in own]
        known = tuple(error for error in errors if error is not None)
        x, y = tuple(_place(row)[1] for row in own), tuple(row.mean for row in own)
        lines[name] = MeanCurve(x, y, known if len(known) == len(errors) else None)
    return lines


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
