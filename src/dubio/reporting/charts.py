"""Figures drawn as SVG: lines with bands, histograms, reliability plots and stacked bars.

Invariants: a value lies where its axis says it does; every drawing has an accessible name with its words
(``tests/reporting/test_charts.py``).
"""

from collections.abc import Sequence
from itertools import pairwise
from xml.etree.ElementTree import Element

from dubio.reporting.drawing import (
    BOTTOM,
    COLOURS,
    LEFT,
    PLOT_HEIGHT,
    RIGHT,
    SIGN_WIDTH,
    WIDTH,
    Axes,
    add,
    canvas,
    dashes_of,
    draw_axes,
    draw_legend,
    draw_mark,
    legend_height,
    markup,
    shortened,
)
from dubio.reporting.scales import Scale
from dubio.reporting.values import Bars, Figure, Lines, Reliability, Series, Stacks
from dubio.reporting.wording import number

__all__ = ["draw"]

MOST_LABELS, LONGEST_LABEL = 4, 12
"""Lines are named at their ends where they are few and their names short; else in a legend."""
MOST_MARKS = 12


def draw(figure: Figure) -> str:
    """A figure as SVG."""
    if isinstance(figure, Lines):
        return _draw_lines(figure)
    if isinstance(figure, Bars):
        return _draw_bars(figure)
    return _draw_reliability(figure) if isinstance(figure, Reliability) else _draw_stacks(figure)


def _draw_lines(figure: Lines) -> str:
    names = [series.name for series in figure.series]
    at_ends = 1 < len(names) <= MOST_LABELS and max(map(len, names)) <= LONGEST_LABEL
    in_legend = [] if at_ends or len(names) == 1 else names
    top = legend_height(in_legend)
    svg = canvas(figure.title, figure.words, top + PLOT_HEIGHT + BOTTOM)
    right = 1.06 * SIGN_WIDTH * max(map(len, names)) + 14 if at_ends else RIGHT
    axes = _axes_of(figure, top, WIDTH - right)
    draw_axes(svg, axes)
    if figure.diagonal:
        x, y = axes.x, axes.y
        low, high = max(x.low, y.low), min(x.high, y.high)
        add(svg, "line", "ideal", x1=x(low), y1=y(low), x2=x(high), y2=y(high))
        add(svg, "text", "note", figure.diagonal, x=x.end - 6, y=y.start - 8, text_anchor="end")
    styles = [place if series.style is None else series.style for place, series in enumerate(figure.series)]
    for style, series in zip(styles, figure.series, strict=True):
        _draw_line(svg, axes, style, series)
    if at_ends:
        _name_ends(svg, axes, figure.series, styles)
    draw_legend(svg, in_legend, styles[: len(in_legend)])
    return markup(svg)


def _axes_of(figure: Lines, top: float, end: float) -> Axes:
    shown = [value for series in figure.series for value in (*series.y, *series.low, *series.high)]
    low, high = figure.y_range or (min(shown), max(shown))
    places = [value for series in figure.series for value in series.x]
    first, last = figure.x_range or (min(places), max(places))
    return Axes(
        Scale(first, last, LEFT, end),
        Scale(low, high, top + PLOT_HEIGHT, top, figure.log_y),
        figure.x_label,
        figure.y_label,
    )


