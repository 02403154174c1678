"""Filters channels last: where a device is faster so, and a network takes it."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine import memory as layout
from dubio._engine.passes import joined_pass
from dubio.nn.sources import Source
from dubio.training import batch_loss
from dubio.training.batch_loss import Layout

LABELS = torch.randint(3, (6,))


class Convolving(nn.Module):
    """A convolution and what is made of its maps, some of it in other shapes."""

    def __init__(self, channels: int, size: int, flatten: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(channels, 4, size)
        self.head, self.flatten = nn.LazyLinear(3), flatten
        self.volumes = nn.Conv3d(1, 1, 1)
        self.register_buffer("mask", torch.ones(1, 4, 3, 3))

    def forward(self, images: Tensor) -> Tensor:
        maps = self.convolution(images) + self.mask.view(1, -1).sum() + self.volumes.weight.sum()
        return self.head(self.flatten(maps))


def flattened(maps: Tensor) -> Tensor:
    return maps.flatten(1)


def viewed(maps: Tensor) -> Tensor:
    return maps.view(len(maps), -1)


def network(channels: int, size: int, flatten: Callable[[Tensor], Tensor]) -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    net, images = Convolving(channels, size, flatten), torch.randn(6, channels, 8, 8)
    net(images)
    return dubio.Bayes().convert(net), images


def strides(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tensor.stride() for name, tensor in [*model.named_parameters(), *model.named_buffers()]}


def laid_out(model: nn.Module, images: Tensor) -> Layout:
    result = Layout(model, torch.optim.SGD(model.parameters()))
    result.lay_out(images)
    return result


@pytest.fixture
def gpu(quick_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU on which images are laid out as on a GPU."""
    monkeypatch.setattr(layout, "DEVICES", ("cpu",))
    monkeypatch.setattr(batch_loss, "BACKEND", "aot_eager")


SHAPES = [(2, 3), (1, 3), (2, 1), (1, 1)]


