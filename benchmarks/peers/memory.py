"""Peak memory of a piece of work, from the building of its network to the end of its second run.

On a GPU it is what torch's allocator counts. On a CPU operators report what they write, which compiled code does not:
there is no figure for it.
"""

from collections.abc import Callable

import torch

from dubio.sampling.planning import Footprint

MEBIBYTE = 2.0**20


def built_and_peak(
    build: Callable[[], Callable[[], object]], device: torch.device, counted: bool
) -> tuple[Callable[[], object], float | None]:
    """The work, run twice, and its peak in MiB; None where it is not counted."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        work = _run_twice(build())
        torch.cuda.synchronize(device)
        return work, (torch.cuda.max_memory_allocated(device) - before) / MEBIBYTE
    if not counted:
        return _run_twice(build()), None
    with Footprint() as footprint:
        _run_twice(build())
    return build(), footprint.peak / MEBIBYTE


def _run_twice(work: Callable[[], object]) -> Callable[[], object]:
    work()
    work()
    return work
