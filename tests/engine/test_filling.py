"""Noise that several threads draw: the same numbers, no thread left running, and the modes of the caller."""

import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import dubio
from dubio._engine import noise
from dubio._engine.noise import in_threads, threads_for
from networks import mlp

DTYPES = [torch.float32, torch.float64, torch.bfloat16]


@pytest.fixture(autouse=True)
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three threads for torch, worth starting for any number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    monkeypatch.setattr(noise, "WORTH_A_THREAD", 1)
    monkeypatch.setattr(noise, "WORTH_A_TURN", 1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def at_work(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads that draw, each once for a generator that it seeds."""
    threads: list[threading.Thread] = []
    whole = noise._fill

    def spy(*values: Any) -> None:
        threads.append(threading.current_thread())
        whole(*values)

    monkeypatch.setattr(noise, "_fill", spy)
    return threads


def drawn(
    shape: Sequence[int] = (40, 6), draws: int = 5, kind: str = "normal", dtype: torch.dtype = torch.float32, **how: Any
) -> Tensor:
    options = (how.get("antithetic", False), how.get("by_row", False), how.get("first_row", 0))
    where = torch.device("cpu")
    return noise.seeded_noise(torch.tensor(2), torch.arange(draws), 1, 0, list(shape), kind, dtype, where, *options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["normal", "uniform", "sign"])
@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize("antithetic", [True, False])
def test_threads_change_no_number(
    dtype: torch.dtype, kind: str, by_row: bool, antithetic: bool, at_work: list[threading.Thread]
) -> None:
    how: dict[str, Any] = {"kind": kind, "dtype": dtype, "by_row": by_row, "antithetic": antithetic, "first_row": 7}
    result = drawn(**how)
    assert len(set(at_work)) == 3
    at_work.clear()
    torch.set_num_threads(1)
    torch.testing.assert_close(result, drawn(**how), rtol=0.0, atol=0.0)
    assert set(at_work) == {threading.current_thread()}


def test_threads_are_started_where_each_has_enough_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "WORTH_A_THREAD", 100)
    monkeypatch.setattr(noise, "WORTH_A_TURN", 10)
    assert [threads_for(torch.empty(size), 9, 10) for size in (0, 199, 200, 10_000)] == [1, 1, 2, 3]
    assert threads_for(torch.empty(10_000), 2, 10) == 2
    assert threads_for(torch.empty(10_000), 9, 9) == 1
    assert threads_for(torch.empty(10_000, device="meta"), 9, 10) == 1


def test_blocks_of_few_numbers_are_drawn_in_one_thread(
    monkeypatch: pytest.MonkeyPatch, at_work: list[threading.Thread]
) -> None:
    monkeypatch.setattr(noise, "WORTH_A_TURN", 6 * noise.ROWS + 1)
    drawn(by_row=True)
    assert set(at_work) == {threading.current_thread()}
    drawn()
    assert len(set(at_work)) == 3


def test_no_thread_is_left_behind() -> None:
    before = threading.active_count()
    drawn()
    assert threading.active_count() == before


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_error_in_any_thread_is_raised(place: int) -> None:
    def work(share: Sequence[int]) -> None:
        if place in share:
            raise ValueError(f"part {place}")

    with pytest.raises(ValueError, match=f"part {place}"):
        in_threads(work, range(6), 3)


def test_where_no_thread_is_to_be_had_one_does_all_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = drawn()

    def refuse(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    torch.testing.assert_close(drawn(), expected, rtol=0.0, atol=0.0)


@pytest.mark.parametrize("executor", ["loop", "vmap"])
def test_predictions_in_inference_mode(executor: Any, at_work: list[threading.Thread]) -> None:
    model, inputs = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 3)), torch.randn(6, 5)
    expected = dubio.predict(model, inputs, 7, seed=1, executor=executor).samples
    at_work.clear()
    with torch.inference_mode():
        result = dubio.predict(model, inputs, 7, seed=1, executor=executor).samples
    assert len(set(at_work)) > 1
    assert torch.equal(result, expected)


def test_several_predictions_at_once() -> None:
    model, inputs = dubio.Bayes(init_std=0.3).convert(mlp(5, 8, 3)), torch.randn(6, 5)

    def predicted(seed: int) -> Tensor:
        return dubio.predict(model, inputs, 7, seed=seed, executor="loop").samples

    expected = [predicted(seed) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(predicted, range(8)))
    assert all(torch.equal(one, other) for one, other in zip(results, expected, strict=True))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="needs processes that fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_draws_as_well() -> None:
    expected = drawn().sum().item()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=lambda: results.put(drawn().sum().item()))
    child.start()
    child.join(60)
    alive = child.is_alive()
    if alive:
        child.kill()
    assert not alive
    assert results.get() == expected