def _draw_line(svg: Element, axes: Axes, style: int, series: Series) -> None:
    colour = f"s{style % COLOURS}"
    if series.low:
        around = [*zip(series.x, series.low, strict=True), *reversed(list(zip(series.x, series.high, strict=True)))]
        add(svg, "path", f"band {colour}", d=f"M{_points(axes, around)}z")
    points = list(zip(series.x, series.y, strict=True))
    add(svg, "path", f"line {colour}", d=f"M{_points(axes, points)}", stroke_dasharray=dashes_of(style))
    every = -(-len(points) // MOST_MARKS)
    for x, y in points[:: max(every, 1)]:
        draw_mark(svg, style, axes.x(x), axes.y(y))


def _points(axes: Axes, points: Sequence[tuple[float, float]]) -> str:
    return "L".join(f"{axes.x(x):.2f} {axes.y(y):.2f}" for x, y in points)


def _name_ends(svg: Element, axes: Axes, lines: Sequence[Series], styles: Sequence[int]) -> None:
    """Names beside the last points, moved apart where they would touch."""
    wanted = sorted((axes.y(series.y[-1]), place) for place, series in enumerate(lines))
    lowest = axes.y.start
    placed: list[tuple[float, int]] = []
    for y, place in reversed(wanted):
        lowest = min(y, lowest)
        placed.append((lowest, place))
        lowest -= 14
    lift = max(axes.y.end - placed[-1][0], 0.0)
    for y, place in placed:
        add(svg, "text", f"name s{styles[place] % COLOURS}", lines[place].name, x=axes.x.end + 6, y=y + lift + 4)


def _draw_bars(figure: Bars) -> str:
    names = list(figure.groups)
    styles = [f"{'area' if place == 0 else 'outline'} s{place % COLOURS}" for place in range(len(names))]
    in_legend = names if len(names) > 1 else []
    top = legend_height(in_legend)
    svg = canvas(figure.title, figure.words, top + PLOT_HEIGHT + BOTTOM)
    highest = max(max(shares, default=0.0) for shares in figure.groups.values()) or 1.0
    headroom = 1.05 if figure.line is None else 1.2
    x = Scale(figure.edges[0], figure.edges[-1], LEFT, WIDTH - RIGHT)
    y = Scale(0.0, headroom * highest, top + PLOT_HEIGHT, top)
    draw_axes(svg, Axes(x, y, figure.x_label, figure.y_label))
    for style, shares in zip(styles, figure.groups.values(), strict=True):
        steps = "".join(f"V{y(share):.2f}H{x(end):.2f}" for share, end in zip(shares, figure.edges[1:], strict=True))
        add(svg, "path", style, d=f"M{x.start:g} {y.start:g}{steps}V{y.start:g}z")
    if figure.line is not None:
        add(svg, "line", "limit", x1=x(figure.line), x2=x(figure.line), y1=y.start, y2=y.end)
        before = x(figure.line) > WIDTH / 2
        place = {"x": x(figure.line) + (-5 if before else 5), "text_anchor": "end" if before else "start"}
        add(svg, "text", "note", f"threshold {number(figure.line)}", y=y.end + 12, **place)
    draw_legend(svg, in_legend, styles[: len(in_legend)])
    return markup(svg)


def _draw_reliability(figure: Reliability) -> str:
    names = ["accuracy", "share of examples"]
    top = legend_height(names)
    svg = canvas(figure.title, figure.words, top + PLOT_HEIGHT + BOTTOM)
    x, y = Scale(0.0, 1.0, LEFT, WIDTH - RIGHT), Scale(0.0, 1.0, top + PLOT_HEIGHT, top)
    draw_axes(svg, Axes(x, y, "confidence", "accuracy"))
    edges = [place / len(figure.share) for place in range(len(figure.share) + 1)]
    for (begin, end), share, right in zip(pairwise(edges), figure.share, figure.accuracy, strict=True):
        if right is not None:
            add(
                svg,
                "rect",
                "area s0",
                x=x(begin) + 1,
                y=y(right),
                width=x(end) - x(begin) - 2,
                height=y.start - y(right),
            )
        half = (x(end) - x(begin)) / 2
        add(svg, "rect", "outline s1", x=x(begin) + half / 2, y=y(share), width=half, height=y.start - y(share))
    add(svg, "line", "ideal", x1=x(0.0), y1=y(0.0), x2=x(1.0), y2=y(1.0))
    for sure, right in zip(figure.confidence, figure.accuracy, strict=True):
        if sure is not None and right is not None:
            draw_mark(svg, 0, x(sure), y(right))
    draw_legend(svg, names, ["area s0", "outline s1"])
    return markup(svg)


def _draw_stacks(figure: Stacks) -> str:
    names = list(figure.parts)
    styles = [f"{'solid' if place == 0 else 'outline'} s{place % COLOURS}" for place in range(len(names))]
    top, step = legend_height(names), 34.0
    height = top + step * len(figure.rows)
    svg = canvas(figure.title, figure.words, height + BOTTOM)
    wholes = [sum(parts) for parts in zip(*figure.parts.values(), strict=True)]
    begin = 18 + SIGN_WIDTH * min(max(map(len, figure.rows)), 20)
    x = Scale(0.0, max(wholes) or 1.0, begin, WIDTH - RIGHT - 34)
    draw_axes(svg, Axes(x, Scale(0.0, 1.0, height, top), figure.x_label, ""), y_ticks=False)
    for place, (row, whole) in enumerate(zip(figure.rows, wholes, strict=True)):
        y, so_far = top + step * place + 7, 0.0
        add(svg, "text", "tick", shortened(row, 20), x=begin - 6, y=y + 14, text_anchor="end")
        for style, parts in zip(styles, figure.parts.values(), strict=True):
            width = x(so_far + parts[place]) - x(so_far)
            add(svg, "rect", style, x=x(so_far), y=y, width=width, height=20)
            so_far += parts[place]
        add(svg, "text", "tick", number(whole), x=x(whole) + 5, y=y + 14)
    draw_legend(svg, names, styles)
    return markup(svg)
