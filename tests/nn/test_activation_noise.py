"""Gaussian activations by themselves: moments, precision, what they hand over and when."""

import pytest
import torch
from torch import nn

import dubio
from dubio._engine.execute import run
from dubio._engine.passes import attach
from dubio.nn.noise_layers import ActivationNoise, EntropicNoise, InformationNoise
from dubio.nn.sources import noise_parameters
from networks import mlp

NOISES = {"entropy_margin": lambda: EntropicNoise(5, 5, 0.0, 0.1), "information": lambda: InformationNoise(5, 5, 0.1)}
every_noise = pytest.mark.parametrize("name", NOISES)


def made(name: str, rho: float = 0.5) -> ActivationNoise:
    noise = NOISES[name]()
    nn.init.zeros_(noise.rho.weight)
    nn.init.constant_(noise.rho.bias, rho)
    attach(noise)
    return noise


@every_noise
def test_draws_have_the_moments_they_name(name: str) -> None:
    noise, mean = made(name), torch.linspace(-2.0, 2.0, 5).expand(20_000, 5)
    draws = noise(mean)
    std = torch.nn.functional.softplus(torch.tensor(0.5 if name == "entropy_margin" else -4.5))
    torch.testing.assert_close(draws.mean(dim=0), mean[0], rtol=0, atol=0.04)
    torch.testing.assert_close(draws.std(dim=0), std.expand(5), rtol=0.03, atol=0.0)


@every_noise
def test_terms_are_handed_over_to_who_asks(name: str) -> None:
    noise, inputs = made(name), torch.randn(6, 5)
    assert not run(noise, inputs, 2).terms
    assert set(run(noise, inputs, 2, collecting=("penalty",)).terms) == {name}
    with dubio.noise_off():
        assert not run(noise, inputs, 2, collecting=("penalty",)).terms
        assert noise(inputs) is inputs


@every_noise
def test_a_narrow_network_draws_in_float32_and_goes_on_in_its_own_precision(name: str) -> None:
    noise, inputs = made(name, rho=3.0), torch.randn(6, 5)
    with dubio.frozen(seed=1):
        expected = noise(inputs)
        narrow = noise.bfloat16()(inputs.bfloat16())
    assert narrow.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.float(), expected, rtol=0.02, atol=0.02)


@every_noise
def test_its_own_layer_is_noise_and_the_network_s_layers_are_not(name: str) -> None:
    method = dubio.SESNN() if name == "entropy_margin" else dubio.VIB()
    model = method.convert(mlp(5, 4, 3))
    rho = model[-1].input_noise.rho
    assert {id(p) for p in noise_parameters(model)} == {id(rho.weight), id(rho.bias)}


def test_descriptions_tell_margin_and_price() -> None:
    assert EntropicNoise(2, 2, 0.5, 0.1).describe() == "Gaussian activations, log scale at least 0.5 on average"
    assert InformationNoise(2, 2, 0.01).describe() == "Gaussian activations, divergence from N(0, 1) at 0.01"
