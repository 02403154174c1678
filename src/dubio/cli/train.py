"""``dubio train``: one process, or several under ``torchrun``, of which the first alone writes and tells.

Which of several processes tells what went wrong: one for all, or each that fails alone for itself.

Processes agree by the store of their group, which answers whatever the processes were doing with each other when one of
them failed. None waits for long: where others do not come, a process tells what it knows, so that nothing is ever told
by nobody. Held by ``tests/end_to_end/test_train_with_processes.py``.
"""

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dubio._engine import memory_limit
from dubio.cli.errors import REFUSALS, answer, leave_quietly, say
from dubio.cli.evaluate import headline
from dubio.cli.fields import make_method
from dubio.cli.runs import (
    CONFIG,
    TrainConfig,
    check_resumable,
    find_run,
    load_splits,
    num_processes_of,
    parse_likelihood,
    parse_resize,
    read_encoder,
    read_order,
    train_order,
)
from dubio.data import Splits
from dubio.evaluation import evaluate, failures
from dubio.nn import num_members
from dubio.training import FitResult, Interrupted, LostProcessError, Processes, is_raised_by_all


def train_run(
    name: str,
    runs: Path,
    fields: dict[str, str | bool],
    given: dict[str, Any],
    resume: bool,
    device: str,
    quiet: bool = False,
) -> None:
    """Train the network that is asked for, or go on, and tell how it does on the test part."""
    folder = runs / name
    with Processes.here(torch.device(device)).joined() as processes, told_once(processes):
        order = processes.by_writer(lambda: _order(name, runs, fields, given, resume, processes.count))
        encoder = read_encoder(folder if folder.is_dir() else find_run(name, runs)) if resume else None
        splits = processes.together(lambda: load_splits(order, encoder))
        train = splits.train
        if processes.is_writer and not quiet and not resume and train is not None and train.encoder is not None:
            say(train.encoder.summary())
        again = f"; go on with: {_resuming(name, runs, processes.count)}"
        try:
            with nullcontext() if order.memory is None else memory_limit(order.memory):
                trained, run = train_order(
                    order, splits, folder, resume, str(processes.device), progress=not quiet, processes=processes
                )
        except Interrupted:
            raise Interrupted(f"{folder} is saved{again}") from None
        except LostProcessError as error:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends the others; this one is about to tell why
            raise LostProcessError(f"{error}{again if (folder / CONFIG).exists() else ''}") from None
    if processes.is_writer:  # the others have left: nobody waits while the test part is judged
        _tell(folder, trained, run, splits)


def _order(
    name: str, runs: Path, fields: dict[str, str | bool], given: dict[str, Any], resume: bool, num_processes: int
) -> TrainConfig:
    """What is asked for, and for a run that is resumed what it was asked for before."""
    folder = runs / name
    if resume:
        known = folder if folder.is_dir() else find_run(name, runs)
        check_resumable(known)
        order = read_order(known, fields, **given)
        before = num_processes_of(known)
        if before is not None and before != num_processes:
            raise ValueError(
                f"cannot resume with another configuration: num_processes was {before}, is {num_processes}; go on "
                f"with: {_resuming(name, runs, before)}"
            )
    elif (folder / CONFIG).exists():
        raise FileExistsError(f"{folder} holds a run already; add --resume to go on with it, or choose another name")
    else:
        order = TrainConfig(fields=fields, **given)
    parse_resize(order.resize)
    parse_likelihood(order.likelihood)
    make_method(order.method, order.fields)  # these refuse bad options before any data are read
    return order


def _resuming(name: str, runs: Path, num_processes: int) -> str:
    """The command that goes on with a run by so many processes, on as many machines as now."""
    num_nodes = int(os.environ.get("GROUP_WORLD_SIZE", 1))
    if num_nodes > 1 and num_processes % num_nodes == 0:
        launcher = ["torchrun", "--nnodes", str(num_nodes), "--nproc-per-node", str(num_processes // num_nodes), "-m"]
    else:
        launcher = ["torchrun", "--nproc-per-node", str(num_processes), "-m"] if num_processes > 1 else []
    where = [] if runs == Path("runs") else ["--runs", str(runs)]
    return shlex.join([*launcher, "dubio", "train", name, "--resume", *where])


def _tell(folder: Path, trained: nn.Module, run: FitResult, splits: Splits) -> None:
    say(f"{folder}: best epoch {run.best_epoch} of {len(run.history)}, {run.seconds:.1f} s")
    if splits.test is not None:
        found = evaluate(trained, splits.test, num_resamples=0, double=False)
        asked = f"{found.num_samples} {'members' if num_members(trained) else 'draws'}"
        say(f"test {headline(found)}  ({len(splits.test)} examples, {asked})")
        for line in failures(found, folder.name):
            say(line)


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
            _tell_error(error, processes)
            leave_quietly(error)
        raise


def _tell_error(error: BaseException, processes: Processes) -> None:
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
