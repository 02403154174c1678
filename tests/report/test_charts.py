"""Charts: numbers become coordinates, nothing is told by colour alone, and words come along."""

import re
from itertools import pairwise
from xml.etree.ElementTree import Element, fromstring

import pytest

from dubio.report.charts import LEFT, PLOT_HEIGHT, RIGHT, WIDTH, draw, shortened
from dubio.report.elements import Bars, Figure, LineChart, ReliabilityChart, Series, Stacks

LINE = Series("one", (0.0, 1.0, 2.0), (0.0, 0.5, 1.0), (0.0, 0.4, 0.9), (0.1, 0.6, 1.0))
OTHER = Series("other", (0.0, 1.0, 2.0), (1.0, 0.9, 0.95))
LINES = LineChart("Title", "What it shows.", "x", "y", (LINE, OTHER), y_range=(0.0, 1.0))
BARS = Bars("Title", "What it shows.", "x", "y", (0.0, 1.0, 2.0), {"known": (0.25, 0.75), "unseen": (0.5, 0.5)}, 1.5)
RELIABILITY = ReliabilityChart("Title", "What it shows.", (0.0, 0.2, 0.8), (None, 0.5, 0.9), (None, 0.25, 1.0))
STACKS = Stacks("Title", "What it shows.", "nats", ("all", "wrong"), {"data": (0.5, 1.0), "network": (0.25, 1.0)})


def drawn(figure: Figure) -> Element:
    return fromstring(draw(figure))


def of_class(svg: Element, name: str) -> list[Element]:
    return [element for element in svg.iter() if name in element.get("class", "").split()]


def coordinates(path: Element) -> list[tuple[float, float]]:
    numbers = [float(result) for result in re.findall(r"-?[\d.]+", path.get("d", ""))]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@pytest.mark.parametrize("figure", [LINES, BARS, RELIABILITY, STACKS], ids=lambda figure: type(figure).__name__)
def test_every_drawing_says_what_it_shows(figure: Figure) -> None:
    svg = drawn(figure)
    assert svg.get("role") == "img"
    assert svg.get("aria-label") == "Title. What it shows."
    assert (svg.findtext("title"), svg.findtext("desc")) == ("Title", "What it shows.")
    assert not re.search(r"nan|inf", draw(figure))


def test_points_of_a_line_lie_where_the_axes_say() -> None:
    svg = drawn(LineChart("Title", "Words.", "x", "y", (LINE,), y_range=(0.0, 1.0)))
    (path,) = of_class(svg, "line")
    points = coordinates(path)
    assert [x for x, _ in points] == pytest.approx([LEFT, (LEFT + WIDTH - RIGHT) / 2, WIDTH - RIGHT])
    below, middle, above = (y for _, y in points)
    assert below - above == pytest.approx(PLOT_HEIGHT)
    assert middle == pytest.approx((below + above) / 2)
    (band,) = of_class(svg, "band")
    assert len(coordinates(band)) == 6
    assert coordinates(band)[1][1] > middle > coordinates(band)[-2][1]  # low below, high above


def test_lines_differ_in_more_than_colour() -> None:
    svg = drawn(LINES)
    assert len({line.get("stroke-dasharray") for line in of_class(svg, "line")}) == 2
    marks = {mark.get("class"): mark.get("d") for mark in of_class(svg, "mark")}
    assert len(set(marks.values())) == 2


def test_more_lines_than_colours_still_look_different() -> None:
    many = tuple(Series(f"a long name, number {number}", (0.0, 1.0), (0.0, 1.0)) for number in range(13))
    svg = drawn(LineChart("Title", "Words.", "x", "y", many))
    looks = {(line.get("class"), line.get("stroke-dasharray")) for line in of_class(svg, "line")}
    assert len(looks) == 13


