"""``dubio train`` by several processes: the first one tells, all leave with the same code, and nothing is lost."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from typer.testing import CliRunner

import dubio
from dubio.cli import errors, runs as run_files, train as train_command
from dubio.cli.commands import app
from dubio.training.processes import LostProcessError
from several_processes import values

pytest.importorskip("sklearn")

TRAIN = ("train", "first", "--model", "mlp:64-10", "--device", "cpu")


def run_in_two(folder: Path, *args: str) -> list[tuple[int, str, str]]:
    """Exit code, stdout and stderr of ``dubio`` in each of two processes."""

    def task(rank: int) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, [*args, "--runs", str(folder / "runs")])
        return done.exit_code, done.stdout, done.stderr

    return values(folder, task)


def test_the_first_process_tells_and_all_leave_with_its_code(tmp_path: Path) -> None:
    (code, told, progress), other = run_in_two(tmp_path, *TRAIN, "--epochs", "1")
    assert code == 0
    assert "best epoch 1 of 1" in told
    assert "test accuracy" in told
    assert progress.count("epoch 1/1") == 1
    assert other == (0, "", "")
    taken, quiet = run_in_two(tmp_path, *TRAIN)
    folder = tmp_path / "runs" / "first"
    assert taken == (
        2,
        "",
        f"error: {folder} holds a run already; add --resume to go on with it, or choose another name\n",
    )
    assert quiet == (2, "", "")
    ((code, _, refused), quiet) = run_in_two(tmp_path, *TRAIN, "--resume", "--lr", "0.5")
    assert (code, quiet) == (2, (2, "", ""))
    assert refused.startswith("error: cannot resume with another configuration: lr was ")
    alone = CliRunner().invoke(app, ["train", "first", "--resume", "--epochs", "2", "--runs", str(tmp_path / "runs")])
    assert alone.exit_code == 2
    assert alone.stderr == (
        "error: cannot resume with another configuration: num_processes was 2, is 1; go on with: torchrun "
        f"--nproc-per-node 2 -m dubio train first --resume --runs {tmp_path / 'runs'}\n"
    )


def test_the_others_have_left_when_the_test_part_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[bool] = []
    judge = train_command.evaluate

    def watched(*args: Any, **options: Any) -> Any:
        joined.append(dist.is_initialized())
        return judge(*args, **options)

    monkeypatch.setattr(train_command, "evaluate", watched)

    def task(rank: int) -> tuple[int, list[bool]]:
        done = CliRunner().invoke(app, [*TRAIN, "--epochs", "1", "--runs", str(tmp_path / "runs")])
        return done.exit_code, joined

    assert values(tmp_path, task) == [(0, [False]), (0, [])]


def test_a_run_is_resumed_by_as_many_processes_and_the_command_for_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, [*TRAIN, "--epochs", "1"]).exit_code == 0
    config = tmp_path / "runs" / "first" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_processes": 6}))
    for num_nodes, launcher in (
        ("1", "torchrun --nproc-per-node 6"),
        ("2", "torchrun --nnodes 2 --nproc-per-node 3"),
        ("4", "torchrun --nproc-per-node 6"),  # not to be had with as many on each
    ):
        monkeypatch.setenv("GROUP_WORLD_SIZE", num_nodes)
        refused = CliRunner().invoke(app, ["train", "first", "--resume"])
        assert refused.exit_code == 2
        assert refused.stderr.endswith(
            f": num_processes was 6, is 1; go on with: {launcher} -m dubio train first --resume\n"
        )


def test_what_every_process_refuses_is_told_once(tmp_path: Path) -> None:
    assert run_in_two(tmp_path, *TRAIN, "--lr", "-1") == [
        (2, "", "error: lr must be positive and finite, got -1.0\n"),
        (2, "", ""),
    ]
    (code, _, told), quiet = run_in_two(tmp_path, *TRAIN, "--model", "nosuch")
    assert (code, quiet) == (2, (2, "", ""))
    assert told.startswith("error: model must be one of ")
    assert not (tmp_path / "runs" / "first").exists()


def test_a_process_that_fails_alone_tells_so_with_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = run_files.build_for

    def build_or_fail(*args: Any) -> Any:
        if os.environ["RANK"] == "1":
            raise OSError("no space left")
        return build(*args)

    monkeypatch.setattr(run_files, "build_for", build_or_fail)
    monkeypatch.setattr(train_command, "PATIENCE", timedelta(seconds=0.5))
    (code, _, told), failed = run_in_two(tmp_path, *TRAIN)
    assert failed == (2, "", "error: process 1: no space left\n")
    assert code == 3
    assert told.startswith("interrupted: another process ended, or cannot be reached (")
    assert "go on with" not in told  # nothing is there to go on with


def test_the_others_leave_when_the_first_has_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else torchrun, which ends all when one has failed, would end the first before it tells."""
    said = tmp_path / "said"

    def print_slowly(error: BaseException, prefix: str = "") -> None:
        time.sleep(1.0)
        said.write_text(f"{prefix}{error}")

    monkeypatch.setattr(train_command, "print_error", print_slowly)

    def task(rank: int) -> tuple[int, str]:
        done = CliRunner().invoke(app, [*TRAIN, "--epochs", "0", "--runs", str(tmp_path / "runs")])
        return done.exit_code, said.read_text()

    assert values(tmp_path, task) == [(2, "epochs must be at least 1, got 0")] * 2


