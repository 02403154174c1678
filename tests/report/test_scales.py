"""Scales: numbers lie where they should, and ticks are round."""

import pytest
from hypothesis import given, strategies as st

from dubio.report.charts import Scale, tick_text, ticks


def test_the_ends_of_a_range_lie_at_the_ends_of_the_scale() -> None:
    scale = Scale(-1.0, 3.0, 100.0, 20.0)
    assert (scale(-1.0), scale(3.0), scale(1.0)) == (100.0, 20.0, 60.0)


def test_what_is_outside_lies_at_an_end_and_a_range_of_one_number_in_the_middle() -> None:
    assert Scale(0.0, 1.0, 0.0, 50.0)(7.0) == 50.0
    assert Scale(2.0, 2.0, 0.0, 50.0)(2.0) == 25.0


def test_a_logarithmic_scale_has_equal_steps_for_equal_factors() -> None:
    scale = Scale(0.01, 100.0, 0.0, 4.0, log=True)
    assert [scale(value) for value in (0.01, 0.1, 1.0, 10.0, 100.0)] == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0])
    assert scale.ticks(6) == pytest.approx([0.01, 0.1, 1.0, 10.0, 100.0])


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.0, 0.1, [0.0, 0.02, 0.04, 0.06, 0.08, 0.1]),
        (1.0, 30.0, [5.0, 10.0, 15.0, 20.0, 25.0, 30.0]),
        (-30.0, 18.0, [-30.0, -20.0, -10.0, 0.0, 10.0]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, wanted: list[float]) -> None:
    assert ticks(low, high, 6) == pytest.approx(wanted)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_few_and_within_the_range(low: float, width: float) -> None:
    result = ticks(low, low + width, 6)
    assert 1 <= len(result) <= 6
    assert all(low - 1e-3 * width <= tick <= low + 1.001 * width for tick in result)


def test_ticks_say_no_more_than_they_must() -> None:
    assert [tick_text(value) for value in (0.0, 0.2, 3 * 0.1, 1000.0, 2e-5, 5e6)] == [
        "0",
        "0.2",
        "0.3",
        "1000",
        "2e-5",
        "5e6",
    ]
