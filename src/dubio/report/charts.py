"""Figures drawn as SVG: lines with bands, histograms, reliability plots and stacked bars.

Invariants: a value lies where its axis says it does; every drawing has an accessible name with its words
(``tests/report/test_charts.py``).

Parts that every chart has: the canvas with its words, axes with ticks and labels, a legend, marks for lines.

Charts are SVG inside the page. Colours are classes of the page's style, ``s0`` to ``s5``, so that they change with its
theme; a line also has dashes and a mark of its own, so that colour never stands alone. Elements are built as a tree,
which escapes names on writing.

From numbers to places on a page: linear and logarithmic scales, and where their ticks stand.

Invariants: the ends of a range lie at the ends of the scale; ticks lie within the range and are round numbers
(``tests/report/test_scales.py``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element, SubElement, tostring

from dubio.report.elements import Bars, Figure, LineChart, ReliabilityChart, Series, Stacks, number

MOST_LABELS, LONGEST_LABEL = 4, 12
"""Lines are named at their ends where they are few and their names short; else in a legend."""


MOST_MARKS = 12


def draw(figure: Figure) -> str:
    """A figure as SVG."""
    if isinstance(figure, LineChart):
        return _draw_lines(figure)
    if isinstance(figure, Bars):
        return _draw_bars(figure)
    return _draw_reliability(figure) if isinstance(figure, ReliabilityChart) else _draw_stacks(figure)


def _draw_lines(figure: LineChart) -> str:
    names = [series.name for series in figure.series]
    at_ends = 1 < len(names) <= MOST_LABELS and max(map(len, names)) <= LONGEST_LABEL
    in_legend = [] if at_ends or len(names) == 1 else names
    top = legend_height(in_legend)
    svg = canvas(figure.title, figure.summary, top + PLOT_HEIGHT + BOTTOM)
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


@dataclass(frozen=True)
class Scale:
    """``low`` lies at ``start`` and ``high`` at ``end``, in units of the drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value lies; what is outside the range lies at its end."""
        low, high, here = (_log(number) if self.log else number for number in (self.low, self.high, value))
        share = 0.5 if high == low else (here - low) / (high - low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers within the range."""
        return _log_ticks(self.low, self.high, most) if self.log else ticks(self.low, self.high, most)


@dataclass(frozen=True)
class Axes:
    """Where the plot lies on its canvas."""

    x: Scale
    y: Scale
    x_label: str
    y_label: str


def _axes_of(figure: LineChart, top: float, end: float) -> Axes:
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
    svg = canvas(figure.title, figure.summary, top + PLOT_HEIGHT + BOTTOM)
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


def _draw_reliability(figure: ReliabilityChart) -> str:
    names = ["accuracy", "share of examples"]
    top = legend_height(names)
    svg = canvas(figure.title, figure.summary, top + PLOT_HEIGHT + BOTTOM)
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
    svg = canvas(figure.title, figure.summary, height + BOTTOM)
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


WIDTH = 380.0


LEFT, RIGHT, BOTTOM = 54.0, 14.0, 44.0


PLOT_HEIGHT = 190.0


COLOURS = 6


DASHES = ("none", "7 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2")


SIGN_WIDTH = 7.2
"""Of a letter at 12 pixels, on average."""


def canvas(title: str, summary: str, height: float) -> Element:
    """An empty drawing that says what it shows."""
    size = {"viewBox": f"0 0 {WIDTH:g} {height:g}", "role": "img", "aria-label": f"{title}. {summary}"}
    svg = Element("svg", size)
    SubElement(svg, "title").text = title
    SubElement(svg, "desc").text = summary
    return svg


def add(parent: Element, name: str, css: str = "", text: str | None = None, **attributes: float | str) -> Element:
    """One more element; numbers are rounded to hundredths, and ``_`` in a name stands for ``-``."""
    written = {
        key.replace("_", "-"): value if isinstance(value, str) else f"{round(value, 2):g}"
        for key, value in attributes.items()
    }
    element = SubElement(parent, name, {**({"class": css} if css else {}), **written})
    element.text = text
    return element


def markup(svg: Element) -> str:
    """The drawing as text."""
    return tostring(svg, encoding="unicode")


def shortened(name: str, most: int = 26) -> str:
    """A name that fits; the middle of a long one is left out, since ends tell runs apart."""
    if len(name) <= most:
        return name
    tail = (most - 3) // 2
    return f"{name[: most - 3 - tail]}...{name[-tail:]}"