def test_a_lost_process_is_told_without_the_words_of_the_transport(capsys: pytest.CaptureFixture[str]) -> None:
    reason = (
        "[/build/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4806. This is "
        "typically caused by a remote worker crashing. Check the logs of the remote worker before reporting an error. "
        "GLHF! \N{BEACH WITH UMBRELLA}"
    )
    errors.print_error(LostProcessError(f"another process ended ({reason}); the last good checkpoint is kept in a (b)"))
    assert capsys.readouterr().err == (
        "interrupted: another process ended (Connection closed by peer [127.0.0.1]:4806); the last good checkpoint is "
        "kept in a (b)\n"
    )


@pytest.fixture
def torchrun(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Launches, which do not outlive the test."""
    launched: list[subprocess.Popen[str]] = []
    yield launched
    for process in launched:
        process.kill()
        process.wait()


def launch(folder: Path, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "dubio"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(dubio.__file__).parents[1])}
    return subprocess.Popen([*command, *args], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for_epochs(folder: Path, more_than: int, process: subprocess.Popen[str]) -> int:
    """How many epochs are over, once there are more than so many."""
    metrics = folder / "runs" / "first" / "metrics.jsonl"
    while True:
        done = len(metrics.read_text().splitlines()) if metrics.is_file() else 0
        if done > more_than or process.poll() is not None:
            return done
        time.sleep(0.05)


def worker(process: subprocess.Popen[str], rank: int) -> int:
    """The process that torchrun has given a rank."""
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            is_child = f"PPid:\t{process.pid}\n" in status.read_text()
            if is_child and f"RANK={rank}" in status.with_name("environ").read_text().split("\0"):
                return int(status.parent.name)
    raise AssertionError(f"torchrun has started no process of rank {rank}")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="finds processes under /proc")
@pytest.mark.feature("torchrun -m dubio train: a killed process or Ctrl-C ends all, and --resume goes on")
def test_a_launch_survives_kills_and_interrupts(tmp_path: Path, torchrun: list[subprocess.Popen[str]]) -> None:
    torchrun.append(launch(tmp_path, *TRAIN, "--epochs", "100000"))
    done = wait_for_epochs(tmp_path, 1, torchrun[0])
    os.kill(worker(torchrun[0], 1), signal.SIGKILL)
    _, told = torchrun[0].communicate(timeout=60)
    assert torchrun[0].returncode == 1
    assert "another process ended, or cannot be reached (" in told
    checkpoint = Path("runs", "first", "checkpoint", "step-")
    assert f"; the last good checkpoint is kept in {checkpoint}" in told
    assert "; go on with: torchrun --nproc-per-node 2 -m dubio train first --resume\n" in told

    torchrun.append(launch(tmp_path, "train", "first", "--resume", "--device", "cpu"))
    wait_for_epochs(tmp_path, done + 2, torchrun[1])
    torchrun[1].send_signal(signal.SIGINT)
    _, told = torchrun[1].communicate(timeout=60)
    assert (
        "interrupted: runs/first is saved; go on with: torchrun --nproc-per-node 2 -m dubio train first --resume\n"
        in told
    )
    assert told.count("interrupted: ") == 1
    assert len(list((tmp_path / "runs" / "first" / "checkpoint").iterdir())) == 2
    assert not list(tmp_path.rglob(".unfinished*"))


def is_running(process: int) -> bool:
    """Whether a process has not ended; a zombie, whose exit code was not read yet, has."""
    status = Path(f"/proc/{process}/status")
    return status.exists() and "State:\tZ" not in status.read_text()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="finds processes under /proc")
@pytest.mark.feature("torchrun that is killed takes its processes with it: the run is saved, and --resume goes on")
def test_processes_end_with_their_launcher(tmp_path: Path, torchrun: list[subprocess.Popen[str]]) -> None:
    torchrun.append(launch(tmp_path, *TRAIN, "--epochs", "100000"))
    wait_for_epochs(tmp_path, 1, torchrun[0])
    ranks = [worker(torchrun[0], rank) for rank in range(2)]
    torchrun[0].kill()
    _, told = torchrun[0].communicate(timeout=60)  # until no process has stderr open
    deadline = time.monotonic() + 60
    while any(is_running(rank) for rank in ranks):  # a process closes its files some time before it has ended
        assert time.monotonic() < deadline, "a process outlives its launcher"
        time.sleep(0.05)
    assert "interrupted: runs/first is saved; go on with: torchrun --nproc-per-node 2 -m dubio train" in told
    done = len((tmp_path / "runs" / "first" / "metrics.jsonl").read_text().splitlines())
    torchrun.append(launch(tmp_path, "train", "first", "--resume", "--epochs", str(done + 1), "--device", "cpu"))
    _, told = torchrun[1].communicate(timeout=120)
    assert torchrun[1].returncode == 0, told
    assert not list(tmp_path.rglob(".*"))
