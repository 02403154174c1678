"""How the command line starts: help, the version and a typo answer without torch, and shells can complete it."""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from dubio._engine.precision import Precision
from dubio.auditing.records import BudgetName
from dubio.checks import check_choice, did_you_mean
from dubio.cli import options as arguments
from dubio.cli.commands import app
from dubio.data.corruptions import CORRUPTIONS

HEAVY = ("torch", "numpy", "scipy", "sklearn", "dubio.data", "dubio.methods", "dubio._engine")
COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands]  # type: ignore[union-attr]
ANSWERED_AT_ONCE = {
    "--help": ("--help",),
    "--version": ("--version",),
    "a wrong command": ("trian", "first"),
    "a wrong option": ("train", "first", "--metod", "bayes"),
    "a wrong option of a method": ("train", "first", "--init-stdd", "0.1"),
    "a wrong method": ("train", "first", "--method", "bayess"),
    "a wrong choice": ("train", "first", "--schedule", "cosin"),
    "a wrong device": ("predict", "first", "--device", "cdua"),
    "a method that there is not": ("methods", "flwo"),
}

NOTING = f"""
import sys
from dubio.cli import main
try:
    main()
finally:
    print("imported:", *[name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


def start(*args: str, program: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(("-m", "dubio") if program is None else ("-c", program)), *args]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


@pytest.mark.feature("dubio --help, --version and a typo answer without importing torch")
@pytest.mark.parametrize("args", ANSWERED_AT_ONCE.values(), ids=ANSWERED_AT_ONCE)
def test_what_needs_no_network_imports_no_torch(args: tuple[str, ...]) -> None:
    answered = start(*args, program=NOTING)
    assert answered.returncode == (0 if args[0].startswith("--") else 2), answered.stderr
    assert answered.stderr.splitlines()[-1] == "imported:"


def test_the_help_of_every_command_imports_no_torch() -> None:
    """In one process: the first import would be seen in all that follow."""
    program = f"""
import sys
from typer.testing import CliRunner
from dubio.cli import app
for command in {COMMANDS}:
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0, command
    assert not [name for name in {HEAVY} if name in sys.modules], command
"""
    assert len(COMMANDS) >= 17
    finished = start(program=program)
    assert finished.returncode == 0, finished.stderr


def test_a_command_imports_torch_when_it_runs(tmp_path: Path) -> None:
    """So the tests above can fail."""
    assert "imported: torch" in start("describe", "first", "--runs", str(tmp_path), program=NOTING).stderr


@pytest.mark.slow
@pytest.mark.feature("dubio --help, --version and a typo answer in under 0.5 s")
@pytest.mark.parametrize("args", [("--help",), ("--version",), ("trian",), ("train", "--help")], ids=" ".join)
def test_an_answer_without_a_network_takes_less_than_half_a_second(
    args: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    def seconds() -> float:
        began = time.perf_counter()
        start(*args, PYTHONDONTWRITEBYTECODE="")
        return time.perf_counter() - began

    seconds()  # writes bytecode where there is none
    median = statistics.median(seconds() for _ in range(7))
    with capsys.disabled():
        print(f"\ndubio {' '.join(args)} takes {median:.3f} s (median of 7)")  # noqa: T201
    assert median < 0.5


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("trian",), "no such command 'trian'; did you mean 'train'?"),
        (("train", "x", "--epoch", "3"), "No such option: --epoch; did you mean '--epochs'"),
        (("train", "x", "--init-stdd", "3"), "No such option: --init-stdd; did you mean '--init-std'"),
        (("train", "x", "--method", "bayess"), "'deterministic' or 'ensemble', got 'bayess'; did you mean 'bayes'?"),
        (
            ("train", "x", "--schedule", "cosin"),
            "--schedule must be constant, cosine or linear, got 'cosin'; did you mean 'cosine'?",
        ),
        (("train", "x", "--prior", "normel:0,1"), "got 'normel:0,1'; did you mean 'normal'?"),
        (("train", "x", "--kl", "bond", "--method", "input-noise"), "got 'bond'; did you mean 'bound'?"),
        (("train", "x", "--data", "dgits"), "did you mean 'digits'?"),
        (("train", "x", "--model", "resnet81"), "did you mean 'resnet18'"),
        (("train", "x", "--label-noise", "filp:0.3"), "did you mean 'flip'?"),
        (("predict", "x", "--device", "cdua"), "--device must be cpu, cuda, cuda:1 ... or mps, got 'cdua'; did you"),
        (("audit", "x", "--budget", "quik"), "--budget must be tiny, quick or full, got 'quik'; did you mean 'quick'?"),
        (("audit", "x", "--require", "VALD"), "--require must be VALID, got 'VALD'; did you mean 'VALID'?"),
        (("attack", "x", "--attack", "pdg"), "got 'pdg'; did you mean 'pgd'"),
        (("demo", "--methods", "bayes,flwo"), "got 'flwo'; did you mean 'flow'?"),
    ],
)
def test_a_misspelled_choice_is_answered_with_the_one_that_is_meant(
    args: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(app, args)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_help_and_error_name_the_same_devices() -> None:
    shown = " ".join(CliRunner(env={"COLUMNS": "200"}).invoke(app, ["predict", "--help"]).stdout.split())
    assert f"{arguments.DEVICES} (default:" in shown


def test_choices_that_help_knows_are_those_of_the_library() -> None:
    assert get_args(arguments.Precision) == get_args(Precision)
    assert get_args(arguments.BudgetName) == get_args(BudgetName)
    assert tuple(CORRUPTIONS) == arguments.CORRUPTION_NAMES


def test_a_choice_names_the_rule_the_value_and_what_resembles_it() -> None:
    check_choice("kind", "lac", ("lac", "aps"))
    with pytest.raises(ValueError, match=r"^kind must be 'lac' or 'aps', got 'lacc'; did you mean 'lac'\?$"):
        check_choice("kind", "lacc", ("lac", "aps"))
    assert did_you_mean("zzz", ("lac", "aps")) == ""


@pytest.mark.feature("dubio --install-completion makes the shell complete commands, options and runs")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_installed_and_shown(shell: str, tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    shown = start("--show-completion", shell, **environment)
    assert shown.returncode == 0, shown.stderr
    assert "_DUBIO_COMPLETE=complete_" in shown.stdout
    installed = start("--install-completion", shell, **environment)
    assert installed.returncode == 0, installed.stderr
    assert any("_DUBIO_COMPLETE" in path.read_text() for path in tmp_path.rglob("*dubio*") if path.is_file())


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("dubio tr", {"train"}),
        ("dubio train first --sched", {"--schedule"}),
        ("dubio train first --schedule c", {"constant", "cosine"}),
        ("dubio audit first --budget ", {"tiny", "quick", "full"}),
        ("dubio train first --method d", {"dropout", "deterministic"}),
        ("dubio methods p", {"pni"}),
        ("dubio predict f", {"first", "fifth"}),
        ("dubio compare --runs elsewhere s", {"second"}),
    ],
)
def test_a_shell_completes_commands_options_choices_and_runs(
    words: str, completed: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("runs/first", "runs/fifth", "elsewhere/second"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    environment = {"_DUBIO_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    answered = start(program=NOTING, **environment)
    assert set(answered.stdout.split()) == completed, answered.stderr
    assert answered.stderr.splitlines()[-1] == "imported:"
