"""Pictures of records: lines are means over seeds, bands their standard errors, fields of a table its numbers."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from dubio_lab import Cell, Curve, Result, draw_curves, draw_heat_map, draw_sweep, mean_curve
from dubio_lab.panels import COLOURS, _apart
from made_up_records import record, spec_of

SPEC = spec_of()
RESULTS = [
    record(SPEC, cell, seed, 10.0 * place + 2.0 * seed)
    for place, cell in enumerate(("first", "second"))
    for seed in (0, 1)
]


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is drawn is looked at, and not written, which takes most of the time."""
    for module in ("drawing", "panels"):
        monkeypatch.setattr(f"dubio_lab.{module}.write", lambda figure, path: None)


def texts(axes: Any) -> dict[str, Any]:
    return {text.get_text(): text for text in axes.texts}


@pytest.mark.feature("Pictures of experiments: a line for each cell, the mean over seeds with its standard error")
def test_lines_are_means_over_seeds_and_bands_their_standard_errors(tmp_path: Path) -> None:
    figure = draw_curves(SPEC, RESULTS, ["rise", "fall"], tmp_path / "deep" / "curves.png")
    assert (tmp_path / "deep" / "curves.png").stat().st_size > 0
    left, right = figure.axes
    assert [line.get_label() for line in left.lines] == ["first", "second"]
    for line, band, start in zip(left.lines, left.collections, (1.0, 11.0), strict=True):
        np.testing.assert_allclose(line.get_xydata(), [[0.0, start], [1.0, start + 1.0], [2.0, start + 4.0]])
        edges = band.get_paths()[0].vertices
        assert (edges[:, 1].min(), edges[:, 1].max()) == (start - 1.0, start + 5.0)  # seeds lie 2 apart
    assert (left.get_title(loc="left"), left.get_xlabel()) == ("error in percent", "epoch")
    assert (right.get_title(loc="left"), right.get_xlabel()) == ("share of the rest", "")


def test_few_lines_are_named_at_their_ends_and_many_in_a_legend(unwritten: None, tmp_path: Path) -> None:
    figure = draw_curves(SPEC, RESULTS, ["rise", "fall"], tmp_path / "few.png")
    left, right = figure.axes
    assert not texts(left)
    named = texts(right)
    assert not figure.legends
    assert [to_hex(named[line.get_label()].get_color()) for line in right.lines] == [
        line.get_color() for line in right.lines
    ]
    low, high = right.get_ylim()
    for line in right.lines:
        end = (line.get_ydata()[-1] - low) / (high - low)
        np.testing.assert_allclose(named[line.get_label()].get_position(), (1.03, end))

    many = spec_of(cells=tuple(Cell(f"cell {number}") for number in range(8)))
    results = [record(many, cell.name, 0, float(number)) for number, cell in enumerate(many.cells)]
    figure = draw_curves(many, results, ["rise"], tmp_path / "many.png")
    (axes,) = figure.axes
    (legend,) = figure.legends
    assert not axes.texts
    assert [text.get_text() for text in legend.get_texts()] == [cell.name for cell in many.cells]
    assert len({to_hex(line.get_color()) for line in axes.lines}) == 8
    assert not axes.collections  # a single seed has no band


def test_names_at_the_ends_of_lines_do_not_touch() -> None:
    assert _apart([0.1, 0.5, 0.9], 0.1) == [0.1, 0.5, 0.9]
    np.testing.assert_allclose(_apart([0.5, 0.5, 0.9], 0.1), [0.5, 0.6, 0.9])
    np.testing.assert_allclose(_apart([0.95, 0.96, 0.97], 0.1), [0.8, 0.9, 1.0])
    np.testing.assert_allclose(np.diff(_apart([0.0, 0.0, 0.0, 0.0], 0.5)), 0.5)


def test_four_panels_stand_in_two_rows_and_what_is_left_over_is_empty(unwritten: None, tmp_path: Path) -> None:
    words = "a height that is told at some length"
    spec = spec_of(curves={f"curve {number}": words for number in range(5)})
    results = [record(spec, "first", 0), record(spec, "second", 0, 2.0)]
    assert draw_curves(spec, results, ["curve 0"], tmp_path / "one.png").axes[0].get_title(loc="left") == words
    four = draw_curves(spec, results, [*spec.curves][:4], tmp_path / "four.png")
    assert four.axes[0].get_gridspec().get_geometry() == (2, 2)
    five = draw_curves(spec, results, [*spec.curves], tmp_path / "five.png")
    assert five.axes[0].get_title(loc="left").count("\n") == 1
    assert [axes.get_visible() for axes in five.axes] == [True] * 5 + [False]
    assert [bool(axes.texts) for axes in five.axes[:5]] == [False, False, True, False, False]


