"""``dubio prune`` in tiny runs: what it measures, the run that it writes, and what it refuses."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import dubio
from dubio.cli.commands import app
from dubio.pruning.records import Pruning

pytest.importorskip("sklearn")


def invoke(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    trained = invoke("train", "first", "--model", "mlp:64-16-10", "--epochs", 3, "--lr", "0.02", "--runs", folder)
    assert trained.exit_code == 0
    return folder


def test_without_an_amount_a_run_is_measured_and_left_as_it_is(runs: Path) -> None:
    before = (runs / "first" / "model.safetensors").read_bytes()
    result = invoke("prune", "first", "--samples", 3, "--runs", runs)
    assert result.exit_code == 0, result.output
    record = Pruning.load(runs / "first" / "pruning.json")
    assert (record.num_removed, record.num_weights) == (0, 1184)
    assert {point.by for point in record.curve} == {"snr", "magnitude"}
    lines = [line.split("│")[1:-1] for line in result.stdout.splitlines() if line.startswith("│")]
    rows = [[cell.strip() for cell in line] for line in lines]
    assert [row[0] for row in rows] == ["0%", "25%", "50%", "75%", "90%", "95%", "98%"]
    by_ratio = [point for point in record.curve if point.by == "snr"]
    assert [row[1:3] for row in rows] == [[f"{point.accuracy:.4f}", f"{point.nll:.4f}"] for point in by_ratio]
    assert "1,184 weights" in result.stdout
    assert (runs / "first" / "model.safetensors").read_bytes() == before
    assert not (runs / "first-pruned").exists()


@pytest.mark.feature("dubio prune measures what a run can do without and writes a smaller run that all commands take")
def test_a_pruned_run_is_one_that_all_commands_take(runs: Path, tmp_path: Path) -> None:
    result = invoke("prune", "first", "--fraction", 0.75, "--samples", 3, "--runs", runs)
    assert result.exit_code == 0, result.output
    assert "888 of 1,184 weights removed (weights by snr, fraction 0.75)" in result.stdout
    assert "accuracy 0." in result.stdout
    folder = runs / "first-pruned"
    record = Pruning.load(folder / "pruning.json")
    assert record.bytes_after == (folder / "model.safetensors").stat().st_size
    assert record.bytes_before == (runs / "first" / "model.safetensors").stat().st_size
    assert record.step_seconds_after > 0.0
    for file in ("command.json", "metrics.jsonl"):
        assert (folder / file).read_bytes() == (runs / "first" / file).read_bytes()
    described = invoke("describe", "first-pruned", "--runs", runs)
    assert "322 weights are random, 0 are not, 888 were removed" in described.stdout
    assert invoke("predict", "first-pruned", "--samples", 2, "--runs", runs).exit_code == 0
    assert invoke("export", "first-pruned", tmp_path / "a.pt2", "--runs", runs).exit_code == 0
    assert "first-pruned" in invoke("runs", "--runs", runs).stdout
    attacked = invoke(
        "attack", "first-pruned", "--images", 4, "--steps", 1, "--samples", 1, "--draws", 2, "--runs", runs
    )
    assert attacked.exit_code == 0
    resumed = invoke("train", "first-pruned", "--resume", "--runs", runs)
    assert resumed.exit_code == 2
    assert f"a pruned run cannot be resumed, got {folder}; continue the run before pruning" in resumed.stderr
    assert "dubio train first --resume" in resumed.stderr
    (folder / "commands.jsonl").unlink()  # as older versions left it
    resumed = invoke("train", "first-pruned", "--resume", "--runs", runs)
    assert "cannot resume with another configuration: parameter 1.weight_posterior.removed was" in resumed.stderr


def test_a_pruned_run_has_fewer_parameters_than_the_whole_one(runs: Path) -> None:
    for options in (("--out", "fewer"), ("--out", "smaller", "--what", "units")):
        assert invoke("prune", "first", "--fraction", 0.5, *options, "--samples", 2, "--runs", runs).exit_code == 0
    told = json.loads(invoke("compare", "first", "fewer", "smaller", "--json", "--runs", runs).stdout)
    counts = [row["cells"]["parameters"]["value"] for row in told["headlines"][0]["runs"]]
    weights = 64 * 16 + 16 * 10
    assert counts == [2 * (weights + 26), 2 * (weights // 2 + 26), 2 * (weights // 2 + 18)]  # means and scales


def test_a_budget_and_units_make_a_run_under_a_name(runs: Path) -> None:
    result = invoke(
        *("prune", "first", "--max-loss", 0.2, "--what", "units", "--by", "magnitude", "--each-layer"),
        *("--out", "small", "--samples", 3, "--runs", runs),
    )
    assert result.exit_code == 0, result.output
    record = Pruning.load(runs / "small" / "pruning.json")
    assert (record.by, record.what, record.max_loss) == ("magnitude", "units", 0.2)
    assert record.accuracy_before - record.accuracy_after <= 0.2 + 1e-6
    model = dubio.load(runs / "small" / "model.safetensors")
    assert model[1].out_features == record.per_layer["1"].units_after < 16
    assert model(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    assert json.loads((runs / "small" / "config.json").read_text())["parameters"]["1.weight_posterior.mean"] == [
        model[1].out_features,
        64,
    ]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("first", "--fraction", 0.5, "--max-loss", 0.1), "--fraction and --max-loss exclude each other"),
        (("first", "--fraction", 7, "--out", "new"), "fraction must be in [0, 1]"),
        (("frist",), "there is no run 'frist'"),
        (("first", "--each-layer"), "--each-layer goes with --what units, got --what weights"),
        (("first", "--fraction", 0.5, "--out", "first"), "exists already; choose another name with --out NAME"),
        (("first", "--fraction", 0.5, "--out", "../up"), "NAME must be a plain name"),
    ],
)
def test_bad_arguments_are_refused_and_leave_nothing(runs: Path, args: tuple[object, ...], told: str) -> None:
    before = sorted(runs.rglob("*"))
    result = invoke("prune", *args, "--runs", runs)
    assert result.exit_code == 2
    assert told in result.stderr
    assert sorted(runs.rglob("*")) == before
