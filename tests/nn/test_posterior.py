"""Gaussian posteriors over weights in a network: T-4, T-6, T-7, T-9, T-10 and T-12."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

import dubio
from dubio import functional
from dubio.nn.sources import GaussianPosterior, posteriors
from reference import gaussian


def one_weight(mean: float, rho: float, prior: dubio.Normal | dubio.ScaleMixture, times: int) -> GaussianPosterior:
    """The posterior of one weight, repeated: a tensor of noise for it holds that many draws."""
    posterior = GaussianPosterior(torch.full((times,), mean, dtype=torch.float64), prior, init_std=1.0)
    with torch.no_grad():
        posterior.rho.fill_(rho)
    return posterior


@pytest.mark.parametrize(("mean", "rho"), [(0.1, -3.0), (0.0, -3.0), (0.3, -2.0)])
def test_t04_estimated_divergence_of_a_normal_prior_agrees_with_its_closed_form(mean, rho):
    posterior = one_weight(mean, rho, dubio.Normal(0.2, 0.3), 100_000)
    closed = posterior.closed_divergence().item() / 100_000
    _, deviation = gaussian.log_ratio_moments(mean, gaussian.softplus(rho), lambda w: stats.norm.logpdf(w, 0.2, 0.3))

    estimate = posterior.estimated_divergence(torch.randn(100_000, dtype=torch.float64)).item() / 100_000

    assert posterior.has_closed_divergence
    assert estimate == pytest.approx(closed, abs=4 * deviation / math.sqrt(100_000))


@pytest.mark.parametrize(
    ("mean", "rho", "known"), [(0.1, -3.0, 2.2373281), (0.0, -3.0, 2.0115344), (0.3, -2.0, 1.6442748)]
)
def test_t04_estimated_divergence_of_a_mixture_agrees_with_quadrature(mean, rho, known):
    posterior = one_weight(mean, rho, dubio.ScaleMixture(), 100_000)
    _, deviation = gaussian.log_ratio_moments(
        mean, gaussian.softplus(rho), lambda w: gaussian.mixture_log_density(w, 0.5, math.exp(-1), math.exp(-7))
    )

    estimate = posterior.estimated_divergence(torch.randn(100_000, dtype=torch.float64)).item() / 100_000

    assert not posterior.has_closed_divergence
    assert estimate == pytest.approx(known, abs=4 * deviation / math.sqrt(100_000))


def test_t06_autograd_of_a_posteriors_estimate_equals_its_formula():
    posterior = GaussianPosterior(0.1 * torch.randn(20).double(), dubio.ScaleMixture(), init_std=0.05)
    noise = torch.randn(20).double()

    posterior.estimated_divergence(noise).backward()

    mean, rho = posterior.mean.detach().numpy(), posterior.rho.detach().numpy()
    eps, std = noise.numpy(), gaussian.softplus(rho)
    slope = gaussian.mixture_slope(mean + std * eps, 0.5, math.exp(-1), math.exp(-7))
    np.testing.assert_allclose(posterior.mean.grad.numpy(), -slope, rtol=1e-9)
    np.testing.assert_allclose(posterior.rho.grad.numpy(), (-1 / std - eps * slope) / (1 + np.exp(-rho)), rtol=1e-9)


def test_t07_estimated_divergence_at_a_tiny_scale_uses_the_noise_and_not_the_weight():
    noise = torch.randn(1000)
    double = one_weight(0.1, -30.0, dubio.ScaleMixture(), 1000)
    single = one_weight(0.1, -30.0, dubio.ScaleMixture(), 1000).float()

    estimates = [posterior.estimated_divergence(noise.to(posterior.mean.dtype)) for posterior in (single, double)]

    assert estimates[0].isfinite()
    assert estimates[0].item() == pytest.approx(estimates[1].item(), rel=1e-5)


def test_estimated_divergence_of_half_precision_weights_is_computed_in_float32():
    half = one_weight(0.1, -3.0, dubio.ScaleMixture(), 1000).to(torch.bfloat16)
    noise = torch.randn(1000, dtype=torch.bfloat16)

    found = half.estimated_divergence(noise)

    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(half.double().estimated_divergence(noise.double()).item(), rel=1e-5)


def drawn_weights(num_samples: int, **options: object) -> torch.Tensor:
    """Weights (4, 3) of a layer with known posterior, read off through unit inputs: `(sample, 3, 4)`."""
    model = dubio.Bayes(estimator="weight").convert(nn.Linear(4, 3, bias=False)).double()
    with torch.no_grad():
        model.weight_posterior.mean.copy_(torch.linspace(-1.0, 1.0, 12).view(3, 4))
        model.weight_posterior.rho.copy_(torch.linspace(-4.0, 1.0, 12).view(3, 4))
        return dubio.sample(model, torch.eye(4).double(), num_samples, **options).transpose(1, 2)


def test_t09_moments_of_drawn_weights_are_those_of_the_posterior():
    weights = drawn_weights(100_000).flatten(1).numpy()
    mean, std = np.linspace(-1.0, 1.0, 12), gaussian.softplus(np.linspace(-4.0, 1.0, 12))

    root = math.sqrt(len(weights))
    assert np.abs((weights.mean(axis=0) - mean) / (std / root)).max() < 4
    assert np.abs((weights.std(axis=0) - std) / (std / (math.sqrt(2) * root))).max() < 4
    correlation = np.corrcoef(weights.T) - np.eye(12)
    assert np.abs(correlation).max() * root < 5  # the largest of 66 pairs


def test_t09_draws_differ_between_calls():
    first, second = drawn_weights(2), drawn_weights(2)

    assert (first != second).all()
    assert (first[0] != first[1]).all()


def test_t09_draws_repeat_under_a_fixed_generator():
    torch.manual_seed(5)
    first = drawn_weights(3)
    torch.manual_seed(5)
    again = drawn_weights(3)

    torch.testing.assert_close(again, first, rtol=0.0, atol=0.0)
    torch.testing.assert_close(drawn_weights(3, seed=7), drawn_weights(3, seed=7), rtol=0.0, atol=0.0)
    assert (drawn_weights(3, seed=7) != drawn_weights(3, seed=8)).all()


def test_t10_sampled_accuracies_at_a_tiny_scale_are_the_accuracy_of_the_means():
    from sklearn.datasets import load_digits

    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = images.float() / 16.0
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(15):
        optimiser.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimiser.step()

    def accuracies(init_std: float) -> torch.Tensor:
        model = dubio.Bayes(init_std=init_std, estimator="weight").convert(net)
        with torch.no_grad():
            labels_per_draw = dubio.sample(model, images, 100).argmax(dim=-1)
        return (labels_per_draw == labels).double().mean(dim=1)

    of_means = (net(images).argmax(dim=-1) == labels).double().mean()
    assert 0.5 < of_means < 0.99  # an accuracy that other weights would change
    assert (accuracies(float(gaussian.softplus(-30.0))) == of_means).all()
    assert accuracies(0.05).unique().numel() > 10


@pytest.mark.feature("Bayesian linear regression finds the exact mean-field posterior")
def test_t12_linear_regression_finds_the_exact_mean_field_posterior():
    noise_std, prior_std, num_data = 0.5, 1.0, 40
    mixing = torch.tensor([[1.0, 0.6, 0.0], [0.0, 0.8, -0.5], [0.0, 0.0, 0.7]], dtype=torch.float64)
    inputs = torch.randn(num_data, 3, dtype=torch.float64) @ mixing
    targets = inputs @ torch.tensor([0.7, -1.0, 0.3], dtype=torch.float64) + 0.4
    targets += noise_std * torch.randn(num_data, dtype=torch.float64)

    design = torch.cat([inputs, torch.ones(num_data, 1, dtype=torch.float64)], dim=1)
    precision = design.T @ design / noise_std**2 + torch.eye(4) / prior_std**2
    exact_mean = torch.linalg.solve(precision, design.T @ targets) / noise_std**2
    exact_std = precision.diagonal().rsqrt()

    model = dubio.Bayes(prior=dubio.Normal(0.0, prior_std), init_std=0.3).convert(nn.Linear(3, 1)).double()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 500)
    for _ in range(500):
        optimiser.zero_grad()
        outputs = dubio.sample(model, inputs, 256, executor="vmap").squeeze(-1)
        nll = -functional.variational.normal_log_prob(targets.expand_as(outputs), outputs, noise_std)
        functional.variational.minibatch_cost(nll, dubio.divergence(model), share=1.0).backward()
        optimiser.step()
        schedule.step()

    mean = torch.cat([posterior.mean.detach().flatten() for posterior in posteriors(model)])
    std = torch.cat([posterior.std.detach().flatten() for posterior in posteriors(model)])
    torch.testing.assert_close(mean, exact_mean, rtol=0.0, atol=1e-2)
    torch.testing.assert_close(std, exact_std, rtol=1e-2, atol=0.0)
    # The marginals of the exact posterior are wider: mean-field is told apart from them.
    marginal_std = torch.linalg.inv(precision).diagonal().sqrt()
    assert (marginal_std / exact_std).max() > 1.1


def test_a_posterior_starts_at_the_weights_with_the_given_scale():
    net = nn.Linear(4, 3)
    model = dubio.Bayes(init_std=0.07).convert(net)

    torch.testing.assert_close(model.weight_posterior.mean, net.weight, rtol=0.0, atol=0.0)
    np.testing.assert_allclose(model.weight_posterior.std.detach().numpy(), 0.07, rtol=1e-6)
    np.testing.assert_allclose(model.weight_posterior.rho.detach().numpy(), gaussian.inverse_softplus(0.07), rtol=1e-6)


def test_a_mixture_refuses_a_closed_divergence_and_gives_no_number_in_its_place():
    with pytest.raises(ValueError, match="no closed form"):
        one_weight(0.1, -3.0, dubio.ScaleMixture(), 5).closed_divergence()


@pytest.mark.parametrize("times", [1, 10, 1000])
def test_a_posteriors_divergence_is_a_sum_over_its_weights_and_never_a_mean(times):
    normal = one_weight(0.5, gaussian.inverse_softplus(0.2), dubio.Normal(), times)
    mixture = one_weight(0.5, -3.0, dubio.ScaleMixture(), times)
    noise = torch.full((times,), 0.7, dtype=torch.float64)

    # One weight's share, from T-2 and from the densities themselves.
    drawn, std = 0.5 + gaussian.softplus(-3.0) * 0.7, gaussian.softplus(-3.0)
    each = stats.norm.logpdf(drawn, 0.5, std) - gaussian.mixture_log_density(drawn, 0.5, math.exp(-1), math.exp(-7))
    assert normal.closed_divergence().item() == pytest.approx(times * 1.2544379124, rel=1e-9)
    assert mixture.estimated_divergence(noise).item() == pytest.approx(times * each, rel=1e-9)


PRIORS = [dubio.Normal(0.3, 0.5), dubio.CentredNormal(0.5), dubio.ScaleMixture()]


def partly_fixed(prior: dubio.Normal | dubio.CentredNormal | dubio.ScaleMixture) -> GaussianPosterior:
    """Three rows of four weights, of which the second row is no random variable."""
    fixed = torch.zeros(3, 4, dtype=torch.bool)
    fixed[1] = True
    return GaussianPosterior(torch.randn(3, 4, dtype=torch.float64), prior, 0.3, fixed)


@pytest.mark.parametrize("prior", PRIORS)
def test_fixed_weights_are_never_moved_by_a_draw(prior):
    posterior = partly_fixed(prior)
    dubio._engine.name_sources(posterior)

    with dubio.frozen(1), dubio._engine.joined_pass() as run:
        drawn, perturbation = posterior.draw(), posterior.perturbation(run)

    others = [0, 2]
    assert posterior.num_random == 8
    assert torch.equal(drawn[1], posterior.mean[1])
    assert (drawn[others] != posterior.mean[others]).all()
    for value in (perturbation, posterior.std, posterior.variance(torch.float64)):
        assert (value[1] == 0.0).all()
        assert (value[others] != 0.0).all()


@pytest.mark.parametrize("prior", PRIORS)
def test_fixed_weights_have_no_part_in_the_divergence_and_no_gradient_from_it(prior):
    posterior = partly_fixed(prior)
    others = [0, 2]
    rest = GaussianPosterior(posterior.mean.detach()[others], prior, 0.3)
    noise = torch.randn(3, 4, dtype=torch.float64)

    found = [posterior.estimated_divergence(noise)]
    expected = [rest.estimated_divergence(noise[others])]
    if prior.has_closed_divergence:
        found.append(posterior.closed_divergence())
        expected.append(rest.closed_divergence())
    sum(found).backward()

    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0.0)
    for gradient in (posterior.mean.grad, posterior.rho.grad):
        assert (gradient[1] == 0.0).all()
        assert (gradient[0] != 0.0).any()


def test_only_a_centred_prior_keeps_the_weights_it_started_from():
    net = nn.Linear(4, 3)
    centred = dubio.Bayes(prior=dubio.CentredNormal()).convert(net)
    with torch.no_grad():
        centred.weight_posterior.mean.add_(1.0)

    torch.testing.assert_close(centred.weight_posterior.centre, net.weight.detach(), rtol=0.0, atol=0.0)
    assert dubio.Bayes().convert(net).weight_posterior.centre is None
