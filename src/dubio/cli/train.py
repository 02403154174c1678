"""``dubio train``: one process, or several under ``torchrun``, of which only the first writes files and prints results.

An error that all processes raise is printed once, by the first; an error of some processes is printed by each of them.
The processes agree through the store of their group, which works whatever they were doing when one of them failed. None
waits for long: a process that does not hear from the others prints its own error, so that every error is printed at
least once (``tests/end_to_end/test_train_with_processes.py``).
"""

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dubio._engine import memory_limit
from dubio.cli import runs as run_files
from dubio.cli.errors import REFUSALS, mark_as_printed, print_error, say
from dubio.cli.evaluate import headline
from dubio.cli.fields import make_method
from dubio.evaluation import evaluate, failures
from dubio.nn import num_members
from dubio.training import Interrupted, LostProcessError, Processes, is_raised_by_all

PATIENCE = timedelta(seconds=5)
"""How long processes wait for each other before they print an error, or leave."""


def train_run(
    name: str,
    runs: Path,
    fields: dict[str, str | bool],
    given: dict[str, Any],
    resume: bool,
    device: str,
    quiet: bool = False,
) -> None:
    """Train a network from the given options, or resume a run, and evaluate it on the test part."""
    folder = runs / name
    with Processes.here(torch.device(device)).joined() as processes, printed_once(processes):
        config = processes.by_writer(lambda: _config(name, runs, fields, given, resume, processes.count))
        encoder = (
            run_files.read_encoder(folder if folder.is_dir() else run_files.find_run(name, runs)) if resume else None
        )
        splits = processes.together(lambda: run_files.load_splits(config, encoder))
        train = splits.train
        if processes.is_writer and not quiet and not resume and train is not None and train.encoder is not None:
            say(train.encoder.summary())
        hint = f"; go on with: {_resume_command(name, runs, processes.count)}"
        try:
            with nullcontext() if config.memory is None else memory_limit(config.memory):
                model, result = run_files.train_network(
                    config, splits, folder, resume, str(processes.device), progress=not quiet, processes=processes
                )
        except Interrupted:
            raise Interrupted(f"{folder} is saved{hint}") from None
        except LostProcessError as error:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends the others; this one prints the reason
            raise LostProcessError(f"{error}{hint if (folder / run_files.CONFIG).exists() else ''}") from None
    if not processes.is_writer:  # the others need not wait for the evaluation
        return
    say(f"{folder}: best epoch {result.best_epoch} of {len(result.history)}, {result.seconds:.1f} s")
    if splits.test is not None:
        evaluation = evaluate(model, splits.test, num_resamples=0, double=False)
        draws = f"{evaluation.num_samples} {'members' if num_members(model) else 'draws'}"
        say(f"test {headline(evaluation)}  ({len(splits.test)} examples, {draws})")
        for line in failures(evaluation, folder.name):
            say(line)


@contextmanager
def printed_once(processes: Processes) -> Iterator[None]:
    """Print an error that all processes raise once; the others leave after it with the same exit code.

    An error of some processes is printed by each of them with its rank; the loss of a process by the first that
    notices it.
    """
    try:
        yield
    except (*REFUSALS, Interrupted, LostProcessError) as error:
        if processes.count > 1 and not isinstance(error, BrokenPipeError):
            _print_or_leave(error, processes)
            mark_as_printed(error)
        raise


def _config(
    name: str, runs: Path, fields: dict[str, str | bool], given: dict[str, Any], resume: bool, num_processes: int
) -> run_files.TrainConfig:
    """The configuration from the given options; that of a resumed run with the given options changed."""
    folder = runs / name
    if resume:
        stored = folder if folder.is_dir() else run_files.find_run(name, runs)
        run_files.check_resumable(stored)
        config = run_files.read_config(stored, fields, **given)
        before = run_files.num_processes_of(stored)
        if before is not None and before != num_processes:
            raise ValueError(
                f"cannot resume with another configuration: num_processes was {before}, is {num_processes}; go on "
                f"with: {_resume_command(name, runs, before)}"
            )
    elif (folder / run_files.CONFIG).exists():
        raise FileExistsError(f"{folder} holds a run already; add --resume to go on with it, or choose another name")
    else:
        config = run_files.TrainConfig(fields=fields, **given)
    # These raise errors for bad options before any data are read.
    run_files.parse_resize(config.resize)
    run_files.parse_likelihood(config.likelihood)
    make_method(config.method, config.fields)
    return config


def _resume_command(name: str, runs: Path, num_processes: int) -> str:
    """The command that resumes a run with so many processes, on as many machines as now."""
    num_nodes = int(os.environ.get("GROUP_WORLD_SIZE", 1))
    words = ["dubio", "train", name, "--resume", *([] if runs == Path("runs") else ["--runs", str(runs)])]
    if num_nodes > 1 and num_processes % num_nodes == 0:
        per_node = str(num_processes // num_nodes)
        words = ["torchrun", "--nnodes", str(num_nodes), "--nproc-per-node", per_node, "-m", *words]
    elif num_processes > 1:
        words = ["torchrun", "--nproc-per-node", str(num_processes), "-m", *words]
    return shlex.join(words)


def _print_or_leave(error: BaseException, processes: Processes) -> None:
    """Print an error, or see that another process prints it."""
    store, kind = dist.distributed_c10d._get_default_store(), type(error).__name__
    if isinstance(error, LostProcessError):
        is_first = True  # also where the store is gone
        with suppress(RuntimeError):
            is_first = store.add(kind, 1) == 1
        if is_first:
            print_error(error)
        return
    by_all = isinstance(error, Interrupted) or is_raised_by_all(error) or _all_come(store, f"{kind} raised", processes)
    if by_all and not processes.is_writer and _all_come(store, f"{kind} printed", processes):
        return
    print_error(error, "" if by_all else f"process {processes.rank}: ")
    if by_all:
        _all_come(store, f"{kind} printed", processes)


def _all_come(store: Any, place: str, processes: Processes) -> bool:
    """Announce that this process is at a place; whether all others come there in time."""
    try:
        store.set(f"{place} by {processes.rank}", "")
        store.wait([f"{place} by {rank}" for rank in range(processes.count)], PATIENCE)
    except RuntimeError:
        return False
    return True
