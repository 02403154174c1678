"""``VIB``: its price by example, its place, and what it refuses; T-55."""

import math

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence

import dubio
from dubio.nn.noise_layers import InformationNoise
from networks import mlp

ROWS = 6
INPUTS = torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))
TARGETS = torch.arange(ROWS) % 3


def the_noise(model: nn.Module) -> InformationNoise:
    (noise,) = (module for module in model.modules() if isinstance(module, InformationNoise))
    return noise


@pytest.mark.parametrize("at", ["input", "output"])
def test_t55_without_scale_the_network_is_the_deterministic_one(at: str) -> None:
    net = mlp(5, 8, 3)
    model = dubio.VIB(at=at).convert(net)  # type: ignore[arg-type]
    noise = the_noise(model)
    nn.init.zeros_(noise.rho.weight)
    expected = net(INPUTS).expand(4, -1, -1)
    for rho, atol in ((5.0, math.inf), (-5.0, 1e-3), (-100.0, 1e-6)):
        nn.init.constant_(noise.rho.bias, rho)
        torch.testing.assert_close(dubio.sample(model, INPUTS, 4), expected, rtol=0, atol=atol)
    nn.init.constant_(noise.rho.bias, 5.0)
    assert not torch.allclose(dubio.sample(model, INPUTS, 4), expected, atol=0.1)


@pytest.mark.parametrize("at", ["input", "output"])
def test_t55_the_price_is_that_of_torch_summed_over_dimensions_and_averaged_over_the_batch(at: str) -> None:
    net = mlp(5, 8, 3)
    model = dubio.VIB(beta=0.3, at=at).convert(net)  # type: ignore[arg-type]
    code = net[:-1](INPUTS)
    std = F.softplus(the_noise(model).rho(code) - 5.0)
    own = Normal(code if at == "input" else net(INPUTS), std)
    expected = 0.3 * kl_divergence(own, Normal(0.0, 1.0)).sum(dim=-1).mean()
    for num_data in (10, 1000):  # paid by every example, whatever their number
        loss = dubio.spec(model).method.objective(num_data)(model, INPUTS, TARGETS, 3)
        torch.testing.assert_close(loss.terms["information"], expected)
        torch.testing.assert_close(loss.total, loss.nll + expected)


def test_t55_the_price_of_known_numbers_is_that_of_the_closed_form() -> None:
    """(E-7) for N(1, 0.5^2) against N(0, 1): log 2 + (0.25 + 1) / 2 - 1 / 2."""
    noise = InformationNoise(2, 2, beta=1.0)
    name, term = noise.term(torch.ones(3, 2), torch.full((3, 2), 0.5))
    assert name == "information"
    assert term.item() == pytest.approx(2 * (math.log(2.0) + 0.625 - 0.5), rel=1e-6)


def test_the_place_of_the_paper_is_behind_the_bottleneck() -> None:
    net = dubio.models.build("vib_mlp:20-3")
    model = dubio.VIB(where="bottleneck", at="output").convert(net, example=torch.randn(2, 20))
    assert isinstance(model.bottleneck.output_noise, InformationNoise)
    assert model.bottleneck.output_noise.rho.out_features == net.bottleneck.out_features


def test_a_fresh_network_is_nearly_deterministic() -> None:
    net = mlp(5, 8, 3)
    outputs = dubio.sample(dubio.VIB().convert(net), INPUTS, 50)
    assert 0.0 < (outputs - net(INPUTS)).abs().max() < 0.1


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"beta": -1.0}, "beta must be finite and at least 0, got -1.0"),
        ({"beta": float("inf")}, "beta must be finite and at least 0, got inf"),
        ({"at": 1}, "at must be 'input' or 'output', got 1"),
    ],
)
def test_fields_are_refused_by_name_rule_and_value(
    field: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    with pytest.raises(ValueError, match=message):
        dubio.VIB(**field)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="where must name a module type, got int"):
        dubio.VIB(where=int)  # type: ignore[arg-type]