def test_a_last_row_that_is_shorter_names_only_lines_that_no_row_above_has(unwritten: None, tmp_path: Path) -> None:
    spec = spec_of(curves={f"curve {number}": "a height" for number in range(5)})
    first = record(spec, "first", 0)
    without = replace(first, curves={name: curve for name, curve in first.curves.items() if name == "curve 4"})
    figure = draw_curves(spec, [without, record(spec, "second", 0, 2.0)], [*spec.curves], tmp_path / "five.png")
    names = [[text.get_text() for text in axes.texts] for axes in figure.axes[:5]]
    assert names == [[], [], ["second"], [], ["first", "second"]]


def test_groups_of_cells_have_panels_of_their_own_and_the_rest_is_left_out(unwritten: None, tmp_path: Path) -> None:
    spec = spec_of(cells=tuple(Cell(name) for name in ("a-1", "b-1", "a-2", "b-2", "other", "to-come")))
    results = [record(spec, cell.name, 0, float(place)) for place, cell in enumerate(spec.cells[:-1])]
    groups = {f"size {size}": {f"kind {kind}": f"{kind}-{size}" for kind in "ab"} for size in (1, 2)}
    groups["nothing yet"] = {"kind c": "to-come"}
    figure = draw_curves(spec, results, ["rise"], tmp_path / "groups.png", groups=groups, heights={"rise": (0.5, 4.0)})
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "error in percent\nsize 1",
        "error in percent\nsize 2",
    ]
    for axes, starts in zip(figure.axes, ([0.0, 1.0], [2.0, 3.0]), strict=True):
        assert [line.get_label() for line in axes.lines] == ["kind a", "kind b"]
        assert [line.get_ydata()[0] for line in axes.lines] == starts
        assert [line.get_color() for line in axes.lines] == [line.get_color() for line in figure.axes[0].lines]
        assert axes.get_ylim() == (0.5, 4.0)
    with pytest.raises(ValueError, match="groups must hold cells of made-up, got c-1"):
        draw_curves(spec, results, ["rise"], tmp_path / "never.png", groups={"size 1": {"kind c": "c-1"}})


def test_the_diagonal_is_where_both_axes_are_equal(unwritten: None, tmp_path: Path) -> None:
    figure = draw_curves(SPEC, RESULTS, ["rise", "fall"], tmp_path / "diagonal.png", diagonal=["fall"])
    left, right = figure.axes
    assert [len(axes.lines) for axes in (left, right)] == [2, 3]
    np.testing.assert_array_equal(right.lines[-1].get_xydata(), [[0.0, 0.0], [2.0, 2.0]])
    assert right.get_title(loc="left") == "share of the rest (dashed: both axes equal)"
    assert {*texts(right)} == {"first", "second"}


def test_seeds_that_were_measured_elsewhere_are_averaged_where_all_were() -> None:
    short, long = Curve((1.0, 2.0), (4.0, 6.0)), Curve((0.0, 1.5, 3.0), (0.0, 3.0, 6.0))
    mean = mean_curve([short, long])
    assert mean.x == (1.0, 1.5, 2.0)
    np.testing.assert_allclose(mean.y, [3.0, 4.0, 5.0])
    np.testing.assert_allclose(mean.standard_error, [1.0, 1.0, 1.0])
    back = Curve((1.0, 0.0), (0.0, 1.0))
    assert mean_curve([back, back]).x == (1.0, 0.0)
    assert mean_curve([short]).standard_error is None
    with pytest.raises(ValueError, match="x of curves must rise where it differs between seeds, got one that does not"):
        mean_curve([short, back])
    with pytest.raises(ValueError, match="curves must overlap to be averaged, got one from 5 on and one up to 2"):
        mean_curve([short, Curve((5.0, 6.0), (0.0, 0.0))])


def test_records_of_an_earlier_spec_are_drawn_only_where_there_are_no_others(unwritten: None, tmp_path: Path) -> None:
    old = record(SPEC, "first", 1, 100.0, digest="earlier")
    (axes,) = draw_curves(SPEC, [RESULTS[0], old], ["rise"], tmp_path / "both.png").axes
    assert axes.lines[0].get_ydata()[0] == 0.0
    (axes,) = draw_curves(SPEC, [old], ["rise"], tmp_path / "old.png").axes
    assert axes.lines[0].get_ydata()[0] == 100.0


