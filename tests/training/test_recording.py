"""What a recorded step reads and what it holds for; recorded here means called, so that no GPU is needed."""

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.data.batches import Batch
from dubio.objectives import Loss
from dubio.training import batch_loss
from dubio.training.batch_loss import Place, Recording, StepResult
from dubio.training.steps import CapturedStep, Step


class Called:
    """Stands for a CUDA graph: the work is done anew at each call, and counted."""

    def __init__(self, work: Callable[[], Any], device: torch.device) -> None:
        self._work, self.seconds, self.num_calls = work, 1.5, 0

    @property
    def is_ready(self) -> bool:
        return self.num_calls > 0

    def __call__(self) -> Any:
        self.num_calls += 1
        return self._work()


@pytest.fixture(autouse=True)
def called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_loss, "Captured", Called)
    monkeypatch.setattr("dubio.training.steps.compiled", lambda function, device: function)


def record(step: Step) -> None:
    """Record a step as on a GPU."""
    step._captured = CapturedStep(step._compiled, "")
    step._use([step._captured, step._compiled, step._eager])


def learned_from(recorded: Recording, *values: Any) -> StepResult:
    recorded.read(values)
    return recorded()


def optimizer_at(*rates: float) -> torch.optim.Optimizer:
    groups = [{"params": [nn.Parameter(torch.zeros(1))], "lr": torch.tensor(rate)} for rate in rates]
    return torch.optim.SGD(groups)


def made(optimizer: torch.optim.Optimizer, seen: list[tuple[Any, ...]]) -> Recording:
    def work(*values: Any) -> StepResult:
        seen.append(values)
        total = values[0].sum()
        return StepResult(Loss(total, total, {}, None), total.double())

    first = (torch.ones(2, 3), torch.zeros(2), None, Place(torch.tensor(0.0), 5, None))
    return Recording(work, first, ("fresh", True), nn.Linear(3, 2), optimizer, torch.device("cpu"))


def test_batches_are_copied_to_where_the_first_one_was_read() -> None:
    seen: list[tuple[Any, ...]] = []
    recorded = made(optimizer_at(0.1), seen)
    place = Place(torch.tensor(3.0), 5, None)
    loss, sums = learned_from(recorded, 2.0 * torch.ones(2, 3), torch.ones(2), None, place)
    learned_from(recorded, 3.0 * torch.ones(2, 3), torch.ones(2), None, place)
    assert loss.total.item() == 12.0
    assert sums.item() == 12.0
    assert seen[0][0] is seen[1][0]
    assert torch.equal(seen[1][0], 3.0 * torch.ones(2, 3))
    assert isinstance(seen[1][3], Place)
    assert seen[1][3].batch_index is not None
    assert float(seen[1][3].batch_index) == 3.0


def test_it_fits_batches_of_its_shape_under_its_circumstances() -> None:
    recorded = made(optimizer_at(0.1), [])
    place = Place(torch.tensor(1.0), 5, None)
    assert recorded.fits((torch.ones(2, 3), torch.ones(2), None, place), ("fresh", True))
    assert not recorded.fits((torch.ones(1, 3), torch.ones(1), None, place), ("fresh", True))
    assert not recorded.fits((torch.ones(2, 3), torch.ones(2), torch.ones(2), place), ("fresh", True))
    assert not recorded.fits((torch.ones(2, 3), torch.ones(2), None, place), ("off", True))


def test_rates_that_are_set_later_are_written_to_the_tensors_that_it_reads() -> None:
    optimizer = optimizer_at(0.1, 0.2)
    read = [group["lr"] for group in optimizer.param_groups]
    recorded = made(optimizer, [])
    optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = 0.5, torch.tensor(0.25)
    learned_from(recorded, torch.ones(2, 3), torch.ones(2), None, Place(torch.tensor(1.0), 5, None))
    assert [rate.item() for rate in read] == [0.5, 0.25]
    assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, read, strict=True))


def test_seconds_are_those_of_the_recording_until_they_are_forgotten() -> None:
    recorded = made(optimizer_at(0.1), [])
    assert (recorded.captured.seconds, recorded.is_ready) == (1.5, False)
    learned_from(recorded, torch.ones(2, 3), torch.ones(2), None, Place(torch.tensor(1.0), 5, None))
    recorded.captured.seconds = 0.0
    assert (recorded.captured.seconds, recorded.is_ready) == (0.0, True)


def test_recorded_steps_learn_what_eager_ones_learn_with_short_batches_and_other_modes_between() -> None:
    def learned(records: bool) -> tuple[dict[str, Tensor], str]:
        torch.manual_seed(0)
        model = dubio.Bayes().convert(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
        step = Step(model, dubio.ELBO(num_data=20), optimizer, num_samples=2, fast=False)
        if records:
            record(step)
        torch.manual_seed(1)
        noise = {4: dubio.noise_off(), 5: dubio.frozen(1), 6: dubio.frozen(2)}
        for number, rows in enumerate((4, 4, 4, 2, 4, 4, 4, 4)):
            batch = Batch(torch.randn(rows, 3), torch.arange(rows) % 2, None)
            with noise.get(number, nullcontext()):
                step.learn(batch, Place(number, 8, 0.0))
        return model.state_dict(), step.mode

    eager, mode = learned(records=False)
    assert mode == "eager"
    recorded, mode = learned(records=True)
    assert mode == "captured"
    for name, value in eager.items():
        torch.testing.assert_close(recorded[name], value)


def test_steps_of_frozen_noise_are_not_recorded() -> None:
    model = dubio.Bayes().convert(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    step = Step(model, dubio.ELBO(num_data=20), optimizer, fast=False)
    record(step)
    with dubio.frozen(1):
        step.learn(Batch(torch.randn(4, 3), torch.arange(4) % 2, None), Place(0, 1, 0.0))
    assert step._captured is not None
    assert step._captured.recording is None


def test_a_recording_is_gone_when_nobody_holds_it() -> None:
    recorded = made(optimizer_at(0.1), [])
    gone = weakref.ref(recorded)
    gc.disable()
    try:
        del recorded
        assert gone() is None
    finally:
        gc.enable()
