"""The divergence of a network from its priors: a sum, exact where it can be, in full precision."""

import math

import pytest
import torch
from scipy import stats
from torch import nn
from torch.distributions import Normal, kl_divergence

import dubio
from dubio.nn.sources import posteriors
from networks import Tied, mlp
from reference import gaussian

MIXTURE = (0.5, math.exp(-1), math.exp(-7))


def expected_divergence(model: nn.Module, prior_std: float, centres: list[torch.Tensor | float]) -> float:
    total = 0.0
    for posterior, centre in zip(posteriors(model), centres, strict=True):
        mean, rho = posterior.mean.detach().double(), posterior.rho.detach().double()
        own = Normal(mean, torch.nn.functional.softplus(rho))
        centre = torch.as_tensor(centre, dtype=torch.float64).expand_as(mean)
        total += kl_divergence(own, Normal(centre, torch.full_like(mean, prior_std))).sum().item()
    return total


def stir(model: nn.Module) -> nn.Module:
    """Move every parameter, so that no two weights have the same posterior."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.feature("Closed-form divergence equals torch.distributions")
def test_divergence_from_a_normal_prior_equals_torch_distributions(dtype):
    model = stir(dubio.Bayes(prior=dubio.Normal(0.2, 0.4)).convert(mlp(5, 7, 4))).to(dtype)

    found = dubio.divergence(model)

    assert found.dtype == dtype
    assert found.item() == pytest.approx(expected_divergence(model, 0.4, [0.2] * 4), rel=1e-6)


def test_divergence_from_a_centred_prior_equals_torch_distributions():
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4))
    centres = [parameter.detach().double() for parameter in net.parameters()]
    model = dubio.Bayes(prior=dubio.CentredNormal(0.2), init_std=0.2).convert(net)

    assert dubio.divergence(model).item() == pytest.approx(0.0, abs=1e-4)
    assert dubio.divergence(stir(model)).item() == pytest.approx(expected_divergence(model, 0.2, centres), rel=1e-6)


def test_divergence_is_a_sum_over_weights_and_never_a_mean():
    net = nn.Linear(50, 40)
    nn.init.constant_(net.weight, 0.5)
    nn.init.constant_(net.bias, 0.5)
    model = dubio.Bayes(init_std=0.2).convert(net)

    # 2,040 weights of the divergence known from T-2.
    assert dubio.divergence(model).item() == pytest.approx(2040 * 1.2544379124, rel=1e-6)


def test_divergence_without_bayesian_biases_leaves_them_out():
    net = nn.Linear(50, 40)
    nn.init.constant_(net.weight, 0.5)
    model = dubio.Bayes(init_std=0.2, bayesian_bias=False).convert(net)

    assert dubio.divergence(model).item() == pytest.approx(2000 * 1.2544379124, rel=1e-6)


@pytest.mark.parametrize("prior", [dubio.Normal(), dubio.CentredNormal(), dubio.ScaleMixture()])
def test_divergence_of_a_half_precision_network_is_computed_in_float32(prior):
    model = stir(dubio.Bayes(prior=prior).convert(nn.Linear(50, 40))).to(torch.bfloat16)

    half, single = dubio.divergence(model, seed=1), dubio.divergence(model.float(), seed=1)

    assert half.dtype == torch.float32
    if isinstance(prior, dubio.ScaleMixture):  # noise of another type is other noise
        assert half.item() == pytest.approx(single.item(), rel=0.1)
    else:
        assert half.item() == pytest.approx(single.item(), rel=1e-6)


def test_divergence_is_differentiable_and_pulls_the_posterior_to_the_prior():
    model = stir(dubio.Bayes(prior=dubio.Normal(0.0, 0.5)).convert(nn.Linear(4, 3))).double()

    dubio.divergence(model).backward()

    posterior = model.weight_posterior
    torch.testing.assert_close(posterior.mean.grad, posterior.mean.detach() / 0.25)
    slope = (posterior.std / 0.25 - 1 / posterior.std) * posterior.rho.sigmoid()
    torch.testing.assert_close(posterior.rho.grad, slope.detach())


def test_tied_posteriors_count_once():
    model = dubio.Bayes(init_std=0.2).convert(Tied())

    assert len(posteriors(model)) == 1
    assert dubio.divergence(model).item() == pytest.approx(expected_divergence(model, 1.0, [0.0]), rel=1e-6)


def test_divergence_of_a_network_without_posteriors_is_zero():
    assert dubio.divergence(nn.Linear(3, 2)).item() == 0.0


def mixture_model(dtype: torch.dtype = torch.float64) -> nn.Module:
    """A layer of 2,000 weights with the posterior of T-4's first case."""
    model = dubio.Bayes(prior=dubio.ScaleMixture(), estimator="weight").convert(nn.Linear(50, 40, bias=False))
    with torch.no_grad():
        model.weight_posterior.mean.fill_(0.1)
        model.weight_posterior.rho.fill_(-3.0)
    return model.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_estimated_divergence_from_a_mixture_is_within_four_standard_errors_of_quadrature(dtype):
    each, deviation = gaussian.log_ratio_moments(
        0.1, gaussian.softplus(-3.0), lambda w: gaussian.mixture_log_density(w, *MIXTURE)
    )

    found = dubio.divergence(mixture_model(dtype), num_samples=50).item()

    assert found == pytest.approx(2000 * each, abs=4 * 2000 * deviation / math.sqrt(50 * 2000))
    assert 4 * deviation / math.sqrt(50 * 2000) < 0.01 * each