def draw_axes(svg: Element, axes: Axes, *, y_ticks: bool = True) -> None:
    """Grid, ticks and labels."""
    x, y = axes.x, axes.y
    for value in x.ticks(6):
        add(svg, "line", "grid", x1=x(value), x2=x(value), y1=y.start, y2=y.end)
        add(svg, "text", "tick", tick_text(value), x=x(value), y=y.start + 16, text_anchor="middle")
    for value in y.ticks(6) if y_ticks else ():
        add(svg, "line", "grid", x1=x.start, x2=x.end, y1=y(value), y2=y(value))
        add(svg, "text", "tick", tick_text(value), x=x.start - 6, y=y(value) + 4, text_anchor="end")
    add(svg, "path", "axis", d=f"M{x.start:g} {y.end:g}V{y.start:g}H{x.end:g}")
    add(svg, "text", "label", axes.x_label, x=(x.start + x.end) / 2, y=y.start + 37, text_anchor="middle")
    if axes.y_label:
        middle = (y.start + y.end) / 2
        turned = {"transform": f"rotate(-90 13 {middle:g})", "text_anchor": "middle"}
        add(svg, "text", "label", axes.y_label, x=13, y=middle, **turned)


def draw_mark(svg: Element, style: int, x: float, y: float, size: float = 3.4) -> None:
    """The mark of a line: circle, square, triangle, diamond, cross or plus."""
    css = f"mark s{style % COLOURS}"
    shapes = (
        f"M{-size} 0a{size} {size} 0 1 0 {2 * size} 0a{size} {size} 0 1 0 {-2 * size} 0",
        f"M{-size} {-size}h{2 * size}v{2 * size}h{-2 * size}z",
        f"M0 {-1.2 * size}L{1.2 * size} {size}H{-1.2 * size}z",
        f"M0 {-1.4 * size}L{1.4 * size} 0L0 {1.4 * size}L{-1.4 * size} 0z",
        f"M{-size} {-size}L{size} {size}M{-size} {size}L{size} {-size}",
        f"M{-1.3 * size} 0H{1.3 * size}M0 {-1.3 * size}V{1.3 * size}",
    )
    shape = shapes[(style + style // COLOURS) % len(shapes)]
    add(svg, "path", css, d=shape, transform=f"translate({x:.2f} {y:.2f})")


def dashes_of(style: int) -> str:
    """The dashes of a line: once all colours are used, those of the next one, so that no two lines look the same."""
    return DASHES[(style + style // COLOURS) % len(DASHES)]


def _legend_places(names: list[str]) -> list[tuple[float, float]]:
    """Left ends of entries, row by row."""
    x, y = LEFT, 14.0
    places: list[tuple[float, float]] = []
    for name in names:
        width = 34 + SIGN_WIDTH * len(shortened(name)) + 12
        if places and x + width > WIDTH - RIGHT + 12:
            x, y = LEFT, y + 18
        places.append((x, y))
        x += width
    return places


def legend_height(names: list[str]) -> float:
    """What a legend takes above the plot."""
    return _legend_places(names)[-1][1] + 12 if names else 12.0


def draw_legend(svg: Element, names: list[str], styles: Sequence[int | str]) -> None:
    """A sample of each line or area beside its name; a line has the number of its style, an area its classes."""
    for name, style, (x, y) in zip(names, styles, _legend_places(names), strict=True):
        if isinstance(style, int):
            line = f"line s{style % COLOURS}"
            add(svg, "path", line, d=f"M{x:g} {y - 4:g}h26", stroke_dasharray=dashes_of(style))
            draw_mark(svg, style, x + 13, y - 4)
        else:
            add(svg, "rect", style, x=x + 4, y=y - 10, width=18, height=11)
        add(svg, "text", "key", shortened(name), x=x + 32, y=y)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, at most so many."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(
        step for step in (power, 2 * power, 5 * power, 10 * power, 20 * power) if _count(low, high, step) <= most
    )
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """A tick's number: no digits that say nothing."""
    return (
        f"{value:.6g}"
        if 1e-3 <= abs(value) < 1e5 or value == 0.0
        else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    )


def _count(low: float, high: float, step: float) -> int:
    return math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) + 1


def _log(value: float) -> float:
    return math.log10(max(value, 1e-12))


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    powers = range(math.floor(_log(low)), math.ceil(_log(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]
