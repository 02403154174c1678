"""Out of memory: the draws at a time are halved and the run goes on; where it cannot, the error gives advice."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio._engine import probe
from dubio._engine.memory import Footprint, is_out_of_memory
from dubio._engine.planner import plans, shrink_chunks
from networks import mlp

KIB, MIB = 2**10, 2**20
INPUTS = torch.randn(64, 20, generator=torch.Generator().manual_seed(1))


def network(estimator: str = "local", width: int = 100) -> nn.Module:
    return dubio.Bayes(estimator=estimator, init_std=0.1).convert(mlp(20, width, width, 5))


def train(model: nn.Module, num_samples: int) -> None:
    model.zero_grad()
    targets = torch.arange(len(INPUTS)) % 5
    dubio.ELBO(num_data=1000)(model, INPUTS, targets, num_samples=num_samples).total.backward()


class Scarce(Footprint):
    """A machine with little memory: raises as torch does where more would be alive at once."""

    def __init__(self, capacity: int, error: type[RuntimeError] = torch.OutOfMemoryError) -> None:
        super().__init__()
        self.capacity, self.error, self.times = capacity, error, 0

    def _count(self, tensor: Tensor, *details: Any) -> None:
        super()._count(tensor, *details)
        if self._alive > self.capacity:
            self.times += 1
            raise self.error("DefaultCPUAllocator: can't allocate memory")


@pytest.fixture(autouse=True, scope="module")
def _quick_collections() -> Iterator[None]:
    """Let collections pass over what other tests have left: every halving collects."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_running_out_of_memory_is_distinguished_from_other_errors(error: Exception, is_one: bool) -> None:
    assert is_out_of_memory(error) == is_one


def test_torch_itself_says_so() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    assert is_out_of_memory(raised.value)


@pytest.mark.feature("Out of memory halves the draws at a time, goes on, and changes no frozen draw")
@pytest.mark.parametrize(("executor", "error"), [("auto", torch.OutOfMemoryError), ("vmap", RuntimeError)])
def test_running_out_of_memory_halves_the_chunk_and_goes_on(executor: str, error: type[RuntimeError]) -> None:
    model = network()
    with torch.no_grad():
        free = dubio.sample(model, INPUTS, 32, seed=1, executor=executor)
        with Scarce(MIB, error) as scarce:
            result = dubio.sample(model, INPUTS, 32, seed=1, executor=executor)
            first = scarce.times
            again = dubio.sample(model, INPUTS, 32, seed=1, executor=executor)
    torch.testing.assert_close(result, free, rtol=0, atol=1e-6)
    torch.testing.assert_close(again, free, rtol=0, atol=1e-6)
    assert 1 < first == scarce.times  # what was learned is remembered
    plan = list(plans(model).values())[-1]
    assert plan.chunk == 32 // 2**first
    assert (
        dubio.describe(model)
        .executors[-1]
        .endswith(f"; halved {'twice' if first == 2 else f'{first} times'} after running out of memory")
    )


def test_a_requested_chunk_is_halved_as_well() -> None:
    model = network()
    with torch.no_grad(), Scarce(MIB):
        draws = dubio.sample(model, INPUTS, 32, seed=1, chunk=16)
        predictive = dubio.predict(model, INPUTS, 20, seed=1, estimator=None)
    assert len(draws) == 32
    assert predictive.num_samples == 20
    assert all(plan.chunk < 16 for plan in plans(model).values())


def test_a_network_for_whose_second_draw_there_is_no_memory_runs_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SLOW_GROUPS", ("cpu",))  # which is probed with two draws, as a GPU is
    model = network(width=400)
    plan = dubio.plan(network(width=400), INPUTS, 2)
    with torch.no_grad(), Scarce(plan.bytes_in_all - KIB):
        assert len(dubio.sample(model, INPUTS, 5)) == 5
    (plan,) = plans(model).values()
    assert "too much to try two at once" in plan.reason


@pytest.mark.parametrize("num_samples", [1, 8])
def test_when_nothing_smaller_is_left_the_error_says_what_helps(num_samples: int) -> None:
    model = network()
    wording = (
        r"cpu ran out of memory with one draw at 64 rows, and fewer draws at a time cannot be tried; give fewer rows "
        r"at a time \(batch_size\); it said: DefaultCPUAllocator"
    )
    with torch.no_grad(), Scarce(10 * KIB), pytest.raises(torch.OutOfMemoryError, match=wording):
        dubio.sample(model, INPUTS, num_samples)
    dubio.plan(model, INPUTS, 8)
    if num_samples > 1:
        with (
            torch.no_grad(),
            Scarce(10 * KIB),
            pytest.raises(torch.OutOfMemoryError, match="one draw at a time at 64 rows"),
        ):
            dubio.sample(model, INPUTS, num_samples)


@pytest.mark.parametrize("executor", ["auto", "vmap", "loop"])
def test_a_forward_with_gradients_that_runs_out_of_memory_is_computed_anew(executor: str) -> None:
    model = network()
    parameters = list(model.parameters())
    free = dubio.sample(model, INPUTS, 16, seed=1, executor=executor)
    expected = torch.autograd.grad(free.square().sum(), parameters)
    with Scarce(2 * MIB):
        draws = dubio.sample(model, INPUTS, 16, seed=1, executor=executor)
    torch.testing.assert_close(draws, free, rtol=0, atol=1e-6)
    result = torch.autograd.grad(draws.square().sum(), parameters)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    plan = list(plans(model).values())[-1]
    assert plan.recompute
    assert "recomputed in the backward pass; halved " in plan.reason


