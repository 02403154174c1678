"""Predictions within a memory limit: rows that were chosen fit, draws that are kept count, and rows give way."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine.memory import Footprint
from dubio.prediction.inputs import RowBlock
from dubio.prediction.predictive import statistics_for
from networks import mlp

predict_module = importlib.import_module("dubio.prediction.predict")

KIB, MIB = 2**10, 2**20


def convolutions() -> nn.Module:
    layers = (nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 3, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return dubio.Bayes().convert(nn.Sequential(*layers))


@pytest.mark.slow
@pytest.mark.feature("predict chooses rows and draws that fit into a memory limit, and refuses only what cannot")
def test_rows_that_were_chosen_are_not_refused() -> None:
    model, images = convolutions(), torch.rand(120, 3, 8, 8)
    expected = dubio.predict(model, images, 10, keep_samples=False, seed=0)
    for limit in range(200 * KIB, 3000 * KIB, 400 * KIB):
        with dubio.memory_limit(limit), Footprint() as footprint:
            result = dubio.predict(model, images, 10, keep_samples=False, seed=0)
        assert footprint.peak <= limit + 64 * KIB  # and the prediction itself
        torch.testing.assert_close(result.probs, expected.probs)


def test_statistics_of_many_outputs_count() -> None:
    model, inputs = dubio.Bayes(init_std=0.1).convert(mlp(5, 8, 1000)), torch.randn(20, 5)
    results = 20 * 1000 * 4 * 14  # sums in float64, and what is made of them
    with dubio.memory_limit("2 MiB"), Footprint() as footprint:
        dubio.predict(model, inputs, 100, keep_samples=False)
    assert footprint.peak <= 2 * MIB + results


@pytest.mark.parametrize("likelihood", [dubio.Categorical(), dubio.Gaussian(0.1), dubio.Gaussian("output")], ids=repr)
def test_statistics_take_what_is_planned_for(likelihood: Any) -> None:
    outputs = torch.randn(50, 4, 200)
    statistics = statistics_for(likelihood, keep_samples=False)
    statistics.update(outputs[:1])
    with Footprint() as footprint:
        statistics.update(outputs)
    assert footprint.peak <= predict_module.TIMES_CONSUMED * outputs.nbytes


@pytest.mark.slow
def test_draws_that_are_kept_count() -> None:
    model, inputs = dubio.Bayes(init_std=0.1).convert(mlp(5, 8, 100)), torch.randn(100, 5)
    with dubio.memory_limit("4 MiB"):
        wording = r"and 7\.6 MiB for what all draws leave, got 4\.0 MiB; give .*, keep none of the draws \(keep_samples"
        with pytest.raises(ValueError, match=wording):
            dubio.predict(model, inputs, 100, batch_size=100)
        with pytest.raises(ValueError, match="keep_samples=False"):
            dubio.predict(model, iter(inputs.split(10)), 100)
        assert dubio.predict(model, inputs, 100, keep_samples=False).probs.shape == (100, 100)
        with Footprint() as footprint:
            assert len(dubio.predict(model, inputs, 20).samples) == 20
    assert footprint.peak <= 4 * MIB + 100 * 100 * 4 * 14


class Crowded(nn.Module):
    """Runs out of memory with more rows than there is room for."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.layers, self.room, self.seen = mlp(5, 8, 4), room, list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        if len(x) > self.room:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self.layers(x)


@pytest.mark.slow
def test_a_default_batch_size_is_halved_when_memory_runs_out() -> None:
    inputs = torch.randn(300, 5)
    model = dubio.Bayes(init_std=0.3).convert(Crowded(1000))
    expected = dubio.predict(model, inputs, 5, seed=1)
    model.room = 100
    result = dubio.predict(model, inputs, 5, seed=1)
    torch.testing.assert_close(result.samples, expected.samples, rtol=1e-5, atol=1e-6)
    with pytest.raises(torch.OutOfMemoryError, match="give fewer rows at a time"):
        dubio.predict(model, inputs, 5, seed=1, batch_size=200)
    model.room = 0
    with pytest.raises(torch.OutOfMemoryError, match="at 1 rows"):
        dubio.predict(model, inputs, 5, seed=1)


def test_trials_of_rows_keep_to_the_limit() -> None:
    model, images = convolutions(), torch.rand(300, 3, 16, 16)
    with dubio.memory_limit("1 MiB"), Footprint() as footprint:
        dubio.predict(model, images, 4, keep_samples=False)
    assert footprint.peak <= MIB + 64 * KIB


def test_outputs_that_are_no_numbers_are_no_matter_of_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            calls.append(1)
            return torch.full((len(x), 3), torch.nan)

    def laid_out(model: nn.Module, block: RowBlock, *options: Any) -> RowBlock:
        return block.changed(torch.clone)

    calls, model = list[int](), Broken()
    monkeypatch.setattr(predict_module, "with_images_laid_out", laid_out)
    monkeypatch.setitem(predict_module._LAYOUTS, model, {"key": True})
    with pytest.raises(ValueError, match="the network gave NaN"):
        dubio.predict(model, torch.rand(4, 1, 8, 8), 3, executor="loop")
    assert len(calls) == 1
    assert predict_module._LAYOUTS[model] == {"key": True}
