"""Intervals against SciPy, and chances over repeated tries against counting them all."""

import itertools

import jaxtyping
import numpy as np
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
    assert functional.statistics.clopper_pearson(successes, trials, level) == pytest.approx((low, high), abs=1e-9)


def test_a_normal_interval_is_as_wide_as_its_level_and_within_the_unit_interval() -> None:
    width = stats.norm.ppf(0.975) * 0.02
    assert functional.statistics.normal_interval(0.4, 0.02) == pytest.approx((0.4 - width, 0.4 + width))
    assert functional.statistics.normal_interval(0.01, 0.02)[0] == 0.0
    assert functional.statistics.normal_interval(0.99, 0.02)[1] == 1.0


@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("count", [2, 3, 10, 101])
def test_the_interval_of_a_mean_is_that_of_student(count: int, level: float) -> None:
    values = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    expected = stats.t.interval(level, count - 1, values.mean().item(), stats.sem(values.numpy()))
    assert functional.statistics.mean_interval(values, level) == pytest.approx(expected, rel=1e-3)


def test_one_number_has_no_interval() -> None:
    with pytest.raises(ValueError, match="values must be two or more, to estimate their spread, got 1"):
        functional.statistics.mean_interval(torch.zeros(1))


@pytest.mark.parametrize("tries", [1, 2, 3, 6])
def test_retrying_is_the_share_of_all_sets_of_tries(tries: int) -> None:
    draws = 6
    for outcome in itertools.product([False, True], repeat=draws):
        sets = list(itertools.combinations(outcome, tries))
        expected = sum(all(chosen) for chosen in sets) / len(sets)
        found = functional.statistics.retry_probability(torch.tensor(sum(outcome)), draws, tries)
        assert found.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("tries", [1, 3])
def test_influences_average_to_the_probability_times_the_tries_and_are_its_jackknife(tries: int) -> None:
    right = torch.rand(30, 5) < 0.8

    def mean(rows: torch.Tensor) -> float:
        return functional.statistics.retry_probability(rows.sum(dim=0), len(rows), tries).mean().item()

    found = functional.statistics.retry_influence(right, tries)
    assert found.mean().item() == pytest.approx(tries * mean(right))
    left_out = torch.tensor([mean(torch.cat([right[:i], right[i + 1 :]])) for i in range(30)], dtype=torch.float64)
    jackknife = 29 * (mean(right) - left_out)
    ratio = found.std() / jackknife.std()
    assert ratio.item() == pytest.approx(1.0, abs=0.15)


def test_a_two_way_error_adds_the_variances_of_examples_and_draws() -> None:
    per_example, per_draw = torch.rand(40, dtype=torch.float64), torch.rand(10, dtype=torch.float64)
    expected = (per_example.var() / 40 + per_draw.var() / 10).sqrt().item()
    assert functional.statistics.two_way_standard_error(per_example, per_draw) == pytest.approx(expected)
    assert functional.statistics.two_way_standard_error(per_example, per_draw[:1]) == pytest.approx(
        (per_example.var() / 40).sqrt().item()
    )


def test_what_cannot_be_counted_is_refused() -> None:
    with pytest.raises(ValueError, match="successes must be from 0 to the number of trials, 10, got 11"):
        functional.statistics.clopper_pearson(11, 10)
    with pytest.raises(ValueError, match="tries must be at most the number of draws, 5, got 6"):
        functional.statistics.retry_probability(torch.tensor(3), 5, 6)


def multinomial_interval(before: np.ndarray, after: np.ndarray, level: float) -> tuple[float, float]:
    """Half an example in each of the four cells, then the error of a difference of two cells of a multinomial."""
    cells = np.array([[np.sum((before == b) & (after == a)) for a in (0, 1)] for b in (0, 1)]) + 0.5
    shares = cells / cells.sum()
    covariance = (np.diag(shares.ravel()) - np.outer(shares.ravel(), shares.ravel())) / cells.sum()
    contrast = np.array([0.0, -1.0, 1.0, 0.0])  # right before and wrong after, minus the other way round
    middle, error = contrast @ shares.ravel(), np.sqrt(contrast @ covariance @ contrast)
    width = stats.norm.ppf(0.5 + level / 2.0) * error
    return middle - width, middle + width


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize(("rights", "changed"), [(0.5, 0.0), (0.7, 0.02), (0.9, 0.3), (1.0, 1.0)])
def test_a_paired_difference_is_that_of_two_cells_of_a_multinomial(rights: float, changed: float, level: float) -> None:
    generator = torch.Generator().manual_seed(0)
    before = torch.rand(300, generator=generator) < rights
    after = before ^ (torch.rand(300, generator=generator) < changed)
    found = functional.statistics.paired_difference(before, after, level)
    assert found.value == pytest.approx(before.double().mean().item() - after.double().mean().item())
    assert (found.low, found.high) == pytest.approx(multinomial_interval(before.numpy(), after.numpy(), level))
    other = functional.statistics.paired_difference(after, before, level)
    assert (-other.high, -other.low) == pytest.approx((found.low, found.high))


def test_a_paired_interval_holds_the_truth_as_often_as_it_says() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = torch.rand(2000, 400, generator=generator)
    lost, won = draws < 0.05, draws > 0.98
    held = 0
    for first, second in zip(lost, won, strict=True):
        found = functional.statistics.paired_difference(
            ~second, ~first
        )  # wrong before where won, wrong after where lost
        held += found.low <= 0.03 <= found.high
    assert 0.93 <= held / 2000 <= 0.98


def test_no_difference_among_few_examples_is_not_taken_for_none() -> None:
    few, many = (
        functional.statistics.paired_difference(*[torch.ones(n, dtype=torch.bool)] * 2).high for n in (50, 1000)
    )
    assert few > 0.03 > 0.01 > many > 0.0


def test_a_paired_difference_needs_the_same_examples() -> None:
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(ValueError, match=r"before and after must be of the same examples, got shapes \(2,\) and"):
            functional.statistics.paired_difference(torch.ones(2, dtype=torch.bool), torch.ones(3, dtype=torch.bool))
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)