@pytest.mark.parametrize(("channels", "size"), SHAPES)
def test_filters_and_images_are_laid_out_and_nothing_else(gpu: None, channels: int, size: int) -> None:
    model, images = network(channels, size, flattened)
    before, values = strides(model), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    result = laid_out(model, images)
    assert result.is_last
    changed = {name for name, stride in strides(model).items() if stride != before[name]}
    expected = {"convolution.weight_posterior.mean", "convolution.weight_posterior.rho"}
    assert changed == (expected if channels > 1 or size > 1 else set())
    mask, rows = torch.ones(6, 5, 3, 3), torch.ones(6, 2)
    values_last = result.of((images, mask, rows))
    assert values_last[0].is_contiguous(memory_format=torch.channels_last)
    assert (values_last[1] is mask, values_last[2] is rows) == (True, True)
    with torch.no_grad():
        model.convolution.weight_posterior.mean.add_(1.0)
    result.undo()
    assert strides(model) == before
    values["convolution.weight_posterior.mean"] += 1.0
    assert all(torch.equal(tensor, values[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("channels", "size"), [SHAPES[0], *(pytest.param(*shape, marks=pytest.mark.slow) for shape in SHAPES[1:])]
)
def test_a_network_that_does_not_run_channels_last_is_left_as_it_was(
    gpu: None, channels: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = []
    for devices in (("cpu",), ()):
        monkeypatch.setattr(layout, "DEVICES", devices)
        model, images = network(channels, size, viewed)
        before = strides(model)
        step = dubio.Step(model, dubio.ELBO(num_data=6), torch.optim.Adam(model.parameters()))
        step._use([step._compiled, step._eager])  # as on a GPU
        result.append([step(images, LABELS).total for _ in range(2)])
        assert step.mode == "compiled"
        assert strides(model) == before
    torch.testing.assert_close(*result)


@pytest.mark.slow
def test_compiled_steps_are_the_same_in_either_layout(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    result = []
    for devices in (("cpu",), ()):
        monkeypatch.setattr(layout, "DEVICES", devices)
        model, images = network(2, 3, flattened)
        step = dubio.Step(model, dubio.ELBO(num_data=6), torch.optim.Adam(model.parameters()), fast=True)
        result.append([step(images, LABELS).total for _ in range(3)])
        assert model.convolution.weight_posterior.mean.is_contiguous() is not bool(devices)
        assert step.mode == "compiled"
    torch.testing.assert_close(*result)


@pytest.mark.slow
def test_members_of_an_ensemble_are_laid_out(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    result = []
    for devices in (("cpu",), ()):
        monkeypatch.setattr(layout, "DEVICES", devices)
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
        model, images = dubio.Ensemble(2).convert(net), torch.randn(6, 2, 8, 8)
        step = dubio.Step(model, dubio.ELBO(6), torch.optim.Adam(model.parameters()), num_samples=2, fast=True)
        result.append([step(images, LABELS).total for _ in range(3)])
        assert [member[0].weight.is_contiguous() for member in model.members] == [not devices, not devices]
        assert step.mode == "compiled"
    torch.testing.assert_close(*result)


def test_a_network_that_cannot_be_frozen_is_laid_out(gpu: None) -> None:
    class Jitter(Source):
        """Noise that nobody has named."""

        def forward(self, x: Tensor) -> Tensor:
            with joined_pass() as run:
                return x + 0.1 * run.noise_for_activations(self, x.shape, x.dtype, x.device)

    net = nn.Sequential(Jitter(), nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(144, 3))
    assert laid_out(net, torch.randn(6, 2, 8, 8)).is_last


@pytest.mark.slow
def test_a_step_that_laid_out_filters_is_kept_for_the_next_run(gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = network(2, 3, flattened)
    start, steps = {name: tensor.clone() for name, tensor in model.state_dict().items()}, dubio.StepCache()
    ends = []
    for seed in (1, 2, 2):
        model.load_state_dict(start)
        options: Any = {"epochs": 2, "batch_size": 6, "progress": False, "fast": True}
        ends.append(dubio.fit(model, (images, LABELS), seed=seed, steps=steps, **options).history[-1]["loss"])
    assert not model.convolution.weight_posterior.mean.is_contiguous()
    assert steps.num_made == 1
    assert ends[1] == pytest.approx(ends[2]) != ends[0]
    model.convolution.weight_posterior.mean.data = start["convolution.weight_posterior.mean"]  # somewhere else
    dubio.fit(model, (images, LABELS), steps=steps, **options)
    assert steps.num_made == 2


def test_a_step_knows_where_parameters_are_and_how_they_lie() -> None:
    model, images = network(2, 3, flattened)
    model.register_buffer("graph", torch.eye(4).to_sparse())  # which is nowhere
    step = dubio.Step(model, dubio.ELBO(num_data=6), torch.optim.Adam(model.parameters()), fast=False)
    step(images, LABELS)
    assert step.is_in_place
    filters = model.convolution.weight_posterior.mean
    before = filters.data
    filters.data = before.as_strided(before.shape, (18, 1, 6, 2))  # the same memory
    assert not step.is_in_place
    filters.data = before
    assert step.is_in_place
    filters.requires_grad_(False)
    assert not step.is_in_place


@pytest.mark.slow
def test_an_eager_step_leaves_filters_alone_and_one_that_falls_back_puts_them_back(gpu: None) -> None:
    class Penalised(dubio.ELBO):
        """Wants filters in one piece."""

        def __call__(self, model: Any, *values: Any, **options: Any) -> Any:
            loss = super().__call__(model, *values, **options)
            filters = model.convolution.weight_posterior.mean
            return dataclasses.replace(loss, total=loss.total + filters.view(len(filters), -1).square().sum())

    for fast, reason in ((False, ""), ("auto", "the compiler gave up")):
        model, images = network(2, 3, flattened)
        before = strides(model)
        step = dubio.Step(model, Penalised(num_data=6), torch.optim.Adam(model.parameters()), fast=fast)
        if fast:
            step._use([step._compiled, step._eager])  # as on a GPU
        for _ in range(2):
            step(images, LABELS)
        assert step.mode == "eager"
        assert step.reason.startswith(reason)
        assert strides(model) == before


def test_an_interrupted_trial_leaves_everything_as_it_was(gpu: None) -> None:
    model, images = network(2, 3, flattened)
    before = strides(model)

    def interrupt(module: nn.Module, args: Any) -> None:
        raise KeyboardInterrupt

    hook = model.head.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        laid_out(model, images)
    hook.remove()
    assert strides(model) == before
    assert laid_out(model, images).is_last


def test_a_network_without_convolutions_is_not_tried(gpu: None) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(128, 3))
    model.register_forward_hook(lambda module, args, output: pytest.fail("it ran"))
    assert not laid_out(model, torch.randn(6, 2, 8, 8)).is_last
