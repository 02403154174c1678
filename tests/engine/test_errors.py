"""Errors that a network raises itself: they surface from its first run, and nothing is left behind."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine.settings import STATE
from dubio.prediction.inputs import MODEST_ROWS

X, Y = torch.rand(8, 5), torch.arange(8) % 3
MANY = torch.rand(MODEST_ROWS * 40, 5)


class Raising(nn.Module):
    """Counts its calls, and raises an error from the call of a number on."""

    def __init__(self, error: BaseException, first: int = 1) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.register_buffer("count", torch.zeros(()))
        self.error, self.first, self.calls = error, first, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.count.add_(1)
        if self.calls >= self.first:
            raise self.error
        out: Tensor = self.layer(x)
        return out


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters())


CALLS: dict[str, Callable[[nn.Module], Any]] = {
    "sample": lambda model: dubio.sample(model, X),
    "sample, several draws": lambda model: dubio.sample(model, X, 5),
    "sample, looped": lambda model: dubio.sample(model, X, 5, executor="loop"),
    "sample, mapped": lambda model: dubio.sample(model, X, 5, executor="vmap"),
    "plan": lambda model: dubio.plan(model, X, 5),
    "predict": lambda model: dubio.predict(model, X, 5),
    "predict, many rows": lambda model: dubio.predict(model, MANY, 5),
    "predict, one draw": lambda model: dubio.predict(model, X, 1),
    "evaluate": lambda model: dubio.evaluate(model, (X, Y), num_samples=5),
    "fit": lambda model: dubio.fit(model, (X, Y), epochs=1, progress=False),
    "fit, several draws": lambda model: dubio.fit(model, (X, Y), epochs=1, num_samples=3, progress=False),
    "Step": lambda model: dubio.Step(model, dubio.ELBO(num_data=8), adam(model), num_samples=3)(X, Y),
}


MOVING = ("sample", "fit", "fit, several draws", "Step")
"""One call of the network, or a step: it moves buffers as it would in torch."""


@pytest.mark.feature("An error that a network raises surfaces from its first run")
@pytest.mark.parametrize("error", [ValueError, KeyError, RuntimeError, TypeError])
@pytest.mark.parametrize("name", CALLS)
def test_an_error_of_the_network_surfaces_from_its_first_run(name: str, error: type[Exception]) -> None:
    model = dubio.Bayes().convert(Raising(error("the network's own")))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(error, match="the network's own"):
        CALLS[name](model)
    assert model.calls == 1
    if name not in MOVING:
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert STATE.own.current is None


@pytest.mark.parametrize("executor", ["auto", "loop"])
def test_a_network_that_raises_in_its_second_draw_only_says_so(executor: Any) -> None:
    model = dubio.Bayes().convert(Raising(ValueError("the second draw"), first=2)).eval()
    count = model.count.clone()
    with pytest.raises(ValueError, match="the second draw"):
        dubio.sample(model, X, 5, executor=executor)
    assert model.calls == 2
    assert executor == "loop" or torch.equal(model.count, count)  # a loop that is asked for is not probed
    assert not model.training


def test_an_error_of_torch_under_the_map_gets_one_try_in_a_loop() -> None:
    class Reading(nn.Module):
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            Reading.calls += 1
            out: Tensor = self.layer(x)
            return out / (1.0 + out.sum().abs().item())

    model = dubio.Bayes().convert(Reading())
    with pytest.warns(dubio.ExecutorWarning, match="calling"):
        draws = dubio.sample(model, X, 5)
    assert draws.shape == (5, 8, 3)
    assert Reading.calls == 2 + 1 + 5  # either form of the map, a trial in a loop, and the draws


@pytest.mark.parametrize("name", [name for name in CALLS if "fit" not in name and "Step" not in name])
def test_an_interrupt_leaves_nothing_behind(name: str) -> None:
    model = dubio.Bayes().convert(Raising(KeyboardInterrupt()))
    hooks = [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in model.modules()]
    settings = STATE.own.settings
    with pytest.raises(KeyboardInterrupt):
        CALLS[name](model)
    assert model.training
    assert name in MOVING or float(model.count) == 0.0
    assert hooks == [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in model.modules()]
    assert STATE.own.settings is settings
    assert STATE.own.current is None
    assert STATE.own.stream is None
    assert STATE.own.watch is None


def test_a_network_that_moves_its_buffers_in_eval_mode_keeps_them_in_place_while_it_predicts() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)
            out: Tensor = self.layer(x)
            return out

    model = dubio.Bayes().convert(Counting()).eval()
    for rows in (X, MANY):
        dubio.predict(model, rows, 5, seed=1)
        assert float(model.count) == 0.0


def test_the_generator_of_the_host_program_is_where_it_was() -> None:
    model = dubio.Bayes().convert(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)))
    state = torch.get_rng_state()
    for rows in (X, MANY):
        dubio.predict(model, rows, 5, seed=1)
        dubio.evaluate(model, (X, Y), num_samples=5, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
