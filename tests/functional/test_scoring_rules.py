"""The continuous ranked probability score: a point, one Gaussian, and an integral of the distribution function."""

import math

import pytest
import torch
from torch.distributions import Normal

from dubio import functional


def test_a_point_scores_its_absolute_error() -> None:
    found = functional.uncertainty.crps_mixture(torch.tensor([[2.0]]), torch.tensor([[1e-8]]), torch.tensor([3.5]))
    torch.testing.assert_close(found, torch.tensor([1.5]))


def test_one_gaussian_has_its_closed_form() -> None:
    mean, std, target = torch.tensor(0.3), torch.tensor(0.7), torch.tensor([-1.0, 0.3, 2.0])
    z = (target - mean) / std
    unit = Normal(0.0, 1.0)
    expected = std * (z * (2 * unit.cdf(z) - 1) + 2 * unit.log_prob(z).exp() - 1 / math.sqrt(math.pi))
    found = functional.uncertainty.crps_mixture(mean.expand(1, 3), std.expand(1, 3), target)
    torch.testing.assert_close(found, expected)


def test_a_mixture_has_the_integral_of_its_distribution_function() -> None:
    means = torch.tensor([-1.0, 0.2, 1.5], dtype=torch.float64)
    stds = torch.tensor([0.3, 0.8, 0.1], dtype=torch.float64)
    target = 0.4
    grid = torch.linspace(-8.0, 8.0, 160_001, dtype=torch.float64)
    cdf = Normal(means[:, None], stds[:, None]).cdf(grid).mean(dim=0)
    expected = torch.trapezoid((cdf - (grid >= target).double()).square(), grid)
    found = functional.uncertainty.crps_mixture(
        means[:, None], stds[:, None], torch.tensor([target], dtype=torch.float64)
    )
    assert found.item() == pytest.approx(expected.item(), abs=1e-4)


def test_equal_draws_count_as_one() -> None:
    mean, std, target = torch.randn(5), torch.rand(5) + 0.1, torch.randn(5)
    one = functional.uncertainty.crps_mixture(mean[None], std[None], target)
    torch.testing.assert_close(functional.uncertainty.crps_mixture(mean.expand(7, 5), std.expand(7, 5), target), one)
