"""Bootstrap and jackknife: known standard errors and limits."""

import numpy as np
import pytest
import torch

from dubio import functional


def test_resamples_have_as_many_examples_as_there_are() -> None:
    weights = functional.statistics.resample_weights(30, 200, torch.Generator().manual_seed(0))
    assert (weights.sum(dim=1) == 30).all()
    assert weights.min() == 0.0
    assert weights.var(dim=0).mean().item() == pytest.approx(1 - 1 / 30, rel=0.1)  # binomial


def test_the_interval_of_a_mean_is_that_of_its_standard_error() -> None:
    values = torch.randn(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weights = functional.statistics.resample_weights(400, 4000, torch.Generator().manual_seed(2))
    low, high = functional.statistics.bootstrap_interval(values.mean().item(), weights @ values / 400)
    error = values.std(correction=0).item() / 20
    assert low == pytest.approx(values.mean().item() - 1.96 * error, abs=0.15 * error)
    assert high == pytest.approx(values.mean().item() + 1.96 * error, abs=0.15 * error)


def test_the_interval_of_a_biased_number_is_shifted_by_its_bias() -> None:
    resampled = torch.linspace(0.4, 0.8, 101, dtype=torch.float64)
    low, high = functional.statistics.bootstrap_interval(0.5, resampled)
    assert (low, high) == (pytest.approx(0.31), pytest.approx(0.69))
    assert functional.statistics.bootstrap_interval(0.1, resampled)[0] == 0.0  # an error is never negative
    assert functional.statistics.bootstrap_interval(0.1, resampled - 0.5)[0] < 0.0  # a log-likelihood may be


def test_the_jackknife_of_a_mean_is_its_standard_error() -> None:
    values = torch.randn(12, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    left_out = (values.sum() - values) / 11
    expected = values.std(correction=1).item() / np.sqrt(12)
    assert functional.statistics.jackknife_error(left_out) == pytest.approx(expected)


def test_groups_left_out_average_probabilities() -> None:
    log_probs = torch.randn(23, 4, 3, generator=torch.Generator().manual_seed(4)).log_softmax(dim=-1)
    groups = functional.statistics.group_means(log_probs, 5)  # five groups of four; three draws are left over
    torch.testing.assert_close(groups[1].exp(), log_probs[4:8].exp().mean(dim=0))
    expected = torch.cat([log_probs[:4], log_probs[8:20]]).exp().mean(dim=0)
    torch.testing.assert_close(functional.statistics.left_out_means(groups)[1].exp(), expected)


def test_too_few_are_refused() -> None:
    with pytest.raises(ValueError, match="num_groups must be at most the number of draws, 3, got 4"):
        functional.statistics.group_means(torch.zeros(3, 2), 4)
    with pytest.raises(ValueError, match="left_out must hold at least two values, got 1"):
        functional.statistics.jackknife_error(torch.zeros(1))
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\), got 95"):
        functional.statistics.bootstrap_interval(0.0, torch.zeros(3), 95)