def test_chunks_that_were_done_before_memory_ran_out_keep_no_graph_either() -> None:
    model = network()
    with Scarce(2 * MIB) as scarce:
        draws = dubio.sample(model, INPUTS, 32, seed=1, chunk=8)
        assert scarce._alive < 3 * draws.nbytes
    assert scarce.times > 0


def test_a_step_whose_backward_ran_out_of_memory_can_be_done_again_with_smaller_chunks() -> None:
    model = network("weight")
    with Footprint() as free:
        train(model, 16)
    shrunk = 0
    with Scarce(free.peak // 3) as scarce:
        while True:
            try:
                train(model, 16)
                break
            except torch.OutOfMemoryError:
                pass
            assert shrink_chunks(model)
            shrunk += 1
    (plan,) = plans(model).values()
    assert scarce.times > 0
    assert plan.recompute
    assert plan.chunk < 16


def test_there_is_an_end_to_shrinking() -> None:
    model = network()
    assert not shrink_chunks(model)  # nothing planned
    dubio.sample(model, INPUTS, 8)
    with torch.no_grad():
        dubio.sample(model, INPUTS, 8)
    chunks = []
    while shrink_chunks(model):
        dubio.sample(model, INPUTS, 8)
        chunks.append(plans(model)["training mode, with gradients"].chunk)
    assert chunks == [4, 2, 1]
    assert plans(model)["training mode, without gradients"].chunk == 8


def test_other_errors_are_not_taken_for_a_want_of_memory() -> None:
    model = network()
    with pytest.raises(ValueError, match="20 features on its last axis"), dubio.memory_limit("1 MiB"):
        dubio.sample(model, INPUTS[:, :3], 8)
    assert plans(model) == {}


class Crowded(nn.Module):
    """Runs out of memory where more draws come together than there is room for."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room, self.times = room, 0

    def forward(self, x: Tensor) -> Tensor:
        draws = torch._C._functorch.get_unwrapped(x).shape[0] if torch._C._functorch.is_batchedtensor(x) else 1
        if draws > self.room:
            self.times += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return x


def normed(room: int) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 8), nn.BatchNorm1d(8), Crowded(room), nn.Linear(8, 3))
    return dubio.Bayes(init_std=0.1).convert(net)


@pytest.mark.parametrize("executor", ["auto", "vmap"])
@pytest.mark.parametrize("gradients", [False, True])
def test_what_ran_out_of_memory_has_moved_no_statistics(gradients: bool, executor: str) -> None:
    crowded, roomy = normed(4), normed(100)
    with torch.set_grad_enabled(gradients):
        dubio.sample(crowded, INPUTS, 16, seed=1, executor=executor)
        dubio.sample(roomy, INPUTS, 16, seed=1, executor="vmap", chunk=4)
    assert crowded[2].times >= 2
    assert int(crowded[1].num_batches_tracked) == 4
    torch.testing.assert_close(dict(crowded.named_buffers()), dict(roomy.named_buffers()))


def test_a_run_that_fails_for_good_has_moved_no_statistics() -> None:
    model = normed(100)
    with torch.no_grad():
        dubio.sample(model, INPUTS, 8)
        model[2].room = 0
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        with pytest.raises(torch.OutOfMemoryError, match="one draw at a time at 64 rows"):
            dubio.sample(model, INPUTS, 8)
    torch.testing.assert_close(dict(model.named_buffers()), before, rtol=0, atol=0)


def test_statistics_of_a_step_whose_backward_ran_out_of_memory_are_put_back() -> None:
    model = normed(100)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for _ in range(2):
        dubio.sample(model, INPUTS, 8).sum()  # and its backward pass fails
        assert int(model[1].num_batches_tracked) > 0
        assert shrink_chunks(model)
        torch.testing.assert_close(dict(model.named_buffers()), before, rtol=0, atol=0)
    dubio.sample(model, INPUTS, 8)
    assert int(model[1].num_batches_tracked) == 4


def test_plans_report_a_prediction_that_ran_out_of_memory_as_a_whole_and_as_not_requested() -> None:
    model = normed(3)
    dubio.predict(model, INPUTS, 20, seed=1, chunk=8)
    (plan,) = plans(model).values()
    assert (plan.num_samples, plan.chunk) == (20, 2)
    assert "as requested" not in plan.reason
    assert plan.reason.endswith("halved twice after running out of memory")


def test_fewer_rows_leave_room_for_more_draws() -> None:
    model = normed(4)
    with torch.no_grad():
        dubio.sample(model, INPUTS, 16)
        model[2].room = 100
        dubio.sample(model, INPUTS[:16], 16)
        (plan,) = plans(model).values()
        assert plan.chunk == 16
        dubio.sample(model, INPUTS, 16)
        (plan,) = plans(model).values()
        assert plan.chunk == 4
