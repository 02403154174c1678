"""The engine probes a network once, without side effects, and caches the result."""

import gc

import pytest
import torch
from torch import nn

import dubio
from dubio._engine import planner, probe
from dubio._engine.planner import PlanRequest, choose
from dubio._engine.probe import ProbeResult
from networks import InPlace, Residual, mlp


def test_trying_changes_neither_statistics_nor_generators() -> None:
    model = dubio.Bayes(init_std=0.3).convert(Residual()).train()
    inputs = torch.randn(6, 3, 8, 8)
    state = {name: buffer.clone() for name, buffer in model.named_buffers()}
    generator = torch.get_rng_state()
    call = dubio._engine.draws.Call(model, (inputs,), {}, dubio._engine.Settings())
    planner.plan_for(call, 2)
    assert torch.equal(generator, torch.get_rng_state())
    torch.testing.assert_close(dict(model.named_buffers()), state, rtol=0, atol=0)


def test_a_head_on_a_backbone_is_mapped_and_large_drawn_weights_are_looped_on_a_cpu() -> None:
    net = nn.Sequential(nn.Linear(400, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.ReLU(), nn.Linear(1500, 10))
    inputs = torch.randn(64, 400)
    plans = {}
    for where in ("4", None):
        model = dubio.Bayes(estimator="weight", where=where).convert(net)
        with torch.no_grad():
            dubio.sample(model, inputs, 2)
        (plans[where],) = dubio._engine.plans(model).values()
    assert plans["4"].executor == "vmap"
    assert plans["4"].bytes_per_draw < 1e6
    assert plans[None].executor == "loop"
    weights = 4 * (400 * 1500 + 1500 * 1500 + 15000)
    assert weights < plans[None].bytes_per_draw < 5 * weights


def test_local_reparameterisation_is_mapped() -> None:
    model = dubio.Bayes(estimator="local").convert(mlp(400, 1500, 1500, 10))
    dubio.sample(model, torch.randn(64, 400), 2)
    (plan,) = dubio._engine.plans(model).values()
    assert plan.executor == "vmap"


def test_networks_that_add_noise_in_place_are_mapped_with_their_inputs() -> None:
    model = dubio.Bayes().convert(InPlace())
    inputs = torch.randn(6, 5)
    before = inputs.clone()
    dubio.sample(model, inputs, 3)
    (plan,) = dubio._engine.plans(model).values()
    assert plan.executor == "vmap inputs"
    assert torch.equal(inputs, before)


@pytest.mark.slow
def test_chunks_are_cut_by_memory() -> None:
    """Peak of predicting grows with the chunk, not with the number of draws."""
    model = dubio.Bayes(estimator="local").convert(mlp(50, 500, 500, 10))
    inputs = torch.randn(200, 50)
    seen = []
    model[2].register_forward_hook(lambda module, args, output: seen.append(1))
    with torch.no_grad():
        dubio.sample(model, inputs, 4)
        seen.clear()
        dubio.sample(model, inputs, 1000)
        (plan,) = dubio._engine.plans(model).values()
    assert len(seen) == -(-1000 // plan.chunk) > 1
    assert plan.chunk * plan.bytes_per_draw <= planner.CPU_BUDGET


def test_twice_the_inputs_halve_the_chunk() -> None:
    result = ProbeResult("vmap", "", lines=((0, 2**20),), bytes_per_output=0, size=100, backward=False)

    def chunk(size: int) -> int:
        return choose(result, PlanRequest(10**6, size, 1, None, limit=planner.CPU_BUDGET, strict=False)).chunk

    assert chunk(100) == 256
    assert chunk(200) == 128
    assert chunk(10) == 256
    assert chunk(10**9) == 1


@pytest.fixture
def slow_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU that treats convolutions with groups as a GPU does."""
    monkeypatch.setattr(probe, "SLOW_GROUPS", ("cpu",))
    monkeypatch.setattr(planner, "GROUPED_TO_LOOP", 2**10)


def convolutions() -> nn.Sequential:
    layers = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(4 * 16, 3))


FEW, MANY = torch.randn(2, 1, 8, 8), torch.randn(64, 1, 8, 8)


def executor_for(model: nn.Module, inputs: torch.Tensor, gradients: bool = False) -> str:
    return dubio.plan(model, inputs, planner.FEW_DRAWS, gradients=gradients).executor


def test_drawn_filters_are_looped_where_rows_are_many_and_groups_are_slow(slow_groups: None) -> None:
    model = dubio.Bayes(estimator="weight").convert(convolutions()).eval()
    executors = [executor_for(model, inputs) for inputs in (FEW, MANY, FEW)]
    assert [*executors, executor_for(model, MANY, gradients=True)] == ["vmap", "loop", "vmap", "vmap"]
    assert "convolved faster draw by draw" in dubio.plan(model, MANY, 5).reason
    with torch.no_grad():
        looped, mapped = (dubio.sample(model, MANY, 5, seed=3, executor=way) for way in ("auto", "vmap"))
        torch.testing.assert_close(looped, mapped)
        results = [dubio.predict(model, MANY, 5, seed=3, executor=way).probs for way in ("auto", "vmap")]
    torch.testing.assert_close(*results)


def test_how_filters_run_depends_on_the_rows_at_hand_and_not_on_those_before(slow_groups: None) -> None:
    model = dubio.Bayes(estimator="weight").convert(convolutions()).eval()
    calls: list[int] = []
    model[1].register_forward_hook(lambda module, args, output: calls.append(1))
    numbers = []
    with torch.no_grad():
        for inputs in (MANY, MANY, FEW, MANY):
            dubio.sample(model, inputs, 5, chunk=5)
            numbers.append(len(calls))
            calls.clear()
    assert numbers[1:] == [5, 1, 5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_convolutions_write_is_counted_in_numbers(dtype: torch.dtype, slow_groups: None) -> None:
    model = dubio.Bayes(estimator="weight").convert(convolutions()).eval().to(dtype)
    for rows, executor in ((15, "vmap"), (16, "loop")):  # 64 numbers for an image, by the second convolution
        assert executor_for(model, torch.randn(rows, 1, 8, 8, dtype=dtype)) == executor


def test_filters_stay_mapped_where_draws_share_them_or_a_forward_changes_the_network(slow_groups: None) -> None:
    bayes = dubio.Bayes(estimator="weight")
    backbone = nn.Sequential(*(nn.Conv2d(1 if i == 0 else 4, 4, 3, padding=1) for i in range(3)))
    net = nn.Sequential(backbone, nn.Conv2d(4, 3, 1), nn.Flatten())
    head = dubio.Bayes(where="1", estimator="weight").convert(net).eval()
    assert executor_for(head, MANY) == "vmap"  # its filters meet inputs that are the same for all draws
    dropped = dubio.Dropout().convert(nn.Sequential(nn.Dropout(0.5), convolutions())).eval()
    assert executor_for(dropped, MANY) == "vmap"  # draws are further rows
    normed = bayes.convert(nn.Sequential(convolutions()[:3], nn.BatchNorm2d(4), nn.Flatten()))
    assert [executor_for(normed.eval(), MANY), executor_for(normed.train(), MANY)] == ["loop", "vmap"]
    dense = bayes.convert(mlp(64, 100, 10)).eval()
    assert executor_for(dense, torch.randn(512, 64)) == "vmap"


def test_few_draws_are_looped_for_more_rows(slow_groups: None) -> None:
    model = dubio.Bayes(estimator="weight").convert(convolutions()).eval()
    inputs = torch.randn(20, 1, 8, 8)  # 20 * 64 numbers of the second convolution, of which 1,024 are many
    executors = [dubio.plan(model, inputs, draws).executor for draws in (planner.FEW_DRAWS, planner.FEW_DRAWS - 1)]
    assert executors == ["loop", "vmap"]
    assert dubio.plan(model, inputs.repeat(2, 1, 1, 1), 2).executor == "loop"


def test_filters_stay_mapped_where_groups_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "GROUPED_TO_LOOP", 2**10)
    assert executor_for(dubio.Bayes(estimator="weight").convert(convolutions()).eval(), MANY) == "vmap"


def test_plans_go_with_their_network() -> None:
    model = dubio.Bayes().convert(mlp(5, 7, 4))
    dubio.sample(model, torch.randn(6, 5), 3)
    before = len(planner._MEMORIES)
    del model
    gc.collect()
    assert len(planner._MEMORIES) < before


@pytest.mark.parametrize("grad", [True, False])
def test_a_map_that_fails_later_than_in_the_trial_falls_back_and_says_so(grad: bool) -> None:
    class Moody(nn.Module):
        """Refuses to be mapped over three draws, but not over one or two."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 4)
            self.refuse = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            outputs = self.layer(x)
            if self.refuse and dubio._engine.current_pass().mapped:
                outputs.sum().item()
            return outputs

    model = dubio.Bayes().convert(Moody())
    inputs = torch.randn(6, 5)
    with torch.set_grad_enabled(grad):
        dubio.sample(model, inputs, 3)
        model.refuse = True
        with pytest.warns(dubio.ExecutorWarning, match=r"cannot be mapped: vmap: It looks like you're calling \.item"):
            draws = dubio.sample(model, inputs, 3, seed=1)
        torch.testing.assert_close(draws, dubio.sample(model, inputs, 3, seed=1, executor="loop"))
        with pytest.raises(RuntimeError, match=r"calling \.item"):
            dubio.sample(model, inputs, 3, executor="vmap")


def test_a_network_is_tried_again_once_it_is_another() -> None:
    """A change of modes, gradients, dtypes or layers needs a new probe; an unchanged network does not."""
    model = dubio.Bayes().convert(nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 4)))
    inputs, calls = torch.randn(6, 5), list[int]()
    model.register_forward_hook(lambda module, args, output: calls.append(1))

    def trials(inputs: torch.Tensor = inputs) -> int:
        calls.clear()
        dubio.sample(model, inputs, 3, chunk=3)
        return len(calls) - 1

    assert [trials(), trials()] == [1, 0]
    model[1].eval()
    assert [trials(), trials()] == [1, 0]
    model[1].train()
    assert trials() == 0  # cached from before
    model[2].requires_grad_(False)
    assert [trials(), trials()] == [1, 0]
    model[1] = nn.Identity()
    assert [trials(), trials()] == [1, 0]
    model.double()
    assert [trials(inputs.double()), trials(inputs.double())] == [1, 0]
