"""Whole networks, from the plain one to the exported file: converted, proved, trained, predicted with, exported.

Small forms of the architectures that people have; ResNet-18 at its full width among the slow tests.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dubio
from contracts.modules import BidirectionalClassifier, LanguageModel, UNet, VisionTransformer, resnet18
from dubio._engine.planner import plans
from dubio._engine.settings import Using
from dubio.nn.sources import posteriors

NUM_DATA = 10_000
"""As if the few rows at hand came from a larger data set: else the prior would have its way."""

pytestmark = [
    pytest.mark.usefixtures("compiler"),
    pytest.mark.filterwarnings(
        r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning",  # torch.onnx of torch's own
        "ignore:_check_is_size will be removed in a future PyTorch release:FutureWarning",
        r"ignore:The tensor attributes? self\.:UserWarning",  # torch.export of a plain LSTM, too
        "ignore:While compiling, we found certain side effects:UserWarning",  # passes, put back
    ),
]


class FunctionalDropout(nn.Module):
    """Dropout called as a function: conversion leaves it to the network, and says so."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 32), nn.Linear(32, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.dropout(self.body(x).relu(), 0.2, self.training))


def rows_of_images(rows: int, size: int, channels: int = 3) -> tuple[Tensor, Tensor]:
    """Images of three brightnesses."""
    targets = torch.arange(rows) % 3
    return torch.randn(rows, channels, size, size) * 0.5 + targets[:, None, None, None] - 1.0, targets


def rows_of_sequences(rows: int) -> tuple[Tensor, Tensor]:
    """Sequences that rise, fall or stay."""
    targets = torch.arange(rows) % 3
    slopes = (targets - 1.0)[:, None, None] * torch.linspace(-2, 2, 5)[None, :, None]
    return slopes + 0.2 * torch.randn(rows, 5, 3), targets


def rows_of_words(rows: int) -> tuple[Tensor, Tensor]:
    """Words of which each is the successor of the one before."""
    sequence = (torch.arange(rows)[:, None] + torch.arange(7)[None]) % 10 + 1
    return sequence[:, :-1], sequence[:, 1:]


def rows_of_segments(rows: int) -> tuple[Tensor, Tensor]:
    """Images with a bright half to be found."""
    targets = torch.zeros(rows, 8, 8, dtype=torch.long)
    for row in range(rows):
        targets[row, :, row % 8 :] = 1
    return targets[:, None].float().expand(-1, 2, -1, -1) + 0.3 * torch.randn(rows, 2, 8, 8), targets


def rows_of_vectors(rows: int) -> tuple[Tensor, Tensor]:
    targets = torch.arange(rows) % 3
    return torch.randn(rows, 6) * 0.5 + F.one_hot(targets, 6) * 2.0, targets


