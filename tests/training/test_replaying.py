"""Steps that are replayed give what eager ones give, whatever is done to network and optimiser between two of them.

No GPU is needed: what is replayed are calls of operators on the memory they met, as a CUDA graph replays kernels.
"""

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.training import batch_loss
from dubio.training.batch_loss import Recording
from dubio.training.steps import CapturedStep, Step
from replayed_on_a_cpu import Replayed

INPUTS = torch.rand(12, 6, generator=torch.Generator().manual_seed(1))
TARGETS = torch.randint(3, (12,), generator=torch.Generator().manual_seed(2))
Act = Callable[[int, nn.Module, torch.optim.Optimizer], None]


@pytest.fixture(autouse=True)
def replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_loss, "Captured", Replayed)
    monkeypatch.setattr("dubio.training.steps.compiled", lambda function, device: function)
    monkeypatch.setattr("dubio._engine.kernels.kernels_available", lambda: False)  # a library is no operator


def record(step: Step) -> Step:
    """Record a step as on a GPU."""
    step._captured = CapturedStep(step._compiled, "")
    step._use([step._captured, step._compiled, step._eager])
    return step


def recording_of(step: Step) -> Recording | None:
    return None if step._captured is None else step._captured.recording


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def nothing(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    pass


def trained(
    records: bool,
    net: Callable[[], nn.Module] = plain,
    act: Act = nothing,
    *,
    method: Any = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    num_steps: int = 14,
    **options: Any,
) -> tuple[nn.Module, Step, list[float]]:
    torch.manual_seed(0)
    model = (method or dubio.Deterministic()).convert(net()).train()
    step = Step(model, dubio.ELBO(40), optimizer(model), fast=False, **options)
    if records:
        record(step)
    torch.manual_seed(5)
    losses = []
    for number in range(num_steps):
        act(number, model, step.optimizer)
        losses.append(float(step(INPUTS, TARGETS).total))
    return model, step, losses


def check_same(*args: Any, mode: str = "captured", reason: str = "", **options: Any) -> tuple[nn.Module, nn.Module]:
    eager, _, expected = trained(False, *args, **options)
    model, step, losses = trained(True, *args, **options)
    assert (step.mode, step.reason) == (mode, reason)
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, value in eager.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-4, atol=1e-6)
    return eager, model


def test_replays_give_what_eager_steps_give() -> None:
    check_same(method=dubio.Bayes(), num_samples=2, clip_norm=1.0)


class RollingBack:
    """Keeps network and optimiser at one step, and goes back to them at a later one."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def __call__(self, number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number == 6:
            self.kept = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        if number == 9:
            model.load_state_dict(self.kept["model"])
            optimizer.load_state_dict(self.kept["optimizer"])


def test_an_optimiser_that_loads_a_state_is_obeyed() -> None:
    check_same(plain, RollingBack())


def test_a_state_of_an_optimiser_that_was_not_fused_is_loaded() -> None:
    def load(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number == 7:
            other = sgd(model)
            other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            state = other.state_dict()
            for group in state["param_groups"]:
                group.update(fused=None, foreach=None, lr=0.1)
            optimizer.load_state_dict(state)

    check_same(plain, load)


def test_parameters_with_other_memory_are_those_that_learn() -> None:
    def move(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number == 6:
            for parameter in model.parameters():
                parameter.data = parameter.data.clone()

    check_same(plain, move)


def test_parameters_that_are_frozen_later_stay_as_they_are() -> None:
    def freeze(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number == 6:
            model.get_submodule("0").requires_grad_(False)

    check_same(plain, freeze, optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("as_tensor", [False, True])
def test_rates_that_are_set_before_every_step_are_obeyed(as_tensor: bool) -> None:
    def decay(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(0.1 / (number + 1)) if as_tensor else 0.1 / (number + 1)

    check_same(plain, decay)


def test_a_group_that_is_added_later_learns() -> None:
    def add(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number == 7:
            optimizer.add_param_group({"params": list(model.get_submodule("0").parameters()), "lr": 0.2})

    def head(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.get_submodule("2").parameters(), lr=0.1)

    check_same(plain, add, optimizer=head)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def test_a_norm_whose_statistics_are_frozen_later_keeps_them() -> None:
    def freeze(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number == 6:
            model.get_submodule("1").eval()

    eager, model = check_same(normed, freeze)
    assert eager.get_buffer("1.num_batches_tracked") == model.get_buffer("1.num_batches_tracked") == 6


def test_other_modes_that_last_are_recorded_again() -> None:
    def freeze(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number == 6:
            model.get_submodule("1").eval()

    assert recording_of(trained(True, normed, freeze, num_steps=8)[1]) is not None
    step = trained(True, normed, freeze, num_steps=16)[1]
    recording = recording_of(step)
    assert recording is not None
    assert recording._num_misfits == 0
    assert step.mode == "captured"


class Averaging(nn.Module):
    """Puts another tensor in place of its buffer at every call."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, inputs: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * inputs.mean(dim=0).detach()
        return self.layer(inputs - self.mean)


def test_a_network_that_replaces_its_buffers_is_not_replayed() -> None:
    reason = "every step puts another tensor in place of mean"
    check_same(Averaging, mode="compiled", reason=reason, num_steps=30)


def test_a_network_that_replaces_its_buffers_is_refused_where_replays_are_asked_for() -> None:
    model = dubio.Deterministic().convert(Averaging())
    step = Step(model, dubio.ELBO(40), sgd(model), fast=False)
    record(step)._compiled.is_required = True
    with pytest.raises(ValueError, match="cannot be recorded, since every step puts another tensor in place of mean"):
        for _ in range(4):
            step(INPUTS, TARGETS)


def test_gradients_of_what_is_not_updated_have_no_part_in_clipping() -> None:
    def head(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.get_submodule("2").parameters(), lr=1.0)

    check_same(plain, optimizer=head, clip_norm=0.05, num_steps=30)


def test_gradients_are_those_of_the_last_step_also_after_a_short_batch() -> None:
    result = []
    for records in (False, True):
        model, step, _ = trained(records)
        step(INPUTS[:5], TARGETS[:5])
        step(INPUTS, TARGETS)
        result.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(result[1], result[0])


def test_what_a_recording_cannot_see_is_seen_by_the_next_one() -> None:
    def cool(number: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        if number == 6:
            model.temperature = 0.5

    class Tempered(nn.Module):
        temperature = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.layer(inputs) / self.temperature

    _, _, cooled = trained(False, Tempered, cool)
    model, step, result = trained(True, Tempered)
    assert result != pytest.approx(cooled)
    model.temperature = 0.5
    assert float(step(INPUTS, TARGETS).nll) == pytest.approx(result[-1], rel=0.1)
    step.record_again()
    with torch.no_grad():
        eager_loss = nn.functional.cross_entropy(model(INPUTS), TARGETS)
    assert float(step(INPUTS, TARGETS).nll) == pytest.approx(float(eager_loss), rel=1e-5)


@pytest.fixture
def without_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_step_that_nobody_holds_is_gone_with_its_recording(without_collection: None) -> None:
    _, step, _ = trained(True)
    recording = recording_of(step)
    assert recording is not None
    gone = weakref.ref(recording), weakref.ref(step)
    del recording
    del step
    assert [reference() for reference in gone] == [None, None]
