"""Noise of a learned size on weights: shapes, counts, ties and frozen layers."""

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.nn.sources import ParametricNoise
from networks import Tied


@pytest.mark.parametrize(("per", "shape"), [("layer", ()), ("channel", (4, 1, 1, 1)), ("element", (4, 2, 3, 3))])
def test_sizes_are_one_for_what_they_are_per(per: str, shape: tuple[int, ...]) -> None:
    noise = ParametricNoise(nn.Parameter(torch.randn(4, 2, 3, 3).double()), per, 0.3)  # type: ignore[arg-type]
    assert noise.size.shape == shape
    assert noise.size.dtype == torch.float64
    assert (noise.size == 0.3).all()
    assert noise.num_random == 72
    assert noise.describe() == f"noise in proportion to the spread of the weights, per {per}"
    assert [noise.is_noise(name) for name, _ in noise.named_parameters()] == [False, True]


def test_draws_have_the_spread_of_the_weights_times_the_size() -> None:
    layer = nn.Linear(40, 30)
    model = dubio.PNI(init=0.5).convert(layer)
    outputs: Tensor = dubio.sample(model, torch.eye(40), 50) - layer.bias
    perturbations = outputs.mT - layer.weight
    assert perturbations.std().item() == pytest.approx(0.5 * layer.weight.std().item(), rel=0.02)


def test_tied_weights_have_one_draw() -> None:
    model = dubio.PNI().convert(Tied())
    with torch.no_grad():
        outputs = model(torch.eye(5))  # both layers are one matrix W, which gives (W W)^T
        assert model.encode.weight_posterior is model.decode.weight_posterior
        with dubio.frozen(seed=1):
            weight = model.encode(torch.eye(5))
            torch.testing.assert_close(model(torch.eye(5)), weight @ weight)
    assert outputs.shape == (5, 5)


def test_frozen_weights_keep_their_size() -> None:
    layer = nn.Linear(4, 3).requires_grad_(False)
    model = dubio.PNI().convert(layer)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert "its scales will not be trained" in str(dubio.describe(model))
