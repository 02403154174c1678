"""Which of several processes tells what went wrong: one for all, or each that fails alone for itself.

Processes agree by the store of their group, which answers whatever the processes were doing with each other when one of
them failed. None waits for long: where others do not come, a process tells what it knows, so that nothing is ever told
by nobody. Held by ``tests/end_to_end/test_train_with_processes.py``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from dubio.cli.answers import REFUSALS, answer, leave_quietly
from dubio.training import Interrupted, LostProcessError, Processes, is_raised_by_all

__all__ = ["told_once"]

PATIENCE = timedelta(seconds=5)
"""How long processes wait for each other before they tell something, or leave."""


@contextmanager
def told_once(processes: Processes) -> Iterator[None]:
    """What all processes raise is told by the first; the others leave after it, quietly and with the same exit code.

    What some raise alone each of them tells with its number; that another is lost is told by whoever notices first.
    """
    try:
        yield
    except (*REFUSALS, Interrupted, LostProcessError) as error:
        if processes.count > 1 and not isinstance(error, BrokenPipeError):
            _tell(error, processes)
            leave_quietly(error)
        raise


def _tell(error: BaseException, processes: Processes) -> None:
    """Tell it, or see that another process does."""
    store, kind = dist.distributed_c10d._get_default_store(), type(error).__name__
    if isinstance(error, LostProcessError):
        if _is_first(store, kind):
            answer(error)
        return
    by_all = isinstance(error, Interrupted) or is_raised_by_all(error) or _all_come(store, f"{kind} raised", processes)
    if by_all and not processes.is_writer and _all_come(store, f"{kind} told", processes):
        return
    answer(error, "" if by_all else f"process {processes.rank}: ")
    if by_all:
        _all_come(store, f"{kind} told", processes)


def _all_come(store: Any, place: str, processes: Processes) -> bool:
    """Say that this process has come so far; whether all others do so in time."""
    try:
        store.set(f"{place} by {processes.rank}", "")
        store.wait([f"{place} by {rank}" for rank in range(processes.count)], PATIENCE)
    except RuntimeError:
        return False
    return True


def _is_first(store: Any, kind: str) -> bool:
    """Whether no other process has met an error of this kind; yes where nobody can be asked."""
    try:
        return bool(store.add(kind, 1) == 1)
    except RuntimeError:
        return True
