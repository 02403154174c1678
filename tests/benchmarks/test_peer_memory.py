"""Peak memory of what is measured beside other libraries: what counts, and how it grows with draws."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
MEBIBYTE = 2**20


@pytest.mark.feature("Peak memory of a training step grows at most linearly with the number of draws")
@pytest.mark.parametrize("estimator", ["local", "weight"])
def test_peak_memory_is_at_most_linear_in_draws(estimator: Any, cpu: torch.device) -> None:
    from peers.memory import built_and_peaks
    from peers.nets import Net
    from peers.ours import Ours

    net = Net("small", "mlp:32-128-128-10", (32,), 10, 64, 1_000, {"cpu": 1})
    ours = Ours(estimator, fast=False)
    peaks = {
        draws: built_and_peaks(lambda draws=draws: ours.training_step(net, draws, cpu), cpu, is_compiled=False)[1].steps
        for draws in (16, 32, 64)
    }
    assert peaks[32] > peaks[16]
    assert peaks[64] - peaks[32] <= 1.05 * 2 * (peaks[32] - peaks[16])


def test_recorded_peaks_of_a_cpu_are_at_most_linear_in_draws() -> None:
    record = json.loads((RESULTS / "peers_cpu.json").read_text())["records"]["peers"]
    peaks: dict[tuple[str, str], dict[int, float]] = {}
    for row in record["steps"]:
        if row.get("peak_mib") is not None:
            peaks.setdefault((row["net"], row["contestant"]), {})[row["num_samples"]] = row["peak_mib"]
    several = {who: own for who, own in peaks.items() if len(own) > 1}
    assert any("dubio" in contestant for _, contestant in several)
    for who, own in several.items():
        for fewer, more in zip(sorted(own), sorted(own)[1:], strict=False):
            assert own[more] / more <= 1.05 * own[fewer] / fewer, who


class Allocator:
    """Stands in for that of a GPU: what is allocated, and the most since it was last asked to forget."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.allocated = self.peak = 7 * MEBIBYTE  # another network's
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: self.allocated)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: self.forget())

    def forget(self) -> None:
        self.peak = self.allocated

    def take(self, kept: int = 0, for_a_while: int = 0) -> None:
        self.allocated += kept * MEBIBYTE
        self.peak = max(self.peak, self.allocated + for_a_while * MEBIBYTE)


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Allocator:
    from peers import memory

    monkeypatch.setattr(memory, "take_workspaces", lambda device: None)
    return Allocator(monkeypatch)


def building(allocator: Allocator, *for_a_while: int) -> Callable[[], Callable[[], None]]:
    """A network of 100 MiB, and what each of its runs takes for a while; a further one would fail."""
    runs = iter(for_a_while)

    def build() -> Callable[[], None]:
        allocator.take(kept=100)
        return lambda: allocator.take(for_a_while=next(runs))

    return build


def test_what_a_compiler_takes_is_told_apart_from_the_steps_that_it_made(allocator: Allocator) -> None:
    from peers.memory import Peaks, built_and_peaks

    compiling, warming_up, recording, replaying = 500, 20, 50, 0
    build = building(allocator, compiling, warming_up, warming_up, recording, replaying)
    _, peaks = built_and_peaks(build, torch.device("cuda"), is_compiled=True)
    assert peaks == Peaks(steps=150.0, building=600.0)


def test_of_eager_steps_all_counts(allocator: Allocator) -> None:
    from peers.memory import Peaks, built_and_peaks

    _, peaks = built_and_peaks(building(allocator, 60, 30), torch.device("cuda"), is_compiled=False)
    assert peaks == Peaks(steps=160.0, building=None)


def test_runs_before_a_recording_are_those_of_a_step() -> None:
    """The next run of a captured piece of work is the one that is recorded."""
    from peers.memory import RUNS_BEFORE_RECORDING

    from dubio._engine.cuda_graphs import Captured

    captured = Captured(lambda: None, torch.device("cuda"))
    assert captured._warm_ups == RUNS_BEFORE_RECORDING
