"""The page on deciding: what it shows runs, and its commands are those there are."""

import re
from pathlib import Path

import pytest

import dubio

pytest.importorskip("sklearn")

PAGE = Path(__file__).parents[2] / "docs" / "deciding.md"


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [block for marked, block in fenced if marked == language]


def test_the_python_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(blocks("python")) == 4
    exec(compile("\n".join(blocks("python")), str(PAGE), "exec"), {})
    shown = capsys.readouterr().out
    assert "decided     temperature" in shown
    assert "accepts confidence above" in shown
    assert "sets that hold the target with probability 0.95" in shown


def test_every_command_of_the_page_decides_what_the_library_does() -> None:
    commands = [line.split()[1] for block in blocks("") for line in block.splitlines()]
    assert commands == ["calibrate", "abstain", "conformal", "predict"]
    assert all(hasattr(dubio, command) for command in commands)
