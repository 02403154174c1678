"""Peak memory of a piece of work, beside what was there before its network was built.

On a GPU it is what torch's allocator counts. What is compiled or captured has two peaks: that of building it, in which
the compiler tries kernels, and that of its steps. A captured step takes its memory while it is recorded, which a replay
uses again without asking: its steps count from there on. What cuBLAS keeps for each stream and thread is allocated
before, so that it is in nobody's peak. On a CPU operators report what they write, which compiled code does not: there
is no figure for it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch

from dubio._engine.cuda_graphs import WARM_UPS as RUNS_BEFORE_RECORDING
from dubio._engine.memory import Footprint

MEBIBYTE = 2.0**20
RUNS = 2
"""What is looked at: of a captured step the one that is recorded, and a replay."""
STREAMS = 32
"""How many streams torch gives out in turn."""


@dataclass(frozen=True)
class Peaks:
    """MiB of the steps, and of building them where that is told apart; None where they cannot be counted."""

    steps: float | None
    building: float | None = None


def built_and_peaks(
    build: Callable[[], Callable[[], object]], device: torch.device, is_compiled: bool
) -> tuple[Callable[[], object], Peaks]:
    """The work and its peaks, after ``RUNS`` runs, and those before a recording where it is compiled or captured."""
    building = RUNS_BEFORE_RECORDING if is_compiled else 0
    if device.type == "cuda":
        return _on_gpu(build, device, building)
    if is_compiled:
        return _run(build(), building + RUNS), Peaks(None)
    with Footprint() as footprint:
        _run(build(), RUNS)
    return build(), Peaks(footprint.peak / MEBIBYTE)


def _on_gpu(
    build: Callable[[], Callable[[], object]], device: torch.device, building: int
) -> tuple[Callable[[], object], Peaks]:
    take_workspaces(device)
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)

    def peak() -> float:
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / MEBIBYTE

    torch.cuda.reset_peak_memory_stats(device)
    work = _run(build(), building)
    to_build = peak() if building else None
    if building:
        torch.cuda.reset_peak_memory_stats(device)
    _run(work, RUNS)
    return work, Peaks(peak(), to_build)


@cache
def take_workspaces(device: torch.device) -> None:
    """A step of a small layer on every stream, once in a process: what cuBLAS keeps for them is allocated here."""
    for stream in (torch.cuda.current_stream(device), *(torch.cuda.Stream(device) for _ in range(STREAMS))):
        with torch.cuda.stream(stream):
            torch.nn.Linear(64, 64, device=device)(torch.ones(64, 64, device=device)).sum().backward()
    torch.cuda.synchronize(device)


def _run(work: Callable[[], object], times: int) -> Callable[[], object]:
    for _ in range(times):
        work()
    return work