def test_estimates_differ_from_call_to_call_and_scatter_as_one_draw_should():
    _, deviation = gaussian.log_ratio_moments(
        0.1, gaussian.softplus(-3.0), lambda w: gaussian.mixture_log_density(w, *MIXTURE)
    )
    model = mixture_model()

    singles = torch.stack([dubio.divergence(model).detach() for _ in range(200)])

    # One estimate is a sum over 2,000 independent weights; 200 of them give its spread to 5 %.
    assert singles.std().item() == pytest.approx(math.sqrt(2000) * deviation, rel=4 / math.sqrt(400))


def test_a_mixture_that_is_a_gaussian_has_a_closed_form():
    for prior in (dubio.ScaleMixture(1.0, 0.4, 0.01), dubio.ScaleMixture(0.3, 0.4, 0.4)):
        model = stir(dubio.Bayes(prior=prior).convert(nn.Linear(5, 4)))
        assert dubio.divergence(model).item() == pytest.approx(expected_divergence(model, 0.4, [0.0, 0.0]), rel=1e-6)


def test_seeded_and_frozen_estimates_repeat():
    model = mixture_model()

    seeded = dubio.divergence(model, 3, seed=4)
    with dubio.frozen(4):
        frozen = [dubio.divergence(model, 3) for _ in range(2)]

    assert seeded.item() == dubio.divergence(model, 3, seed=4).item() == frozen[0].item() == frozen[1].item()
    assert seeded.item() != dubio.divergence(model, 3, seed=5).item()
    assert dubio.divergence(model).item() != dubio.divergence(model).item()


def test_seeded_estimate_is_that_of_the_weights_which_sample_draws():
    model = mixture_model()
    weights = dubio.sample(model, torch.eye(50).double(), 3, seed=4).detach().numpy()

    log_posterior = stats.norm.logpdf(weights, 0.1, gaussian.softplus(-3.0))
    ratios = log_posterior - gaussian.mixture_log_density(weights, *MIXTURE)

    assert dubio.divergence(model, 3, seed=4).item() == pytest.approx(ratios.sum() / 3, rel=1e-10)


def test_noise_off_does_not_change_a_divergence():
    model = mixture_model()

    with dubio.noise_off():
        assert dubio.divergence(model, 20).item() == pytest.approx(2000 * 2.2373281, rel=0.05)
        assert dubio.divergence(dubio.Bayes().convert(nn.Linear(5, 4))).item() > 0.0


@pytest.mark.parametrize("num_samples", [0, -1])
def test_a_number_of_draws_below_one_is_refused(num_samples):
    with pytest.raises(ValueError, match=f"num_samples must be at least 1, got {num_samples}"):
        dubio.divergence(mixture_model(), num_samples)
