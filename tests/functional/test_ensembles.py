"""Ensembles cut from many draws: T-22 and T-23."""

import numpy as np
import pytest
import torch

from dubio import functional


def predictions() -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.randn(100, 30, 4, dtype=torch.float64)
    return logits.log_softmax(dim=-1), torch.randint(4, (30,))


def test_t22_an_ensemble_of_one_is_a_single_draw():
    log_probs, targets = predictions()
    found = functional.uncertainty.ensemble_accuracies(log_probs, targets, 1)
    torch.testing.assert_close(found, (log_probs.argmax(dim=-1) == targets).double().mean(dim=1))


def test_t22_the_order_of_draws_does_not_matter():
    log_probs, targets = predictions()
    shuffled = log_probs[torch.randperm(100)]
    for one in (functional.uncertainty.ensemble_accuracies(draws, targets, 100) for draws in (log_probs, shuffled)):
        torch.testing.assert_close(one, functional.uncertainty.ensemble_accuracies(log_probs.flip(0), targets, 100))


def test_t22_the_log_of_the_average_is_no_less_than_the_average_log():
    log_probs, _ = predictions()
    assert (functional.uncertainty.predictive_log_probs(log_probs) >= log_probs.mean(dim=0)).all()


def test_t22_ensembles_average_probabilities():
    log_probs, targets = predictions()
    probs = log_probs.exp().numpy().reshape(20, 5, 30, 4).mean(axis=1)
    expected = (probs.argmax(axis=-1) == targets.numpy()).mean(axis=1)
    np.testing.assert_allclose(functional.uncertainty.ensemble_accuracies(log_probs, targets, 5).numpy(), expected)


def test_t23_the_number_of_repeats_is_that_of_the_specification():
    log_probs, targets = predictions()
    sizes = (1, 5, 10, 25, 100)
    assert [functional.uncertainty.num_repeats(100, size) for size in sizes] == [100, 20, 10, 4, 1]
    assert [len(functional.uncertainty.ensemble_accuracies(log_probs, targets, size)) for size in sizes] == [
        100,
        20,
        10,
        4,
        1,
    ]


@pytest.mark.parametrize("size", [0, 30, 101])
def test_sizes_that_waste_draws_are_refused(size):
    with pytest.raises(ValueError, match=f"size must divide the number of draws, 100, got {size}; leave some"):
        functional.uncertainty.num_repeats(100, size)
