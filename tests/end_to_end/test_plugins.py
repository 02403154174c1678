"""Commands of other packages: listed by name, imported when called, and refused in one line where they are broken."""

import importlib.metadata
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dubio.cli.commands import app

GREETING = '''
import typer

from dubio.cli import Quiet, say


def hello(name: str, quiet: Quiet = False) -> None:
    """Greet somebody."""
    if name == "nobody":
        raise ValueError("name must be somebody")
    say("hello" if quiet else f"hello {name}")


several = typer.Typer(help="Greetings of all kinds.")


@several.command()
def morning(name: str) -> None:
    """Greet somebody before noon."""
    say(f"good morning {name}")


@several.command()
def evening(name: str) -> None:
    """Greet somebody after noon."""
    say(f"good evening {name}")


number = 3
'''


def install(folder: Path, package: str, **commands: str) -> None:
    """What pip leaves behind of a package with such commands, as far as Python's own metadata go."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name.replace('_', '-')} = {target}" for name, target in commands.items()]
    (metadata / "entry_points.txt").write_text("\n".join(["[dubio.commands]", *lines]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, one of which can be imported."""
    (tmp_path / "greeting.py").write_text(GREETING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "greeting", raising=False)
    return tmp_path


def invoke(*args: str) -> Result:
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, args)


def assert_refused(result: Result, message: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.splitlines() == [f"error: {message}"]


@pytest.mark.feature(
    "An installed package can add commands, which dubio lists by name and imports when they are called"
)
def test_a_command_is_listed_without_its_package_and_imported_when_called(folder: Path) -> None:
    install(folder, "greeting", hello="greeting:hello")
    listed = invoke("--help")
    assert "hello      A command of the package greeting." in listed.stdout
    assert listed.stderr == ""
    assert "greeting" not in sys.modules
    assert invoke("hello", "Ada").stdout == "hello Ada\n"
    assert invoke("hello", "Ada", "--quiet").stdout == "hello\n"
    assert "Greet somebody." in invoke("hello", "-h").stdout


def test_an_app_of_typer_has_its_commands_below_its_name(folder: Path) -> None:
    install(folder, "greeting", greet="greeting:several")
    assert invoke("greet", "morning", "Ada").stdout == "good morning Ada\n"
    shown = invoke("greet", "--help").stdout
    assert "Greetings of all kinds." in shown
    assert "evening" in shown
    assert "--install-completion" not in shown


def test_what_a_command_refuses_is_one_line(folder: Path) -> None:
    install(folder, "greeting", hello="greeting:hello")
    assert_refused(invoke("hello", "nobody"), "name must be somebody")
    assert_refused(invoke("hello", "Ada", "--queit"), "No such option: --queit; did you mean '--quiet'?")
    assert_refused(invoke("helo", "Ada"), "no such command 'helo'; did you mean 'hello'?")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("nowhere:hello", "ModuleNotFoundError: No module named 'nowhere'"),
        ("broken:hello", "ZeroDivisionError: division by zero"),
        ("greeting:goodbye", "AttributeError: module 'greeting' has no attribute 'goodbye'"),
        ("greeting:number", "TypeError: 3 is neither a function nor a typer.Typer"),
    ],
)
def test_a_command_that_cannot_be_loaded_is_told_when_it_is_called(target: str, reason: str, folder: Path) -> None:
    (folder / "broken.py").write_text("1 / 0")
    install(folder, "greeting", hello=target)
    message = f"the command hello of the package greeting cannot be loaded: {reason}"
    assert_refused(invoke("hello", "Ada"), message)
    assert invoke("--help").exit_code == invoke("methods").exit_code == 0
    shown = CliRunner().invoke(app, ["--debug", "hello", "Ada"])
    assert isinstance(shown.exception, ImportError)


def test_a_name_that_is_taken_is_ignored_with_a_warning(folder: Path) -> None:
    install(folder, "greeting", methods="greeting:hello", hello="greeting:hello")
    install(folder, "salutation", hello="nowhere:hello")
    ignored = "warning: the command {} of the package {} is ignored, since {} has that name"
    listed = invoke("--help")
    assert listed.exit_code == 0
    assert listed.stderr.splitlines() == [
        ignored.format("hello", "salutation", "one of the package greeting"),
        ignored.format("methods", "greeting", "a command of dubio"),
    ]
    assert invoke("hello", "Ada").stdout == "hello Ada\n"
    assert "bayes" in invoke("methods").stdout


def test_without_the_laboratory_reproduce_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: importlib.metadata.EntryPoints(()))
    message = "dubio reproduce is a command of the package dubio_lab, which is not installed; "
    assert_refused(invoke("reproduce", "--list"), f"{message}in a checkout of dubio, pip install ./lab adds it")
    assert "reproduce" not in invoke("--help").stdout
