"""Estimates: Student's interval over seeds, what training again has moved for one seed, and ratios of slopes."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dubio_lab import Curve, Earlier, Estimate, ExperimentSpec, Measured, Records, read_earlier
from dubio_lab.claims.estimate import Line, NotRunError, student
from made_up_records import record, spec_of

FIRST, SECOND = "first", "second"
Numbers = dict[str, tuple[float, ...]]
"""The numbers of a cell, one for each seed."""


class Shelf:
    """Records of one made-up spec in memory, and earlier trainings of its cells."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spec = spec_of(seeds=(0, 1, 2), curves={})
        self.numbers: Numbers = {}
        self.earlier: list[Earlier] = []
        self.digests: dict[str, str] = {}
        self.curves: dict[str, Curve] = {}
        place = "dubio_lab.claims.estimate"
        monkeypatch.setattr(f"{place}.spec_names", lambda: ["made-up"])
        monkeypatch.setattr(f"{place}.load_spec", lambda name: self.spec)
        monkeypatch.setattr(f"{place}.load_results", lambda spec, out: self.results(spec))
        monkeypatch.setattr(f"{place}.read_earlier", lambda folder: self.earlier)

    def results(self, spec: ExperimentSpec) -> list[object]:
        return [
            record(
                spec,
                cell,
                seed,
                metrics={"metric_0": Measured(number, 7.0)},
                curves=self.curves,
                **({"digest": self.digests[cell]} if cell in self.digests else {}),
            )
            for cell, numbers in self.numbers.items()
            for seed, number in zip(spec.seeds, numbers, strict=False)
        ]

    def train_again(self, cell: str, number: float, commit: str = "a", seed: int = 0, digest: str = "") -> None:
        place = next(one for one in self.spec.cells if one.name == cell)
        own = digest or self.spec.digest_of(place)
        self.earlier.append(Earlier("made-up", cell, seed, 1, own, commit, "a machine", {"metric_0": number}))

    def gap(self, **options: Estimate) -> Estimate:
        return Records().estimate(
            lambda value: value("made-up", FIRST, "metric_0") - value("made-up", SECOND, "metric_0"), **options
        )


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    return Shelf(monkeypatch)


def test_the_interval_over_seeds_is_students(shelf: Shelf) -> None:
    shelf.numbers = {FIRST: (1.0, 2.0, 3.0), SECOND: (0.0, 0.0, 0.0)}
    own = shelf.gap()
    low, high = stats.t.interval(0.95, 2, loc=2.0, scale=1.0 / math.sqrt(3.0))
    assert (own.value, own.low, own.high) == (2.0, pytest.approx(low), pytest.approx(high))
    assert (own.seeds, own.planned, own.noise) == (3, 3, "seeds")
    assert student(2) == pytest.approx(4.302652730)


def test_differences_are_taken_seed_by_seed(shelf: Shelf) -> None:
    shelf.numbers = {FIRST: (11.0, 51.0, 91.0), SECOND: (10.0, 50.0, 90.0)}
    assert shelf.gap() == Estimate(1.0, 1.0, 1.0, 3, 3, "seeds")


def test_seeds_count_for_which_all_cells_have_a_record(shelf: Shelf) -> None:
    shelf.numbers = {FIRST: (1.0, 2.0, 9.0), SECOND: (0.0, 0.0)}
    own = shelf.gap()
    assert (own.value, own.seeds, own.planned) == (1.5, 2, 3)
    assert own.high == pytest.approx(1.5 + 12.706204736 * 0.5)
    shelf.numbers = {FIRST: (1.0,)}
    with pytest.raises(NotRunError, match="made-up, first: metric_0, made-up, second: metric_0"):
        shelf.gap()


def test_records_of_another_spec_count_for_nothing(shelf: Shelf) -> None:
    shelf.numbers = {FIRST: (1.0,), SECOND: (0.0,)}
    shelf.digests = {SECOND: "earlier"}
    with pytest.raises(NotRunError):
        shelf.gap()
    with pytest.raises(NotRunError, match="to-come has no spec"):
        Records().number("to-come", FIRST, "metric_0")


@pytest.mark.feature("With one seed, a difference is decided only beyond what training again has moved")
def test_one_seed_has_the_interval_of_what_training_again_moved(shelf: Shelf) -> None:
    shelf.numbers = {FIRST: (80.0,), SECOND: (50.0,)}
    shelf.train_again(FIRST, 79.0, "a")
    shelf.train_again(SECOND, 52.0, "a")  # the difference was 27, 3 less; each number moved less than that
    shelf.train_again(FIRST, 80.5, "b")
    assert shelf.gap() == Estimate(30.0, 27.0, 33.0, 1, 3, "training")


def test_what_other_cells_near_it_moved_counts_too(shelf: Shelf) -> None:
    shelf.numbers = {FIRST: (80.0,), SECOND: (75.0,)}
    shelf.train_again(FIRST, 80.1)
    level = Records().number("made-up", SECOND, "metric_0")
    assert (level.low, level.high) == (pytest.approx(74.9), pytest.approx(75.1))  # which was trained once itself
    shelf.numbers[SECOND] = (50.0,)
    assert Records().number("made-up", SECOND, "metric_0") == Estimate(50.0, planned=3)  # too far from the other


