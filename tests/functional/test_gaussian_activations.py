"""Noise on activations and weights as formulas: T-57, T-58, and those behind T-55 and T-56."""

import math

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from dubio import functional
from dubio.functional.variational import normal_entropy

FLOAT64 = {"dtype": torch.float64}


def gaussians(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(*shape, **FLOAT64), torch.rand(*shape, **FLOAT64) + 0.2


def test_an_activation_has_the_moments_it_names():
    mean, std = torch.tensor([1.0, -2.0], **FLOAT64), torch.tensor([0.5, 3.0], **FLOAT64)
    noise = torch.randn(100_000, 2, **FLOAT64)

    draws = functional.noise.gaussian_activation(mean.expand_as(noise), std.expand_as(noise), noise)

    torch.testing.assert_close(draws.mean(dim=0), mean, rtol=0.0, atol=4.0 * 3.0 / math.sqrt(100_000))
    torch.testing.assert_close(draws.std(dim=0), std, rtol=4.0 / math.sqrt(200_000), atol=0.0)


def test_scales_are_positive_and_those_of_their_papers():
    rho = torch.tensor([-200.0, 0.0, 3.0])

    expected = torch.tensor([0.0, math.log(2.0), math.log1p(math.exp(3.0))]) + 1e-6
    torch.testing.assert_close(functional.noise.activation_std(rho), expected)
    torch.testing.assert_close(
        functional.noise.bottleneck_std(rho[1:]), torch.tensor([math.exp(-5.0), math.exp(-2.0)]).log1p()
    )
    assert functional.noise.activation_std(rho).log().isfinite().all()


def test_t57_entropy_is_that_of_the_specification_and_of_torch():
    assert normal_entropy(torch.tensor([0.1, 0.2, 0.3], **FLOAT64)).sum().item() == pytest.approx(-0.8591802, abs=5e-8)
    mean, std = gaussians(4, 2, 3)
    torch.testing.assert_close(normal_entropy(std).sum(dim=-1), Independent(Normal(mean, std), 1).entropy())


def test_the_entropy_hinge_is_what_is_missing_of_the_mean_log_scale():
    std = torch.tensor([[0.1, 0.2], [1.0, 4.0], [2.0, 0.25]], **FLOAT64, requires_grad=True)

    losses = functional.noise.entropy_margin(std, 0.0)

    expected = torch.tensor([-0.5 * math.log(0.02), 0.0, 0.5 * math.log(2.0)], **FLOAT64)
    torch.testing.assert_close(losses, expected)
    (gradient,) = torch.autograd.grad(losses.sum(), std)
    torch.testing.assert_close(gradient, torch.tensor([[-5.0, -2.5], [0.0, 0.0], [-0.25, -2.0]], **FLOAT64))
    torch.testing.assert_close(functional.noise.entropy_margin(std, 0.5)[0], expected[0] + 0.5)


def test_t58_the_divergence_is_summed_over_dimensions_and_averaged_over_the_batch_by_its_mean():
    mean, std = gaussians(5, 3)

    found = functional.noise.standard_normal_kl(mean, std)

    assert found.shape == (5,)
    joint = Independent(Normal(mean, std), 1), Independent(Normal(torch.zeros(3, **FLOAT64), 1.0), 1)
    torch.testing.assert_close(found, kl_divergence(*joint))
    by_hand = (0.5 * (std**2 + mean**2 - 1.0) - std.log()).numpy().sum() / 5
    assert found.mean().item() == pytest.approx(by_hand)
    assert functional.noise.standard_normal_kl(torch.zeros(2, 3), torch.ones(2, 3)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("shape", [(), (4, 1, 1), (4, 3, 2)], ids=["layer", "channel", "element"])
def test_parametric_noise_is_the_spread_of_the_weight_times_scale_and_noise(shape):
    """The formulas of T-56."""
    weight, noise = torch.randn(4, 3, 2, **FLOAT64, requires_grad=True), torch.randn(4, 3, 2, **FLOAT64)
    scale = torch.full(shape, 0.25, **FLOAT64, requires_grad=True)
    slope = torch.randn(4, 3, 2, **FLOAT64)

    noisy = weight + functional.noise.parametric_noise(weight, scale, noise)

    eta = noise * weight.detach().numpy().std(ddof=1)
    torch.testing.assert_close(noisy, weight + 0.25 * eta)
    to_weight, to_scale = torch.autograd.grad((slope * noisy).sum(), (weight, scale))
    torch.testing.assert_close(to_weight, slope)  # the spread carries no gradient
    torch.testing.assert_close(to_scale, (slope * eta).sum_to_size(shape))
    assert not functional.noise.parametric_noise(weight, 0.0 * scale, noise).any()


def test_a_weight_of_one_entry_has_no_spread():
    with pytest.raises(ValueError, match="weight must have at least 2 entries to have a spread, got 1; leave it out"):
        functional.noise.parametric_noise(torch.ones(1, 1), torch.tensor(0.25), torch.ones(1, 1))


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_all_pairs_of_gaussians_equal_the_formulas_pair_by_pair(batch):
    mean, std = gaussians(*batch, 5)
    class_mean, class_std = gaussians(3, 5)
    pairs = mean.unsqueeze(-2), std.unsqueeze(-2)

    distance = (pairs[0] - class_mean).square().sum(dim=-1) + (pairs[1] - class_std).square().sum(dim=-1)
    divergence = kl_divergence(Normal(*pairs), Normal(class_mean, class_std)).sum(dim=-1)

    given = mean, std, class_mean, class_std
    torch.testing.assert_close(functional.noise.gaussian_wasserstein_matrix(*given), distance)
    torch.testing.assert_close(functional.noise.gaussian_kl_matrix(*given), divergence)


@pytest.mark.parametrize("autocast", [False, True])
def test_a_mean_that_all_gaussians_share_costs_no_digits(autocast):
    (mean, std), (class_mean, class_std) = (
        (m.float() + 100.0, s.float()) for m, s in (gaussians(6, 64), gaussians(3, 64))
    )
    exact = functional.noise.gaussian_kl_matrix(*(value.double() for value in (mean, std, class_mean, class_std)))

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        found = functional.noise.gaussian_kl_matrix(mean, std, class_mean, class_std)

    torch.testing.assert_close(found.double(), exact, rtol=5e-6, atol=0.0)


def test_equal_gaussians_diverge_by_zero_up_to_rounding_and_never_by_less():
    mean, std = (value.float() for value in gaussians(40, 30))
    mean, std = (10.0 * mean).requires_grad_(), (0.1 * std).requires_grad_()

    own = functional.noise.gaussian_kl_matrix(mean, std, mean.detach(), std.detach()).diagonal()

    assert own.min() == 0.0
    sizes = ((mean - mean.mean(dim=0)) / std).square().sum(dim=-1)  # what the expanded square adds and subtracts
    # A sum of n products is off by at most about n / 2 units of rounding of each of the terms, whose sizes sum to two.
    assert (own / sizes).max() < 30 * torch.finfo(torch.float32).eps
    for gradient in torch.autograd.grad(own.sum(), (mean, std)):
        assert gradient.isfinite().all()


def test_gaussian_formulas_can_be_mapped():
    draws = (*gaussians(3, 4, 5), *gaussians(3, 2, 5))

    def value(*each: torch.Tensor) -> torch.Tensor:
        first = (
            functional.noise.gaussian_kl_matrix(*each).sum() + functional.noise.gaussian_wasserstein_matrix(*each).sum()
        )
        noisy = functional.noise.parametric_noise(each[0], each[1], each[0])
        return first + functional.noise.entropy_margin(each[1], 0.0).sum() + noisy.square().sum()

    found = torch.func.vmap(torch.func.grad(value))(*draws)

    expected = [torch.func.grad(value)(*each) for each in zip(*draws, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected))
