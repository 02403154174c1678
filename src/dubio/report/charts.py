"""Figures drawn as SVG: lines with bands, histograms, reliability diagrams and stacked bars.

Colours are classes of the page's style, ``s0`` to ``s5``, so that they follow its theme. A line also has dashes and a
mark of its own, so that lines differ without colour. Elements are built as a tree, which escapes names.

Invariants: a value lies where its axis says; the accessible name of a drawing holds its title and summary
(``tests/report/test_charts.py``); the ends of a range lie at the ends of its scale; ticks are round numbers within the
range (``tests/report/test_scales.py``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element, SubElement, tostring

from dubio.report.elements import Bars, Figure, LineChart, ReliabilityChart, Series, Stacks, number

WIDTH = 380.0
LEFT, RIGHT, BOTTOM = 54.0, 14.0, 44.0
PLOT_HEIGHT = 190.0
LETTER_WIDTH = 7.2
"""Mean width of a letter at 12 pixels."""
MOST_LABELS, LONGEST_LABEL = 4, 12
"""Lines are named at their ends if they are few and their names short, else in a legend."""
MOST_MARKS = 12
MOST_TICKS = 6
COLOURS = 6
DASHES = ("none", "7 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2")


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map that takes ``low`` to ``start`` and ``high`` to ``end``, in units of the drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The place of a value; values outside the range lie at its ends."""
        low, high, here = (_log(number) if self.log else number for number in (self.low, self.high, value))
        share = 0.5 if high == low else (here - low) / (high - low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, most: int = MOST_TICKS) -> list[float]:
        """Round numbers within the range."""
        return (_log_ticks if self.log else ticks)(self.low, self.high, most)


def draw(figure: Figure) -> str:
    """Draw a figure as SVG."""
    match figure:
        case LineChart():
            svg = _draw_lines(figure)
        case Bars():
            svg = _draw_bars(figure)
        case ReliabilityChart():
            svg = _draw_reliability(figure)
        case Stacks():
            svg = _draw_stacks(figure)
    return tostring(svg, encoding="unicode")


def shortened(name: str, most: int = 26) -> str:
    """A name of at most ``most`` letters; the middle of a long one is left out, since ends tell runs apart."""
    if len(name) <= most:
        return name
    tail = (most - 3) // 2
    return f"{name[: most - 3 - tail]}...{name[-tail:]}"


def ticks(low: float, high: float, most: int = MOST_TICKS) -> list[float]:
    """At most ``most`` multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (power, 2 * power, 5 * power, 10 * power, 20 * power):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first < most:
            break
    return [number * step for number in range(first, last + 1)]


def tick_text(value: float) -> str:
    """The shortest text of a tick's number."""
    if value == 0.0 or 1e-3 <= abs(value) < 1e5:
        return f"{value:.6g}"
    return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")


def _draw_lines(figure: LineChart) -> Element:
    names = [series.name for series in figure.series]
    longest = max(map(len, names))
    named_at_ends = 1 < len(names) <= MOST_LABELS and longest <= LONGEST_LABEL
    in_legend = [] if named_at_ends or len(names) == 1 else names
    svg, top = _canvas(figure, in_legend)
    values = [value for series in figure.series for value in (*series.y, *series.low, *series.high)]
    low, high = figure.y_range or (min(values), max(values))
    places = [value for series in figure.series for value in series.x]
    first, last = figure.x_range or (min(places), max(places))
    right = 1.06 * LETTER_WIDTH * longest + 14 if named_at_ends else RIGHT
    x = Scale(first, last, LEFT, WIDTH - right)
    y = Scale(low, high, top + PLOT_HEIGHT, top, figure.log_y)
    _draw_axes(svg, x, y, figure.x_label, figure.y_label)
    if figure.diagonal:
        low, high = max(x.low, y.low), min(x.high, y.high)
        _add(svg, "line", "ideal", x1=x(low), y1=y(low), x2=x(high), y2=y(high))
        _add(svg, "text", "note", figure.diagonal, x=x.end - 6, y=y.start - 8, text_anchor="end")
    styles = [place if series.style is None else series.style for place, series in enumerate(figure.series)]
    for style, series in zip(styles, figure.series, strict=True):
        _draw_line(svg, x, y, style, series)
    if named_at_ends:
        _name_ends(svg, x, y, figure.series, styles)
    _draw_legend(svg, in_legend, styles)
    return svg