def test_earlier_trainings_with_other_settings_count_for_nothing(shelf: Shelf) -> None:
    shelf.numbers = {FIRST: (80.0,), SECOND: (50.0,)}
    shelf.train_again(FIRST, 60.0, digest="other settings")
    assert shelf.gap() == Estimate(30.0, planned=3)


def test_without_any_training_again_the_width_of_another_estimate_counts(shelf: Shelf) -> None:
    shelf.numbers = {FIRST: (80.0,), SECOND: (50.0,)}
    assert shelf.gap(like=Estimate(7.0, 5.0, 9.0)) == Estimate(30.0, 28.0, 32.0, 1, 3, "training")
    assert shelf.gap(like=Estimate(7.0)).low is None
    shelf.train_again(FIRST, 79.5)
    assert shelf.gap(like=Estimate(7.0, 5.0, 9.0)).low == 29.5  # its own moves go before


def test_the_first_point_of_a_curve_is_a_number_too(shelf: Shelf) -> None:
    shelf.spec = spec_of(seeds=(0, 1))
    shelf.numbers = {FIRST: (3.0, 3.0)}
    shelf.curves = {"rise": Curve((1.0, 2.0), (7.0, 9.0))}
    assert Records().number("made-up", FIRST, "first of rise") == Estimate(7.0, 7.0, 7.0, 2, 2, "seeds")
    for metric in ("first of fall", "rise", "metric_9"):
        with pytest.raises(NotRunError):
            Records().number("made-up", FIRST, metric)


def test_a_line_has_the_error_of_least_squares(shelf: Shelf) -> None:
    x = np.arange(1.0, 11.0)
    y = 3.0 + 0.5 * x + np.sin(7.0 * x)
    shelf.spec = spec_of(seeds=(0,))
    shelf.numbers = {FIRST: (1.0,)}
    shelf.curves = {"rise": Curve(tuple(x.tolist()), tuple(y.tolist()))}
    line, expected = Records().line("made-up", FIRST, "rise"), stats.linregress(x, y)
    assert (line.slope, line.error, line.freedom) == (pytest.approx(expected.slope), pytest.approx(expected.stderr), 8)
    with pytest.raises(NotRunError):
        Records().line("made-up", SECOND, "rise")


def test_the_interval_of_a_ratio_of_slopes_is_fiellers() -> None:
    slow, fast = Line(6.0, 0.4, 8), Line(2.0, 0.2, 8)
    ratio = slow.over(fast)
    size = student(8)
    for end in (ratio.low, ratio.high):  # at its ends, slow - end * fast is just as far from zero as its own interval
        assert end is not None
        assert abs(6.0 - end * 2.0) == pytest.approx(size * math.hypot(0.4, end * 0.2))
    assert ratio.value == 3.0
    exact = Line(6.0, 0.0, 8).over(Line(2.0, 0.0, 8))
    assert (exact.low, exact.high) == (3.0, 3.0)


def test_a_ratio_to_what_may_be_zero_has_no_interval() -> None:
    for divisor in (Line(0.1, 0.2, 8), Line(-0.1, 0.2, 8), Line(0.0, 0.0, 8)):
        assert Line(6.0, 0.4, 8).over(divisor).low is None


@pytest.mark.parametrize(
    ("estimate", "level", "signed"),
    [
        (Estimate(0.00451, 0.00136, 0.00766), "0.0045 (0.0014 to 0.0077)", "+0.0045 (+0.0014 to +0.0077)"),
        (Estimate(95.172, 94.31, 96.03), "95.17 (94.31 to 96.03)", "+95.17 (+94.31 to +96.03)"),
        (Estimate(0.941, -1.22, 3.10), "0.94 (-1.22 to 3.10)", "+0.94 (-1.22 to +3.10)"),
        (Estimate(-0.0004, -0.19, 0.18), "0.000 (-0.190 to 0.180)", "+0.000 (-0.190 to +0.180)"),
        (Estimate(295.4, 236.1, 354.7), "295 (236 to 355)", "+295 (+236 to +355)"),
        (Estimate(0.10189, 0.10189, 0.10189), "0.1019 (0.1019 to 0.1019)", "+0.1019 (+0.1019 to +0.1019)"),
        (Estimate(0.0, 0.0, 0.0), "0 (0 to 0)", "+0 (+0 to +0)"),
        (Estimate(30.0), "30", "+30"),
    ],
)
def test_estimates_are_written_with_two_digits_of_their_width(estimate: Estimate, level: str, signed: str) -> None:
    assert (str(estimate), estimate.signed) == (level, signed)


def test_minus_turns_an_interval_around() -> None:
    assert -Estimate(1.0, -2.0, 4.0, 3, 3, "seeds") == Estimate(-1.0, -4.0, 2.0, 3, 3, "seeds")
    assert -Estimate(1.0) == Estimate(-1.0)


def test_without_a_file_there_are_no_earlier_trainings(tmp_path: Path) -> None:
    assert read_earlier(tmp_path) == []