def test_a_picture_of_records_of_an_earlier_spec_says_so(unwritten: None, tmp_path: Path) -> None:
    spec = spec_of(cells=(Cell("first-1"), Cell("first-2")))
    now = [record(spec, cell.name, 0) for cell in spec.cells]
    old = [replace(one, digest="earlier") for one in now]
    draws: tuple[Callable[[list[Result]], Any], ...] = (
        lambda results: draw_curves(spec, results, ["rise"], tmp_path / "curves.png"),
        lambda results: draw_sweep(spec, results, ["metric_0"], "strength", tmp_path / "sweep.png"),
        lambda results: draw_heat_map(spec, results, ["metric_0"], tmp_path / "table.png"),
    )
    plain = spec_of(cells=(*spec.cells, Cell("plain")))
    base = record(plain, "plain", 0, digest="earlier")
    path = tmp_path / "less.png"
    assert draw_sweep(plain, [*now, base], ["metric_0"], "strength", path, less="plain").get_suptitle() == (
        "in part made under an earlier spec"
    )
    for draw in draws:
        notes = [draw(results).get_suptitle() for results in (now, old, [now[0], old[1]])]
        assert notes == ["", "made under an earlier spec", "in part made under an earlier spec"]


def test_a_line_that_all_cells_share_is_drawn_once(unwritten: None, tmp_path: Path) -> None:
    results = [record(SPEC, cell, 0) for cell in ("first", "second")]
    (axes,) = draw_curves(SPEC, results, ["rise"], tmp_path / "same.png").axes
    assert [line.get_label() for line in axes.lines] == ["all cells"]


def test_a_single_seed_has_the_band_that_its_record_gives(unwritten: None, tmp_path: Path) -> None:
    spec = spec_of(curves={"rise": "height", "rise_error": "its standard error"})
    curves = {"rise": Curve((0.0, 1.0), (5.0, 5.0)), "rise_error": Curve((0.0, 1.0), (0.5, 2.0))}
    (axes,) = draw_curves(spec, [record(spec, "first", 0, curves=curves)], ["rise"], tmp_path / "one.png").axes
    edges = axes.collections[0].get_paths()[0].vertices
    assert (edges[:, 1].min(), edges[:, 1].max()) == (3.0, 7.0)


def test_durations_that_differ_widely_have_a_logarithmic_scale(unwritten: None, tmp_path: Path) -> None:
    def scales(words: str, least: float) -> tuple[str, str]:
        spec = spec_of(curves={"rise": words})
        one = record(spec, "first", 0, curves={"rise": Curve((least, 2.0), (least, 2.0))})
        (axes,) = draw_curves(spec, [one], ["rise"], tmp_path / "scale.png").axes
        return axes.get_xscale(), axes.get_yscale()

    assert scales("seconds for an epoch by number of draws", 0.01) == ("linear", "log")
    assert scales("accuracy, by seconds of training", 0.01) == ("log", "linear")
    assert scales("seconds, by seconds", 0.1) == scales("seconds, by seconds", 0.0) == ("linear", "linear")
    assert scales("accuracy, by epoch", 0.01) == ("linear", "linear")


@pytest.mark.parametrize(
    ("words", "what", "along"),
    [
        ("test error by epoch, of the mean", "test error, of the mean", "epoch"),
        ("accuracy by mean confidence, bin by bin", "accuracy, bin by bin", "mean confidence"),
        ("height", "height", ""),
    ],
)
def test_the_words_of_a_curve_name_its_axes(unwritten: None, tmp_path: Path, words: str, what: str, along: str) -> None:
    spec = spec_of(curves={"rise": words})
    (axes,) = draw_curves(spec, [record(spec, "first", 0)], ["rise"], tmp_path / "words.png").axes
    assert (axes.get_title(loc="left"), axes.get_xlabel()) == (what, along)


