"""The lock of a run folder: one holder at a time, and none once its process has ended."""

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dubio import io as lock
from dubio.io import LOCK, locked

HOLD = """
import sys
from pathlib import Path
from dubio.io import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_another_process_is_refused_and_the_holder_named_until_it_is_killed(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    with holder.stdin, holder.stdout:
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(BlockingIOError, match=f"{tmp_path} is in use by process {holder.pid}; wait until"),
            locked(tmp_path),
        ):
            pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    assert (tmp_path / LOCK).exists()
    with locked(tmp_path):  # what a killed process leaves blocks nothing
        assert (tmp_path / LOCK).read_text().split()[0] == str(os.getpid())
    assert not (tmp_path / LOCK).exists()


def test_a_thread_may_lock_again_and_another_thread_may_not(tmp_path: Path) -> None:
    errors: list[str] = []

    def lock_too() -> None:
        try:
            with locked(tmp_path):
                pass
        except BlockingIOError as error:
            errors.append(str(error))

    def in_another_thread() -> None:
        thread = threading.Thread(target=lock_too)
        thread.start()
        thread.join()

    with locked(tmp_path):
        with locked(tmp_path / "."):
            pass
        in_another_thread()
        assert (tmp_path / LOCK).exists()
    in_another_thread()
    assert errors == [f"{tmp_path} is in use by another thread of this process; wait until it has finished"]


def test_an_empty_folder_made_for_the_lock_is_removed(tmp_path: Path) -> None:
    for name in ("empty", "full"):
        with locked(tmp_path / name):
            if name == "full":
                (tmp_path / name / "file").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_a_forked_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    """As workers of a loader do, which may outlive a parent that was killed."""
    holder = subprocess.run(
        [sys.executable, "-c", FORK, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    child = int(holder.stdout)
    try:
        with locked(tmp_path):
            os.kill(child, 0)  # it still runs
    finally:
        os.kill(child, signal.SIGKILL)


FORK = """
import os, sys, time
from pathlib import Path
from dubio.io import locked
with locked(Path(sys.argv[1])):
    child = os.fork()
    if not child:
        os.close(1), os.close(2)
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    os._exit(0)
"""


def test_a_file_system_without_locks_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(lock.fcntl, "flock", refuse)
    told = r"is not locked, .*No locks available: do not train this run twice at once"
    with pytest.warns(UserWarning, match=told), locked(tmp_path):
        pass
