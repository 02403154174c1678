"""Ratios by hand; exactly as many as asked for, equal scores by index, nested, whatever the scale (T-11)."""

import math

import pytest
import torch
from hypothesis import given, strategies as st

from dubio import functional

SCORES = torch.tensor([0.3, 0.1, 0.1, 0.5, 0.0, 0.1])


def test_a_ratio_is_the_mean_over_the_scale_and_ten_decibels_are_a_factor_of_ten() -> None:
    mean, std = torch.tensor([-2.0, 0.5, 0.0]), torch.tensor([0.2, 0.5, 1.0])
    ratio = functional.variational.signal_to_noise(mean, std)
    torch.testing.assert_close(ratio, torch.tensor([10.0, 1.0, 0.0]))
    assert functional.variational.decibels(ratio).tolist() == [10.0, 0.0, -math.inf]
    assert functional.variational.signal_to_noise(mean.half(), std.half()).dtype == torch.float32
    assert functional.variational.signal_to_noise(mean, torch.zeros(3)).tolist() == [math.inf, math.inf, 0.0]


@pytest.mark.parametrize(
    ("count", "fraction", "removed"),
    [(100, 0.29, 29), (7, 0.5, 3), (10, 0.999, 9), (10, 1.0, 10), (3, 0.0, 0), (3, 1, 3)],
)
def test_t11_exactly_the_floor_of_the_share_is_removed(count: int, fraction: float, removed: int) -> None:
    assert functional.variational.num_removed(count, fraction) == removed


def test_t11_the_lowest_go_first_and_equal_scores_by_index() -> None:
    gone = [functional.variational.lowest_scores(SCORES, count).nonzero().flatten().tolist() for count in range(7)]
    assert gone == [[], [4], [1, 4], [1, 2, 4], [1, 2, 4, 5], [0, 1, 2, 4, 5], [0, 1, 2, 3, 4, 5]]


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=1, max_size=40), st.data())
def test_t11_removed_sets_are_nested(scores: list[float], data: st.DataObject) -> None:
    small, large = sorted(data.draw(st.tuples(*[st.integers(0, len(scores))] * 2)))
    fewer, more = (functional.variational.lowest_scores(torch.tensor(scores), count) for count in (small, large))
    assert int(fewer.sum()) == small
    assert bool((more | ~fewer).all())


@pytest.mark.parametrize("scale", [1e-3, 0.7, 128.0])
def test_t11_one_scale_for_all_means_and_deviations_changes_no_ranking(scale: float) -> None:
    mean, std = torch.randn(1000, dtype=torch.float64), torch.rand(1000, dtype=torch.float64) + 0.1
    before = functional.variational.signal_to_noise(mean, std).argsort(stable=True)
    assert torch.equal(functional.variational.signal_to_noise(scale * mean, scale * std).argsort(stable=True), before)


def test_a_unit_scores_as_its_weights_do_on_average() -> None:
    kernel = torch.arange(24.0).reshape(2, 3, 2, 2)
    assert functional.variational.unit_scores(kernel).tolist() == [5.5, 17.5]


def test_the_best_unit_of_each_layer_stays() -> None:
    layers = [torch.tensor([0.1, 0.2, 0.3]), torch.tensor([5.0, 4.0, 6.0])]
    kept = [[own.tolist() for own in functional.variational.units_kept(layers, count)] for count in (0, 2, 3, 6)]
    assert kept == [[[0, 1, 2], [0, 1, 2]], [[2], [0, 1, 2]], [[2], [0, 2]], [[2], [2]]]