def test_numbers_of_cells_are_drawn_along_the_number_in_their_names(unwritten: None, tmp_path: Path) -> None:
    cells = (
        *(Cell(f"ours-{number}", {}, {"metric_1": 3.0}) for number in (10, 2, 0.5)),
        Cell("se-snn-2"),
        Cell("plain"),
    )
    spec = spec_of(cells=cells)
    results = [record(spec, cell.name, seed, place + 2.0 * seed) for place, cell in enumerate(cells) for seed in (0, 1)]
    left, right = draw_sweep(spec, results, ["metric_0", "metric_1"], "strength", tmp_path / "sweep.png").axes
    assert [line.get_label() for line in left.lines if line.get_xdata().size] == ["ours", "se-snn"]
    np.testing.assert_array_equal(left.lines[0].get_xydata(), [[0.5, 3.0], [2.0, 2.0], [10.0, 1.0]])
    assert [line.get_color() for line in left.lines] == [*COLOURS[:2]]
    edges = left.collections[0].get_paths()[0].vertices
    assert (edges[:, 1].min(), edges[:, 1].max()) == (0.0, 4.0)
    assert [axes.get_title(loc="left") for axes in (left, right)] == ["metric 0", "metric 1"]
    assert left.get_xlabel() == "strength"
    circles = next(line for line in right.lines if line.get_marker() == "o" and line.get_xdata().size)
    np.testing.assert_array_equal(circles.get_xydata(), [[10.0, 3.0], [2.0, 3.0], [0.5, 3.0]])
    assert circles.get_color() == right.lines[0].get_color()
    assert {*texts(right)} == {"ours", "se-snn"}
    assert left.get_legend() is None
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["published"]


def test_circles_are_explained_once_and_beside_them_a_line_that_is_alone(unwritten: None, tmp_path: Path) -> None:
    cells = tuple(Cell(f"snr-{number}", {}, {"metric_0": 3.0, "metric_1": 3.0}) for number in (1, 2))
    spec = spec_of(cells=cells)
    results = [record(spec, cell.name, 0) for cell in cells]
    words = {"snr": "by signal to noise"}
    figure = draw_sweep(spec, results, [*spec.metrics], "strength", tmp_path / "once.png", lines=words)
    left, right = figure.axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["by signal to noise", "published"]
    assert right.get_legend() is None
    for axes in (left, right):
        assert [line.get_label() for line in axes.lines] == ["by signal to noise", "_published"]


@pytest.mark.parametrize("less", ["plain", "plain-2"])
def test_differences_are_taken_seed_by_seed(unwritten: None, tmp_path: Path, less: str) -> None:
    cells = tuple(Cell(name, {}, {"metric_0": 3.0}) for name in ("ours-1", "ours-2", "plain-1", "plain-2"))
    spec = spec_of(1, cells=cells, seeds=(0, 1, 2))
    values = {  # seeds differ far more than cells of one seed do
        "ours-1": (1.0, 101.0, 50.0),
        "ours-2": (2.0, 104.0),
        "plain-1": (0.0, 100.0),
        "plain-2": (0.0, 100.0),
    }
    results = [record(spec, cell, seed, value) for cell, own in values.items() for seed, value in enumerate(own)]
    figure = draw_sweep(spec, results, ["metric_0"], "strength", tmp_path / "less.png", less=less)
    whole, above = figure.axes
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["metric 0", f"metric 0 less that of {less}"]
    np.testing.assert_allclose(whole.lines[0].get_ydata(), [152.0 / 3.0, 53.0])
    np.testing.assert_allclose(
        above.lines[0].get_xydata(), [[1.0, 1.0], [2.0, 3.0]]
    )  # a seed without a pair is not in it
    np.testing.assert_allclose(above.lines[1].get_ydata(), [0.0, 0.0])
    edges = above.collections[0].get_paths()[0].vertices
    assert (edges[:, 1].min(), edges[:, 1].max()) == (1.0, 4.0)  # 0 and 1 standard errors of differences
    assert "_published" in [line.get_label() for line in whole.lines]
    assert "_published" not in [line.get_label() for line in above.lines]

    alone = [one for one in results if one.seed == 0]
    above = draw_sweep(spec, alone, ["metric_0"], "strength", tmp_path / "one.png", less=less).axes[1]
    np.testing.assert_allclose(above.lines[0].get_ydata(), [1.0, 2.0])
    assert not above.collections
    without = [one for one in results if one.cell.startswith("ours")]
    assert len(draw_sweep(spec, without, ["metric_0"], "strength", tmp_path / "none.png", less=less).axes) == 1