def _draw_line(svg: Element, x: Scale, y: Scale, style: int, series: Series) -> None:
    def path(points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{x(left):.2f} {y(up):.2f}" for left, up in points)

    colour = f"s{style % COLOURS}"
    if series.low:
        lower, upper = (list(zip(series.x, ends, strict=True)) for ends in (series.low, series.high))
        _add(svg, "path", f"band {colour}", d=f"{path([*lower, *upper[::-1]])}z")
    points = list(zip(series.x, series.y, strict=True))
    _add(svg, "path", f"line {colour}", d=path(points), stroke_dasharray=_dashes_of(style))
    for left, up in points[:: max(-(-len(points) // MOST_MARKS), 1)]:
        _draw_mark(svg, style, x(left), y(up))


def _name_ends(svg: Element, x: Scale, y: Scale, lines: Sequence[Series], styles: Sequence[int]) -> None:
    """Names beside the last points, moved apart so that they do not touch."""
    lowest = y.start
    placed: list[tuple[float, int]] = []
    for end, place in sorted(((y(line.y[-1]), place) for place, line in enumerate(lines)), reverse=True):
        placed.append((min(end, lowest), place))
        lowest = placed[-1][0] - 14
    lift = max(y.end - placed[-1][0], 0.0)
    for end, place in placed:
        _add(svg, "text", f"name s{styles[place] % COLOURS}", lines[place].name, x=x.end + 6, y=end + lift + 4)


def _draw_bars(figure: Bars) -> Element:
    names = list(figure.groups) if len(figure.groups) > 1 else []
    styles = _area_styles("area", len(figure.groups))
    svg, top = _canvas(figure, names)
    highest = max(max(shares, default=0.0) for shares in figure.groups.values()) or 1.0
    headroom = 1.05 if figure.line is None else 1.2
    x = Scale(figure.edges[0], figure.edges[-1], LEFT, WIDTH - RIGHT)
    y = Scale(0.0, headroom * highest, top + PLOT_HEIGHT, top)
    _draw_axes(svg, x, y, figure.x_label, figure.y_label)
    for style, shares in zip(styles, figure.groups.values(), strict=True):
        steps = "".join(f"V{y(share):.2f}H{x(end):.2f}" for share, end in zip(shares, figure.edges[1:], strict=True))
        _add(svg, "path", style, d=f"M{x.start:g} {y.start:g}{steps}V{y.start:g}z")
    if figure.line is not None:
        place = x(figure.line)
        _add(svg, "line", "limit", x1=place, x2=place, y1=y.start, y2=y.end)
        offset, anchor = (-5, "end") if place > WIDTH / 2 else (5, "start")
        text = f"threshold {number(figure.line)}"
        _add(svg, "text", "note", text, y=y.end + 12, x=place + offset, text_anchor=anchor)
    _draw_legend(svg, names, styles)
    return svg


def _draw_reliability(figure: ReliabilityChart) -> Element:
    names, styles = ["accuracy", "share of examples"], _area_styles("area", 2)
    svg, top = _canvas(figure, names)
    x, y = Scale(0.0, 1.0, LEFT, WIDTH - RIGHT), Scale(0.0, 1.0, top + PLOT_HEIGHT, top)
    _draw_axes(svg, x, y, "confidence", "accuracy")
    edges = [x(place / len(figure.share)) for place in range(len(figure.share) + 1)]
    for (begin, end), share, accuracy in zip(pairwise(edges), figure.share, figure.accuracy, strict=True):
        if accuracy is not None:
            top = y(accuracy)
            _add(svg, "rect", styles[0], x=begin + 1, y=top, width=end - begin - 2, height=y.start - top)
        half = (end - begin) / 2
        _add(svg, "rect", styles[1], x=begin + half / 2, y=y(share), width=half, height=y.start - y(share))
    _add(svg, "line", "ideal", x1=x(0.0), y1=y(0.0), x2=x(1.0), y2=y(1.0))
    for confidence, accuracy in zip(figure.confidence, figure.accuracy, strict=True):
        if confidence is not None and accuracy is not None:
            _draw_mark(svg, 0, x(confidence), y(accuracy))
    _draw_legend(svg, names, styles)
    return svg


def _draw_stacks(figure: Stacks) -> Element:
    names, styles, step = list(figure.parts), _area_styles("solid", len(figure.parts)), 34.0
    svg, top = _canvas(figure, names, step * len(figure.rows))
    wholes = [sum(parts) for parts in zip(*figure.parts.values(), strict=True)]
    begin = 18 + LETTER_WIDTH * min(max(map(len, figure.rows)), 20)
    x = Scale(0.0, max(wholes) or 1.0, begin, WIDTH - RIGHT - 34)
    rows = Scale(0.0, 1.0, top + step * len(figure.rows), top)
    _draw_axes(svg, x, rows, figure.x_label)
    for place, (row, whole) in enumerate(zip(figure.rows, wholes, strict=True)):
        y, so_far = top + step * place + 7, 0.0
        _add(svg, "text", "tick", shortened(row, 20), x=begin - 6, y=y + 14, text_anchor="end")
        for style, parts in zip(styles, figure.parts.values(), strict=True):
            width = x(so_far + parts[place]) - x(so_far)
            _add(svg, "rect", style, x=x(so_far), y=y, width=width, height=20)
            so_far += parts[place]
        _add(svg, "text", "tick", number(whole), x=x(whole) + 5, y=y + 14)
    _draw_legend(svg, names, styles)
    return svg


def _canvas(figure: Figure, in_legend: list[str], height: float = PLOT_HEIGHT) -> tuple[Element, float]:
    """An empty drawing with its title and summary, and where the plot begins below the legend."""
    top = _legend_places(in_legend)[-1][1] + 12 if in_legend else 12.0
    size = f"0 0 {WIDTH:g} {top + height + BOTTOM:g}"
    svg = Element("svg", {"viewBox": size, "role": "img", "aria-label": f"{figure.title}. {figure.summary}"})
    SubElement(svg, "title").text = figure.title
    SubElement(svg, "desc").text = figure.summary
    return svg, top


def _add(parent: Element, name: str, css: str, text: str | None = None, **attributes: float | str) -> None:
    """Add an element; numbers are rounded to hundredths, and ``_`` in a name stands for ``-``."""
    written = {
        key.replace("_", "-"): value if isinstance(value, str) else f"{round(value, 2):g}"
        for key, value in attributes.items()
    }
    SubElement(parent, name, {"class": css, **written}).text = text


def _draw_axes(svg: Element, x: Scale, y: Scale, x_label: str, y_label: str = "") -> None:
    """Grid, ticks and labels; an axis without a label has no ticks."""
    for value in x.ticks():
        _add(svg, "line", "grid", x1=x(value), x2=x(value), y1=y.start, y2=y.end)
        _add(svg, "text", "tick", tick_text(value), x=x(value), y=y.start + 16, text_anchor="middle")
    for value in y.ticks() if y_label else ():
        _add(svg, "line", "grid", x1=x.start, x2=x.end, y1=y(value), y2=y(value))
        _add(svg, "text", "tick", tick_text(value), x=x.start - 6, y=y(value) + 4, text_anchor="end")
    _add(svg, "path", "axis", d=f"M{x.start:g} {y.end:g}V{y.start:g}H{x.end:g}")
    _add(svg, "text", "label", x_label, x=(x.start + x.end) / 2, y=y.start + 37, text_anchor="middle")
    if y_label:
        middle = (y.start + y.end) / 2
        turned = f"rotate(-90 13 {middle:g})"
        _add(svg, "text", "label", y_label, x=13, y=middle, transform=turned, text_anchor="middle")


def _draw_mark(svg: Element, style: int, x: float, y: float, size: float = 3.4) -> None:
    """The mark of a line: circle, square, triangle, diamond, cross or plus."""
    shapes = (
        f"M{-size} 0a{size} {size} 0 1 0 {2 * size} 0a{size} {size} 0 1 0 {-2 * size} 0",
        f"M{-size} {-size}h{2 * size}v{2 * size}h{-2 * size}z",
        f"M0 {-1.2 * size}L{1.2 * size} {size}H{-1.2 * size}z",
        f"M0 {-1.4 * size}L{1.4 * size} 0L0 {1.4 * size}L{-1.4 * size} 0z",
        f"M{-size} {-size}L{size} {size}M{-size} {size}L{size} {-size}",
        f"M{-1.3 * size} 0H{1.3 * size}M0 {-1.3 * size}V{1.3 * size}",
    )
    shape = shapes[(style + style // COLOURS) % len(shapes)]
    _add(svg, "path", f"mark s{style % COLOURS}", d=shape, transform=f"translate({x:.2f} {y:.2f})")


def _dashes_of(style: int) -> str:
    """The dashes of a line. Once all colours are used, they shift by one, so that no two lines look the same."""
    return DASHES[(style + style // COLOURS) % len(DASHES)]


def _area_styles(first: str, count: int) -> list[str]:
    """Classes of areas: the first is filled, the others are outlined."""
    return [f"{'outline' if place else first} s{place % COLOURS}" for place in range(count)]


def _legend_places(names: list[str]) -> list[tuple[float, float]]:
    """Left ends of the entries of a legend, row by row."""
    x, y = LEFT, 14.0
    places: list[tuple[float, float]] = []
    for name in names:
        width = 34 + LETTER_WIDTH * len(shortened(name)) + 12
        if places and x + width > WIDTH - RIGHT + 12:
            x, y = LEFT, y + 18
        places.append((x, y))
        x += width
    return places


def _draw_legend(svg: Element, names: list[str], styles: Sequence[int | str]) -> None:
    """A sample of each line or area beside its name; a line has the number of its style, an area its classes."""
    for name, style, (x, y) in zip(names, styles, _legend_places(names), strict=False):
        if isinstance(style, int):
            line = f"line s{style % COLOURS}"
            _add(svg, "path", line, d=f"M{x:g} {y - 4:g}h26", stroke_dasharray=_dashes_of(style))
            _draw_mark(svg, style, x + 13, y - 4)
        else:
            _add(svg, "rect", style, x=x + 4, y=y - 10, width=18, height=11)
        _add(svg, "text", "key", shortened(name), x=x + 32, y=y)


def _log(value: float) -> float:
    return math.log10(max(value, 1e-12))


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    powers = range(math.floor(_log(low)), math.ceil(_log(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        values = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(values) <= most:
            return values
    return values[:: math.ceil(len(values) / most)]
