"""Precision and batch size: what they may change, and what they must not."""

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine.planner import plans
from dubio.prediction import inputs as inputs_module
from dubio.prediction.inputs import MODEST_ROWS, blocks_of, rows_at_a_time
from networks import mlp

predict_module = importlib.import_module("dubio.prediction.predict")

MANY = 1000


def rows_for(model: nn.Module, num_rows: int, num_samples: int = 100) -> int:
    (block,) = blocks_of(torch.randn(num_rows, 5), (), None, 0)
    with torch.no_grad():
        return rows_at_a_time(model.eval(), block, num_samples, seed=0)


class Counting(nn.Module):
    """A network that records the number of its rows, each time."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.seen = mlp(5, 8, 4), list[int]()

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(len(x))
        return self.net(x)


# Precision


@pytest.mark.feature("predict computes in fp32, tf32 or bf16, and tells probabilities in float32 whatever it is")
@pytest.mark.parametrize("likelihood", [dubio.Categorical(), dubio.Gaussian(0.1), dubio.Gaussian("output")], ids=repr)
@pytest.mark.parametrize("executor", ["vmap", "loop"])
def test_bf16_changes_predictions_by_its_rounding_and_tells_them_in_float32(likelihood: Any, executor: Any) -> None:
    model, inputs = dubio.Bayes(init_std=0.1).convert(mlp(5, 8, 4), likelihood), torch.randn(40, 5)
    exact, rounded = (
        dubio.predict(model, inputs, 20, seed=0, precision=precision, executor=executor)
        for precision in ("fp32", "bf16")
    )
    assert exact.samples.dtype == rounded.samples.dtype == torch.float32
    # Factors and results of both layers have 8 bits, and outputs are of size 1: some roundings of 2^-9 each.
    difference = (exact.samples - rounded.samples).abs()
    assert 1e-5 < difference.max() < 8 * 2**-9 * exact.samples.abs().max()
    tensors = [value for value in vars(rounded).values() if isinstance(value, Tensor)]
    assert {value.dtype for value in tensors} == {torch.float32}
    if isinstance(rounded, dubio.prediction.ClassificationPredictive):
        torch.testing.assert_close(rounded.probs.sum(dim=-1), torch.ones(40))
        assert (exact.probs - rounded.probs).abs().max() < 8 * 2**-9


def test_the_network_alone_computes_in_bf16() -> None:
    seen: list[torch.dtype] = []
    model = dubio.Bayes().convert(mlp(5, 8, 4))
    model.register_forward_hook(lambda _, args, outputs: seen.append(outputs.dtype))
    dubio.predict(model, torch.randn(6, 5), 2, precision="bf16", executor="loop")
    assert set(seen) == {torch.bfloat16}
    assert not torch.is_autocast_enabled("cpu")
    assert dubio.predict(model, torch.randn(6, 5), 2).samples.dtype == torch.float32
    assert seen[-1] == torch.float32


def test_a_stream_is_read_outside_of_the_prediction() -> None:
    seen: list[tuple[bool, bool]] = []

    def batches() -> Any:
        for _ in range(2):
            seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))
            yield torch.randn(6, 5)

    dubio.predict(dubio.Bayes().convert(mlp(5, 8, 4)), batches(), 2, precision="bf16")
    assert seen == [(True, False)] * 2


def test_tf32_on_a_cpu_is_fp32() -> None:
    model, inputs = dubio.Bayes().convert(mlp(5, 8, 4)), torch.randn(6, 5)
    a, b = (dubio.predict(model, inputs, 3, seed=0, precision=precision) for precision in ("fp32", "tf32"))
    assert torch.equal(a.samples, b.samples)


# Batch size


@pytest.mark.parametrize("estimator", ["weight", "local"])
def test_the_batch_size_that_is_chosen_changes_no_prediction(estimator: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs_module, "WORTH_A_TRIAL", 1)
    model, inputs = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 4)), torch.randn(MANY, 5)
    chosen = dubio.predict(model, inputs, 3, seed=0, estimator=estimator)
    given = dubio.predict(model, inputs, 3, seed=0, estimator=estimator, batch_size=64)
    torch.testing.assert_close(chosen.samples, given.samples, rtol=1e-5, atol=2e-6)


def test_a_small_network_takes_many_rows_and_a_large_one_few(monkeypatch: pytest.MonkeyPatch) -> None:
    small, large = dubio.Bayes().convert(mlp(5, 8, 4)), dubio.Bayes().convert(mlp(5, 8000, 4))
    assert rows_for(small, MANY) >= MANY
    assert MODEST_ROWS <= rows_for(large, MANY) < 768  # 8,000 hidden units take 62.5 KiB a row, once or twice
    monkeypatch.setattr(inputs_module, "memory_budget", lambda device: 4 * 2**20)
    assert 16 <= rows_for(large, MANY) <= 64
    monkeypatch.setattr(inputs_module, "memory_budget", lambda device: 1)
    assert rows_for(large, MANY) == 1


@pytest.mark.parametrize("most", [1, 31, 32, 300, 510, 999, 1000, 5000])
def test_rows_are_cut_evenly(most: int) -> None:
    rows = inputs_module._evenly(MANY, most)
    assert min(rows, MANY) <= most
    assert rows % 32 == 0 or rows < 32
    last, batches = MANY % rows or rows, -(-MANY // rows)
    assert last > rows - 32 * batches  # no remnant: it lacks what the others were rounded up by


def test_few_rows_or_draws_are_not_worth_a_trial() -> None:
    model = Counting()
    assert rows_for(model, 200) == rows_for(model, MANY, num_samples=1) == MODEST_ROWS
    assert model.seen == []
    assert rows_for(model, MANY) > MODEST_ROWS
    assert rows_for(model, MANY) > MODEST_ROWS
    assert model.seen == [MODEST_ROWS]  # the second time it is cached


def test_a_network_that_fails_in_the_trial_tells_so_in_the_run() -> None:
    message = "input of a Linear must have 5 features on its last axis, got shape"
    with pytest.raises(ValueError, match=message):
        dubio.predict(dubio.Bayes().convert(mlp(5, 8, 4)), torch.randn(MANY, 3), 20)


def test_the_executor_is_tried_on_few_rows() -> None:
    model = dubio.Bayes().convert(mlp(5, 8, 4))
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    dubio.predict(model, torch.randn(MANY, 5), 20, seed=0)
    assert seen[0] == MODEST_ROWS  # one trial tells how many rows, and which executor
    assert min(seen[1:]) > MODEST_ROWS


# Outputs that are no numbers


class Broken(nn.Module):
    """NaN for inputs above one."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.where(x > 1.0, torch.nan, x)


