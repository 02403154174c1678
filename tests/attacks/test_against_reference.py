"""Every attack against a plain one, one example at a time, on a network without noise and in double precision."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dubio import attacks, functional
from dubio.attacks import target as target_module
from reference import attacks as reference

Look = Callable[[NDArray[Any]], tuple[float, NDArray[Any], bool]]


class Curved(nn.Module):
    """A small smooth network, sure enough to be worth an attack."""

    def __init__(self, features: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(8)
        self.first = nn.Parameter(torch.randn(features, 12, generator=generator, dtype=torch.float64))
        self.last = nn.Parameter(torch.randn(12, 4, generator=generator, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return 2.0 * ((2.0 * inputs.flatten(1) - 1.0) @ self.first / 2.0).tanh() @ self.last


def points(*shape: int, rows: int = 6) -> tuple[nn.Module, Tensor, Tensor]:
    """A network, inputs and the labels that it gives them, the last of which is wrong."""
    net = Curved(int(np.prod(shape)))
    inputs = torch.rand(rows, *shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    labels = net(inputs).argmax(dim=1)
    labels[-1] = (labels[-1] + 1) % 4
    return net, inputs, labels


def looker(net: nn.Module, shape: torch.Size, label: int, loss: str, targeted: bool = False) -> Look:
    """What the reference sees of the network: value, gradient and success by torch's own autograd."""

    def look(point: NDArray[Any]) -> tuple[float, NDArray[Any], bool]:
        leaf = torch.tensor(point).reshape(1, *shape).requires_grad_(True)
        logits = net(leaf)[0]
        others = torch.cat([logits[:label], logits[label + 1 :]])
        losses = {"cross_entropy": -logits.log_softmax(dim=0)[label], "margin": others.max() - logits[label]}
        value = -losses[loss] if targeted else losses[loss]
        (gradient,) = torch.autograd.grad(value, leaf)
        fooled = (logits.argmax() == label) == targeted
        return value.item(), gradient.numpy().reshape(point.shape), bool(fooled)

    return look


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """All random numbers that an attack draws from now on."""
    numbers: list[Tensor] = []
    random = target_module.AttackTarget.random

    def keep(self: target_module.AttackTarget, *arguments: Any) -> Tensor:
        numbers.append(random(self, *arguments))
        return numbers[-1]

    monkeypatch.setattr(target_module.AttackTarget, "random", keep)
    return numbers


