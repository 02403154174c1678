"""Tables on the command line: trained, judged, pruned and resumed with one encoding, or refused in a sentence."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

import dubio
from dubio.cli.commands import app
from dubio.cli.runs import TrainConfig, build_for, load_splits, read_config, read_encoder
from dubio.data.examples import Examples
from dubio.models.networks import Standardise

HEADER = "name,age,income,city,since,member,country,bought"


def invoke(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def customers(num_rows: int, seed: int = 0, *, scale: float = 1.0, shift: float = 0.0) -> list[str]:
    """Rows in which age, income, city and a gap decide who buys; no number is near [0, 1]."""
    rng = np.random.default_rng(seed)
    age, income = rng.integers(18, 90, num_rows), rng.lognormal(10.3, 0.5, num_rows)
    city = np.array(["Paris", "Lyon", "Nice"])[rng.integers(0, 3, num_rows)]
    since = np.datetime64("2015-01-01") + rng.integers(0, 3650, num_rows)
    member, gap = rng.random(num_rows) < 0.5, rng.random(num_rows) < 0.2
    logit = (age - 54) / 12 + 2 * (np.log(income) - 10.3) + 1.5 * (city == "Paris") - 0.5 + 1.5 * gap
    bought = logit + rng.logistic(size=num_rows) * 0.5 > 0
    return [
        f"Person {row},{'' if gap[row] else age[row]},{scale * income[row] + shift:.2f},{city[row]},{since[row]},"
        f"{member[row]},FR,{'yes' if bought[row] else 'no'}"
        for row in range(num_rows)
    ]


def write(path: Path, rows: list[str], header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def train(name: str, data: Path, runs: Path, *options: object) -> Result:
    fast = ("--method", "deterministic", "--model", "fc:32", "--epochs", 25, "--lr", 0.01)
    return invoke("train", name, "--data", data, *fast, *options, "--runs", runs)


def accuracy_and_nll(output: str) -> tuple[float, float]:
    line = next(line for line in output.splitlines() if line.startswith("test accuracy"))
    words = line.split()
    return float(words[2]), float(words[4])


def part(examples: Examples | None) -> Examples:
    assert examples is not None
    return examples


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Result]:
    """A folder of runs with the run ``shop``, its table, and what training it printed."""
    folder = tmp_path_factory.mktemp("tables")
    data = write(folder / "shop.csv", customers(600))
    result = train("shop", data, folder)
    assert result.exit_code == 0, result.output
    return folder, data, result


@pytest.mark.feature("dubio train learns a .csv of numbers in any units, texts, dates, booleans and gaps as it is")
def test_training_on_a_mixed_table_beats_the_majority_class(trained: tuple[Path, Path, Result]) -> None:
    folder, data, result = trained
    labels = part(load_splits(TrainConfig(data=str(data))).test).targets
    majority = torch.bincount(labels).max().item() / len(labels)
    accuracy, nll = accuracy_and_nll(result.output)
    assert accuracy > majority + 0.15
    assert nll < 0.6
    assert "target: bought (2 classes; 5 inputs: age, income, city, since, member)" in result.stdout
    assert "left out: name (every text is different)" in result.stdout
    assert "left out: country (one value only)" in result.stdout
    assert read_encoder(folder / "shop") == part(load_splits(TrainConfig(data=str(data))).train).encoder


def test_units_of_a_column_do_not_matter(trained: tuple[Path, Path, Result], tmp_path: Path) -> None:
    moved = train("moved", write(tmp_path / "shop.csv", customers(600, scale=100.0, shift=1e6)), tmp_path)
    accuracy, nll = accuracy_and_nll(moved.output)
    before = accuracy_and_nll(trained[2].output)
    assert abs(accuracy - before[0]) < 0.02
    assert abs(nll - before[1]) < 0.02


def test_without_the_layer_the_same_network_learns_less(trained: tuple[Path, Path, Result], tmp_path: Path) -> None:
    raw = train("raw", trained[1], tmp_path, "--as-is")
    assert accuracy_and_nll(raw.output)[1] > accuracy_and_nll(trained[2].output)[1] + 0.1


@pytest.mark.filterwarnings("default::dubio.data.files.TableWarning")
def test_commands_on_a_run_read_its_table_with_its_encoder(trained: tuple[Path, Path, Result], tmp_path: Path) -> None:
    folder = trained[0]
    other = [",".join([cells[7], cells[3].replace("Nice", "Oslo"), *cells[1:3], *cells[4:6], "x"])
             for cells in (row.split(",") for row in customers(200, seed=1))]  # fmt: skip
    path = write(tmp_path / "other.csv", other, "bought,city,age,income,since,member,extra")
    judged = invoke("evaluate", "shop", "--data", path, "--resamples", 0, "--samples", 1, "--runs", folder)
    assert judged.exit_code == 0, judged.output
    assert "column 'city' has a text that did not occur in training" in judged.stderr
    assert "columns extra are not in the training data and are ignored (200 of 200 rows)" in judged.stderr
    record = dubio.Evaluation.load(folder / "shop" / "evaluation.json")
    assert record.metrics["accuracy"].value > 0.7

    rows = [",".join(row.split(",")[1:6]) for row in customers(200, seed=2)]
    unseen = write(tmp_path / "unseen.csv", rows, "age,income,city,since,member")  # no target at all
    judged = invoke("evaluate", "shop", "--ood", unseen, "--resamples", 0, "--samples", 1, "--runs", folder)
    assert judged.exit_code == 0, judged.output
    assert "never seen" in judged.stdout

    missing = write(tmp_path / "missing.csv", rows, "age,pay,city,since,bought")
    refused = invoke("evaluate", "shop", "--data", missing, "--runs", folder)
    assert refused.exit_code == 2
    assert (
        "missing.csv must have the columns age, income, city, since, member, it lacks income, member" in refused.stderr
    )


@pytest.mark.filterwarnings("ignore::dubio.calibrators.DecisionWarning")  # 15 validation examples are few
def test_a_run_keeps_its_encoding_when_the_file_changes(tmp_path: Path) -> None:
    data = write(tmp_path / "shop.csv", customers(200))
    assert train("shop", data, tmp_path, "--epochs", 1).exit_code == 0
    write(data, [row.replace("Lyon", "Metz").replace(",FR,", ",DE,") for row in customers(200)])
    assert part(load_splits(read_config(tmp_path / "shop")).test).encoder != read_encoder(tmp_path / "shop")
    for command in (("calibrate", "shop"), ("predict", "shop", "--index", 0)):
        result = invoke(*command, "--runs", tmp_path)
        assert result.exit_code == 0, result.output
    resumed = invoke("train", "shop", "--resume", "--epochs", 2, "--runs", tmp_path)
    assert resumed.exit_code == 2
    assert "cannot resume with other data" in resumed.stderr
    pruned = invoke("prune", "shop", "--fraction", 0.2, "--out", "small", "--runs", tmp_path)
    assert pruned.exit_code == 0, pruned.output
    assert read_encoder(tmp_path / "small") == read_encoder(tmp_path / "shop")
    assert invoke("predict", "small", "--index", 0, "--runs", tmp_path).exit_code == 0


def test_the_options_of_a_table_are_kept_for_later(tmp_path: Path) -> None:
    data = write(tmp_path / "shop.csv", [row.replace(",", ":") for row in customers(200)], HEADER.replace(",", ":"))
    options = ("--target", "city", "--drop", "name, bought", "--delimiter", ":", "--epochs", 1)
    result = train("towns", data, tmp_path, *options)
    assert result.exit_code == 0, result.output
    assert "target: city (3 classes; 4 inputs: age, income, since, member)" in result.stdout
    assert "left out: bought (as requested)" in result.stdout
    predicted = invoke("predict", "towns", "--index", 0, "--runs", tmp_path)
    assert predicted.exit_code == 0, predicted.output
    assert any(town in predicted.stdout for town in ("Paris", "Lyon", "Nice"))
    assert invoke("train", "towns", "--resume", "--epochs", 2, "--runs", tmp_path).exit_code == 0
    refused = invoke("train", "towns", "--resume", "--target", "member", "--runs", tmp_path)
    assert refused.exit_code == 2
    assert "cannot resume with another configuration: target was 'city', is 'member'" in refused.stderr


def test_a_run_from_before_inputs_were_standardised_goes_on_without(tmp_path: Path) -> None:
    data = write(tmp_path / "shop.csv", customers(200))
    assert train("shop", data, tmp_path, "--as-is", "--epochs", 1).exit_code == 0
    file = tmp_path / "shop" / "command.json"
    newer = {"target", "task", "drop", "delimiter", "standardise"}
    file.write_text(
        json.dumps({name: value for name, value in json.loads(file.read_text()).items() if name not in newer})
    )
    (tmp_path / "shop" / "table.json").unlink()
    resumed = invoke("train", "shop", "--resume", "--epochs", 2, "--runs", tmp_path)
    assert resumed.exit_code == 0, resumed.output
    model = dubio.load(tmp_path / "shop" / "model.safetensors")
    assert not any(isinstance(module, Standardise) for module in model.modules())


def test_images_and_named_datasets_are_not_standardised(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, features = rng.integers(0, 255, (40, 4, 4), dtype=np.uint8), 1e4 * rng.normal(size=(40, 4))
    np.savez(tmp_path / "images.npz", x=images, y=np.arange(40) % 2)
    np.savez(tmp_path / "features.npz", x=features, y=np.arange(40) % 2)
    for data, expected in (("digits", 0), ("diabetes", 0), ("clusters", 0), ("images.npz", 0), ("features.npz", 1)):
        config = TrainConfig(data=str(tmp_path / data) if "." in data else data, model="fc:8")
        net, _ = build_for(config, part(load_splits(config).train))
        layers = [module for module in net.modules() if isinstance(module, Standardise)]
        assert len(layers) == expected, data
    train_part = part(load_splits(config).train)
    torch.testing.assert_close(layers[0].mean, train_part.inputs.mean(dim=0))


WHOLE = [f"{row % 7},{1000 * row + 17}" for row in range(300)]
REFUSALS = {
    "whole numbers": (
        *("a,price", WHOLE, ()),
        "column 'price' has 300 different whole numbers as targets in 300 rows; add --task regression, or --task "
        "classification if they are classes",
    ),
    "one class": (
        *("a,kind", ["1,x", "2,x"] * 4, ()),
        "column 'kind' must have two classes or more, got 'x' in all 8 rows; choose another target with --target",
    ),
    "one value": (
        *("a,price", ["1,2.5", "2,2.5"] * 4, ()),
        "column 'price' has the same value, 2.5, in every row; choose another column with --target",
    ),
    "0.0 and 1.0": (
        *("a,lived", ["1,0.0", "2,1.0"] * 20, ()),
        "column 'lived' has only two different numbers as targets, 0 and 1; add --task classification",
    ),
    "ragged": (
        *("a,kind", ["1,x", "2,y,z"] * 4, ()),
        "line 3 must have 2 cells, one for each column, got 3; the cells are separated by commas; if that is wrong, "
        "set --delimiter",
    ),
    "a gap in the target": (
        *("a,kind", ["1,x", "2,"] * 4, ()),
        "line 3, column 'kind' must hold a target, got nothing; fill it in, or remove the row",
    ),
    "no such target": (
        *("age,kind", ["1,x", "2,y"] * 4, ("--target", "ages")),
        "has no column 'ages', it has age, kind; set --target to one of them; did you mean 'age'?",
    ),
    "no such column to drop": (
        *("age,kind", ["1,x", "2,y"] * 4, ("--drop", "ages")),
        "has no column 'ages', it has age, kind; set --drop to columns of the table; did you mean 'age'?",
    ),
    "two targets": (
        *("label,class", ["1,x", "2,y"] * 4, ()),
        "must have one target, got columns label, class; name it with --target",
    ),
    "texts to regress on": (
        *("a,kind", ["1,x", "2,y"] * 4, ("--task", "regression")),
        "line 2, column 'kind' must hold a number for regression, got 'x'; choose another column with --target",
    ),
    "a number that is none": (
        *("a,b,kind", ["1,5,x", "2,6,y"] * 40 + ["1,six,x"], ()),
        "line 82, column 'b' must hold a number, got 'six'; correct it, or leave the cell empty",
    ),
    "one name twice": (*("a,a,kind", ["1,2,x"], ()), "must begin with a line that names each column differently"),
    "too large": (
        *("a,kind", ["1,x", "1e45,y"] * 4, ()),
        "column 'a' is too large for float32, got 1e+45; scale the column, take its logarithm, or leave it out with "
        "--drop a",
    ),
}


@pytest.mark.feature("A table that cannot be trained on is refused in one sentence that names options")
@pytest.mark.parametrize("kind", REFUSALS)
def test_a_table_is_refused_in_words_of_the_command_line(kind: str, tmp_path: Path) -> None:
    header, rows, options, message = REFUSALS[kind]
    result = train("run", write(tmp_path / "table.csv", rows, header), tmp_path, *options)
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr
    assert not (tmp_path / "run").exists()


def test_options_of_tables_are_refused_beside_other_data(tmp_path: Path) -> None:
    for option, value in (("--target", "a"), ("--task", "regression"), ("--drop", "a"), ("--delimiter", ";")):
        result = invoke("train", "run", "--data", "digits", option, value, "--runs", tmp_path)
        assert result.exit_code == 2
        assert f"leave {option} out" in result.stderr


def test_a_column_of_prices_in_whole_numbers_is_for_regression_when_told(tmp_path: Path) -> None:
    data = write(tmp_path / "table.csv", WHOLE, "a,price")
    splits = load_splits(TrainConfig(data=str(data), task="regression"))
    assert part(splits.train).classes == ()
    assert part(splits.train).targets.dtype == torch.float32
    with pytest.raises(dubio.data.DataError, match="add task='regression', or task='classification' if they are class"):
        dubio.data.load(data)
