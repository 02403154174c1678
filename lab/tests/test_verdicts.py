"""Verdicts: the rules on made-up intervals, each with known answers."""

import pytest

from dubio_lab import Estimate, Verdict
from dubio_lab.claims.claim import Claim, Outcome, Part, never_measured, outcome_of, part_of
from dubio_lab.claims.estimate import NotRunError, Records
from dubio_lab.claims.verdict import combine, difference, direction, factor, within

YES, PARTLY, NO, OPPOSITE, OPEN, NOT_RUN = Verdict  # in the order of the class


def interval(low: float, high: float) -> Estimate:
    return Estimate((low + high) / 2.0, low, high, 3, 3, "seeds")


@pytest.mark.feature("Verdicts on published statements are computed from intervals by written rules")
@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (5.0, 6.0, YES),
        (30.0, 40.0, YES),  # better than published
        (4.9, 6.0, PARTLY),
        (1.1, 2.0, PARTLY),
        (0.1, 0.3, NO),  # on the right side, and a fiftieth of what was published
        (-1.0, 4.9, NO),
        (-1.0, 5.1, OPEN),
        (0.1, 1.8, NO),
        (-6.0, -0.1, OPPOSITE),
    ],
)
def test_a_published_difference(low: float, high: float, verdict: Verdict) -> None:
    assert difference(interval(low, high), 10.0) is verdict
    assert difference(-interval(low, high), -10.0) is verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(5.0, 9.0, YES), (1.1, 9.0, PARTLY), (0.9, 4.9, NO), (0.9, 5.1, OPEN), (0.2, 0.9, OPPOSITE)],
)
def test_a_published_factor(low: float, high: float, verdict: Verdict) -> None:
    assert factor(interval(low, high), 10.0) is verdict


@pytest.mark.parametrize(("low", "high", "verdict"), [(0.1, 2.0, YES), (-0.1, 2.0, OPEN), (-2.0, -0.1, OPPOSITE)])
def test_a_published_direction(low: float, high: float, verdict: Verdict) -> None:
    assert direction(interval(low, high)) is verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(40.0, 60.0, YES), (39.0, 50.0, OPEN), (50.0, 61.0, OPEN), (20.0, 39.0, NO), (61.0, 70.0, NO), (30.0, 70.0, OPEN)],
)
def test_a_published_range(low: float, high: float, verdict: Verdict) -> None:
    assert within(interval(low, high), 40.0, 60.0) is verdict


def test_a_number_that_is_better_than_published_is_within() -> None:
    assert within(interval(1.2, 1.3), most=2.5) is YES  # an error
    assert within(interval(99.0, 99.1), least=97.0) is YES  # an accuracy


def test_without_an_interval_nothing_is_decided() -> None:
    one = Estimate(100.0)
    rules = (direction, within, lambda own: difference(own, 1.0), lambda own: factor(own, 2.0))
    assert {rule(one) for rule in rules} == {OPEN}


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([YES, YES], YES),
        ([YES, NO], PARTLY),
        ([PARTLY, PARTLY], PARTLY),
        ([PARTLY, YES, NO, NO], NO),  # one and a half of four
        ([YES, NO, NO], NO),
        ([YES, OPEN, NO], OPEN),
        ([YES, NOT_RUN, NO], OPEN),
        ([YES, NOT_RUN], PARTLY),
        ([OPPOSITE, OPPOSITE, OPPOSITE], OPPOSITE),
        ([OPPOSITE, OPPOSITE, NO], NO),
        ([OPPOSITE, YES], PARTLY),
        ([OPEN, OPPOSITE], OPEN),
        ([OPEN, OPEN], OPEN),
        ([NOT_RUN, NOT_RUN], NOT_RUN),
        ([NO] * 17 + [YES] * 5, NO),
    ],
)
def test_a_statement_of_several_parts(parts: list[Verdict], verdict: Verdict) -> None:
    assert combine(parts) is verdict


def test_an_outcome_shows_its_effects_seeds_and_verdict() -> None:
    few = [part_of(words, lambda: interval(1.0, 2.0), direction) for words in ("first", "second")]
    assert outcome_of(*few) == Outcome("first: +1.50 (+1.00 to +2.00); second: +1.50 (+1.00 to +2.00)", "3", YES)
    many = [*few, *few, Part("against it", interval(-2.0, -1.0), OPPOSITE)]
    assert outcome_of(*many) == Outcome("4 of 5; the least against it: -1.50 (-2.00 to -1.00)", "3", PARTLY)
    one = Part("", Estimate(1.0, planned=1), OPEN)
    assert outcome_of(one) == Outcome("+1", "one seed", OPEN)
    assert outcome_of(Part("", Estimate(1.0, 0.0, 2.0, 1, 3), OPEN)).seeds == "1 of 3"
    assert outcome_of(Part("", Estimate(1.0, 0.0, 2.0, noise="line"), OPEN)).seeds == "one run"


def test_a_part_that_is_missing_is_told_and_keeps_a_statement_from_being_reproduced() -> None:
    def missing() -> Estimate:
        raise NotRunError("a cell")

    there, gone = part_of("one", lambda: interval(1.0, 2.0), direction), part_of("other", missing, direction)
    outcome = outcome_of(there, gone)
    assert (outcome.verdict, outcome.effect) == (PARTLY, "one: +1.50 (+1.00 to +2.00); other: not run")
    with pytest.raises(NotRunError):
        outcome_of(gone, gone)


def test_a_statement_that_nothing_measures_is_not_run() -> None:
    claim = Claim("name", "words", "source", (), "a picture", never_measured)
    assert claim.outcome(Records()) == Outcome("-", "-", NOT_RUN)
    assert claim.is_counted
    assert not Claim("name", "words", "source", (), None, never_measured).is_counted
    assert not Claim("name", "words", "source", (), "+1", never_measured, in_our_way=True).is_counted