def seen_points(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """All points at which an attack asks for the gradient."""
    seen: list[Tensor] = []
    look = target_module.AttackTarget.loss_and_grad

    def keep(self: target_module.AttackTarget, inputs: Tensor, labels: Tensor) -> target_module.Perturbed:
        seen.append(inputs)
        return look(self, inputs, labels)

    monkeypatch.setattr(target_module.AttackTarget, "loss_and_grad", keep)
    return seen


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(("loss", "targeted"), [("cross_entropy", False), ("margin", False), ("cross_entropy", True)])
def test_fgsm(norm: str, loss: str, targeted: bool) -> None:
    net, inputs, labels = points(5)
    found = attacks.fgsm(net, inputs, labels, norm=norm, loss=loss, targeted=targeted, epsilon=0.2)
    for row in range(len(inputs)):
        look = looker(net, inputs.shape[1:], int(labels[row]), loss, targeted)
        expected = reference.fgsm(inputs[row].numpy(), look, norm, 0.2)
        np.testing.assert_allclose(found[row].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("targeted", [False, True])
def test_pgd(norm: str, targeted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net, inputs, labels = points(5)
    seen = seen_points(monkeypatch)
    options: dict[str, Any] = {"norm": norm, "targeted": targeted, "epsilon": 0.2, "batch_size": 6}
    found = attacks.pgd(net, inputs, labels, steps=9, step_size=0.05, **options)
    for row in range(len(inputs)):
        look = looker(net, inputs.shape[1:], int(labels[row]), "cross_entropy", targeted)
        expected = reference.pgd(inputs[row].numpy(), seen[0][row].numpy(), look, norm, 0.2, 9, 0.05)
        np.testing.assert_allclose(found[row].numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(("loss", "targeted"), [("cross_entropy", False), ("margin", False), ("margin", True)])
def test_apgd(norm: str, loss: str, targeted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net, inputs, labels = points(5)
    seen = seen_points(monkeypatch)
    options: dict[str, Any] = {"norm": norm, "loss": loss, "targeted": targeted, "epsilon": 0.2, "batch_size": 6}
    result = attacks.APGD(steps=30, **options)(net, inputs, labels)
    assert len(seen) == 31
    halved = 0
    for row in range(len(inputs)):
        look = looker(net, inputs.shape[1:], int(labels[row]), loss, targeted)
        path, best = reference.apgd(inputs[row].numpy(), seen[0][row].numpy(), look, norm, 0.2, 30)
        np.testing.assert_allclose(torch.stack(seen)[:, row].numpy(), np.stack(path), atol=1e-4)
        assert result.loss[row].item() == pytest.approx(look(best)[0], abs=1e-4)
        steps = np.abs(np.diff(np.stack(path), axis=0)).max(axis=1)
        halved += steps[-1] < 0.1
    assert halved > 0  # else nothing adapted


@pytest.mark.parametrize("targeted", [False, True])
def test_ddn(targeted: bool) -> None:
    net, inputs, labels = points(5)
    result = attacks.DDN(steps=40, targeted=targeted)(net, inputs, labels)
    looks = [looker(net, inputs.shape[1:], label, "cross_entropy", targeted) for label in labels.tolist()]
    expected = [reference.ddn(row.numpy(), look, 40) for row, look in zip(inputs, looks, strict=True)]
    assert_nearest(result, inputs, expected)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("targeted", [False, True])
def test_fmn(norm: str, targeted: bool) -> None:
    net, inputs, labels = points(5)
    result = attacks.FMN(steps=40, norm=norm, targeted=targeted)(net, inputs, labels)
    looks = [looker(net, inputs.shape[1:], label, "margin", targeted) for label in labels.tolist()]
    expected = [reference.fmn(row.numpy(), look, norm, 40) for row, look in zip(inputs, looks, strict=True)]
    assert_nearest(result, inputs, expected)


def assert_nearest(result: attacks.AttackResult, inputs: Tensor, expected: list[NDArray[Any] | None]) -> None:
    assert any(point is not None for point in expected)
    for row, point in enumerate(expected):
        assert bool(result.fooled[row]) == (point is not None)
        clean = inputs[row].numpy()
        np.testing.assert_allclose(result.inputs[row].numpy(), clean if point is None else point, atol=1e-9)


def test_square_in_linf(monkeypatch: pytest.MonkeyPatch) -> None:
    net, inputs, labels = points(2, 6, 6)
    numbers = recorded(monkeypatch)
    result = attacks.Square(epsilon=0.1, steps=40, share=0.8)(net, inputs, labels)
    stripes, *changes = numbers
    for row in range(len(inputs)):
        look = looker(net, inputs.shape[1:], int(labels[row]), "margin")
        rest = torch.stack(changes)[:, row].numpy()
        expected, value = reference.square_linf(inputs[row].numpy(), look, 0.1, 40, 0.8, stripes[row].numpy(), rest)
        np.testing.assert_allclose(result.inputs[row].numpy(), expected, atol=1e-9)
        assert result.loss[row].item() == pytest.approx(value)


def test_square_in_l2(monkeypatch: pytest.MonkeyPatch) -> None:
    net, inputs, labels = points(2, 6, 6)
    numbers = recorded(monkeypatch)
    epsilon, steps = 0.8, 25
    seen: list[Tensor] = []
    evaluate = target_module.AttackTarget.evaluate

    def keep(self: target_module.AttackTarget, moved: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(moved)
        return evaluate(self, moved, targets)

    monkeypatch.setattr(target_module.AttackTarget, "evaluate", keep)
    result = attacks.Square(norm="l2", epsilon=epsilon, steps=steps, share=0.8, batch_size=6)(net, inputs, labels)
    _, *changes = numbers
    start, *candidates, _ = seen  # the end is evaluated once more
    assert len(candidates) == steps
    for row in range(len(inputs)):
        look = looker(net, inputs.shape[1:], int(labels[row]), "margin")
        clean, point = inputs[row].numpy(), start[row].numpy()
        for k in range(steps):
            side = reference.square_side(k, steps, 0.8, 6, 6, 3)
            new = reference.square_l2_change(clean, point.copy(), epsilon, side, changes[k][row].numpy())
            np.testing.assert_allclose(candidates[k][row].numpy(), new, atol=1e-5)
            new = candidates[k][row].numpy()
            point = new if look(new)[0] > look(point)[0] else point
        np.testing.assert_allclose(result.inputs[row].numpy(), point, atol=1e-9)


@pytest.mark.parametrize("side", [2, 3, 5, 8])
def test_the_bump_of_the_square_attack(side: int) -> None:
    np.testing.assert_allclose(
        functional.adversarial.square_bump(side, side).numpy(), reference.eta(side, side), atol=1e-6
    )


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_square_needs_no_torch_inside(norm: str) -> None:
    net, inputs, labels = points(1, 6, 6)

    def logits(images: Tensor) -> Tensor:
        hidden = (2.0 * images.flatten(1).numpy() - 1.0) @ net.first.detach().numpy() / 2.0
        return torch.from_numpy(2.0 * np.tanh(hidden) @ net.last.detach().numpy())

    attack = attacks.Square(norm=norm, epsilon=0.3, steps=20, seed=1)
    torch.testing.assert_close(attack(logits, inputs, labels).inputs, attack(net, inputs, labels).inputs)
    assert attack(logits, inputs, labels).backwards == 0


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_flat_inputs_are_one_row_of_pixels_or_the_image_they_stand_for(norm: str) -> None:
    net, images, labels = points(1, 4, 6)
    flat = images.flatten(1)
    attack = attacks.Square(norm=norm, epsilon=0.2, steps=20, seed=1)
    as_image = attacks.square(net, flat, labels, norm=norm, epsilon=0.2, steps=20, seed=1, shape=(1, 4, 6))
    assert torch.equal(as_image.view_as(images), attack(net, images, labels).inputs)
    as_row = attack(net, flat, labels).inputs
    assert torch.equal(as_row.view(-1, 1, 1, 24), attack(net, flat.view(-1, 1, 1, 24), labels).inputs)
    assert not torch.equal(as_row, as_image)
