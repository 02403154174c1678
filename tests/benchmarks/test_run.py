"""The command that measures: what it refuses before it does any work."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What is said of some arguments that are refused; nothing may be measured, nor another process begun."""
    import run

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(run, "hardware_of", lambda device: pytest.fail("it went on"))
    monkeypatch.setattr(run.subprocess, "run", lambda *arguments, **options: pytest.fail("it went on"))

    def refusal(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["run.py", *arguments])
        with pytest.raises(SystemExit) as stopped:
            run.main()
        assert stopped.value.code != 0
        return f"{capsys.readouterr().err}{stopped.value.code}"

    return refusal


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("nothing", "PART must be one of engine, "),
        ("peers --draws ten", "--draws: must be whole numbers from 1 on, with commas between, got 'ten'"),
        ("peers --draws 1,0", "whole numbers from 1 on, with commas between, got '1,0'"),
        ("peers --draws=-1", "whole numbers from 1 on, with commas between, got '-1'"),
        ("peers --nets nothing", "--nets must be among 1-400-400-1, "),
        ("engine --draws 1", "--draws is for peers, got the parts engine"),
        ("audits --tiny", "--tiny is for peers, got the parts audits"),
        ("loading --nets resnet18", "--nets is for peers and kernels, got the parts loading"),
        ("--draws 1", "--draws is for peers, got the parts engine, loading, "),
        ("peers --add", "--add needs --output"),
        ("engine --add --output record.json", "--add is for peers, got the parts engine"),
        ("engine fitting", "fitting needs a GPU, and there is none; nothing was measured"),
        ("kernels", "kernels needs a GPU, and there is none; nothing was measured"),
        ("peers --output .", "--output must be a file, got the folder ."),
        ("peers --output none/record.json", "--output must be in a folder that exists, got none/record.json"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_work(arguments: str, told: str, refused: Callable[..., str]) -> None:
    assert told in refused(*arguments.split())


@pytest.mark.parametrize("text", ["{", "[]", "{}", json.dumps({"records": {"fitting": []}})])
def test_only_a_record_of_peers_is_added_to(text: str, refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(text)
    told = "--add needs a record that a run of peers has written, record.json is none: "
    assert told in refused("peers", "--add", "--output", "record.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_cannot_be_written_is_refused(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "record.json").touch(mode=0o400)
    assert "--output must be a file that can be written" in refused("peers", "--output", "record.json")


def test_libraries_that_are_not_there_are_named_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import run

    monkeypatch.setattr(run, "OTHERS", ("json", "no_such_library", "nor_this_one"))
    monkeypatch.setattr(run.peers, "measure", lambda device, **options: {})
    monkeypatch.setenv(run.INSIDE, "1")
    monkeypatch.setattr("sys.argv", ["run.py", "peers"])
    assert run.main() == 0
    told = "measured without no_such_library, nor_this_one: not installed, and not on PYTHONPATH\n"
    assert capsys.readouterr().out.endswith(told)
