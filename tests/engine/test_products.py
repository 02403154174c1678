"""Convolutions of a mapped pass under autocast compute in its dtype, as without a map, with drawn weights or not."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import dubio
from dubio._engine.planner import plans
from dubio.training import batch_loss

KINDS = {
    "1d": (nn.Conv1d, nn.ConvTranspose1d, (4, 2, 7)),
    "2d": (nn.Conv2d, nn.ConvTranspose2d, (4, 2, 7, 6)),
    "3d": (nn.Conv3d, nn.ConvTranspose3d, (4, 2, 4, 5, 3)),
}
METHODS = {
    "bayes, local": dubio.Bayes(estimator="local", init_std=0.1),
    "bayes, weight": dubio.Bayes(estimator="weight", init_std=0.1),
    "bayes, flipout": dubio.Bayes(estimator="flipout", init_std=0.1),
    "bayes, first layer": dubio.Bayes(where="0", init_std=0.1),
    "dropout": dubio.Dropout(),
    "input noise": dubio.InputNoise(),
    "pni": dubio.PNI(),
}


def autoencoder(kind: str) -> tuple[nn.Sequential, torch.Tensor]:
    """Two convolutions and a transposed one, with noise between them, and inputs."""
    down, up, shape = KINDS[kind]
    torch.manual_seed(0)
    net = nn.Sequential(
        down(2, 6, 3, padding=1),
        nn.ReLU(),
        nn.Dropout(0.3),
        down(6, 6, 3, padding=1, bias=False),
        nn.ReLU(),
        up(6, 2, 2),
    )
    return net, torch.randn(shape)


def autocast() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.feature("Convolutions of mapped draws compute in bf16 where it is asked for, drawn or not")
def test_mapped_convolutions_compute_in_the_type_of_autocast(kind: str, method: str) -> None:
    net, inputs = autoencoder(kind)
    model = METHODS[method].convert(net).eval()
    results: list[torch.dtype] = []
    for module in model:
        if isinstance(module, nn.modules.conv._ConvNd):
            module.register_forward_hook(lambda module, args, output: results.append(output.dtype))
    with autocast():
        mapped = dubio.sample(model, inputs, 3, seed=1, executor="vmap")
        assert set(results) == {torch.bfloat16}
        looped = dubio.sample(model, inputs, 3, seed=1, executor="loop")
    assert mapped.dtype == looped.dtype == torch.bfloat16
    torch.testing.assert_close(mapped, looped, rtol=0.03, atol=0.03)
    exact = dubio.sample(model, inputs, 3, seed=1, executor="vmap")
    assert 0.0 < (mapped - exact).abs().max() < 0.1


OPTIONS = {
    "reflect": {"padding": 1, "padding_mode": "reflect"},
    "replicate": {"padding": 1, "padding_mode": "replicate"},
    "circular": {"padding": 1, "padding_mode": "circular"},
    "same": {"padding": "same"},
    "groups": {"groups": 2},
    "dilation and stride": {"dilation": 2, "stride": 2},
}


@pytest.mark.parametrize("method", ["bayes, local", "bayes, weight", "dropout"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("batched", [True, False])
def test_every_kind_of_convolution_is_mapped_under_autocast(
    method: str, options: dict[str, Any], batched: bool
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3, **options), nn.Dropout(0.3), nn.Conv2d(4, 4, 3, **options))
    model, inputs = METHODS[method].convert(net).eval(), torch.randn(3, 2, 19, 18)
    inputs = inputs if batched else inputs[0]
    with autocast():
        mapped, looped = (dubio.sample(model, inputs, 3, seed=1, executor=way) for way in ("vmap", "loop"))
    assert mapped.dtype == looped.dtype == torch.bfloat16
    torch.testing.assert_close(mapped, looped, rtol=0.03, atol=0.03)


@pytest.mark.parametrize("method", ["dropout", "bayes, first layer"])
def test_draws_behind_a_shared_convolution_need_no_map_of_the_inputs(method: str) -> None:
    """What the first layer gives to all draws is in bf16: the next one must take it."""
    net, inputs = autoencoder("2d")
    model = METHODS[method].convert(net)
    with autocast():
        dubio.sample(model, inputs, 3)
    assert {plan.executor for plan in plans(model).values()} == {"vmap"}


class Own(nn.Conv2d):
    """A class that dubio does not know."""


class Functional(nn.Module):
    """A convolution that is no layer."""

    def __init__(self, channels: int, outputs: int, size: int, bias: bool = True) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.randn(outputs, channels, size, size) / size)
        self.shift = nn.Parameter(torch.randn(outputs)) if bias else None

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.conv2d(input=images, weight=self.filters, bias=self.shift)


OTHERS: dict[str, Callable[..., nn.Module]] = {
    "subclass": Own,
    "weight norm": lambda *sizes, **options: parametrizations.weight_norm(nn.Conv2d(*sizes, **options)),
    "spectral norm": lambda *sizes, **options: parametrizations.spectral_norm(nn.Conv2d(*sizes, **options)),
    "function": Functional,
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("method", ["bayes, local", "bayes, weight", "dropout"])
@pytest.mark.parametrize("other", OTHERS)
def test_convolutions_of_any_class_are_mapped_under_autocast(other: str, method: str, bias: bool) -> None:
    torch.manual_seed(0)
    plain, own = nn.Conv2d(2, 4, 3, bias=bias), OTHERS[other](4, 4, 3, bias=bias)
    net = nn.Sequential(plain, nn.ReLU(), nn.Dropout(0.3), own, nn.Flatten(), nn.Linear(64, 3))
    model, images = METHODS[method].convert(net).eval(), torch.randn(5, 2, 8, 8)
    with autocast():
        mapped, looped = (dubio.sample(model, images, 3, seed=1, executor=way) for way in ("vmap", "loop"))
        dubio.sample(model, images, 3)
    assert mapped.dtype == looped.dtype == torch.bfloat16
    torch.testing.assert_close(mapped, looped, rtol=0.05, atol=0.05)
    assert {plan.executor for plan in plans(model).values()} == {"vmap"}


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("method", ["bayes, weight", "dropout"])
def test_attention_is_lowered_as_it_is_looped(method: str, weights: bool) -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.attention = nn.Dropout(0.3), nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(*[self.drop(x)] * 3, need_weights=weights)[0]

    torch.manual_seed(0)
    model, inputs = METHODS[method].convert(Attending()).eval(), torch.randn(3, 5, 8)
    with autocast():
        mapped, looped = (dubio.sample(model, inputs, 3, seed=1, executor=way) for way in ("vmap", "loop"))
    assert mapped.dtype == looped.dtype == torch.bfloat16
    torch.testing.assert_close(mapped, looped, rtol=0.05, atol=0.03)


@pytest.mark.parametrize("inputs", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("weights", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("lower", [torch.float16, torch.bfloat16])
def test_every_type_but_double_becomes_that_of_autocast(
    inputs: torch.dtype, weights: torch.dtype, lower: torch.dtype
) -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Dropout(0.3), nn.Conv2d(3, 3, 3)).to(weights)
    model, images = dubio.Dropout().convert(net), torch.randn(2, 2, 7, 7).to(inputs)
    with torch.autocast("cpu", lower):
        mapped, looped = (dubio.sample(model, images, 3, seed=1, executor=way) for way in ("vmap", "loop"))
    assert mapped.dtype == looped.dtype == lower
    torch.testing.assert_close(mapped, looped, rtol=0.03, atol=0.03)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("method", METHODS)
def test_draws_are_mapped_in_the_type_of_autocast_on_a_gpu(method: str, mode: str) -> None:
    net, images = autoencoder("2d")
    net.insert(1, nn.BatchNorm2d(6))
    net.extend([nn.Flatten(), nn.Linear(112, 3)])
    model, images = METHODS[method].convert(net).cuda().train(mode == "train"), images.cuda()
    with torch.autocast("cuda", torch.bfloat16):
        result = dubio.sample(model, images, 3)
    assert result.dtype == torch.bfloat16
    assert {plan.executor for plan in plans(model).values()} == {"vmap"}
    result.float().square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_double_precision_is_left_alone() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Dropout(0.3), nn.Conv2d(3, 3, 3)).double()
    model, images = dubio.Dropout().convert(net), torch.randn(2, 2, 7, 7).double()
    plain = dubio.sample(model, images, 3, seed=1)
    with autocast():
        assert torch.equal(dubio.sample(model, images, 3, seed=1), plain)


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compiler")
@pytest.mark.parametrize("method", ["bayes, local", "dropout"])
def test_steps_in_bf16_compile(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_loss, "BACKEND", "aot_eager")
    targets, losses = torch.tensor([0, 1, 1, 0]), []
    for fast in (True, False):
        net, images = autoencoder("2d")
        model = METHODS[method].convert(nn.Sequential(*net, nn.Flatten(), nn.Linear(112, 2))).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        torch.manual_seed(1)
        step = dubio.Step(model, dubio.ELBO(4), optimizer, num_samples=3, precision="bf16", fast=fast)
        losses.append(step(images, targets).total)
        assert step.mode == ("compiled" if fast else "eager")
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)
