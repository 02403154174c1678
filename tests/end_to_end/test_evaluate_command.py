"""``dubio evaluate``: tables for a reader, a record for the report."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

import dubio
from dubio.cli.commands import app
from dubio.cli.evaluate import noise_like

runner = CliRunner()


def invoke(*arguments: object) -> Result:
    return runner.invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    assert invoke("train", "first", "--epochs", 2, "--model", "fc:20", "--runs", folder).exit_code == 0
    assert (
        invoke("train", "line", "--data", "curve", "--epochs", 1, "--model", "fc:10", "--runs", folder).exit_code == 0
    )
    return folder


@pytest.mark.feature("dubio evaluate judges a run: accuracy, calibration, unseen data, corruptions, with intervals")
def test_a_run_is_judged_on_its_test_data(runs: Path) -> None:
    shown = invoke("evaluate", "first", "--corruptions", "blur", "--samples", 20, "--runs", runs)
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines()[:-1])) <= 80
    found = dubio.Evaluation.load(runs / "first" / "evaluation.json")
    assert found.data.num_examples == 449
    assert set(found.unseen) == {"noise"}
    assert set(found.corruptions) == {"blur"}
    accuracy = found.metrics["accuracy"]
    assert f"{accuracy.value:.4f}" in shown.stdout
    assert f"{accuracy.low:.4f} to {accuracy.high:.4f}" in shown.stdout
    assert found.made_by["command"] == "dubio evaluate first --corruptions blur --samples 20"
    model = dubio.load(runs / "first" / "model.safetensors")
    again = dubio.evaluate(model, dubio.data.load_test("digits"), num_samples=20)
    assert again.metrics == found.metrics


def test_regression_shows_how_often_intervals_hold(runs: Path) -> None:
    shown = invoke("evaluate", "line", "--samples", 20, "--resamples", 0, "--runs", runs)
    assert shown.exit_code == 0, shown.output
    assert "RMSE" in shown.stdout
    assert "level of intervals" in shown.stdout
    assert dubio.Evaluation.load(runs / "line" / "evaluation.json").kind == "regression"


def test_another_place_and_no_unseen_data(runs: Path, tmp_path: Path) -> None:
    options = ("--ood", "none", "--samples", 2, "--resamples", 0, "--out", tmp_path / "new", "--runs", runs)
    assert invoke("evaluate", "first", *options).exit_code == 0
    assert not dubio.Evaluation.load(tmp_path / "new" / "evaluation.json").unseen


def test_the_record_tells_in_which_precision_it_was_made(runs: Path, tmp_path: Path) -> None:
    options = ("--ood", "none", "--samples", 5, "--resamples", 0, "--runs", runs, "--out")
    for precision in ("fp32", "bf16"):
        shown = invoke("evaluate", "first", *options, tmp_path / precision, "--precision", precision)
        assert shown.exit_code == 0, shown.output
    exact, rounded = (dubio.Evaluation.load(tmp_path / name / "evaluation.json") for name in ("fp32", "bf16"))
    assert rounded.made_by["command"] == "dubio evaluate first --ood none --samples 5 --resamples 0 --precision bf16"
    assert exact.made_by["command"] == "dubio evaluate first --ood none --samples 5 --resamples 0"
    difference = abs(exact.metrics["nll"].value - rounded.metrics["nll"].value)
    assert 0 < difference < 0.02


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--corruptions", "fog"), "--corruptions must name some of noise, blur, "),
        (("--ood", "nothing-here"), "nothing-here"),
        (("--samples", 0), "num_samples must be at least 1, got 0"),
        (("--resamples", -1), "num_resamples must be a whole number of at least 0, got -1"),
        (("--device", "tpu"), "--device must be cpu, cuda"),
    ],
)
def test_bad_options_are_refused(runs: Path, options: tuple[str, ...], message: str) -> None:
    refused = invoke("evaluate", "first", *options, "--runs", runs)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_noise_is_like_the_data() -> None:
    images = noise_like(dubio.data.load_test("digits"))
    assert images.inputs.shape == (449, 1, 8, 8)
    assert 0.0 <= images.inputs.min() < 0.01 < 0.99 < images.inputs.max() <= 1.0
    rows = dubio.data.Examples(
        torch.tensor([5.0, 1.0]) + torch.randn(2000, 2) * torch.tensor([0.1, 2.0]), torch.zeros(2000)
    )
    features = noise_like(rows).inputs
    torch.testing.assert_close(features.mean(0), rows.inputs.mean(0), atol=0.2, rtol=0.0)
    torch.testing.assert_close(features.std(0), rows.inputs.std(0), atol=0.2, rtol=0.0)