def test_what_a_number_leaves_falls_along_a_logarithmic_axis(unwritten: None, tmp_path: Path) -> None:
    cells = tuple(Cell(f"removed-{number}", {}, {"metric_0": 3.0}) for number in (98, 0, 50))
    spec = spec_of(1, cells=cells)
    results = [record(spec, cell.name, 0, float(place)) for place, cell in enumerate(cells)]
    path = tmp_path / "left.png"
    (axes,) = draw_sweep(spec, results, ["metric_0"], "percent left", path, left_of=100.0).axes
    line, circles = axes.lines
    np.testing.assert_array_equal(line.get_xydata(), [[100.0, 1.0], [50.0, 2.0], [2.0, 0.0]])
    assert {*circles.get_xdata()} == {100.0, 50.0, 2.0}
    assert (axes.get_xscale(), axes.xaxis_inverted()) == ("log", True)
    low, high = sorted(axes.get_xlim())
    assert [f"{tick:g}" for tick in axes.get_xticks() if low <= tick <= high] == ["2", "5", "10", "20", "50", "100"]
    with pytest.raises(ValueError, match="left_of must be above the numbers of all cells, got 98 and removed-98"):
        draw_sweep(spec, results, ["metric_0"], "percent left", path, left_of=98.0)


def test_a_heat_map_shows_published_numbers_above_ours_on_one_scale(unwritten: None, tmp_path: Path) -> None:
    spec = spec_of(3)
    results = [record(spec, "first", 0, 1.0), record(spec, "second", 0, 9.0)]
    published, ours = draw_heat_map(spec, results, ["metric_2", "metric_0"], tmp_path / "table.png").axes
    (above,), (below,) = published.images, ours.images
    np.testing.assert_array_equal(below.get_array(), [[1.0, 1.0], [9.0, 9.0]])
    np.testing.assert_array_equal(above.get_array().filled(np.nan), [[np.nan, 2.5]])
    assert [label.get_text() for label in published.get_yticklabels()] == ["first"]
    assert above.get_clim() == below.get_clim() == (1.0, 9.0)
    assert [text.get_text() for text in published.texts] == ["2.5"]
    assert [text.get_color() for text in ours.texts] == ["black", "black", "white", "white"]
    assert [label.get_text() for label in ours.get_xticklabels()] == ["metric 2", "metric 0"]
    assert [label.get_text() for label in ours.get_yticklabels()] == ["first", "second"]
    (alone,) = draw_heat_map(spec, results, ["metric_1"], tmp_path / "alone.png").axes
    assert alone.get_title(loc="left") == "ours"


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "never.png"
    with pytest.raises(ValueError, match=r"names must be curves of made-up, rise, fall, got \['leap'\]"):
        draw_curves(SPEC, RESULTS, ["leap"], path)
    with pytest.raises(ValueError, match=r"names must be curves of made-up, rise, fall, got \[\]"):
        draw_curves(SPEC, RESULTS, [], path)
    with pytest.raises(ValueError, match="results must hold the curve rise of made-up, got none with it"):
        draw_curves(SPEC, [], ["rise"], path)
    with pytest.raises(ValueError, match=r"names must be metrics of made-up, metric_0, metric_1, got \['rise'\]"):
        draw_heat_map(SPEC, RESULTS, ["rise"], path)
    with pytest.raises(ValueError, match="results must hold metrics of made-up among metric_0, got none"):
        draw_heat_map(SPEC, [], ["metric_0"], path)
    with pytest.raises(ValueError, match=r"names must be metrics of made-up, metric_0, metric_1, got \['rise'\]"):
        draw_sweep(SPEC, RESULTS, ["rise"], "strength", path)
    with pytest.raises(ValueError, match="results must hold cells of made-up called NAME-NUMBER, got none"):
        draw_sweep(SPEC, RESULTS, ["metric_0"], "strength", path)
    swept = spec_of(cells=(Cell("ours-1"),))
    words = "less must be a cell of made-up, or the NAME of cells called NAME-NUMBER, got plain"
    with pytest.raises(ValueError, match=words):
        draw_sweep(swept, [record(swept, "ours-1", 0)], ["metric_0"], "strength", path, less="plain")
    apart = [record(SPEC, "first", seed, curves={"rise": Curve((float(seed),), (0.0,))}) for seed in (0, 1)]
    with pytest.raises(ValueError, match="rise of first in made-up cannot be drawn: curves must overlap"):
        draw_curves(SPEC, apart, ["rise"], path)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"a picture needs matplotlib; pip install 'dubio\[plots\]'"):
        draw_curves(SPEC, RESULTS, ["rise"], path)
    assert not path.exists()
