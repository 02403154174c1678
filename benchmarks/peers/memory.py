"""Peak memory of a piece of work, from the building of its network to the end of its first runs.

On a GPU it is what torch's allocator counts. On a CPU operators report what they write, which compiled code does not:
there is no figure for it.
"""

from collections.abc import Callable

import torch

from dubio.sampling.planning import Footprint

MEBIBYTE = 2.0**20


def built_and_peak(
    build: Callable[[], Callable[[], object]], device: torch.device, is_compiled: bool
) -> tuple[Callable[[], object], float | None]:
    """The work and its peak in MiB; None where it cannot be counted. Two runs, five of what is compiled or captured."""
    runs = 5 if is_compiled else 2
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work = _run(build(), runs)
        torch.cuda.synchronize(device)
        return work, (torch.cuda.max_memory_allocated(device) - before) / MEBIBYTE
    if is_compiled:
        return _run(build(), runs), None
    with Footprint() as footprint:
        _run(build(), runs)
    return build(), footprint.peak / MEBIBYTE


def _run(work: Callable[[], object], times: int) -> Callable[[], object]:
    for _ in range(times):
        work()
    return work
