"""Quantiles of a mixture of Gaussians against SciPy, and the curve of (E-29)."""

import numpy as np
import pytest
import torch
from scipy import optimize, stats

from dubio import functional


@pytest.fixture
def components() -> tuple[torch.Tensor, torch.Tensor]:
    """Means and standard deviations of five draws for four inputs; the last input's draws lie far apart."""
    means, stds = torch.randn(5, 4, dtype=torch.float64), torch.rand(5, 4, dtype=torch.float64) + 0.05
    means[:, 3] *= 100.0
    return means, stds


def test_mixture_cdf_is_the_mean_of_its_components(components):
    means, stds = components
    value = torch.tensor([0.0, -1.0, 0.5, 20.0], dtype=torch.float64)

    expected = stats.norm.cdf(value.numpy(), means.numpy(), stds.numpy()).mean(axis=0)

    np.testing.assert_allclose(
        functional.uncertainty.mixture_cdf(value, means, stds).numpy(), expected, rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("level", [0.001, 0.05, 0.5, 0.9, 0.999])
def test_mixture_quantile_equals_a_root_found_by_scipy(components, level):
    means, stds = (part.numpy() for part in components)

    def quantile(i: int) -> float:
        return optimize.brentq(
            lambda value: stats.norm.cdf(value, means[:, i], stds[:, i]).mean() - level,
            means[:, i].min() - 20,
            means[:, i].max() + 20,
            xtol=1e-13,
        )

    found = functional.uncertainty.mixture_quantile(level, *components)

    np.testing.assert_allclose(found.numpy(), [quantile(i) for i in range(4)], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("level", [1e-6, 0.1, 0.975])
def test_mixture_of_one_component_has_the_quantiles_of_a_gaussian(level):
    means, stds = torch.tensor([[1.5, -300.0]]), torch.tensor([[0.2, 40.0]])

    found = functional.uncertainty.mixture_quantile(level, means, stds)

    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), stats.norm.ppf(level, means[0].double(), stds[0].double()), rtol=1e-12)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 95.0])
def test_a_level_outside_its_range_is_refused(level):
    with pytest.raises(ValueError, match=rf"quantile level must be in \(0, 1\), got {level}"):
        functional.uncertainty.mixture_quantile(level, torch.zeros(2, 3), torch.ones(2, 3))


def test_t25_the_curve_without_noise_has_its_known_values():
    x = torch.tensor([0.0, 0.25, 0.125, 1.0], dtype=torch.float64)

    found = functional.uncertainty.regression_curve(x, torch.zeros_like(x))

    expected = [0.0, 0.55, 0.125 + 0.3 * np.sqrt(0.5) + 0.3, 1.0]
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-15)


def test_the_same_noise_enters_the_curve_three_times():
    """So that noise is a shift along the curve without noise."""
    x, noise = torch.rand(50, 1, dtype=torch.float64), 0.02 * torch.randn(50, 1, dtype=torch.float64)

    found = functional.uncertainty.regression_curve(x, noise)

    torch.testing.assert_close(
        found, functional.uncertainty.regression_curve(x + noise, torch.zeros_like(x)), rtol=0, atol=1e-14
    )
    assert (found - functional.uncertainty.regression_curve(x, torch.zeros_like(x))).abs().max() > 0.05


def test_the_central_interval_lies_between_the_quantiles_of_the_draws():
    draws = torch.randn(31, 4, dtype=torch.float64)
    low, high = functional.uncertainty.central_interval(draws, 0.8)
    np.testing.assert_allclose(torch.stack([low, high]), np.quantile(draws.numpy(), [0.1, 0.9], axis=0), rtol=1e-12)
    with pytest.raises(ValueError, match=r"level must be in \(0, 1\), got 1.0"):
        functional.uncertainty.central_interval(draws, 1.0)


def test_beta_zero_is_the_negative_log_likelihood():
    targets, means, stds = torch.randn(4), torch.randn(5, 4), torch.rand(5, 4) + 0.1
    expected = -torch.distributions.Normal(means, stds).log_prob(targets)
    torch.testing.assert_close(functional.uncertainty.beta_nll(targets, means, stds, 0.0), expected)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_gradients_of_beta_nll_are_those_of_equations_6_and_7(beta):
    targets, stds = torch.randn(4).double(), (torch.rand(5, 4).double() + 0.1).requires_grad_()
    means = torch.randn(5, 4).double().requires_grad_()
    of_mean, of_std = torch.autograd.grad(
        functional.uncertainty.beta_nll(targets, means, stds, beta).sum(), (means, stds)
    )
    variance, error = stds.detach() ** 2, means.detach() - targets
    torch.testing.assert_close(of_mean, error / variance ** (1 - beta))
    of_variance = (variance - error**2) / (2 * variance ** (2 - beta))
    torch.testing.assert_close(of_std, of_variance * 2 * stds.detach())
