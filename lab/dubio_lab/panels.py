"""Panels of lines: what all pictures of curves share, whatever their lines are made from.

Few lines are named beside their ends, in their colours; many have a legend.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from dubio.plots import blank_figure, class_colours, write

__all__ = ["SIZE", "WIDTH", "Lines", "MeanCurve", "add_note", "draw_panels", "finish", "name_axes"]

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#666666")  # told apart by all eyes
MOST_LABELS = len(COLOURS)  # of lines that are named beside their ends; more are named in a legend
MOST_MARKERS = 12  # of places whose measurements are marked; more make a line of themselves
WIDTH = 10.0  # inches
SIZE = 11  # of letters, in points
LETTERS = 102  # that fit into the width
PANEL_HEIGHT = 3.3  # inches
WIDELY = 100.0  # times as much: from here on durations are drawn on a logarithmic scale


@dataclass(frozen=True)
class MeanCurve:
    """A curve averaged over seeds."""

    x: tuple[float, ...]
    y: tuple[float, ...]
    standard_error: tuple[float, ...] | None
    """Of the mean, at each place; None for a single seed."""


Lines = dict[str, MeanCurve]
"""The lines of a panel, by name."""


def draw_panels(panels: Sequence[Lines], order: Sequence[str]) -> tuple[Any, list[Any]]:
    """A figure with the lines of each panel, in colours that are the same in all."""
    columns = len(panels) if len(panels) <= 3 else 2 if len(panels) == 4 else 3
    num_rows = -(-len(panels) // columns)
    figure = blank_figure(WIDTH, PANEL_HEIGHT * num_rows)
    all_axes = [*figure.subplots(num_rows, columns, squeeze=False).flat]
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    drawn = [name for name in dict.fromkeys(order) if any(name in lines for lines in panels)]
    colours = dict(zip(drawn, COLOURS if len(drawn) <= MOST_LABELS else class_colours(len(drawn)), strict=False))
    for axes, lines in zip(all_axes, panels, strict=False):
        for name, line in lines.items():
            marker = {"marker": ".", "markersize": 7} if len(line.x) <= MOST_MARKERS else {}
            axes.plot(line.x, line.y, color=colours[name], linewidth=1.8, label=name, **marker)
            if line.standard_error is not None:
                y, error = np.array(line.y), np.array(line.standard_error)
                axes.fill_between(line.x, y - error, y + error, color=colours[name], alpha=0.22, linewidth=0)
    return figure, all_axes[: len(panels)]


def name_axes(axes: Any, what: str, along: str, group: str = "") -> None:
    """Words above a panel, where a group of lines has a line of its own, and below it, and its look."""
    title = fill(what, LETTERS // axes.get_gridspec().ncols)
    axes.set_title(f"{title}\n{group}" if group else title, loc="left", fontsize=SIZE)
    axes.set_xlabel(along, fontsize=SIZE)
    for words, side, set_scale in ((along, "get_xdata", axes.set_xscale), (what, "get_ydata", axes.set_yscale)):
        values = [float(value) for line in axes.lines for value in getattr(line, side)()]
        if words.startswith("seconds") and min(values) > 0.0 and max(values) > WIDELY * min(values):
            set_scale("log")
    axes.tick_params(labelsize=SIZE - 1)
    axes.margins(x=0.02)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def finish(figure: Any, all_axes: Sequence[Any], path: str | Path, note: str = "") -> Any:
    """Name the lines, write a note above all panels, and write the figure."""
    add_note(figure, note)
    labelled = {name: line for axes in all_axes for name, line in _named(axes).items()}
    if len(labelled) > MOST_LABELS:
        figure.legend([*labelled.values()], [*labelled], loc="outside right center", frameon=False, fontsize=SIZE - 1)
    elif len(labelled) > 1:
        columns = all_axes[0].get_gridspec().ncols
        ends = [*all_axes[columns - 1 :: columns]]
        # Names in a shorter last row would push the panels above it aside.
        if not {*_named(all_axes[-1])} <= {name for axes in ends for name in _named(axes)}:
            ends.append(all_axes[-1])
        for axes in ends:
            _label_ends(axes)
    write(figure, path)
    return figure


def add_note(figure: Any, note: str) -> None:
    """A note above all panels, where there is one."""
    if note:
        figure.suptitle(note, x=0.01, ha="left", fontsize=SIZE)


def _named(axes: Any) -> dict[str, Any]:
    """The lines of a panel that have a name, by it."""
    return {line.get_label(): line for line in axes.lines if line.get_label()[0] != "_"}


def _label_ends(axes: Any) -> None:
    """The name of each line in its colour, beside its end, and so far from the others that all can be read."""
    into_panel = axes.transData + axes.transAxes.inverted()
    axes.autoscale_view()
    lines = [*_named(axes).values()]
    ends = {line: into_panel.transform(line.get_xydata()[-1])[1] for line in lines}
    lines.sort(key=lambda line: ends[line])
    gap = 1.25 * SIZE / (72 * 0.7 * PANEL_HEIGHT)  # of the height of a panel, most of which are its axes
    for line, height in zip(lines, _apart([float(ends[line]) for line in lines], gap), strict=True):
        place = {"transform": axes.transAxes, "va": "center", "ha": "left", "clip_on": False}
        axes.text(1.03, height, line.get_label(), color=line.get_color(), fontsize=SIZE, **place)


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Rising heights moved by as little as it takes to lie ``gap`` apart, below 1 where there is room."""
    moved: list[float] = []
    for height in heights:
        moved.append(max(height, moved[-1] + gap) if moved else height)
    top = max(1.0, gap * (len(moved) - 1))
    for number in reversed(range(len(moved))):
        moved[number] = min(moved[number], top - gap * (len(moved) - 1 - number))
    return moved
