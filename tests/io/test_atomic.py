"""Files written whole or not at all, and what killed processes leave of them."""

import os
import subprocess
import sys
from pathlib import Path

from dubio.codec import UNFINISHED, remove_unfinished, write_atomically


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def test_writing_removes_what_killed_processes_left_and_not_what_others_write(tmp_path: Path) -> None:
    ended = ended_process()
    (tmp_path / f"{UNFINISHED}{ended}-evaluation.json").touch()
    (tmp_path / f"{UNFINISHED}{os.getppid()}-evaluation.json").touch()
    write_atomically(tmp_path / "report.html", b"page")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"report.html", f"{UNFINISHED}{os.getppid()}-evaluation.json"}


def test_folders_and_names_without_a_process_are_removed_too(tmp_path: Path) -> None:
    ended = ended_process()
    (tmp_path / "checkpoint" / f"{UNFINISHED}{ended}").mkdir(parents=True)
    (tmp_path / "checkpoint" / f"{UNFINISHED}{2**70}").touch()
    (tmp_path / f"{UNFINISHED}x").symlink_to(tmp_path / "checkpoint")
    remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["checkpoint"]
