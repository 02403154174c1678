"""Every method from ``dubio train`` to export, and ``dubio methods``, in tiny runs of the real commands."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from typer.testing import CliRunner, Result

import dubio
from dubio.cli import runs as run_files
from dubio.cli.commands import app
from dubio.cli.fields import fields_of, make_method
from dubio.cli.runs import TrainConfig
from dubio.flows import NormalPlanar1d
from dubio.methods import METHODS
from dubio.methods.bayes import Bayes
from dubio.methods.dropout import Dropout
from dubio.methods.flow import Flow
from dubio.methods.input_noise import InputNoise
from dubio.methods.method import Method

pytest.importorskip("sklearn")

TINY = ("--model", "mlp:64-8-10", "--epochs", "1")
GIVEN: dict[str, tuple[tuple[str, ...], Method, str]] = {
    "bayes": (("--no-bayesian-bias", "--init-std", "0.1"), Bayes(init_std=0.1, bayesian_bias=False), "estimator local"),
    "dropout": (("--p", "0.3", "--alpha=0.5"), Dropout(0.3, alpha=0.5), "dropped at rate 0.3"),
    "input-noise": (
        ("--components", "2", "--kl", "bound", "--freeze-deterministic"),
        InputNoise(components=2, kl="bound", freeze_deterministic=True),
        "noise of 2 Gaussians",
    ),
    "flow": (("--blocks", "planar1d:1", "--gamma", "0.1"), Flow(NormalPlanar1d(1), gamma=0.1), "num_planar=1"),
}
"""Options, the method they stand for, and what ``dubio describe`` then says."""


def invoke(*args: object, columns: int = 200) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(app, [str(arg) for arg in args], catch_exceptions=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name, (options, _, _) in GIVEN.items():  # options of the method may stand before the name of the run
        trained = invoke("train", *options, name, "--method", name, *TINY, "--noise-lr", "0.003", "--runs", folder)
        assert trained.exit_code == 0, trained.output
    return folder


@pytest.mark.feature("dubio train takes every field of every method as an option, and --resume needs none of them")
@pytest.mark.parametrize("name", GIVEN)
def test_options_reach_the_method(name: str, runs: Path) -> None:
    _, method, _ = GIVEN[name]
    assert dubio.spec(dubio.load(runs / name / "model.safetensors")).method == method
    config = json.loads((runs / name / "config.json").read_text())
    assert (config["method"], config["noise_lr"]) == (repr(method), 0.003)


@pytest.mark.parametrize("name", GIVEN)
def test_every_command_knows_runs_of_the_method(name: str, runs: Path, tmp_path: Path) -> None:
    _, method, remark = GIVEN[name]
    assert type(method).__name__ in invoke("runs", "--runs", runs).stdout
    assert remark in invoke("describe", name, "--runs", runs).stdout
    predicted = invoke("predict", name, "--index", "0..2", "--samples", 3, "--runs", runs)
    assert predicted.exit_code == 0, predicted.output
    attack = ("--images", 5, "--steps", 1, "--samples", 2, "--draws", 4, "--out", tmp_path)
    attacked = invoke("attack", name, *attack, "--runs", runs)
    assert attacked.exit_code == 0, attacked.output
    assert "R_pred" in attacked.stdout


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["off", "fresh"])
@pytest.mark.parametrize("name", GIVEN)
def test_runs_of_the_method_are_exported(name: str, noise: str, runs: Path, tmp_path: Path) -> None:
    exported = invoke("export", name, tmp_path / "net.pt2", "--noise", noise, "--runs", runs)
    assert exported.exit_code == 0, exported.output
    assert torch.export.load(tmp_path / "net.pt2").module()(torch.zeros(5, 64)).shape[-2:] == (5, 10)


@pytest.mark.parametrize(("method", "refused"), [("None", True), ("Deterministic(l2=0.1)", False)])
def test_only_a_network_without_method_has_nothing_to_look_at(
    method: str, refused: bool, runs: Path, tmp_path: Path
) -> None:
    shutil.copytree(runs / "bayes", tmp_path / "plain")
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    (tmp_path / "plain" / "config.json").write_text(json.dumps({**config, "method": method}))
    assert "Deterministic" in invoke("runs", "--runs", tmp_path).stdout
    described = invoke("describe", "plain", "--runs", tmp_path)
    assert ("holds an ordinary network's weights" in described.stderr) == refused
    assert described.exit_code == (2 if refused else 0)


def test_resume_needs_no_options_and_goes_on_exactly(tmp_path: Path) -> None:
    options = ("--method", "dropout", "--p", "0.4", "--l2", "0.01", *TINY, "--runs", tmp_path)
    assert invoke("train", "whole", *options, "--epochs", 2).exit_code == 0
    assert invoke("train", "parts", *options).exit_code == 0
    resumed = invoke("train", "parts", "--resume", "--epochs", 2, "--runs", tmp_path)
    assert resumed.exit_code == 0, resumed.output
    whole, parts = (dubio.load(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert dubio.spec(whole) == dubio.spec(parts)
    assert all(torch.equal(tensor, parts.state_dict()[key]) for key, tensor in whole.state_dict().items())
    record = json.loads((tmp_path / "parts" / "command.json").read_text())
    assert (record["method"], record["fields"]) == ("dropout", {"p": "0.4", "l2": "0.01"})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("dropout", "--p", "0.5"), "method was 'Dropout(p=0.3, alpha=0.5, "),
        (("dropout", "--method", "flow"), 'is "Flow(blocks=None'),
        (("dropout", "--components", "2"), "--components is an option of input-noise, not of dropout"),
    ],
)
def test_resume_refuses_other_fields(args: tuple[str, ...], message: str, runs: Path) -> None:
    before = (runs / "dropout" / "command.json").read_text()
    refused = invoke("train", *args, "--resume", "--runs", runs)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert (runs / "dropout" / "command.json").read_text() == before


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--method", "input-noise", "--kl", "x"), "--kl must be mc, bound or averaged, got 'x'"),
        (("--method", "dropout", "--components", "3"), "--components is an option of input-noise, not of dropout"),
        (("--method", "dropout", "--p", "1.5"), "p must be in [0, 1), got 1.5; it is the share that is dropped"),
        (("--method", "flow", "--blocks", "affine,affine,affine"), "blocks must be one for all layers or one for each"),
        (("--method", "input-noise", "--componets", "3"), "No such option: --componets; did you mean '--components'"),
        (("--method", "flow", "--gamma"), "Option '--gamma' requires an argument."),
        (("--norms=yes",), "Option '--norms' does not take a value."),
        (("--", "--norms"), "--norms"),
    ],
)
def test_bad_options_are_refused_in_one_line_and_leave_nothing(
    args: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    refused = invoke("train", "--runs", tmp_path, *TINY[:2], "x", *args)
    assert refused.exit_code == 2, refused.output
    assert message in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.feature("dubio methods lists every method, and of one its options, defaults, meanings and recipe")
@pytest.mark.parametrize("columns", [80, 200])
def test_methods_are_listed_with_what_they_are(columns: int) -> None:
    listed = invoke("methods", columns=columns).stdout
    assert max(map(len, listed.splitlines())) <= columns
    rows = [line.split("│")[1:-1] for line in listed.splitlines() if line.startswith("│")]
    names = [row[0].strip() for row in rows if row[0].strip()]
    assert names == list(METHODS)
    assert "Blundell et al." in listed
    assert "dubio methods NAME" in listed


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_shown_with_its_options_and_recipe(name: str, columns: int) -> None:
    shown = invoke("methods", name, columns=columns).stdout
    assert max(map(len, shown.splitlines())) <= columns
    rows = [line.split("│")[1:-1] for line in shown.splitlines() if line.startswith("│")]
    options = {row[0].strip() for row in rows}
    assert {field.option for field in fields_of(METHODS[name]).values()} <= options
    assert f"{METHODS[name]().recipe.epochs} epochs" in " ".join(shown.split())


def test_what_is_shown_of_a_method_is_what_its_docstring_says() -> None:
    shown = invoke("methods", "flow").stdout
    assert "Whether the divergence of a convolution's noise is the average or the sum over positions." in shown
    assert "Takes average or sum." in shown
    assert "10 times that for the noise (--noise-lr)" in shown
    assert "Rezende and Mohamed 2015 for flows" in shown
    assert "--no-bayesian-bias" in invoke("methods", "bayes").stdout


def test_an_unknown_method_names_the_one_that_is_close() -> None:
    refused = invoke("methods", "flwo")
    assert refused.exit_code == 2
    assert "NAME must be 'bayes', 'dropout'" in refused.stderr
    assert "did you mean 'flow'?" in refused.stderr


@pytest.mark.parametrize("name", METHODS)
def test_the_help_of_train_has_an_example_of_each_method_at_its_defaults(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = invoke("train", "--help", columns=80).stdout
    assert "dubio methods NAME lists the options of a method" in shown
    [line] = [line for line in shown.splitlines() if "Example:" in line and f"--method {name} " in line]
    configs: list[TrainConfig] = []

    def note(config: TrainConfig, *others: Any) -> NoReturn:
        configs.append(config)
        raise ValueError("enough is known")

    monkeypatch.setattr(run_files, "load_splits", note)
    assert "enough is known" in invoke(*shlex.split(line.partition("Example:  dubio ")[2]), "--runs", tmp_path).stderr
    [config] = configs
    assert config.fields
    assert make_method(config.method, config.fields) == METHODS[name]()