@dataclass(frozen=True)
class Task:
    """A network and what it shall learn."""

    make: Callable[[], nn.Module]
    data: Callable[[int], tuple[Tensor, Tensor]]
    class_axis: int = -1
    steps: int = 12
    learning_rate: float = 0.02
    estimator: Any = "local"
    rows: int = 12

    def loss(self, draws: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over draws `(sample, batch, ...)`."""
        classes = draws.movedim(self.class_axis, -1).flatten(0, -2)
        return F.cross_entropy(classes, targets.flatten().repeat(len(draws)))


TASKS = {
    "resnet-18, narrow": Task(lambda: resnet18(width=4), lambda rows: rows_of_images(rows, 32), steps=4, rows=6),
    "vision transformer": Task(lambda: VisionTransformer(dim=12, depth=2), lambda rows: rows_of_images(rows, 8)),
    "two-layer bidirectional lstm": Task(BidirectionalClassifier, rows_of_sequences),
    "u-net": Task(lambda: UNet(num_classes=2), rows_of_segments, class_axis=-3),
    "language model, tied": Task(LanguageModel, rows_of_words),
    "functional dropout": Task(FunctionalDropout, rows_of_vectors, estimator="flipout"),
}
every_task = pytest.mark.parametrize("name", TASKS)


def convert(name: str) -> tuple[nn.Module, nn.Module]:
    """A plain network and its conversion, proved on an example."""
    task = TASKS[name]
    torch.manual_seed(0)
    net = task.make()
    likelihood = dubio.Categorical(class_axis=task.class_axis)
    with warnings.catch_warnings():
        if name == "functional dropout":
            warnings.simplefilter("ignore", dubio.ConversionWarning)
        method = dubio.Bayes(init_std=0.02, estimator=task.estimator)
        return net, method.convert(net, likelihood, example=task.data(4)[0])


def train(model: nn.Module, task: Task, inputs: Tensor, targets: Tensor) -> list[float]:
    """Free energy per example, step by step; two draws each."""
    optimiser = torch.optim.Adam(model.parameters(), lr=task.learning_rate)
    history = []
    model.train()
    for _ in range(task.steps):
        loss = task.loss(dubio.sample(model, inputs, 2), targets)
        free_energy = loss + dubio.divergence(model) / NUM_DATA
        optimiser.zero_grad()
        free_energy.backward()
        optimiser.step()
        history.append(loss.item())
    return history


@pytest.mark.feature("ResNet-18, a ViT, a BiLSTM, a U-Net and a tied language model: converted, trained, exported")
@pytest.mark.slow
@every_task
def test_a_network_from_plain_to_exported(name: str, tmp_path: Path) -> None:
    task = TASKS[name]
    net, model = convert(name)
    inputs, targets = task.data(task.rows)
    before = [parameter.detach().clone() for parameter in net.parameters()]

    history = train(model, task, inputs, targets)
    assert sum(history[-2:]) / 2 < 0.85 * history[0]
    assert {plan.executor for plan in plans(model).values()} == {"vmap"}
    assert all(torch.equal(parameter, former) for parameter, former in zip(net.parameters(), before, strict=True))

    prediction = dubio.predict(model, inputs, num_samples=5, seed=3, batch_size=5)
    assert model.training  # its mode was put back
    assert isinstance(prediction, dubio.ClassificationPredictive)
    assert prediction.label.shape == targets.shape
    torch.testing.assert_close(prediction.probs.sum(dim=-1), torch.ones_like(prediction.entropy))
    assert prediction.mutual_information.max() > 1e-4
    num_classes = prediction.probs.shape[-1]
    if "resnet" not in name:  # whose running statistics want more steps
        assert (prediction.label == targets).float().mean() > 1.5 / num_classes

    model.eval()
    path = tmp_path / "network.pt2"
    dubio.export(model, inputs[:3], path, noise="frozen", num_samples=2, seed=3)
    exported = torch.export.load(str(path)).module()
    with torch.no_grad(), Using(estimator="weight"):
        expected = dubio.sample(model, inputs[:5], 2, seed=3)
        torch.testing.assert_close(exported(inputs[:5]), expected, rtol=1e-4, atol=1e-4)
    assert (expected[0] - expected[1]).abs().max() > 1e-3


@every_task
def test_the_trained_means_are_an_ordinary_network(name: str) -> None:
    task = TASKS[name]
    net, model = convert(name)
    inputs, targets = task.data(4)
    model.train()
    (task.loss(dubio.sample(model, inputs, 1), targets) + dubio.divergence(model) / NUM_DATA).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    back = dubio.to_mean(model).eval()
    with dubio.noise_off():
        assert torch.equal(back(inputs), model.eval()(inputs))
    net.load_state_dict(back.state_dict())
    assert torch.equal(net.eval()(inputs), back(inputs))
    assert len(posteriors(model)) > 0


def test_functional_dropout_is_named_and_stays_the_networks_own() -> None:
    net = FunctionalDropout()
    inputs, _ = rows_of_vectors(4)
    with pytest.warns(dubio.ConversionWarning, match=r"dropout is called as a function in .*test_converted_networks"):
        model = dubio.Bayes(init_std=0.02).convert(net, example=inputs)
    with dubio.noise_off():
        assert not torch.equal(model.train()(inputs), model(inputs))
        assert torch.equal(model.eval()(inputs), model(inputs))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "noise"),
    [
        (name, noise)
        for name in ("two-layer bidirectional lstm", "u-net", "language model, tied")
        for noise in ("frozen", "off")
        if (name, noise) != ("language model, tied", "off")
    ],
)
def test_onnxruntime_gives_what_the_network_gives(name: str, noise: Any, tmp_path: Path) -> None:
    """Files with several draws; one draw of every kind of network meets ONNX in ``tests/contracts``."""
    task = TASKS[name]
    _, model = convert(name)
    inputs, _ = task.data(5)
    path = tmp_path / "network.onnx"
    model.eval()
    num_samples = None if noise == "off" else 2
    dubio.export(model, inputs[:3], path, format="onnx", noise=noise, num_samples=num_samples, seed=3)
    session = onnxruntime.InferenceSession(str(path))
    for rows in (3, 5):
        (outputs,) = session.run(None, {session.get_inputs()[0].name: inputs[:rows].numpy()})
        with torch.no_grad(), Using(estimator="weight"):
            if noise == "off":
                with dubio.noise_off():
                    expected = model(inputs[:rows])
            else:
                expected = dubio.sample(model, inputs[:rows], 2, seed=3)
        torch.testing.assert_close(torch.from_numpy(outputs), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_resnet_18_at_full_width(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = resnet18()
    assert sum(parameter.numel() for parameter in net.parameters()) == 11_173_962  # as on CIFAR-10 everywhere
    inputs, targets = rows_of_images(8, 32)
    model = dubio.Bayes(init_std=0.01).convert(net, example=inputs[:2])
    description = dubio.describe(model)
    assert description.num_random + description.num_fixed == 11_173_962
    assert description.num_fixed == sum(
        p.numel() for n, p in net.named_parameters() if "bn" in n or "downsample.1" in n
    )
    task = Task(resnet18, rows_of_images, steps=4, learning_rate=1e-3)  # type: ignore[arg-type]
    history = train(model, task, inputs, targets)
    assert history[-1] < 0.8 * history[0]
    prediction = dubio.predict(model, inputs, num_samples=3, seed=0)
    assert prediction.probs.shape == (8, 10)
    path = tmp_path / "resnet18.onnx"
    dubio.export(model, inputs[:2], path, format="onnx")
    session = onnxruntime.InferenceSession(str(path))
    (outputs,) = session.run(None, {session.get_inputs()[0].name: inputs[:5].numpy()})
    with torch.no_grad(), dubio.noise_off():
        torch.testing.assert_close(torch.from_numpy(outputs), model.eval()(inputs[:5]), rtol=1e-3, atol=1e-3)
