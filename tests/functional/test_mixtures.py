"""Mixtures of Gaussians against ``torch.distributions``, and what stands for their moments."""

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from dubio import functional


def moments(components: int, channels: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(components, channels).double(), (0.1 + torch.rand(components, channels)).double()


@pytest.mark.parametrize("components", [1, 2, 5])
def test_the_density_is_that_of_torch_distributions(components: int) -> None:
    means, stds = moments(components)
    mixture = MixtureSameFamily(Categorical(torch.ones(components)), Independent(Normal(means, stds), 1))
    values = 2.0 * torch.randn(4, 6, 3, dtype=torch.float64)
    torch.testing.assert_close(functional.noise.mixture_log_prob(values, means, stds), mixture.log_prob(values))


def test_the_density_does_not_depend_on_the_order_of_components() -> None:
    means, stds = moments(4)
    values, order = torch.randn(7, 3).double(), [2, 0, 3, 1]
    torch.testing.assert_close(
        functional.noise.mixture_log_prob(values, means[order], stds[order]),
        functional.noise.mixture_log_prob(values, means, stds),
    )


def test_the_density_far_away_is_finite() -> None:
    means, stds = moments(3)
    assert functional.noise.mixture_log_prob(torch.full((1, 3), 1e4).double(), means, stds).isfinite().all()


@pytest.mark.parametrize("components", [1, 3, 7])
def test_components_are_chosen_equally_often(components: int) -> None:
    uniform = (torch.arange(components * 20) + 0.5) / (components * 20)
    chosen = functional.noise.component_of(uniform, components)
    assert torch.equal(torch.bincount(chosen), torch.full((components,), 20))


def test_the_ends_of_the_noise_choose_the_first_and_the_last_component() -> None:
    ends = torch.tensor([0.0, 1.0 - 2.0**-24, 1.0])  # mirrored noise may be one
    assert functional.noise.component_of(ends, 5).tolist() == [0, 4, 4]


def test_the_averaged_gaussian_is_that_of_the_reference_code() -> None:
    mean, std = functional.noise.averaged_gaussian(torch.tensor([[1.0], [3.0]]), torch.tensor([[0.3], [0.4]]))
    assert mean.item() == pytest.approx(2.0)
    assert std.item() == pytest.approx(0.25)  # sqrt(0.09 + 0.16) / 2


def test_the_average_of_one_gaussian_is_itself() -> None:
    means, stds = moments(1)
    mean, std = functional.noise.averaged_gaussian(means, stds)
    torch.testing.assert_close(mean, means[0])
    torch.testing.assert_close(std, stds[0])
