"""Parts that every chart has: the canvas with its words, axes with ticks and labels, a legend, marks for lines.

Charts are SVG inside the page. Colours are classes of the page's style, ``s0`` to ``s5``, so that they change with its
theme; a line also has dashes and a mark of its own, so that colour never stands alone. Elements are built as a tree,
which escapes names on writing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

from dubio.reporting.scales import Scale, tick_text

__all__ = [
    "Axes",
    "add",
    "canvas",
    "dashes_of",
    "draw_axes",
    "draw_legend",
    "draw_mark",
    "legend_height",
    "markup",
    "shortened",
]

WIDTH = 380.0
LEFT, RIGHT, BOTTOM = 54.0, 14.0, 44.0
PLOT_HEIGHT = 190.0
COLOURS = 6
DASHES = ("none", "7 3", "2 3", "9 3 2 3", "12 4", "4 2 1 2")
SIGN_WIDTH = 7.2
"""Of a letter at 12 pixels, on average."""


@dataclass(frozen=True)
class Axes:
    """Where the plot lies on its canvas."""

    x: Scale
    y: Scale
    x_label: str
    y_label: str


def canvas(title: str, words: str, height: float) -> Element:
    """An empty drawing that says what it shows."""
    size = {"viewBox": f"0 0 {WIDTH:g} {height:g}", "role": "img", "aria-label": f"{title}. {words}"}
    svg = Element("svg", size)
    SubElement(svg, "title").text = title
    SubElement(svg, "desc").text = words
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
