"""``dubio predict RUN NEW_DATA``: predictions of data without labels, the same in every format."""

import csv
import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

import dubio
from dubio.cli.commands import app
from dubio.io import load, save


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on tables, one of classes and one of numbers."""
    folder, numbers = tmp_path_factory.mktemp("tables"), random.Random(0)
    rows = [(numbers.gauss(40, 9), numbers.choice(["Ulm", "Bonn", "Kiel"])) for _ in range(120)]
    with (folder / "churn.csv").open("w") as file:
        print("age,city,churn", *(f"{a:.2f},{c},{'yes' if a > 40 else 'no'}" for a, c in rows), sep="\n", file=file)
    with (folder / "price.csv").open("w") as file:
        print("age,city,price", *(f"{a:.2f},{c},{1000 * a:.1f}" for a, c in rows), sep="\n", file=file)
    for name in ("churn", "price"):
        options = ("--model", "fc:8", "--epochs", "2", "--runs", folder / "runs")
        result = invoke("train", name, "--data", folder / f"{name}.csv", *options)
        assert result.exit_code == 0, result.output
    return folder / "runs"


NEW = "city,age\n" + "".join(
    f"{city},{age}\n" for age, city in [(30, "Ulm"), (50.5, "Kiel"), (41, "Rome"), ("", "Bonn")]
)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.feature("dubio predict RUN new.csv --out FILE predicts data without labels, a few thousand rows at a time")
def test_predictions_of_a_table_are_written_with_all_that_is_known(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(NEW)
    result = invoke("predict", "churn", tmp_path / "new.csv", "--out", tmp_path / "pred.csv", "--runs", runs)
    assert result.exit_code == 0, result.output
    assert "pred.csv: predictions of 4 rows" in result.output
    rows = read_csv(tmp_path / "pred.csv")
    columns = ["row", "label", "confidence", "prob_no", "prob_yes", "entropy", "aleatoric", "epistemic"]
    assert list(rows[0]) == columns
    for row in rows:
        probs = [float(row["prob_no"]), float(row["prob_yes"])]
        assert sum(probs) == pytest.approx(1.0, abs=1e-5)
        assert float(row["confidence"]) == pytest.approx(max(probs))
        assert row["label"] == ("no", "yes")[int(np.argmax(probs))]
        assert float(row["aleatoric"]) + float(row["epistemic"]) == pytest.approx(float(row["entropy"]), abs=1e-5)
    assert "1 of 4 rows" in result.output  # a city that training did not have


def test_every_format_holds_the_same(runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "new.csv").write_text(NEW)
    for ending in ("csv", "jsonl", "parquet", "npz"):
        out = tmp_path / f"pred.{ending}"
        assert invoke("predict", "price", tmp_path / "new.csv", "--out", out, "--runs", runs, "--quiet").output == ""
    means = [float(row["mean"]) for row in read_csv(tmp_path / "pred.csv")]
    lines = [json.loads(line) for line in (tmp_path / "pred.jsonl").read_text().splitlines()]
    assert [line["mean"] for line in lines] == means
    assert parquet.read_table(tmp_path / "pred.parquet")["mean"].to_pylist() == means
    with np.load(tmp_path / "pred.npz") as arrays:
        assert arrays["mean"].tolist() == means
    assert all(line["low_0.95"] < line["mean"] < line["high_0.95"] for line in lines)
    assert list(tmp_path.glob(".unfinished*")) == []


def test_what_was_decided_stands_beside_each_prediction(runs: Path, tmp_path: Path) -> None:
    model = load(runs / "churn" / "model.safetensors")
    dubio.convert.change_spec(
        model, threshold=dubio.Threshold("confidence", 0.5), sets=dubio.PredictionSets("lac", 0.9, 0.9)
    )
    save(model, tmp_path / "decided.safetensors")
    (tmp_path / "table.json").write_text((runs / "churn" / "table.json").read_text())
    (tmp_path / "new.csv").write_text(NEW)
    result = invoke("predict", tmp_path / "decided.safetensors", tmp_path / "new.csv", "--out", tmp_path / "pred.csv")
    assert result.exit_code == 0, result.output
    rows = read_csv(tmp_path / "pred.csv")
    assert {row["accepted"] for row in rows} <= {"True", "False"}
    assert all(set(row["set"].split("|")) <= {"no", "yes", ""} for row in rows)


def test_without_a_file_the_first_rows_are_shown(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("age,city\n" + "30,Ulm\n" * 25)
    result = invoke("predict", "churn", tmp_path / "new.csv", "--runs", runs)
    assert result.exit_code == 0, result.output
    assert "the first 10 rows; --out predictions.csv writes all of them" in result.output
    assert "confidence" in result.output


def write_images(folder: Path, count: int, size: tuple[int, int]) -> Path:
    """Noise of a width and a height."""
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(0)
    for number in range(count):
        Image.fromarray(numbers.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return folder


def test_images_of_another_shape_with_as_many_pixels_are_refused_by_a_network_that_flattens(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        write_images(tmp_path / "pets" / name, 8, (6, 6))
    options = ("--model", "fc:4", "--epochs", "1", "--runs", tmp_path)
    trained = invoke("train", "pets", "--data", tmp_path / "pets", *options)
    assert trained.exit_code == 0, trained.output
    assert invoke("predict", "pets", write_images(tmp_path / "same", 2, (6, 6)), "--runs", tmp_path).exit_code == 0
    result = invoke("predict", "pets", write_images(tmp_path / "wide", 2, (12, 3)), "--runs", tmp_path)
    assert result.exit_code == 2
    words = " ".join(result.output.split())
    assert "images of 6x6 pixels, as the network was trained on, got 12x3 in 0.png; resize them first" in words


@pytest.mark.filterwarnings("ignore:.*examples are few")
def test_a_table_on_screen_cuts_no_number(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "runs")
    for command, options in (("abstain", ("--coverage", "0.8")), ("conformal", ("--coverage", "0.8"))):
        assert invoke(command, "churn", *options, "--runs", tmp_path / "runs").exit_code == 0
    (tmp_path / "new.csv").write_text(NEW)
    for run in ("churn", "price"):
        result = invoke("predict", run, tmp_path / "new.csv", "--runs", tmp_path / "runs")
        assert result.exit_code == 0, result.output
        assert "…" not in result.output


def test_several_targets_on_screen_have_columns_that_fit(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0)
    np.savez(tmp_path / "three.npz", x=numbers.normal(size=(40, 2)), y=numbers.normal(size=(40, 3)))
    options = ("--model", "fc:4", "--epochs", "1", "--runs", tmp_path)
    assert invoke("train", "three", "--data", tmp_path / "three.npz", *options).exit_code == 0
    result = invoke("predict", "three", tmp_path / "three.npz", "--runs", tmp_path)
    assert result.exit_code == 0, result.output
    assert "…" not in result.output
    assert "the first 10 rows and 7 of 19 columns; --out predictions.csv writes all of them" in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("new.csv", "--out", "pred.txt"), "--out must end in .csv, .jsonl, .parquet, .npz"),
        (("new.csv", "--out", "new.csv"), "--out must not be the file that is read"),
        (("new.csv", "--level", "2"), "--level must be between 0 and 1, got 2.0"),
        (("nothing.csv",), "there is no file or folder nothing.csv"),
        (("other.csv",), "it lacks city"),
        (("large.csv",), "column 'age' is too large for float32, got 1e+45; correct it, or leave the cell empty"),
        (("--out", "pred.csv"), "--out writes predictions of new data; name them"),
    ],
)
def test_what_cannot_be_done_is_said(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new.csv").write_text(NEW)
    (tmp_path / "other.csv").write_text("age\n3\n")
    (tmp_path / "large.csv").write_text("city,age\nUlm,1e45\n")
    result = invoke("predict", "churn", *options, "--runs", runs)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "pred.csv").exists()
