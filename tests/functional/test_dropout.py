"""Dropout from uniform noise: the same as torch's for the same mask, and exact moments over all the noise there is."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dubio import functional

RATES = (0.1, 0.5, 0.9)
every_rate = pytest.mark.parametrize("rate", RATES)


def every_uniform(count: int = 1000) -> Tensor:
    """Noise that stands for all numbers between 0 and 1."""
    return (torch.arange(count, dtype=torch.float64) + 0.5) / count


def standardised(count: int = 500) -> Tensor:
    values = torch.randn(count, dtype=torch.float64).exp()
    return (values - values.mean()) / values.std(correction=0)


@every_rate
def test_dropout_is_torchs_for_the_same_mask(rate: float) -> None:
    inputs = torch.randn(200, dtype=torch.float64)
    expected = F.dropout(inputs, rate, training=True)
    noise = torch.where(expected == 0.0, rate - 1e-6, rate)
    torch.testing.assert_close(functional.noise.dropout(inputs, noise, rate), expected)
    assert (expected == 0.0).any()


@every_rate
def test_alpha_dropout_is_torchs_for_the_same_mask(rate: float) -> None:
    inputs = torch.randn(200, dtype=torch.float64)
    expected = F.alpha_dropout(inputs, rate, training=True)
    dropped = (expected[:, None] - expected).abs().lt(1e-12).sum(dim=1) > 1  # all have one value
    noise = torch.where(dropped, 0.0, rate)
    torch.testing.assert_close(functional.noise.alpha_dropout(inputs, noise, rate), expected, rtol=1e-6, atol=1e-6)
    assert dropped.any()


@every_rate
def test_dropout_keeps_the_mean_and_drops_its_rate(rate: float) -> None:
    outputs = functional.noise.dropout(torch.tensor(3.0, dtype=torch.float64).expand(1000), every_uniform(), rate)
    assert outputs.mean().item() == pytest.approx(3.0)
    assert (outputs == 0.0).double().mean().item() == pytest.approx(rate)


@every_rate
def test_alpha_dropout_keeps_mean_zero_and_variance_one(rate: float) -> None:
    outputs = functional.noise.alpha_dropout(standardised()[:, None].expand(-1, 1000), every_uniform(), rate)
    assert outputs.mean().item() == pytest.approx(0.0, abs=1e-9)
    assert outputs.var(correction=0).item() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("formula", [functional.noise.dropout, functional.noise.alpha_dropout])
def test_a_rate_of_zero_is_the_identity(formula: functional.noise.dropout) -> None:
    inputs = torch.randn(50)
    assert torch.equal(formula(inputs, torch.rand(50), 0.0), inputs)


@pytest.mark.parametrize("formula", [functional.noise.dropout, functional.noise.alpha_dropout])
def test_a_mask_of_channels_holds_for_all_positions(formula: functional.noise.dropout) -> None:
    noise = torch.tensor([[0.2, 0.8]])[..., None]
    inputs = torch.randn(1, 2, 5)
    outputs = formula(inputs, noise, 0.5)
    assert outputs[0, 0].unique().numel() == 1
    assert outputs[0, 1].unique().numel() == 5


def test_what_is_dropped_gets_no_gradient_and_the_rest_its_scale() -> None:
    inputs = torch.randn(4, requires_grad=True)
    functional.noise.dropout(inputs, torch.tensor([0.1, 0.3, 0.2, 0.9]), 0.25).sum().backward()
    torch.testing.assert_close(inputs.grad, torch.tensor([0.0, 4 / 3, 0.0, 4 / 3]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_outputs_have_the_type_of_the_inputs(dtype: torch.dtype) -> None:
    for formula in (functional.noise.dropout, functional.noise.alpha_dropout):
        assert formula(torch.ones(3, dtype=dtype), torch.rand(3), 0.5).dtype == dtype
