"""``--quiet``: every command takes it, and prints its results without progress and without remarks."""

import inspect
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import dubio
from audit_cases import TINY
from dubio.cli.commands import app
from dubio.cli.options import Quiet

pytest.importorskip("sklearn")
pytest.importorskip("jinja2")

CALLBACKS: dict[str, Callable[..., None]] = {
    command.name or command.callback.__name__: command.callback  # type: ignore[union-attr, misc]
    for command in app.registered_commands
}
NETWORK = ("--model", "mlp:64-16-10", "--epochs", 6, "--method", "dropout")
FEW = ("--samples", 2)


class Case(NamedTuple):
    """A command, and which texts are its results and which are beside them."""

    args: tuple[object, ...]
    results: tuple[str, ...]
    beside: tuple[str, ...]


CASES = {
    "demo": Case(("--tiny", "--methods", "bayes"), ("R_pred",), ("Try next:", "NLL: what the true")),
    "data": Case((), ("digits",), ("fetch what is missing",)),
    "methods": Case((), ("deterministic",), ("lists a method's own options",)),
    "train": Case(("new", *NETWORK), ("test accuracy",), ("epoch 1/6",)),
    "runs": Case((), ("first",), ()),
    "describe": Case(("first",), ("Dropout",), ()),
    "predict": Case(("first", "{images}"), ("confidence",), ("the first 10 rows",)),
    "evaluate": Case(("first", *FEW, "--resamples", 5), ("accuracy", "AUROC"), ("On the whole it is", "record:")),
    "calibrate": Case(("first", "--samples", 20), ("temperature", "calibration error"), ("kept in",)),
    "abstain": Case(("first", *FEW, "--coverage", 0.5), ("accepts confidence",), ("kept in",)),
    "conformal": Case(("first", *FEW), ("sets hold",), ("kept in",)),
    "attack": Case(
        ("first", *FEW, "--attack", "fgsm", "--images", 8, "--draws", 10),
        ("R_pred", "fgsm"),
        ("a stronger attack may", "record:", "picture"),
    ),
    "prune": Case(("first", *FEW), ("weights removed", "bytes"), ("record:",)),
    "report": Case(("first",), (), ("more would be in it after", "wrote", "open file:")),
    "compare": Case(("first", "second"), ("dropout, digits",), ("Below a number stands", "was not evaluated yet")),
    "audit": Case(("first", "--epsilon", "0.1", "--images", 40), ("R_pred(10)", "check"), ("record:",)),
    "reproduce": Case(("bbb-regression", "--tiny", "--out", "{out}"), ("published",), ("seed 0",)),
    "export": Case(("first", "{out}.pt2"), (), ("wrote",)),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    for name in ("first", "second"):
        assert invoke("train", name, *NETWORK, "--runs", folder / "runs").exit_code == 0
    torch.manual_seed(0)
    with (folder / "images.npz").open("wb") as file:
        np.savez(file, x=torch.rand(12, 1, 8, 8).numpy())
    return folder


def invoke(*args: object) -> Result:
    settings = {"COLUMNS": "200", "NO_COLOR": "1"}
    return CliRunner(env=settings).invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def test_there_is_a_case_for_every_command_and_all_share_one_option() -> None:
    assert set(CASES) == {*CALLBACKS, "reproduce"}  # which the laboratory adds
    for name, callback in CALLBACKS.items():
        assert inspect.signature(callback).parameters["quiet"].annotation is Quiet, name


@pytest.mark.feature("Every command takes --quiet and then prints its results alone")
@pytest.mark.parametrize("command", CASES)
def test_a_quiet_command_prints_its_results_alone(
    command: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(dubio.auditing.BUDGETS, "quick", TINY)
    args, results, beside = CASES[command]
    shown = {}
    for option in ("", "--quiet", "-q"):
        runs, places = tmp_path / f"runs{option}", {"out": tmp_path / f"out{option}", "images": trained / "images.npz"}
        shutil.copytree(trained / "runs", runs)
        where = () if command in ("data", "methods", "reproduce") else ("--runs", runs)
        given = (str(arg).format(**places) for arg in args)
        shown[option] = invoke(command, *given, *where, *([option] if option else []))
        assert shown[option].exit_code == 0, shown[option].output
        if option and command == "audit":
            assert (runs / "first" / "audit.json").is_file()
    for text in (*results, *beside):
        assert text in shown[""].output
    for option in ("--quiet", "-q"):
        assert shown[option].stderr == ""
        for text in results:
            assert text in shown[option].stdout
        for text in beside:
            assert text not in shown[option].output
        if not results:
            assert shown[option].output == ""


def test_a_quiet_command_still_tells_errors(tmp_path: Path) -> None:
    for command in ("evaluate", "calibrate", "report", "compare", "audit"):
        refused = invoke(command, "nosuch", "--quiet", "--runs", tmp_path)
        assert refused.exit_code == 2
        assert refused.stderr.startswith("error: ")
