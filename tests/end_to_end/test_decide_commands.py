"""``dubio calibrate``, ``abstain`` and ``conformal``, in tiny runs of the real commands."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import dubio
from dubio.cli.commands import app
from dubio.cli.runs import load_splits, read_config
from dubio.data.fingerprints import fingerprint_of
from dubio.evaluation.records import DataRecord, Evaluation

pytest.importorskip("sklearn")

TINY = ("--model", "mlp:64-16-10", "--epochs", "6", "--method", "dropout")


def invoke(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    assert invoke("train", "first", *TINY, "--runs", folder).exit_code == 0
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained / "first", tmp_path / "first")
    return tmp_path


@pytest.mark.feature("The command line calibrates a run, sets its threshold and its sets, and predict shows them")
def test_decisions_are_found_kept_and_shown(runs: Path) -> None:
    file = runs / "first" / "model.safetensors"
    calibrated = invoke("calibrate", "first", "--samples", 20, "--runs", runs)
    assert calibrated.exit_code == 0, calibrated.output
    assert re.match(r"temperature \d.*on the mean prediction; kept in .*model\.safetensors\n", calibrated.stdout)
    before, after = map(float, re.search(r"NLL (\d\.\d+) -> (\d\.\d+), calibration", calibrated.stdout).groups())  # type: ignore[union-attr]
    assert after < before
    accepted = invoke("abstain", "first", "--coverage", 0.5, "--score", "entropy", "--samples", 20, "--runs", runs)
    assert accepted.stdout.startswith("accepts entropy below ")
    sets = invoke("conformal", "first", "--coverage", 0.95, "--kind", "aps", "--samples", 20, "--runs", runs)
    assert sets.stdout.startswith("sets that hold the target with probability 0.95 (aps, ")
    assert re.search(r"sets hold \d\.\d\d classes on average on the 134 validation examples, \d+ at most", sets.stdout)

    record = dubio.spec(dubio.load(file))
    validation = load_splits(read_config(runs / "first")).validation
    assert validation is not None
    for decision in (record.calibration, record.threshold, record.sets):
        assert decision is not None
        assert decision.fingerprint == fingerprint_of(*validation.tensors)
    shown = invoke("predict", "first", "--index", "0..29", "--samples", 20, "--runs", runs)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.stdout.splitlines() if "│" in line]
    for line, row in enumerate(rows):  # long sets go on in the next line
        if not row[0]:
            row[:] = [*rows[line - 1][:-1], f"{rows[line - 1][-1]} {row[-1]}"]
    assert {row[-2] for row in rows} == {"yes", "no"}
    whole = {row[0]: row for row in rows}.values()
    assert len(whole) == 30
    assert all(row[2] in row[-1].split(", ") for row in whole)  # the label is in its set
    told = invoke("describe", "first", "--runs", runs).stdout
    assert len(re.findall(r"^decided     ", told, flags=re.MULTILINE)) == 3


def test_without_decisions_predict_shows_no_columns_for_them(runs: Path) -> None:
    shown = invoke("predict", "first", "--index", "0..2", "--samples", 2, "--runs", runs).stdout
    assert "accepted" not in shown
    assert len(next(line for line in shown.splitlines() if line.startswith("│")).split("│")) == 8


@pytest.mark.parametrize("command", ["calibrate", "abstain --coverage 0.5", "conformal"])
def test_a_run_that_was_judged_on_its_validation_data_is_refused(runs: Path, command: str) -> None:
    validation = load_splits(read_config(runs / "first")).validation
    assert validation is not None
    record = DataRecord("digits", len(validation), fingerprint_of(*validation.tensors))
    evaluation = Evaluation("classification", record, 10, 0, 0.0, {})
    evaluation.save(runs / "first" / "evaluation.json")
    before = (runs / "first" / "model.safetensors").read_bytes()
    refused = invoke(*command.split(), "first", "--samples", 2, "--runs", runs)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("error: validation must be data that this network was not judged on")
    assert (runs / "first" / "model.safetensors").read_bytes() == before

    other = dataclasses.replace(record, fingerprint="another")
    dataclasses.replace(evaluation, data=other).save(runs / "first" / "evaluation.json")
    assert invoke(*command.split(), "first", "--samples", 2, "--runs", runs).exit_code == 0
    assert dubio.spec(dubio.load(runs / "first" / "model.safetensors")).evaluated == ("another",)


def test_what_cannot_be_decided_is_one_line_and_exit_code_two(runs: Path) -> None:
    for args, told in (
        (("abstain", "first"), "give error or coverage, one of the two"),
        (("abstain", "first", "--error", "0.001"), "needs at least 2302 validation examples"),
        (("conformal", "first", "--coverage", "0.999"), "needs at least 999 validation examples, got 134"),
        (("calibrate", "second"), "there is no run 'second'"),
    ):
        refused = invoke(*args, "--samples", 2, "--runs", runs)
        assert refused.exit_code == 2
        assert len(refused.stderr.splitlines()) == 1
        assert told in refused.stderr


def test_noisy_validation_labels_are_told(runs: Path) -> None:
    file = runs / "first" / "command.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "label_noise": "flip:0.3"}))
    told = invoke("calibrate", "first", "--samples", 2, "--runs", runs)
    assert "validation labels have the noise of the training labels (flip:0.3)" in told.stdout
    told = invoke("calibrate", "first", "--samples", 2, "--quiet", "--runs", runs)
    assert told.stderr.startswith("warning: validation labels have the noise")


def test_a_run_that_predicts_numbers_is_refused_in_words_of_the_command_line(tmp_path: Path) -> None:
    rows = "".join(f"{row},{row * 1.5 + row % 3}\n" for row in range(60))
    (tmp_path / "price.csv").write_text(f"size,price\n{rows}")
    options = ("--model", "fc:4", "--epochs", "1", "--runs", tmp_path)
    assert invoke("train", "price", "--data", tmp_path / "price.csv", *options).exit_code == 0
    for command in (("calibrate",), ("abstain", "--coverage", "0.9"), ("conformal",)):
        result = invoke(command[0], "price", *command[1:], "--runs", tmp_path)
        assert result.exit_code == 2
        assert "run 'price' predicts numbers, and calibrate, abstain and conformal are for classes" in result.output
        assert "Gaussian(" not in result.output
