"""Posterior, priors and their divergence as formulas: T-1 to T-7, and the three ways through a layer."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Normal, kl_divergence

from dubio import functional
from reference import gaussian

FLOAT64 = {"dtype": torch.float64}
SOFTPLUS = {
    -30.0: 9.357623e-14,
    -10.0: 4.539890e-05,
    -4.0: 0.018149928,
    -3.0: 0.048587352,
    -2.5: 0.078889734,
    -2.0: 0.126928011,
    -1.5: 0.201413278,
}
MIXTURE = (0.5, math.exp(-1), math.exp(-7))


def as_tensor(*values: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_t01_softplus_table_holds_in_both_precisions(dtype):
    scales = functional.variational.softplus(as_tensor(*SOFTPLUS, dtype=dtype))

    assert scales.dtype == dtype
    np.testing.assert_allclose(scales.numpy(), list(SOFTPLUS.values()), rtol=1e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_t01_rho_survives_the_way_to_its_scale_and_back(dtype, tolerance):
    rho = as_tensor(-80.0, *SOFTPLUS, -0.5, 0.0, 0.5, 3.0, 15.0, dtype=dtype)

    back = functional.variational.inverse_softplus(functional.variational.softplus(rho))

    np.testing.assert_allclose(back.numpy(), rho.numpy(), rtol=tolerance, atol=tolerance)


def test_t01_inverse_softplus_does_not_overflow_for_a_large_scale():
    np.testing.assert_array_equal(
        functional.variational.inverse_softplus(torch.tensor([200.0, 1e6])).numpy(), [200.0, 1e6]
    )


@pytest.mark.feature("Closed-form divergence equals torch.distributions")
def test_t02_closed_divergence_of_every_weight_is_that_of_torch_distributions():
    mean, prior_mean = torch.randn(2, 7, 5, **FLOAT64)
    std = torch.rand(7, 5, **FLOAT64) + 0.01
    expected = kl_divergence(Normal(mean, std), Normal(prior_mean, torch.tensor(0.3, **FLOAT64)))

    found = functional.variational.gaussian_kl(mean, std, prior_mean, 0.3)

    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(
    ("mean", "std", "prior_std", "expected"),
    [(0.5, 0.2, 1.0, 1.2544379124), (-0.1, float(gaussian.softplus(-3.0)), math.exp(-1), 1.5700591040)],
)
def test_t02_closed_divergence_has_its_known_values(mean, std, prior_std, expected):
    found = functional.variational.gaussian_kl(as_tensor(mean), as_tensor(std), 0.0, prior_std)

    assert found.item() == pytest.approx(expected, abs=5e-11)


def test_t02_divergence_of_a_gaussian_from_itself_is_zero():
    mean = torch.randn(6, **FLOAT64)

    found = functional.variational.gaussian_kl(mean, torch.full_like(mean, 0.25), mean, 0.25)

    np.testing.assert_array_equal(found.numpy(), np.zeros(6))


def test_t03_mixture_log_density_has_its_known_values():
    value = as_tensor(0.0, 0.001, 0.1, 0.5, 1.0, 5.0)
    known = [5.3903899714, 4.7911243979, -0.6490309943, -1.5357177261, -4.3066137632, -92.9752869504]

    np.testing.assert_allclose(
        functional.variational.scale_mixture_log_prob(value, *MIXTURE).numpy(), known, atol=5e-11
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_t03_mixture_is_finite_far_out_with_its_gradient(dtype):
    value = as_tensor(-50.0, 50.0, dtype=dtype).requires_grad_()

    density = functional.variational.scale_mixture_log_prob(value, *MIXTURE)
    density.sum().backward()

    # So far out only the wide component is left, half a Gaussian.
    expected = stats.norm.logpdf([-50.0, 50.0], 0.0, math.exp(-1)) + math.log(0.5)
    np.testing.assert_allclose(density.detach().numpy(), expected, rtol=1e-6)
    np.testing.assert_allclose(value.grad.numpy(), [50 * math.e**2, -50 * math.e**2], rtol=1e-6)


@pytest.mark.parametrize("weight", [0.25, 0.5, 0.9])
def test_t03_mixture_log_density_equals_a_plain_derivation(weight):
    value = torch.linspace(-2.0, 2.0, 201, **FLOAT64)
    expected = gaussian.mixture_log_density(value.numpy(), weight, 0.8, 0.01)

    found = functional.variational.scale_mixture_log_prob(value, weight, 0.8, 0.01)

    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12, atol=1e-12)


def estimates(mean: float, rho: float, log_prob) -> tuple[float, float]:
    """The Monte Carlo divergence of one weight from 1e5 draws, and its standard error."""
    std, noise = functional.variational.softplus(as_tensor(rho)).expand(100_000), torch.randn(100_000, **FLOAT64)
    prior = log_prob(mean + std * noise)
    ratios = functional.variational.posterior_log_prob(std, noise) - prior
    standard_error = ratios.std().item() / math.sqrt(len(noise))
    return functional.variational.monte_carlo_kl(std, noise, prior).mean().item(), standard_error


@pytest.mark.parametrize(("mean", "rho"), [(0.5, -3.0), (-0.1, -1.5), (0.0, -10.0)])
def test_t04_monte_carlo_agrees_with_the_closed_form(mean, rho):
    closed = functional.variational.gaussian_kl(
        as_tensor(mean), functional.variational.softplus(as_tensor(rho)), 0.0, 0.5
    )

    estimate, standard_error = estimates(mean, rho, lambda w: functional.variational.normal_log_prob(w, 0.0, 0.5))

    assert standard_error < 0.01
    assert estimate == pytest.approx(closed.item(), abs=4 * standard_error)


@pytest.mark.parametrize(
    ("mean", "rho", "known"), [(0.1, -3.0, 2.2373281), (0.0, -3.0, 2.0115344), (0.3, -2.0, 1.6442748)]
)
def test_t04_monte_carlo_agrees_with_quadrature_for_the_mixture(mean, rho, known):
    quadrature, deviation = gaussian.log_ratio_moments(
        mean, gaussian.softplus(rho), lambda w: gaussian.mixture_log_density(w, *MIXTURE)
    )

    estimate, _ = estimates(mean, rho, lambda w: functional.variational.scale_mixture_log_prob(w, *MIXTURE))

    assert quadrature == pytest.approx(known, abs=5e-8)
    assert estimate == pytest.approx(known, abs=4 * deviation / math.sqrt(100_000))


@pytest.mark.parametrize(("weight", "narrow_std"), [(0.3, 0.7), (1.0, 0.01), (1.0, 0.7)])
def test_t05_mixture_of_one_width_is_the_gaussian_with_its_gradient(weight, narrow_std):
    value = torch.linspace(-3.0, 3.0, 41, **FLOAT64).requires_grad_()

    mixture = functional.variational.scale_mixture_log_prob(value, weight, 0.7, narrow_std)
    normal = Normal(torch.zeros((), **FLOAT64), torch.tensor(0.7, **FLOAT64)).log_prob(value)

    torch.testing.assert_close(mixture, normal, rtol=1e-13, atol=1e-13)
    gradients = [torch.autograd.grad(density.sum(), value)[0] for density in (mixture, normal)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("prior", ["normal", "mixture"])
def test_t06_autograd_of_the_estimate_equals_its_formula(prior):
    rng = np.random.default_rng(6)
    mean, rho, noise = rng.normal(0, 0.3, 20), rng.uniform(-4, 0, 20), rng.normal(size=20)
    mean[:2], rho[:2] = 1e-4, -8.0  # where the narrow component pulls hardest
    std = gaussian.softplus(rho)
    weight = mean + std * noise
    slope = -weight / 0.5**2 if prior == "normal" else gaussian.mixture_slope(weight, *MIXTURE)

    mu, r = torch.tensor(mean, requires_grad=True), torch.tensor(rho, requires_grad=True)
    sigma = functional.variational.softplus(r)
    sigma.retain_grad()
    eps = torch.tensor(noise)
    drawn = mu + sigma * eps
    log_prob = (
        functional.variational.normal_log_prob(drawn, 0.0, 0.5)
        if prior == "normal"
        else functional.variational.scale_mixture_log_prob(drawn, *MIXTURE)
    )
    functional.variational.monte_carlo_kl(sigma, eps, log_prob).sum().backward()

    np.testing.assert_allclose(mu.grad.numpy(), -slope, rtol=1e-10)
    np.testing.assert_allclose(sigma.grad.numpy(), -1 / std - noise * slope, rtol=1e-9)
    np.testing.assert_allclose(r.grad.numpy(), (-1 / std - noise * slope) / (1 + np.exp(-rho)), rtol=1e-9)


def test_t06_log_density_from_the_noise_equals_that_of_the_drawn_weight():
    mean, noise = torch.randn(2, 9, **FLOAT64)
    std = (torch.rand(9, **FLOAT64) + 0.1).requires_grad_()

    from_noise = functional.variational.posterior_log_prob(std, noise)
    from_weight = Normal(mean, std).log_prob(mean + std * noise)

    torch.testing.assert_close(from_noise, from_weight)
    gradients = [torch.autograd.grad(density.sum(), std)[0] for density in (from_noise, from_weight)]
    torch.testing.assert_close(*gradients)


def test_t07_log_density_at_a_tiny_scale_is_as_good_in_float32_as_in_float64():
    noise = torch.randn(1000)
    rho = torch.full_like(noise, -30.0)

    single = functional.variational.posterior_log_prob(functional.variational.softplus(rho), noise)
    double = functional.variational.posterior_log_prob(functional.variational.softplus(rho.double()), noise.double())

    assert single.isfinite().all()
    torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=0.0)
    # E-20 itself: 30 (that is -log sigma) less the quadratic of the noise.
    expected = 30.0 - 0.5 * noise.double().square() - 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close(double, expected, rtol=1e-12, atol=0.0)


def test_safe_sqrt_is_exact_and_has_no_gradient_at_zero():
    value = as_tensor(0.0, 1e-30, 0.25, 4.0).requires_grad_()

    root = functional.variational.safe_sqrt(value)
    root.sum().backward()

    np.testing.assert_array_equal(root.detach().numpy(), np.sqrt([0.0, 1e-30, 0.25, 4.0]))
    np.testing.assert_allclose(value.grad.numpy(), [0.0, 5e14, 1.0, 0.25], rtol=1e-12)


def test_safe_sqrt_of_a_negative_rounding_error_is_zero():
    value = torch.tensor([-1e-12]).requires_grad_()

    functional.variational.safe_sqrt(value).backward()

    assert functional.variational.safe_sqrt(value).item() == 0.0
    assert value.grad.item() == 0.0


def test_local_reparameterisation_scales_noise_by_the_root_of_the_variance():
    mean, variance, noise = as_tensor(1.0, -2.0, 0.0), as_tensor(4.0, 0.0, 0.09), as_tensor(0.5, 3.0, -1.0)

    found = functional.variational.local_reparameterisation(mean, variance, noise)

    np.testing.assert_allclose(found.numpy(), [2.0, -2.0, -0.3], rtol=1e-14)


def test_local_reparameterisation_keeps_a_variance_too_small_for_half_precision():
    mean = torch.zeros(1, dtype=torch.float16)  # in which 1e-9 is zero, but not its root

    found = functional.variational.local_reparameterisation(mean, torch.tensor([1e-9]), torch.ones(1))

    assert found.dtype == torch.float16
    assert found.item() == pytest.approx(1e-9**0.5, rel=1e-2)


def test_flip_turns_the_perturbation_and_leaves_the_mean():
    mean, perturbation = torch.randn(2, 4, 3, **FLOAT64)
    signs = as_tensor(1.0, -1.0, 1.0)

    found = functional.variational.flip(mean, perturbation, signs)

    torch.testing.assert_close(found[:, 1], mean[:, 1] - perturbation[:, 1], rtol=0.0, atol=0.0)
    torch.testing.assert_close(found[:, ::2], (mean + perturbation)[:, ::2], rtol=0.0, atol=0.0)
