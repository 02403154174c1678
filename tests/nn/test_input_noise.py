"""Noise on inputs: where each factor belongs (T-46), its moments, and three divergences of a mixture."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal as TorchNormal, kl_divergence

import dubio
from dubio._engine.passes import Pass
from dubio._engine.settings import Settings
from dubio.flows import NormalInvConv
from dubio.nn.flow import FlowNoise
from dubio.nn.noise_layers import GaussianInputNoise, InputPosterior, Kl
from dubio.priors import Normal

PRIOR = Normal(1.0, 0.3)


def noise(
    channels: int = 3, axis: int = -1, components: int = 1, kl: Kl = "mc", per_position: bool = False, **options: Any
) -> GaussianInputNoise:
    chosen = {"init_std": 0.2, "init_spread": 0.5 if components > 1 else 0.0, **options}
    per = "position" if per_position else "channel"
    return GaussianInputNoise(channels, axis, dubio.InputNoise(PRIOR, components, kl, per, **chosen))


def flow(channels: int, axis: int) -> FlowNoise:
    return FlowNoise(channels, axis, PRIOR, block=NormalInvConv(), base=PRIOR, sum_positions=False)


def factors(layer: InputPosterior, *shape: int) -> Tensor:
    """What inputs are multiplied by; in float64, where no two of a few hundred are the same by rounding."""
    with torch.no_grad():
        return layer.double()(torch.ones(shape, dtype=torch.float64))


def log_ratios(layer: InputPosterior, rows: int) -> Tensor:
    """``log q - log p`` of so many draws."""
    with torch.no_grad():
        found = layer.draw_rows(
            Pass(Settings()), (rows, layer.channels), torch.float64, torch.device("cpu"), (True, False)
        )[1]
    assert found is not None
    return found


def distribution(layer: GaussianInputNoise) -> MixtureSameFamily:
    stds = nn.functional.softplus(layer.rho)
    return MixtureSameFamily(Categorical(torch.ones(len(stds))), Independent(TorchNormal(layer.means, stds), 1))


@pytest.mark.parametrize("components", [1, 4])
def test_t46_noise_of_channels_is_one_for_all_positions_and_differs_across_examples(components: int) -> None:
    drawn = factors(noise(3, -3, components), 5, 3, 4, 6)
    assert torch.equal(drawn, drawn[..., :1, :1].expand_as(drawn))
    assert len(drawn[..., 0, 0].unique()) == 15


@pytest.mark.parametrize("layer", [noise(3, -3, per_position=True), flow(3, -3)], ids=["Gaussian per position", "flow"])
def test_t46_noise_of_positions_differs_per_position(layer: InputPosterior) -> None:
    assert len(factors(layer, 5, 3, 4, 6).unique()) == 5 * 3 * 4 * 6


@pytest.mark.parametrize(
    ("axis", "shape", "expected"),
    [
        (-1, (5, 3), 15),
        (-1, (5, 7, 3), 15),  # positions of a sequence share theirs
        (-1, (3,), 3),
        (-2, (5, 3, 4), 15),
        (-3, (3, 4, 6), 3),  # an image without a batch
        (-4, (2, 3, 2, 2, 2), 6),
    ],
)
def test_channels_are_found_on_their_axis(axis: int, shape: tuple[int, ...], expected: int) -> None:
    assert len(factors(noise(3, axis), *shape).unique()) == expected


def test_inputs_with_other_channels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"inputs must have 3 channels on axis -3, got shape \(5, 4, 2, 2\)"):
        factors(noise(3, -3), 5, 4, 2, 2)
    with pytest.raises(ValueError, match=r"inputs must have 3 channels on axis -3, got shape \(5, 3\)"):
        factors(noise(3, -3), 5, 3)


def test_factors_have_the_moments_of_their_parameters() -> None:
    layer, rows = noise(3), 20_000
    with torch.no_grad():
        layer.means.copy_(torch.tensor([[0.5, 1.0, 2.0]]))
        layer.rho.copy_(torch.tensor([[-1.0, 0.0, 1.0]]))
    stds = nn.functional.softplus(layer.rho[0])
    drawn = factors(layer, rows, 3)
    assert ((drawn.mean(dim=0) - layer.means[0]).abs() < 4.0 * stds / rows**0.5).all()
    assert ((drawn.std(dim=0) / stds - 1.0).abs() < 4.0 / (2 * rows) ** 0.5).all()


def test_factors_multiply_the_inputs() -> None:
    layer = noise(3, init_std=1e-9)
    with torch.no_grad():
        layer.means.copy_(torch.tensor([[0.5, -1.0, 2.0]]))
    torch.testing.assert_close(layer(torch.full((2, 3), 4.0)), torch.tensor([[2.0, -4.0, 8.0]]).expand(2, 3))


def test_one_component_is_chosen_for_a_whole_example_and_all_equally_often() -> None:
    layer, rows = noise(2, -2, components=4, init_std=1e-6, per_position=True), 4000
    with torch.no_grad():
        layer.means.copy_(torch.arange(4.0)[:, None].expand(4, 2))
    chosen = factors(layer, rows, 2, 3).round().flatten(1)
    assert torch.equal(chosen, chosen[:, :1].expand_as(chosen))
    shares = torch.bincount(chosen[:, 0].long(), minlength=4) / rows
    assert ((shares - 0.25).abs() < 4.0 * (0.25 * 0.75 / rows) ** 0.5).all()


@pytest.mark.parametrize("components", [1, 3])
def test_draws_follow_the_density_that_is_claimed(components: int) -> None:
    layer = noise(1, components=components)
    drawn = factors(layer, 4000, 1)[:, 0].numpy()
    stds = nn.functional.softplus(layer.rho)[:, 0].tolist()

    def cdf(value: Any) -> Any:
        return np.mean([stats.norm.cdf(value, m, s) for m, s in zip(layer.means[:, 0].tolist(), stds, strict=True)], 0)

    assert stats.kstest(drawn, cdf).pvalue > 1e-3


@pytest.mark.parametrize("kl", ["mc", "bound", "averaged"])
def test_every_divergence_of_one_gaussian_is_the_closed_one(kl: Kl) -> None:
    layer = noise(4, kl=kl, init_spread=0.3)
    assert layer.has_closed_divergence
    exact = kl_divergence(TorchNormal(layer.means, nn.functional.softplus(layer.rho)), TorchNormal(1.0, 0.3)).sum()
    torch.testing.assert_close(layer.closed_divergence(), exact)
    ratios = log_ratios(layer, 4000)
    assert (ratios.mean() - exact).abs() < 4.0 * ratios.std() / 4000**0.5


def test_the_estimated_divergence_of_a_mixture_is_that_of_its_density() -> None:
    layer = noise(1, components=3)
    grid = torch.linspace(-6.0, 8.0, 20_001, dtype=torch.float64)[:, None]
    log_q = distribution(layer.double()).log_prob(grid)
    log_p = TorchNormal(1.0, 0.3).log_prob(grid)[:, 0]
    exact = torch.trapezoid(log_q.exp() * (log_q - log_p), grid[:, 0])
    ratios = log_ratios(layer, 20_000)
    assert not layer.has_closed_divergence
    assert (ratios.mean() - exact).abs() < 4.0 * ratios.std() / 20_000**0.5


def test_the_bound_is_the_mean_over_components_and_never_below_the_mixtures_own() -> None:
    layer = noise(4, components=3, kl="bound")
    parts = kl_divergence(TorchNormal(layer.means, nn.functional.softplus(layer.rho)), TorchNormal(1.0, 0.3))
    bound = layer.closed_divergence()
    torch.testing.assert_close(bound, parts.sum(dim=1).mean())
    ratios = log_ratios(layer, 4000)
    assert bound > ratios.mean() - 4.0 * ratios.std() / 4000**0.5
    assert bound < ratios.mean() + np.log(3) + 4.0 * ratios.std() / 4000**0.5  # components differ by log K at most


def test_the_averaged_divergence_is_that_of_the_reference_code() -> None:
    layer = noise(4, components=3, kl="averaged")
    means, stds = layer.means.detach().double().numpy(), np.logaddexp(0.0, layer.rho.detach().double().numpy())
    mean, std = means.mean(axis=0), np.sqrt((stds**2).sum(axis=0)) / 3
    expected = (np.log(0.3 / std) + (std**2 + (mean - 1.0) ** 2) / (2 * 0.3**2) - 0.5).sum()
    assert layer.closed_divergence().item() == pytest.approx(expected, rel=1e-5)


def test_the_entropy_of_one_gaussian_is_that_of_torch_distributions() -> None:
    layer = noise(4)
    expected = TorchNormal(layer.means, nn.functional.softplus(layer.rho)).entropy().sum()
    torch.testing.assert_close(layer.closed_entropy(), expected)
    assert not noise(4, components=2).has_closed_entropy


def test_the_divergence_is_one_of_distributions_whatever_the_shape_of_the_inputs() -> None:
    run = Pass(Settings(), collecting=("divergence", "entropy"))
    layer = noise(2, -3, components=2, per_position=True)
    ratio = layer.draw_rows(run, (200, 5, 5, 2), torch.float32, torch.device("cpu"), layer.wants(run))[1]
    assert ratio is not None
    assert ratio.shape == (200, 5, 5)
    exact = log_ratios(layer, 20_000).mean()
    assert (layer._over_rows(ratio) - exact).abs() < 0.2 * exact


def test_half_precision_draws_and_weighs_in_single_precision() -> None:
    layer = noise(3, components=2).to(torch.bfloat16)
    run = Pass(Settings(), collecting=("divergence",))
    drawn, ratio, _ = layer.draw_rows(run, (4, 3), torch.float32, torch.device("cpu"), (True, False))
    assert ratio is not None
    assert drawn.dtype == ratio.dtype == torch.float32
    assert layer(torch.ones(4, 3, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_layers_say_what_they_are() -> None:
    assert noise(3).describe() == "Gaussian noise per channel, prior Normal(mean=1.0, std=0.3)"
    mixture = noise(3, components=2, per_position=True)
    assert mixture.describe() == "noise of 2 Gaussians per position, prior Normal(mean=1.0, std=0.3)"
    assert repr(mixture) == "GaussianInputNoise(channels=3, prior=Normal(mean=1.0, std=0.3))"


@pytest.mark.parametrize(
    "method",
    [dubio.InputNoise(init_std=0.2), dubio.InputNoise(components=4), dubio.InputNoise(components=4, kl="bound")],
)
def test_a_layer_that_is_called_twice_counts_twice(method: dubio.InputNoise) -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x))

    torch.manual_seed(0)
    model = method.convert(Twice())
    inputs = torch.randn(2_000, 3)
    once = dubio.divergence(model, 20, seed=1)
    both = dubio.divergence(model, 5, inputs=inputs, seed=1)
    loss = dubio.ELBO(10)(model, inputs, torch.zeros(2_000, dtype=torch.int64), 5, seed=1)
    torch.testing.assert_close(both, 2.0 * once, rtol=0.05, atol=0.0)
    torch.testing.assert_close(loss.terms["divergence"], both)
