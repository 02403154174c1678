"""``dubio train --resume``: what it refuses, what it says, and that nothing else writes to the run meanwhile."""

import csv
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dubio.cli import commands, prune as prune_command
from dubio.cli.commands import app

pytest.importorskip("sklearn")

TINY = ("--model", "fc:4", "--epochs", "2")


def invoke(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def write_table(file: Path, classes: str = "abc", shift: float = 0.0, rows: int = 60) -> Path:
    with file.open("w") as lines:
        writer = csv.writer(lines)
        writer.writerow(["x", "y", "label"])
        writer.writerows([(row % 7 + shift, row % 5, classes[row % 3]) for row in range(rows)])
    return file


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    table = write_table(folder / "d.csv")
    assert invoke("train", "first", "--data", table, *TINY, "--runs", folder / "runs").exit_code == 0
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained / "runs" / "first", tmp_path / "first")
    return tmp_path


def resume(runs: Path, *args: object) -> Result:
    return invoke("train", "first", "--resume", "--epochs", 3, *args, "--runs", runs)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shift": 1.0}, "the training data has other rows; the validation data has other rows"),
        ({"classes": ["zz", "b", "c"]}, "holds a class that training did not have, 'zz'; the classes are a, b, c"),
        ({"rows": 80}, "cannot resume with another configuration: num_data was 41, is 54"),
    ],
)
def test_a_table_that_changed_is_refused(runs: Path, trained: Path, change: dict[str, object], message: str) -> None:
    table = write_table(runs / "d.csv", **change)  # type: ignore[arg-type]
    before = (runs / "first" / "metrics.jsonl").read_bytes()
    refused = resume(runs, "--data", table)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert (runs / "first" / "metrics.jsonl").read_bytes() == before
    assert resume(runs, "--data", write_table(runs / "d.csv")).exit_code == 0  # the same table in another place


@pytest.mark.filterwarnings("default")
def test_a_damaged_checkpoint_is_told_and_none_that_is_whole_is_an_error(runs: Path) -> None:
    newest, before = sorted((runs / "first" / "checkpoint").iterdir(), reverse=True)
    os.truncate(newest / "tensors.safetensors", 100)
    shutil.copytree(runs, runs / "copy")
    resumed = resume(runs)
    assert resumed.exit_code == 0, resumed.output
    assert resumed.stderr.startswith(
        f"warning: {newest} is damaged: tensors.safetensors does not match its hash in SHA2"
    )
    os.truncate(runs / "copy" / "first" / "checkpoint" / before.name / "state.json", 10)
    refused = resume(runs / "copy")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: cannot resume, no checkpoint is whole: ")
    assert newest.name in refused.stderr
    assert f"{before.name} is damaged: state.json does not match" in refused.stderr


@pytest.mark.filterwarnings("default")
def test_nothing_left_to_train_is_said(runs: Path) -> None:
    resumed = invoke("train", "first", "--resume", "--runs", runs)
    assert resumed.exit_code == 0
    told = "warning: 2 of 2 epochs are done already; nothing to train; add epochs, such as epochs=12 (--epochs 12)\n"
    assert resumed.stderr == told


@contextmanager
def held_by_another(folder: Path) -> Iterator[None]:
    """Hold a run's lock as a process of the number 4242 does."""
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        print("4242", file=file, flush=True)
        yield


def test_commands_that_change_a_run_are_refused_while_another_process_holds_it(runs: Path) -> None:
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    with held_by_another(runs / "first"):
        for args in (("train", "first", "--resume"), ("calibrate", "first"), ("conformal", "first")):
            refused = invoke(*args, "--runs", runs)
            assert refused.exit_code == 2
            told = f"error: {runs / 'first'} is in use by process 4242; wait until it has finished, or stop it\n"
            assert refused.stderr == told
    assert {path: path.read_bytes() for path in before} == before
    assert resume(runs).exit_code == 0
    assert not (runs / "first" / ".lock").exists()


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), SystemExit(3)])
def test_a_second_interrupt_shows_no_traceback(raised: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = []

    def interrupted(**options: object) -> None:
        raise raised

    monkeypatch.setattr(commands, "app", interrupted)
    monkeypatch.setattr(signal, "signal", lambda *args: handlers.append(args))
    with pytest.raises(SystemExit) as ended:
        commands.main()
    assert ended.value.code == (130 if isinstance(raised, KeyboardInterrupt) else 3)
    assert handlers == [(signal.SIGINT, signal.SIG_DFL)]


def test_a_prune_that_was_killed_blocks_nothing_and_leaves_nothing(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = ("prune", "first", "--fraction", "0.5", "--samples", "2", "--out", "q", "--runs", str(runs))

    def die(*args: object) -> None:
        os._exit(9)

    monkeypatch.setattr(prune_command.codec, "write_commands", die)  # when half of the files are written
    killed = os.fork()
    if not killed:
        CliRunner().invoke(app, args)
    os.waitpid(killed, 0)
    monkeypatch.undo()
    left = [path.name for path in runs.iterdir() if path.name != "first"]
    assert left == [f".unfinished-{killed}-q"]
    assert "first" in invoke("runs", "--runs", runs).stdout
    assert invoke(*args).exit_code == 0
    assert {path.name for path in runs.iterdir()} == {"first", "q"}
    assert invoke("predict", "q", "--samples", 2, "--runs", runs).exit_code == 0


@pytest.mark.slow
def test_a_second_resume_is_refused_while_the_first_trains(runs: Path) -> None:
    command = [sys.executable, "-m", "dubio", "train", "first", "--resume", "--epochs", "100000", "--runs", str(runs)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        metrics = runs / "first" / "metrics.jsonl"
        while len(metrics.read_text().splitlines()) < 4 and first.poll() is None:
            time.sleep(0.05)
        refused = resume(runs)
        assert refused.exit_code == 2
        assert f"is in use by process {first.pid}; wait until it has finished, or stop it" in refused.stderr
        first.send_signal(signal.SIGINT)
        assert first.wait(timeout=60) == 3
    finally:
        first.kill()
        first.communicate()
    lines = [json.loads(line)["epoch"] for line in metrics.read_text().splitlines()]
    assert lines == list(range(1, len(lines) + 1))
