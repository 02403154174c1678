"""Images channels last: where a device is faster so, and a network takes it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.sampling import layout
from dubio.training import computing

IMAGES = torch.randn(6, 2, 8, 8)


class Watched(nn.Module):
    """A network that notes how its images and what its convolution makes of them lie."""

    def __init__(self, flatten: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.convolution, self.head, self.flatten = nn.Conv2d(2, 4, 3), nn.Linear(4 * 36, 3), flatten
        self.seen: list[tuple[bool, bool]] | None = []

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        maps = self.convolution(images)
        if self.seen is not None:
            self.seen.append((images.is_contiguous(), True if mask is None else mask.is_contiguous()))
        return self.head(self.flatten(maps))


def flattened(maps: Tensor) -> Tensor:
    return maps.flatten(1)


def viewed(maps: Tensor) -> Tensor:
    return maps.view(len(maps), -1)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU on which images are laid out as on a GPU."""
    monkeypatch.setattr(layout, "DEVICES", ("cpu",))


def watched(flatten: Callable[[Tensor], Tensor] = flattened) -> Any:
    return dubio.Bayes(estimator="weight").convert(Watched(flatten)).eval()


@pytest.mark.parametrize("executor", ["vmap", "loop", "auto"])
def test_predictions_lay_out_images(gpu: None, executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = watched()
    found = dubio.predict(model, IMAGES, 3, seed=1, batch_size=4, executor=executor).probs
    assert not any(images for images, _ in model.seen)
    assert IMAGES.is_contiguous()
    model.seen.clear()
    monkeypatch.setattr(layout, "DEVICES", ())
    torch.testing.assert_close(found, dubio.predict(model, IMAGES, 3, seed=1).probs)
    assert all(images for images, _ in model.seen)


@pytest.mark.parametrize("executor", ["vmap", "loop", "auto"])
@pytest.mark.parametrize("method", [dubio.Bayes(), dubio.Dropout(), dubio.Ensemble(2)], ids=["bayes", "dropout", "two"])
def test_a_network_that_views_its_images_is_left_as_it_is(
    gpu: None, method: Any, executor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = method.convert(Watched(viewed))
    found = dubio.predict(model, IMAGES, 2, seed=1, executor=executor).probs
    monkeypatch.setattr(layout, "DEVICES", ())
    torch.testing.assert_close(found, dubio.predict(model, IMAGES, 2, seed=1, executor=executor).probs)


@pytest.mark.parametrize("flatten", [flattened, viewed])
@pytest.mark.parametrize("fast", [True, False])
def test_compiled_steps_lay_out_filters_where_the_network_takes_it(
    gpu: None, flatten: Callable[[Tensor], Tensor], fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(computing, "BACKEND", "aot_eager")
    labels, found = torch.randint(3, (6,)), []
    for devices in (("cpu",), ()):
        monkeypatch.setattr(layout, "DEVICES", devices)
        torch.manual_seed(0)
        model = watched(flatten).train()
        model.seen = None
        step = dubio.Step(model, dubio.Elbo(num_data=6), torch.optim.Adam(model.parameters()), fast=fast)
        losses = [step(IMAGES, labels).total for _ in range(3)]
        assert step.how == ("compiled" if fast else "eager")
        found.append((losses, [value.detach() for value in model.parameters()]))
        is_last = bool(devices) and fast and flatten is flattened
        assert model.convolution.weight_posterior.mean.is_contiguous() is not is_last
    torch.testing.assert_close(*found)


def test_only_what_has_the_channels_of_a_convolution_is_an_image(gpu: None) -> None:
    model = watched()
    mask, words, shared = torch.ones(6, 5, 3, 3), torch.zeros(6, 4), torch.zeros(())
    found = layout.images_channels_last(model, {"images": IMAGES, "mask": mask, "words": words, "shared": shared})
    assert not found["images"].is_contiguous()
    assert all(found[name] is given for name, given in (("mask", mask), ("words", words), ("shared", shared)))
    dubio.predict(model, {"images": IMAGES, "mask": mask}, 3)
    assert set(model.seen) == {(False, True)}


def test_a_network_without_images_is_not_tried(gpu: None) -> None:
    model = dubio.Bayes().convert(nn.Sequential(nn.Flatten(), nn.Linear(128, 3)))
    calls: list[int] = []
    model.register_forward_hook(lambda module, args, output: calls.append(len(output)))
    dubio.predict(model, IMAGES, 2, executor="loop")
    assert calls == [6, 6]


def test_a_network_is_tried_once_with_two_rows_and_nothing_changes(gpu: None) -> None:
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
    model = dubio.Bayes(estimator="weight").convert(net).eval()
    rows: list[int] = []
    model[2].register_forward_hook(lambda module, args, output: rows.append(len(output)))
    state = torch.get_rng_state()
    for _ in range(2):
        dubio.predict(model, IMAGES, 2, seed=1, executor="loop")
    assert rows == [2, 6, 6, 6, 6]
    assert torch.equal(torch.get_rng_state(), state)


def test_under_a_memory_limit_nothing_is_copied(gpu: None) -> None:
    model = watched()
    with dubio.memory_limit("1 GiB"):
        dubio.predict(model, IMAGES, 3)
    assert all(images for images, _ in model.seen)
