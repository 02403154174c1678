"""Transition matrices against their definition, and labels drawn from them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from dubio import functional


def test_a_patterned_transition_moves_p_to_the_destination():
    expected = [[0.75, 0.25, 0.0], [0.25, 0.75, 0.0], [0.25, 0.0, 0.75]]
    assert functional.corruption.patterned_transition(torch.tensor([1, 0, 0]), 0.25).tolist() == expected


def test_a_class_that_is_its_own_destination_stays():
    assert functional.corruption.patterned_transition(torch.tensor([0, 0]), 0.25).tolist() == [[1.0, 0.0], [0.25, 0.75]]


def test_symmetric_and_uniform_transitions_are_exact():
    half, eighth = 0.5, 0.125
    off = 0.25
    assert functional.corruption.symmetric_transition(3, half).tolist() == [
        [half if i == j else off for j in range(3)] for i in range(3)
    ]
    on = 0.5 + eighth
    assert functional.corruption.uniform_transition(4, half).tolist() == [
        [on if i == j else eighth for j in range(4)] for i in range(4)
    ]


@settings(deadline=None)
@given(st.integers(2, 20), st.floats(0.0, 1.0), st.integers(0, 1000))
def test_rows_of_every_transition_sum_to_one_and_are_probabilities(num_classes, p, seed):
    destinations = torch.randint(num_classes, (num_classes,), generator=torch.Generator().manual_seed(seed))
    for transition in (
        functional.corruption.patterned_transition(destinations, p),
        functional.corruption.symmetric_transition(num_classes, p),
        functional.corruption.uniform_transition(num_classes, p),
    ):
        assert transition.shape == (num_classes, num_classes)
        assert transition.min() >= 0.0
        torch.testing.assert_close(transition.sum(dim=1), torch.ones(num_classes, dtype=torch.float64))


def test_uniform_noise_is_symmetric_noise_of_another_strength():
    # Uniform over all C classes with p is uniform over the others with p (C - 1) / C.
    torch.testing.assert_close(
        functional.corruption.uniform_transition(10, 0.5), functional.corruption.symmetric_transition(10, 0.45)
    )


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_offsets_count_through_the_other_classes(num_classes):
    for offset in range(num_classes - 1):
        found = functional.corruption.flip_destinations(torch.full((num_classes,), offset)).tolist()
        assert found == [[j for j in range(num_classes) if j != i][offset] for i in range(num_classes)]


def test_redrawn_labels_are_the_inverse_of_the_distribution_function():
    transition = torch.tensor([[0.25, 0.25, 0.5], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]], dtype=torch.float64)
    uniforms = torch.tensor([0.0, 0.24, 0.25, 0.49, 0.5, 0.99, 0.0, 0.99, 0.49, 0.5], dtype=torch.float64)
    labels = torch.tensor([0, 0, 0, 0, 0, 0, 1, 1, 2, 2])
    assert functional.corruption.redrawn_labels(labels, transition, uniforms).tolist() == [0, 0, 1, 1, 2, 2, 1, 1, 0, 2]


def test_a_class_of_probability_zero_is_never_drawn_even_at_the_ends():
    # Ten tenths sum to just below 1 in floating point: the number next to 1 must not fall behind them.
    transition = torch.full((11, 11), 0.1, dtype=torch.float64)
    transition[:, 10] = 0.0
    ends = torch.tensor([0.0, np.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert functional.corruption.redrawn_labels(torch.tensor([3, 3]), transition, ends).tolist() == [0, 9]
