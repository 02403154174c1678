"""Run a function in several processes that know of each other as ``torchrun`` lets them know."""

import os
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Ended:
    """How a process ended: what the function returned or raised, or the signal that ended it."""

    value: Any = None
    error: str = ""
    signal: int = 0


def in_processes(folder: Path, task: Callable[[int], Any], count: int = 2) -> list[Ended]:
    """What became of ``task(rank)`` in each of the processes, which are forked: nothing is imported anew."""
    port = _free_port()
    left = [_fork(folder, task, rank, count, port) for rank in range(count)]
    statuses = []
    try:
        while left:
            statuses.append(os.waitpid(left[0], 0)[1])
            del left[0]
    finally:
        for child in left:  # the test ran out of time
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return [_ended(folder, rank, status) for rank, status in enumerate(statuses)]


def values(folder: Path, task: Callable[[int], Any], count: int = 2) -> list[Any]:
    """What ``task(rank)`` returns in each of the processes."""
    ended = in_processes(folder, task, count)
    assert [(one.error, one.signal) for one in ended] == [("", 0)] * count
    return [one.value for one in ended]


def in_interpreters(script: str, count: int = 2) -> list[subprocess.CompletedProcess[str]]:
    """How a script ended in each of the processes, which begin with nothing imported."""
    shared = {**os.environ, "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    command = [sys.executable, "-c", script]
    started = [
        subprocess.Popen(
            command,
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        said = [process.communicate() for process in started]
    finally:
        for process in started:  # the test ran out of time
            process.kill()
    return [
        subprocess.CompletedProcess(command, process.wait(), *both) for process, both in zip(started, said, strict=True)
    ]


def _fork(folder: Path, task: Callable[[int], Any], rank: int, count: int, port: int) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: a test runner may have threads
        child = os.fork()
    if child:
        return child
    try:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        try:
            ended = Ended(task(rank))
        except BaseException as error:
            traceback.print_exc()
            ended = Ended(error=f"{type(error).__name__}: {error}")
        torch.save(ended, folder / f"ended-{rank}.pt")
    finally:
        os._exit(0)


def _ended(folder: Path, rank: int, status: int) -> Ended:
    if os.WIFSIGNALED(status):
        return Ended(signal=os.WTERMSIG(status))
    file = folder / f"ended-{rank}.pt"
    ended = torch.load(file, weights_only=False)
    file.unlink()
    return ended  # type: ignore[no-any-return]


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
