"""Intervals against SciPy, and chances over repeated tries against counting them all."""

import itertools

import pytest
import torch
from scipy import stats

from dubio import functional


@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (1, 10), (5, 10), (10, 10), (137, 450), (9_990, 10_000)])
def test_clopper_pearson_is_that_of_the_beta_distribution(successes: int, trials: int, level: float) -> None:
    tail = (1.0 - level) / 2.0
    low = 0.0 if successes == 0 else stats.beta.ppf(tail, successes, trials - successes + 1)
    high = 1.0 if successes == trials else stats.beta.ppf(1.0 - tail, successes + 1, trials - successes)
    assert functional.clopper_pearson(successes, trials, level) == pytest.approx((low, high), abs=1e-9)


def test_a_normal_interval_is_as_wide_as_its_level_and_within_the_unit_interval() -> None:
    width = stats.norm.ppf(0.975) * 0.02
    assert functional.normal_interval(0.4, 0.02) == pytest.approx((0.4 - width, 0.4 + width))
    assert functional.normal_interval(0.01, 0.02)[0] == 0.0
    assert functional.normal_interval(0.99, 0.02)[1] == 1.0


@pytest.mark.parametrize("tries", [1, 2, 3, 6])
def test_retrying_is_the_share_of_all_sets_of_tries(tries: int) -> None:
    draws = 6
    for outcome in itertools.product([False, True], repeat=draws):
        sets = list(itertools.combinations(outcome, tries))
        expected = sum(all(chosen) for chosen in sets) / len(sets)
        found = functional.retry_probability(torch.tensor(sum(outcome)), draws, tries)
        assert found.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("tries", [1, 3])
def test_influences_average_to_the_probability_times_the_tries_and_are_its_jackknife(tries: int) -> None:
    right = torch.rand(30, 5) < 0.8

    def mean(rows: torch.Tensor) -> float:
        return functional.retry_probability(rows.sum(dim=0), len(rows), tries).mean().item()

    found = functional.retry_influence(right, tries)
    assert found.mean().item() == pytest.approx(tries * mean(right))
    left_out = torch.tensor([mean(torch.cat([right[:i], right[i + 1 :]])) for i in range(30)], dtype=torch.float64)
    jackknife = 29 * (mean(right) - left_out)
    ratio = found.std() / jackknife.std()
    assert ratio.item() == pytest.approx(1.0, abs=0.15)


def test_a_two_way_error_adds_the_variances_of_examples_and_draws() -> None:
    per_example, per_draw = torch.rand(40, dtype=torch.float64), torch.rand(10, dtype=torch.float64)
    expected = (per_example.var() / 40 + per_draw.var() / 10).sqrt().item()
    assert functional.two_way_standard_error(per_example, per_draw) == pytest.approx(expected)
    assert functional.two_way_standard_error(per_example, per_draw[:1]) == pytest.approx(
        (per_example.var() / 40).sqrt().item()
    )


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(ValueError, match="successes must be from 0 to the number of trials, 10, got 11"):
        functional.clopper_pearson(11, 10)
    with pytest.raises(ValueError, match="tries must be at most the number of draws, 5, got 6"):
        functional.retry_probability(torch.tensor(3), 5, 6)
