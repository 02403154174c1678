"""Priors are values: their densities, and what they refuse."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Normal, kl_divergence

import dubio
from reference import gaussian

INFINITE = float("inf")
NAN = float("nan")


def test_log_densities_equal_scipy():
    weight, centre = torch.randn(2, 30, dtype=torch.float64)

    densities = {
        "normal": dubio.Normal(0.3, 0.7).log_prob(weight, None),
        "centred": dubio.CentredNormal(0.7).log_prob(weight, centre),
        "mixture": dubio.ScaleMixture(0.25, 0.7, 0.02).log_prob(weight, None),
    }

    w = weight.numpy()
    np.testing.assert_allclose(densities["normal"], stats.norm.logpdf(w, 0.3, 0.7), rtol=1e-12)
    np.testing.assert_allclose(densities["centred"], stats.norm.logpdf(w, centre.numpy(), 0.7), rtol=1e-12)
    np.testing.assert_allclose(densities["mixture"], gaussian.mixture_log_density(w, 0.25, 0.7, 0.02), rtol=1e-12)


def test_mixture_defaults_are_those_of_the_paper_and_have_its_spread():
    prior = dubio.ScaleMixture()

    assert (prior.weight, prior.wide_std, prior.narrow_std) == (0.5, math.exp(-1), math.exp(-7))
    assert prior.std == pytest.approx(0.260131, abs=5e-7)


def test_t05_mixture_of_one_width_has_the_divergence_of_the_gaussian():
    mean, std = torch.randn(6, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    mean.requires_grad_(), std.requires_grad_()
    normal = dubio.Normal(0.0, 0.7).divergence(mean, std, None)

    for prior in (dubio.ScaleMixture(1.0, 0.7, 0.01), dubio.ScaleMixture(0.3, 0.7, 0.7)):
        mixture = prior.divergence(mean, std, None)
        assert prior.has_closed_divergence
        torch.testing.assert_close(mixture, normal, rtol=0.0, atol=0.0)
        gradients = [torch.autograd.grad(value.sum(), (mean, std), retain_graph=True) for value in (mixture, normal)]
        torch.testing.assert_close(*gradients, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("prior", [dubio.Normal(0.3, 0.7), dubio.CentredNormal(0.7)])
def test_closed_divergences_are_those_of_torch_distributions_weight_by_weight(prior):
    mean, centre = torch.randn(2, 6, dtype=torch.float64)
    std = torch.rand(6, dtype=torch.float64) + 0.01
    middle = centre if isinstance(prior, dubio.CentredNormal) else torch.full_like(mean, 0.3)

    assert prior.has_closed_divergence
    expected = kl_divergence(Normal(mean, std), Normal(middle, torch.full_like(mean, 0.7)))
    torch.testing.assert_close(prior.divergence(mean, std, centre), expected, rtol=1e-12, atol=1e-12)


def test_a_mixture_of_two_widths_has_no_closed_divergence_and_says_so():
    prior = dubio.ScaleMixture(0.3, 0.7, 0.6)

    assert not prior.has_closed_divergence
    with pytest.raises(ValueError, match=r"divergence from a scale mixture has no closed form; it is estimated"):
        prior.divergence(torch.randn(6), torch.rand(6), None)


def test_priors_are_values_that_compare_and_hash():
    assert dubio.Normal(0.0, 1.0) == dubio.Normal()
    assert len({dubio.ScaleMixture(), dubio.ScaleMixture(), dubio.CentredNormal()}) == 2
    with pytest.raises(AttributeError):
        dubio.Normal().std = 2.0


@pytest.mark.parametrize("std", [0.0, -0.1, INFINITE, NAN])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda std: dubio.Normal(0.0, std), "std"),
        (lambda std: dubio.CentredNormal(std), "std"),
        (lambda std: dubio.ScaleMixture(0.5, std, 0.001), "wide_std"),
        (lambda std: dubio.ScaleMixture(0.5, 1.0, std), "narrow_std"),
    ],
    ids=["Normal", "CentredNormal", "ScaleMixture wide", "ScaleMixture narrow"],
)
def test_a_scale_that_is_not_positive_and_finite_is_refused(make, name, std):
    with pytest.raises(ValueError, match=f"^{name} of a prior must be positive and finite, got {std}"):
        make(std)


@pytest.mark.parametrize("mean", [INFINITE, -INFINITE, NAN])
def test_a_mean_that_is_not_finite_is_refused(mean):
    with pytest.raises(ValueError, match=f"^mean of a prior must be finite, got {mean}"):
        dubio.Normal(mean, 1.0)


@pytest.mark.parametrize("weight", [0.0, -0.5, 1.01, NAN])
def test_a_mixture_weight_outside_its_range_is_refused(weight):
    with pytest.raises(ValueError, match=rf"^weight of the wide component must be in \(0, 1\], got {weight}"):
        dubio.ScaleMixture(weight)


def test_a_narrow_component_wider_than_the_wide_one_is_refused():
    with pytest.raises(ValueError, match=r"^narrow_std must be at most wide_std = 0\.1, got 0\.2"):
        dubio.ScaleMixture(0.5, 0.1, 0.2)