def test_few_lines_with_short_names_are_named_at_their_ends_and_the_names_keep_apart() -> None:
    close = tuple(Series(f"run {number}", (0.0, 1.0), (0.0, 0.5 + number / 1000)) for number in range(4))
    labels = of_class(drawn(LineChart("Title", "Words.", "x", "y", close, y_range=(0.0, 1.0))), "name")
    places = sorted(float(label.get("y", "")) for label in labels)
    assert [label.text for label in reversed(labels)] == ["run 3", "run 2", "run 1", "run 0"]
    assert all(later - earlier >= 13 for earlier, later in pairwise(places))
    widest = max(float(label.get("x", "")) + 7 * len(label.text or "") for label in labels)
    assert widest <= WIDTH


def test_long_names_go_to_a_legend_and_keep_both_ends() -> None:
    names = ["a-very-long-name-of-a-run-that-ends-in-1", "a-very-long-name-of-a-run-that-ends-in-2"]
    svg = drawn(LineChart("Title", "Words.", "x", "y", tuple(Series(name, (0.0, 1.0), (0.0, 1.0)) for name in names)))
    assert of_class(svg, "name") == []
    keys = [key.text for key in of_class(svg, "key")]
    assert keys == [shortened(name) for name in names]
    assert len(set(keys)) == 2
    assert all(len(key or "") <= 26 for key in keys)


def test_the_line_of_perfection_joins_equal_values() -> None:
    svg = drawn(LineChart("Title", "Words.", "x", "y", (LINE,), (0.0, 2.0), (0.0, 1.0), diagonal="as it should be"))
    (ideal,) = of_class(svg, "ideal")
    assert float(ideal.get("x2", "")) == pytest.approx((LEFT + WIDTH - RIGHT) / 2)  # y ends at 1, x at 2


def test_bars_are_as_high_as_their_shares() -> None:
    svg = drawn(BARS)
    (area,), (outline,) = ([part for part in of_class(svg, name) if part.tag == "path"] for name in ("area", "outline"))
    bottom = float(re.findall(r"[\d.]+", area.get("d", ""))[1])
    heights = [bottom - float(y) for y in re.findall(r"V([\d.]+)H", area.get("d", ""))]
    others = [bottom - float(y) for y in re.findall(r"V([\d.]+)H", outline.get("d", ""))]
    assert heights[1] == pytest.approx(3 * heights[0], abs=0.1)
    assert others[0] == pytest.approx(2 * heights[0], abs=0.1)
    (limit,) = of_class(svg, "limit")
    assert float(limit.get("x1", "")) == pytest.approx(LEFT + 0.75 * (WIDTH - RIGHT - LEFT), abs=0.01)


def test_a_bin_without_examples_has_no_accuracy_to_draw() -> None:
    svg = drawn(RELIABILITY)
    bars = [part for part in of_class(svg, "area") if float(part.get("width", 0)) > 20]
    heights = [float(bar.get("height", "")) for bar in bars]
    assert heights == pytest.approx([0.25 * PLOT_HEIGHT, PLOT_HEIGHT])
    (ideal,) = of_class(svg, "ideal")
    assert float(ideal.get("y1", "")) - float(ideal.get("y2", "")) == pytest.approx(PLOT_HEIGHT)


def test_parts_stand_one_after_the_other() -> None:
    svg = drawn(STACKS)
    solid = [part for part in of_class(svg, "solid") if part.get("height") == "20"]
    rest = [part for part in of_class(svg, "outline") if part.get("height") == "20"]
    for first, second in zip(solid, rest, strict=True):
        end = float(first.get("x", "")) + float(first.get("width", ""))
        assert float(second.get("x", "")) == pytest.approx(end, abs=0.02)
    widths = [float(part.get("width", "")) for part in (*solid, *rest)]
    assert widths == pytest.approx([0.25 * sum(widths[1::2]), widths[1], widths[1] / 4, widths[1]], abs=0.02)


def test_text_from_elsewhere_is_escaped() -> None:
    name = '<script>alert("x")</script>'
    text = draw(LineChart(name, name, name, name, (Series(name, (0.0, 1.0), (0.0, 1.0)), OTHER)))
    assert "<script" not in text
    assert fromstring(text).findtext("title") == name
