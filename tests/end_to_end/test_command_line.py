"""The command line, from training to export, in tiny runs of the real commands."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner, Result

import dubio
from dubio.cli.commands import app
from dubio.cli.demo import _comparison, parse_methods
from dubio.cli.runs import TrainConfig, load_splits, train_network
from dubio.methods import METHODS

pytest.importorskip("sklearn")

COMMANDS = (
    "demo",
    "data",
    "methods",
    "train",
    "runs",
    "describe",
    "predict",
    "evaluate",
    "attack",
    "calibrate",
    "abstain",
    "conformal",
    "prune",
    "report",
    "compare",
    "export",
    "audit",
)
TINY = ("--model", "mlp:64-16-10", "--epochs", "2")


def invoke(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def start(*args: object, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "dubio", *map(str, args)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options
    )


def epochs_of(folder: Path) -> list[int]:
    return [json.loads(line)["epoch"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    assert invoke("train", "first", *TINY, "--runs", folder).exit_code == 0
    return folder


def assert_refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    for part in parts:
        assert part in result.stderr


@pytest.mark.feature("The command line trains a network and shows, describes, predicts with and exports it")
def test_a_network_goes_from_training_to_export(tmp_path: Path) -> None:
    trained = invoke("train", "first", *TINY, "--prior", "centred:0.1", "--runs", tmp_path)
    assert trained.exit_code == 0, trained.output
    assert "test accuracy 0." in trained.stdout
    listed = invoke("runs", "--runs", tmp_path)
    assert "first" in listed.stdout
    assert "2/2" in listed.stdout
    described = invoke("describe", "first", "--runs", tmp_path)
    assert "CentredNormal(std=0.1)" in described.stdout
    assert "1,210 weights are random, 0 are not" in described.stdout
    predicted = invoke("predict", "first", "--index", "0..2,7", "--samples", 5, "--runs", tmp_path)
    assert predicted.exit_code == 0
    rows = [line.split("│")[1:-1] for line in predicted.stdout.splitlines() if line.startswith("│")]
    assert [int(row[0]) for row in rows] == [0, 1, 2, 7]
    out = tmp_path / "first.pt2"
    exported = invoke("export", "first", out, "--noise", "frozen", "--samples", 3, "--runs", tmp_path)
    assert exported.exit_code == 0
    assert torch.export.load(out).module()(torch.zeros(5, 64)).shape == (3, 5, 10)


def test_predictions_are_those_of_the_saved_network(runs: Path) -> None:
    model = dubio.load(runs / "first" / "model.safetensors")
    expected = dubio.predict(model, dubio.data.load_test("digits")[4:6].tensors[0], num_samples=20, seed=3)
    by_file = invoke("predict", runs / "first" / "model.safetensors", "--index", "4..5", "--samples", 20, "--seed", 3)
    by_folder = invoke("predict", runs / "first", "--index", "4..5", "--samples", 20, "--seed", 3)
    assert by_file.stdout == by_folder.stdout
    assert isinstance(expected, dubio.ClassificationPredictive)
    rows = [line.split("│")[1:-1] for line in by_file.stdout.splitlines() if line.startswith("│")]
    assert [int(row[2]) for row in rows] == expected.label.tolist()
    assert [float(row[5]) for row in rows] == pytest.approx(expected.mutual_information.tolist(), abs=6e-4)


def test_predictions_are_made_in_the_precision_asked_for(runs: Path) -> None:
    model = dubio.load(runs / "first" / "model.safetensors")
    inputs = dubio.data.load_test("digits")[:200].tensors[0]
    options = ("--index", "0..199", "--samples", 20, "--seed", 3, "--device", "cpu", "--precision", "bf16")
    shown = invoke("predict", "first", *options, "--runs", runs)
    assert shown.exit_code == 0, shown.output
    rows = [line.split("│")[1:-1] for line in shown.stdout.splitlines() if line.startswith("│")]
    rounded, exact = (dubio.predict(model, inputs, 20, seed=3, precision=name) for name in ("bf16", "fp32"))
    assert isinstance(rounded, dubio.ClassificationPredictive)
    assert isinstance(exact, dubio.ClassificationPredictive)
    assert [row[3].strip() for row in rows] == [f"{value:.3f}" for value in rounded.confidence.tolist()]
    assert [row[3].strip() for row in rows] != [f"{value:.3f}" for value in exact.confidence.tolist()]
    assert_refused(invoke("predict", "first", "--precision", "fp16", "--runs", runs), "--precision", "fp16")
    assert_refused(invoke("predict", "first", "--device", "tpu", "--runs", runs), "--device must be cpu, cuda")


@pytest.mark.feature("dubio train takes a dataset's name, a table or a folder of images; label noise and augmentation")
def test_a_network_is_trained_on_a_table_and_predicts_it(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(200, 2, generator=generator)
    names = ["warm" if x > y else "cold" for x, y in points.tolist()]
    rows = [f"{x},{y},{name}" for (x, y), name in zip(points.tolist(), names, strict=True)]
    (tmp_path / "weather.csv").write_text("\n".join(["left,right,class", *rows]) + "\n")
    trained = invoke(
        "train", "weather", "--data", tmp_path / "weather.csv", "--model", "fc:8", "--epochs", 2, "--runs", tmp_path
    )
    assert trained.exit_code == 0, trained.output
    assert "test accuracy" in trained.stdout
    assert "(50 examples, 100 draws)" in trained.stdout
    predicted = invoke("predict", "weather", "--index", "0..3", "--runs", tmp_path)
    assert predicted.exit_code == 0, predicted.output
    assert "warm" in predicted.stdout or "cold" in predicted.stdout


def test_images_are_resized_for_training_and_for_all_that_follows(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    for number in range(60):
        kind, height, width = number % 2, 9 + number % 3, 8 + number % 4
        pixels = generator.integers(0, 100, (height, width), dtype=np.uint8) + np.uint8(100 * kind)
        folder = tmp_path / "photos" / ("light" if kind else "dark")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        other = tmp_path / "other" / folder.name
        other.mkdir(parents=True, exist_ok=True)
        Image.fromarray(255 - pixels).save(other / f"{number}.png")
    runs = ("--runs", tmp_path / "runs")
    train = ("train", "seen", "--data", tmp_path / "photos", "--model", "fc:8", "--epochs", 2, *runs)
    assert_refused(invoke(*train), "must be as large as", "--resize HEIGHTxWIDTH")
    assert_refused(invoke(*train, "--resize", "8by6"), "--resize must be one number of pixels or HEIGHTxWIDTH")
    trained = invoke(*train, "--resize", "8x6")
    assert trained.exit_code == 0, trained.output
    assert json.loads((tmp_path / "runs" / "seen" / "command.json").read_text())["resize"] == "8x6"
    assert dubio.models.sizes_of(dubio.load(tmp_path / "runs" / "seen" / "model.safetensors")).inputs == (48,)
    for command in (
        ("predict", "seen", "--samples", 3),
        ("evaluate", "seen", "--samples", 3, "--resamples", 0, "--ood", tmp_path / "other"),
        ("prune", "seen", "--samples", 3),
        ("train", "seen", "--resume", "--epochs", 3),
    ):
        done = invoke(*command, *runs)
        assert done.exit_code == 0, done.output


def test_a_network_is_trained_to_predict_numbers(tmp_path: Path) -> None:
    trained = invoke("train", "sugar", "--data", "diabetes", "--model", "fc:8", "--epochs", 2, "--runs", tmp_path)
    assert trained.exit_code == 0, trained.output
    assert "test RMSE" in trained.stdout
    predicted = invoke("predict", "sugar", "--index", "0..3", "--runs", tmp_path)
    assert predicted.exit_code == 0, predicted.output
    assert "of the network" in predicted.stdout
    likelihood = dubio.spec(dubio.load(tmp_path / "sugar" / "model.safetensors")).likelihood
    targets = dubio.data.load("diabetes").train.targets
    assert likelihood == dubio.Gaussian.for_targets(targets, "output", beta=0.5)
    shown = invoke("evaluate", "sugar", "--samples", 20, "--resamples", 0, "--runs", tmp_path)
    assert shown.exit_code == 0, shown.output
    pruned = invoke("prune", "sugar", "--samples", 5, "--runs", tmp_path)
    assert pruned.exit_code == 0, pruned.output
    assert "NLL, by snr" in pruned.stdout.replace("\n", " ")
    assert "accuracy" not in pruned.stdout


LIKELIHOODS = {
    "gaussian:learned": "Gaussian(std='learned', target_mean=",
    "GAUSSIAN": "Gaussian(std='output', target_mean=",
    "gaussian:0.5": "Gaussian(std=0.5, target_mean=",
}


@pytest.mark.feature("dubio train --likelihood says what noise numbers have; by default it depends on the input")
@pytest.mark.parametrize("text", LIKELIHOODS)
def test_the_likelihood_is_chosen_kept_and_resumed(text: str, tmp_path: Path) -> None:
    options = ("--data", "diabetes", "--model", "fc:4", "--method", "deterministic", "--runs", tmp_path)
    trained = invoke("train", "sugar", "--likelihood", text, "--epochs", 1, *options)
    assert trained.exit_code == 0, trained.output
    assert json.loads((tmp_path / "sugar" / "command.json").read_text())["likelihood"] == text
    kept = dubio.spec(dubio.load(tmp_path / "sugar" / "model.safetensors")).likelihood
    assert repr(kept).startswith(LIKELIHOODS[text])
    resumed = invoke("train", "sugar", "--resume", "--epochs", 2, "--runs", tmp_path)
    assert resumed.exit_code == 0, resumed.output
    other = invoke("train", "sugar", "--resume", "--epochs", 3, "--likelihood", "gaussian:0.7", "--runs", tmp_path)
    assert other.exit_code == 2
    assert "cannot resume with another configuration: " in other.stderr


def test_a_run_begun_before_targets_were_standardised_goes_on_as_it_was(tmp_path: Path) -> None:
    splits = dubio.data.load("diabetes")
    config = TrainConfig(data="diabetes", model="fc:4", method="deterministic", epochs=1, standardise_targets=False)
    train_network(config, splits, tmp_path / "old", progress=False)
    command = tmp_path / "old" / "command.json"
    stored = json.loads(command.read_text())
    del stored["standardise_targets"], stored["likelihood"]
    command.write_text(json.dumps(stored))
    resumed = invoke("train", "old", "--resume", "--epochs", 2, "--runs", tmp_path)
    assert resumed.exit_code == 0, resumed.output
    assert dubio.spec(dubio.load(tmp_path / "old" / "model.safetensors")).likelihood == dubio.Gaussian("learned")


def test_two_classes_may_be_one_output(tmp_path: Path) -> None:
    options = ("--data", "clusters", "--model", "fc:4", "--likelihood", "bernoulli", "--epochs", 1, "--runs", tmp_path)
    trained = invoke("train", "yes", *options)
    assert trained.exit_code == 0, trained.output
    assert "test accuracy" in trained.stdout
    predicted = invoke("predict", "yes", "--index", "0..3", "--runs", tmp_path)
    assert predicted.exit_code == 0, predicted.output
    shown = invoke("evaluate", "yes", "--samples", 5, "--resamples", 0, "--runs", tmp_path)
    assert shown.exit_code == 0, shown.output


@pytest.mark.slow
def test_wrong_labels_and_augmentation_change_what_is_learned(tmp_path: Path) -> None:
    weights = []
    for name, options in {"plain": (), "noisy": ("--label-noise", "flip:0.4"), "moved": ("--augment",)}.items():
        trained = invoke("train", name, *TINY, *options, "--runs", tmp_path)
        assert trained.exit_code == 0, trained.output
        weights.append(dubio.load(tmp_path / name / "model.safetensors").state_dict())
        resumed = invoke("train", name, "--resume", "--epochs", 3, "--runs", tmp_path)
        assert resumed.exit_code == 0, resumed.output
    first = next(iter(weights[0]))
    assert not torch.equal(weights[0][first], weights[1][first])
    assert not torch.equal(weights[0][first], weights[2][first])
    noisy, clean = load_splits(TrainConfig(label_noise="flip:0.4")), load_splits(TrainConfig())
    assert noisy.train is not None
    assert clean.train is not None
    assert 0.3 < (noisy.train.targets != clean.train.targets).float().mean() < 0.5
    assert torch.equal(noisy.test.targets, clean.test.targets)  # what is tested with stays true


def test_resume_goes_on_with_the_options_the_run_had(tmp_path: Path) -> None:
    assert invoke("train", "whole", *TINY, "--lr", "0.01", "--epochs", 3, "--runs", tmp_path).exit_code == 0
    assert invoke("train", "parts", *TINY, "--lr", "0.01", "--epochs", 1, "--runs", tmp_path).exit_code == 0
    resumed = invoke("train", "parts", "--resume", "--epochs", 3, "--runs", tmp_path)
    assert resumed.exit_code == 0, resumed.output
    assert epochs_of(tmp_path / "parts") == [1, 2, 3]
    whole, parts = (dubio.load(tmp_path / name / "model.safetensors").state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_resume_with_another_option_says_what_differs(runs: Path) -> None:
    before = (runs / "first" / "command.json").read_text()
    refused = invoke("train", "first", "--resume", "--lr", "0.5", "--runs", runs)
    assert_refused(refused, "cannot resume with another configuration", "lr was 0.002, is 0.5")
    assert (runs / "first" / "command.json").read_text() == before


def test_a_name_that_is_taken_is_refused(runs: Path) -> None:
    assert_refused(invoke("train", "first", *TINY, "--runs", runs), "holds a run already", "--resume")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("train", "x", "--model", "cnn:3"), "mlp:64-100-100-10"),
        (("train", "x", "--model", "mlp:784-10"), "model 'mlp:784-10' takes, got (1, 8, 8)"),
        (("train", "x", "--likelihood", "gausian"), "got 'gausian'; did you mean 'gaussian'?"),
        (("train", "x", "--likelihood", "gaussian:-1"), "--likelihood must be gaussian, gaussian:learned or"),
        (("train", "x", "--likelihood", "gaussian"), "--likelihood gaussian is for numbers, and the targets of digits"),
        (("train", "x", "--likelihood", "bernoulli"), "is for two classes, and digits has 10"),
        (("train", "x", "--data", "diabetes", "--likelihood", "categorical"), "is for classes, and the targets of"),
        (("train", "x", "--prior", "cauchy:1"), "--prior must be normal:MEAN,STD"),
        (("train", "x", "--prior", "normal:0"), "--prior must be normal:MEAN,STD"),
        (("train", "x", "--prior", "normal:0,-1"), "std of a prior must be positive"),
        (("train", "x", "--method", "magic"), "--method must be 'bayes'"),
        (("train", "x", "--data", "mnist", "--data-dir", "nowhere"), "mnist lacks MNIST/raw/train-images-idx3-ubyte"),
        (("train", "x", "--data", "dgits"), "did you mean 'digits'?"),
        (("train", "x", "--data", "nowhere.csv"), "nowhere.csv"),
        (("train", "x", "--label-noise", "flip"), "flip"),
        (("train", "x", "--label-noise", "flip:1.5"), "1.5"),
        (("train", "x", "--data", "diabetes", "--label-noise", "flip:0.3"), "--label-noise needs classes"),
        (("train", "x", "--data", "diabetes", "--augment"), "--augment needs images, and diabetes has"),
        (("demo", "--methods", "bayes,magic"), "--methods must name some of bayes, "),
        (("demo", "--methods", "bayes,bayes"), "each once, got 'bayes,bayes'"),
        (("demo", "--epochs", "0"), "epochs must be at least 1, got 0"),
        (("train", "x", "--device", "abacus"), "--device must be cpu, cuda"),
        (("predict", "first", "--data", "diabetes"), "this network reads inputs of shape (64,), and diabetes"),
        (("train", "x", "--epochs", "0"), "epochs must be at least 1, got 0"),
        (("train", "x", "--epochs", "many"), "--epochs"),
        (("train", "x", "--estimator", "exact"), "--estimator"),
        (("train", "../x"), "NAME must be a plain name"),
        (("train", "x", "--resume"), "there is no run 'x'"),
        (("train",), "NAME"),
        (("predict", "first", "--index", "449"), "from 0 to 448"),
        (("predict", "first", "--index", "a"), "--index must be like"),
        (("predict", "first", "--samples", "0"), "num_samples"),
        (("predict", "missing.safetensors"), "missing.safetensors"),
        (("export", "first", "first.txt"), "must end in .pt2 or .onnx"),
        (("export", "first", "nowhere/first.pt2"), "there is no folder nowhere"),
        (("export", "first", "first.pt2", "--samples", "3"), "num_samples must be None with noise off"),
        (("fly",), "fly"),
        (("runs", "--wings"), "--wings"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(args: tuple[str, ...], message: str, runs: Path) -> None:
    where = () if args[-1] == "--wings" or args in (("fly",), ("train",)) else ("--runs", str(runs))
    assert_refused(invoke(*args, *where), message)
    assert [path.name for path in runs.iterdir()] == ["first"]


def test_an_unknown_run_names_those_that_are_close(runs: Path) -> None:
    assert_refused(invoke("describe", "frist", "--runs", runs), "there is no run 'frist'", "did you mean 'first'?")
    assert_refused(invoke("describe", "first", "--runs", runs / "none"), "none at all", "dubio train first")


def test_a_damaged_file_is_refused(runs: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes((runs / "first" / "model.safetensors").read_bytes()[:-100])
    assert_refused(invoke("describe", cut), "cut.safetensors")


def test_a_run_without_a_model_says_how_to_finish_it(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "first", tmp_path / "half", ignore=shutil.ignore_patterns("model.safetensors"))
    assert_refused(invoke("describe", "half", "--runs", tmp_path), "dubio train half --resume")


def test_debug_shows_the_traceback(runs: Path) -> None:
    with pytest.raises(FileNotFoundError, match="did you mean 'first'"):
        invoke("--debug", "describe", "frist", "--runs", runs)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_example(command: str) -> None:
    shown = invoke(command, "--help")
    assert shown.exit_code == 0
    assert f"Example:  dubio {command}" in shown.stdout


def test_no_arguments_show_the_help_and_version_the_version() -> None:
    assert all(command in invoke().stdout for command in COMMANDS)
    assert invoke().exit_code == 0
    said = invoke("--version").stdout
    assert said.startswith(f"dubio {dubio.__version__}")
    assert "kernels for CPUs" in said


def test_a_tiny_demo_ends_with_a_report_and_says_that_its_numbers_mean_nothing(tmp_path: Path) -> None:
    shown = invoke("demo", "--tiny", "--methods", "bayes", "--quiet", "--runs", tmp_path)
    assert shown.exit_code == 0, shown.output
    assert shown.stderr == ""
    assert "its numbers mean nothing" in " ".join(shown.stdout.split())
    assert (tmp_path / "demo-report.html").is_file()
    assert epochs_of(tmp_path / "demo-bayes") == [1]


@pytest.mark.parametrize("quiet", [False, True])
def test_training_is_quiet_where_it_is_to_be_and_still_prints_its_result(quiet: bool, tmp_path: Path) -> None:
    trained = invoke("train", "first", *TINY, *(["--quiet"] if quiet else []), "--runs", tmp_path)
    assert trained.exit_code == 0, trained.output
    assert ("epoch 1/2" in trained.stderr) == (not quiet)
    assert (trained.stderr == "") == quiet
    assert "test accuracy" in trained.stdout


@pytest.mark.feature("dubio demo compares all methods on digits, on noise and under attack, in runs to look at")
@pytest.mark.usefixtures("unchecked")
def test_the_demo_ends_with_a_table_and_runs_to_look_at(tmp_path: Path) -> None:
    shown = invoke("demo", "--methods", "se-snn,deterministic", "--epochs", 2, "--runs", tmp_path)
    assert shown.exit_code == 0, shown.output
    report, lines = tmp_path / "demo-report.html", shown.stdout.partition("Try next:")[0].splitlines()
    assert f"  {report.as_uri()}" in lines
    assert max(len(line) for line in lines if "file://" not in line) <= 80
    page = report.read_text()
    assert all(name in page for name in ("demo-se-snn", "demo-deterministic"))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.stdout.splitlines() if "│" in line]
    assert [row[0] for row in rows] == ["se-snn", "deterministic"]
    test, noise = dubio.data.load_test("digits"), torch.rand(449, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for name, *cells in rows:
        model = dubio.load(tmp_path / f"demo-{name}" / "model.safetensors")
        found = dubio.predict(model, test.tensors[0], num_samples=20, seed=0)
        strange = dubio.predict(model, noise, num_samples=20, seed=0)
        assert isinstance(found, dubio.ClassificationPredictive)
        assert isinstance(strange, dubio.ClassificationPredictive)
        nll = torch.nn.functional.nll_loss(found.log_probs, test.tensors[1])
        ece = dubio.Evaluation.load(tmp_path / f"demo-{name}" / "evaluation.json").metrics["ece"].value
        uncertainties = (found.entropy.mean(), strange.entropy.mean())
        expected = [(found.label == test.tensors[1]).float().mean(), nll, ece, *uncertainties]
        (file,) = (tmp_path / f"demo-{name}").glob("attack-*.json")
        record = json.loads(file.read_text())
        assert len(record["indices"]) == 128
        left = record["rows"][0]
        expected += [left["predictive"]["value"], left["single"]["value"]]
        assert [float(cell) for cell in cells[:7]] == pytest.approx([float(value) for value in expected], abs=6e-4)
    assert rows[1][6] == rows[1][7]  # without noise every draw is the same
    for command in ("describe", "predict"):
        assert invoke(command, "demo-deterministic", "--runs", tmp_path).exit_code == 0
    assert invoke("attack", "demo-deterministic", "--images", 4, "--steps", 1, "--runs", tmp_path).exit_code == 0
    assert invoke("export", "demo-deterministic", tmp_path / "plain.pt2", "--runs", tmp_path).exit_code == 0
    assert f"dubio predict demo-se-snn --runs {tmp_path}" in shown.stdout
    assert "can be trusted: deterministic " in " ".join(shown.stdout.split())
    compared = invoke("compare", "demo-se-snn", "demo-deterministic", "--runs", tmp_path)
    assert "at 0.1" in compared.stdout  # the attack by 8/255 above has changed nothing


def test_the_demo_says_which_methods_are_worse_than_the_plain_network_and_why() -> None:
    nll = {"deterministic": 0.08, "bayes": 0.09, "wasserstein": 0.2, "pni": 0.2}
    (first, second) = _comparison(nll)
    assert first.startswith("NLL of wasserstein is worse than that of the plain network: its head")
    assert second.startswith("NLL of pni is worse than that of the plain network: its noise")
    assert list(_comparison({"bayes": 0.5})) == []  # nothing to compare with


@pytest.mark.slow
def test_the_demo_never_overwrites(tmp_path: Path) -> None:
    for _ in range(2):
        assert invoke("demo", "--methods", "deterministic", "--epochs", 1, "--runs", tmp_path).exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        *("demo-deterministic", "demo-deterministic-2", "demo-report.html", "demo-report.json"),
        *("demo-report-2.html", "demo-report-2.json"),
    }
    assert "Deterministic" in invoke("runs", "--runs", tmp_path).stdout


def test_the_demo_takes_every_method_the_ordinary_network_first() -> None:
    assert sorted(parse_methods(None)) == sorted(METHODS)
    assert parse_methods(None)[0] == "deterministic"


def test_an_interrupted_demo_is_not_called_resumable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise dubio.Interrupted("saved")

    monkeypatch.setattr("dubio.cli.demo.train_network", interrupt)
    assert invoke("demo", "--runs", tmp_path).exit_code == 130


def test_an_error_in_a_process_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    process = start("describe", "first", "--runs", tmp_path)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, len(err.splitlines())) == (2, "", 1)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.feature("Ctrl-C during dubio train saves the run, exits with 3, and --resume goes on")
def test_an_interrupted_run_exits_with_3_and_goes_on(tmp_path: Path) -> None:
    process = start("train", "long", "--model", "mlp:64-16-10", "--epochs", 100_000, "--eager", "--runs", tmp_path)
    assert process.stderr is not None
    assert "epoch 1/" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert err.splitlines()[-1].startswith("interrupted: ")
    assert f"dubio train long --resume --runs {tmp_path}" in err
    done = len(epochs_of(tmp_path / "long"))
    assert invoke("train", "long", "--resume", "--epochs", done + 1, "--runs", tmp_path).exit_code == 0
    assert epochs_of(tmp_path / "long") == list(range(1, done + 2))