@pytest.mark.parametrize("at_once", [("cpu",), ()], ids=["at once", "at the end"])
def test_rows_that_went_wrong_are_reported_at_once_or_at_the_end(
    at_once: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict_module, "CHECKED_AT_ONCE", at_once)
    inputs = torch.zeros(10, 3)
    inputs[7, 1] = 2.0
    with pytest.raises(ValueError, match=r"gave NaN or infinity for inputs without NaN, rows \[7\]"):
        dubio.predict(Broken(), inputs, 2, batch_size=4, executor="loop")
    with pytest.raises(ValueError, match=r"rows \[7\]"):
        dubio.predict(Broken(), iter(inputs.split(3)), 2)
    assert dubio.predict(Broken(), inputs[:7], 2).probs.shape == (7, 3)


def test_a_draw_that_went_wrong_is_reported_though_the_next_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict_module, "CHECKED_AT_ONCE", ())
    seen = predict_module.FiniteCheck([10])
    seen.checked(0, torch.tensor([[[0.0], [torch.nan]]]))
    seen.checked(0, torch.zeros(1, 2, 1))
    with pytest.raises(ValueError, match=r"rows \[11\]"):
        seen.check()
    seen.check()  # reported once


def test_rows_that_are_many_are_predicted_draw_by_draw() -> None:
    model = dubio.Bayes().convert(mlp(2, 300, 300, 3))
    for rows, executor in ((256, "vmap"), (4096, "loop")):
        dubio.predict(model, torch.rand(rows, 2), 8, keep_samples=False)
        (plan,) = plans(model).values()
        assert plan.executor == executor
