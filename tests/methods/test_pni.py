"""``PNI``: weights with noise of a learned size (T-56), and what it refuses."""

from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.nn.sources import ParametricNoise
from networks import mlp

INPUTS = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
SIZES = {"layer": (), "channel": (3, 1), "element": (3, 5)}
every_size = pytest.mark.parametrize("per", SIZES)


def noises(model: nn.Module) -> list[ParametricNoise]:
    return [module for module in model.modules() if isinstance(module, ParametricNoise)]


def drawn_weight(noise: ParametricNoise, layer: nn.Linear, seed: int) -> Tensor:
    """The weights of a frozen draw, read off its outputs for unit vectors."""
    with torch.no_grad(), dubio.frozen(seed=seed):
        return (layer(torch.eye(5, dtype=noise.mean.dtype)) - layer.bias).mT


@every_size
def test_t56_without_size_the_layer_is_the_plain_one(per: Any) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4))
    inputs = torch.randn(5, 2, 4, 4)
    model = dubio.PNI(per=per, init=0.0).convert(net)
    assert torch.equal(model(inputs), net(inputs))
    assert not torch.allclose(dubio.PNI(per=per).convert(net)(inputs), net(inputs), atol=1e-2)


@every_size
def test_t56_gradients_of_size_and_weight_are_those_of_the_formula(per: Any) -> None:
    """For fixed eta, dL/dalpha = sum dL/dW~ eta; the spread of W carries no gradient, so that dL/dW = dL/dW~."""
    layer = nn.Linear(5, 3).double()
    model = dubio.PNI(per=per, init=0.4).convert(layer)
    (noise,) = noises(model)
    inputs, coefficients = torch.randn(6, 5).double(), torch.randn(6, 3).double()
    weight = drawn_weight(noise, model, seed=2).requires_grad_()
    eta = (weight.detach() - layer.weight.detach()) / 0.4
    assert 0.5 < eta.std() / layer.weight.std() < 2.0

    (by_weight,) = torch.autograd.grad((nn.functional.linear(inputs, weight).tanh() * coefficients).sum(), weight)
    with dubio.frozen(seed=2):
        ((model(inputs) - layer.bias).tanh() * coefficients).sum().backward()

    assert noise.size.shape == SIZES[per]
    torch.testing.assert_close(noise.size.grad, (by_weight * eta).sum_to_size(SIZES[per]))
    torch.testing.assert_close(noise.mean.grad, by_weight)


def test_t56_size_is_not_decayed() -> None:
    model = dubio.PNI().convert(mlp(5, 4, 3))
    seen: list[dict[str, Any]] = []

    def sgd(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        seen.extend(groups)
        return torch.optim.SGD(groups)

    dubio.fit(model, (INPUTS, torch.arange(6) % 3), epochs=1, lr=1e-3, weight_decay=0.5, optimizer=sgd, progress=False)
    decay = {id(p): group["weight_decay"] for group in seen for p in group["params"]}
    assert [decay[id(noise.size)] for noise in noises(model)] == [0.0, 0.0]
    assert [decay[id(noise.mean)] for noise in noises(model)] == [0.5, 0.5]


def test_t56_noise_changes_between_calls_in_eval_mode() -> None:
    model = dubio.PNI().convert(mlp(5, 4, 3)).eval()
    assert not torch.allclose(model(INPUTS), model(INPUTS), atol=1e-3)


def test_biases_have_no_noise_and_norms_stay() -> None:
    net = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))
    model = dubio.PNI().convert(net)
    names = [name for name, module in model.named_modules() if isinstance(module, ParametricNoise)]
    assert names == ["0.weight_posterior", "2.weight_posterior"]
    assert torch.equal(dubio.sample(model[0], torch.zeros(1, 5), 3), net[0].bias.expand(3, 1, 4))


def test_a_weight_of_one_entry_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot convert: the network itself: one weight has no spread"):
        dubio.PNI().convert(nn.Linear(1, 1))


def test_layers_that_are_not_for_this_noise_are_refused_by_name() -> None:
    net = nn.Sequential(nn.Embedding(4, 3, padding_idx=0), nn.Linear(3, 2))
    with pytest.raises(TypeError, match="cannot convert: 0: Embedding is no linear layer or convolution"):
        dubio.PNI(where="*").convert(net)
    with pytest.raises(TypeError, match="cannot convert: 0: a transposed convolution has its outputs on another axis"):
        dubio.PNI(per="channel").convert(nn.Sequential(nn.ConvTranspose2d(3, 5, 2)))
    assert [name for name, _ in dubio.PNI().convert(net).named_parameters()].count("1.weight_posterior.size") == 1


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"per": "row"}, "per must be 'layer', 'channel' or 'element', got 'row'"),
        ({"init": float("nan")}, "init must be finite, got nan"),
    ],
)
def test_fields_are_refused_by_name_rule_and_value(
    field: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as a user runs it
    with pytest.raises(ValueError, match=message):
        dubio.PNI(**field)
    with pytest.raises(TypeError, match="where must be a glob, a module type, a callable, or a tuple of those, got 1"):
        dubio.PNI(where=1)  # type: ignore[arg-type]
