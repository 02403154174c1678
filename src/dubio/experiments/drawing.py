"""Pictures of records: curves with a line for each cell, and tables too wide to be read as numbers.

A line is the mean over seeds, and its band one standard error of that mean to either side. Where seeds were measured at
different places, they are averaged where all of them were, between the places of each in straight lines.

Invariants: what is drawn are means of the records that ``tabulate`` counts (``tests/experiments/test_drawing.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from dubio.experiments.results import Curve, Result
from dubio.experiments.spec import Spec
from dubio.experiments.tables import Row, results_that_count, tabulate
from dubio.pictures.figures import blank_figure, class_colours, write

__all__ = ["MeanCurve", "draw_curves", "draw_heat_map", "mean_curve"]

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")  # told apart by all eyes
MOST_LABELS = len(COLOURS)  # of lines that are named beside their ends; more are named in a legend
WIDTH = 10.0  # inches
SIZE = 11  # of letters, in points
PANEL_HEIGHT, ROW_HEIGHT = 3.3, 0.3  # inches


@dataclass(frozen=True)
class MeanCurve:
    """A curve averaged over seeds."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    standard_error: tuple[float, ...] | None
    """Of the mean, at each place; None for a single seed."""


def draw_curves(spec: Spec, results: Sequence[Result], names: Sequence[str], path: str | Path) -> Any:
    """Draw curves, one panel for each and in it one line for each cell; gives matplotlib's figure.

    Args:
        spec: says in words what each curve is; what follows ", by " in them is written along the axis.
        results: the records to draw.
        names: which curves of the spec.
        path: where the picture goes; its ending says of which kind it is.
    """
    unknown = [name for name in names if name not in spec.curves]
    if unknown or not names:
        raise ValueError(f"names must be curves of {spec.name}, {', '.join(spec.curves) or 'none'}, got {[*names]}")
    lines = {name: _lines(spec, results, name) for name in names}
    empty = [name for name in names if not lines[name]]
    if empty:
        raise ValueError(f"results must hold the curve {empty[0]} of {spec.name}, got none with it")

    columns = len(names) if len(names) <= 3 else 2 if len(names) == 4 else 3
    rows = -(-len(names) // columns)
    figure = blank_figure(WIDTH, PANEL_HEIGHT * rows)
    panels = [*figure.subplots(rows, columns, squeeze=False).flat]
    cells = [cell.name for cell in spec.cells if any(cell.name in lines[name] for name in names)]
    colours = dict(zip(cells, COLOURS if len(cells) <= MOST_LABELS else class_colours(len(cells)), strict=False))
    for number, (axes, name) in enumerate(zip(panels, names, strict=False)):
        _draw_panel(axes, lines[name], spec.curves[name], colours)
        if len(cells) <= MOST_LABELS and (number % columns == columns - 1 or number == len(names) - 1):
            _label_ends(axes, lines[name], colours)
    for axes in panels[len(names) :]:
        axes.set_visible(False)
    if len(cells) > MOST_LABELS:
        figure.legend(*_all_lines(panels[: len(names)]), loc="outside right center", frameon=False, fontsize=SIZE - 1)
    write(figure, path)
    return figure


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

    cells = [cell.name for cell in spec.cells if any(row.cell == cell.name for row in rows)]
    tables = {"published": _table(rows, cells, names, "published"), "ours": _table(rows, cells, names, "mean")}
    shown = {title: table for title, table in tables.items() if not np.isnan(table).all()}
    figure = blank_figure(WIDTH, (ROW_HEIGHT * len(cells) + 1.0) * len(shown))
    low, high = (bound([bound(table[~np.isnan(table)]) for table in shown.values()]) for bound in (np.min, np.max))
    for axes, (title, table) in zip(figure.subplots(len(shown), squeeze=False).flat, shown.items(), strict=True):
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


def _lines(spec: Spec, results: Sequence[Result], name: str) -> dict[str, MeanCurve]:
    """The line of every cell that has the curve, by its name."""
    found = {cell.name: results_that_count(spec, cell, results) for cell in spec.cells}
    curves = {cell: [one.curves[name] for one in own if name in one.curves] for cell, own in found.items()}
    return {cell: mean_curve(own) for cell, own in curves.items() if own}


def _draw_panel(axes: Any, lines: dict[str, MeanCurve], words: str, colours: dict[str, Any]) -> None:
    for cell, line in lines.items():
        alone = {"marker": "o", "markersize": 4} if len(line.x) == 1 else {}
        axes.plot(line.x, line.y, color=colours[cell], linewidth=1.8, label=cell, **alone)
        if line.standard_error is not None:
            y, error = np.array(line.y), np.array(line.standard_error)
            axes.fill_between(line.x, y - error, y + error, color=colours[cell], alpha=0.22, linewidth=0)
    what, _, along = words.rpartition(", by ")
    axes.set_title(fill(what or along, 34), loc="left", fontsize=SIZE)
    axes.set_xlabel(along if what else "", fontsize=SIZE)
    axes.tick_params(labelsize=SIZE - 1)
    axes.margins(x=0.02)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _label_ends(axes: Any, lines: dict[str, MeanCurve], colours: dict[str, Any]) -> None:
    """The name of each line in its colour, beside its end, and so far from the others that all can be read."""
    low, high = axes.get_ylim()
    ends = {cell: (line.y[-1] - low) / (high - low) for cell, line in lines.items()}
    cells = sorted(ends, key=lambda cell: ends[cell])
    gap = 1.25 * SIZE / (72 * 0.7 * PANEL_HEIGHT)  # of the height of a panel, most of which are its axes
    for cell, height in zip(cells, _apart([ends[cell] for cell in cells], gap), strict=True):
        place = {"transform": axes.transAxes, "va": "center", "ha": "left", "clip_on": False}
        axes.text(1.03, height, cell, color=colours[cell], fontsize=SIZE, **place)


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Rising heights moved by as little as it takes to lie ``gap`` apart, below 1 where there is room."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + gap) if moved else height)
    top = max(1.0, gap * (len(moved) - 1))
    for number in reversed(range(len(moved))):
        moved[number] = min(moved[number], top - gap * (len(moved) - 1 - number))
    return moved


def _all_lines(panels: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Lines and their names for a legend, each name once."""
    found = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    return [*found.values()], [*found]


def _table(rows: Sequence[Row], cells: Sequence[str], names: Sequence[str], field: str) -> Any:
    """A field of the rows by cell and metric; NaN where there is none."""
    values = {(row.cell, row.metric): getattr(row, field) for row in rows}
    found = [[values.get((cell, name)) for name in names] for cell in cells]
    return np.array([[np.nan if value is None else value for value in line] for line in found])


def _write_numbers(axes: Any, table: Any, dark: float) -> None:
    """Each number in its field, white from ``dark`` on."""
    for (row, column), value in np.ndenumerate(table):
        if not np.isnan(value):
            colour = "white" if value > dark else "black"
            axes.text(column, row, f"{value:.3g}", color=colour, fontsize=SIZE - 2, ha="center", va="center")
