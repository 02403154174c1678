"""``dubio attack`` in tiny runs: what it prints, what it keeps, and what it refuses."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner, Result

import dubio
from dubio.attacks.gradient import PGD
from dubio.attacks.score import strongest
from dubio.cli.attack import choose_images, parse_epsilons
from dubio.cli.commands import app
from dubio.version import hardware_of

pytest.importorskip("sklearn")

QUICK = ("--images", 40, "--steps", 3, "--samples", 2, "--draws", 12)


def invoke(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def attack(runs: Path, *args: object) -> Result:
    return invoke("attack", "first", *QUICK, *args, "--runs", runs)


def rows_of(result: Result) -> list[list[str]]:
    """The lines of the table that begin with a name, cell by cell."""
    lines = [line.split("│")[1:-1] for line in result.stdout.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line] for line in lines if line[0].strip()]


def kept(folder: Path, name: str = "attack-*") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The one record of this name, and its images."""
    (record,) = folder.glob(f"{name}.json")
    return json.loads(record.read_text()), load_file(
        record.with_name(f"{record.name.removesuffix('.json')}.safetensors")
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    assert invoke("train", "first", "--model", "mlp:64-16-10", "--epochs", 2, "--runs", folder).exit_code == 0
    return folder


@pytest.mark.feature("dubio attack prints what attacks leave, scored on fresh draws, and keeps record, images, picture")
def test_attacks_are_tabulated_and_kept(runs: Path) -> None:
    pytest.importorskip("matplotlib")
    result = attack(runs, "--attack", "pgd,transfer", "--epsilon", "8/255,0.3")
    assert result.exit_code == 0, result.output
    rows = rows_of(result)
    names = ["none", *(2 * ["pgd", "transfer", "strongest"])]
    assert [row[0] for row in rows] == names
    assert [row[1] for row in rows] == ["0", *(3 * ["8/255"]), *(3 * ["0.3"])]
    for distance, own in (("0.0313725", rows[1:4]), ("0.3", rows[4:])):
        name = f"attack-pgd+transfer-linf-{distance}-samples2-steps3"
        record, images = kept(runs / "first", name)
        assert [f"{share['predictive']['value']:.1%}" for share in (record["clean"], *record["rows"])] == [
            row[2] for row in (rows[0], *own)
        ]
        assert [row["forwards"] + row["backwards"] for row in record["rows"]] == [int(row[5]) for row in own]
        assert set(images) == {"clean", "targets", *(f"{row['attack']}@{row['epsilon']}" for row in record["rows"])}
        assert record["hardware"] == hardware_of(torch.device("cpu"))
        assert (runs / "first" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "against" in result.stdout


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_attacks_on_a_gpu_are_kept_like_others(runs: Path, tmp_path: Path) -> None:
    options = ("--attack", "pgd,transfer", "--epsilon", "0.3", "--device", "cuda", "--out", tmp_path)
    result = attack(runs, *options)
    assert result.exit_code == 0, result.output
    record, images = kept(tmp_path)
    assert not record["hardware"].startswith("CPU")
    assert {tensor.device.type for tensor in images.values()} == {"cpu"}
    assert (tmp_path / "attack-pgd+transfer-linf-0.3-samples2-steps3.png").is_file()


def test_what_is_kept_can_be_made_and_scored_again(runs: Path, tmp_path: Path) -> None:
    assert attack(runs, "--epsilon", "8/255", "--seed", 5, "--out", tmp_path / "new").exit_code == 0
    record, images = kept(tmp_path / "new")
    model = dubio.load(runs / "first" / "model.safetensors")
    inputs, targets = dubio.data.load_test("digits")[record["indices"]].tensors
    assert torch.equal(images["clean"], inputs)
    again = PGD(epsilon=8 / 255, steps=3, num_samples=2, seed=record["seeds"]["attack"])(model, inputs, targets)
    assert torch.equal(images["pgd@8/255"], again.inputs)
    assert (images["pgd@8/255"] - inputs).abs().max() <= 8 / 255
    found = dubio.attacks.score(model, again.inputs, targets, num_samples=12, seed=record["seeds"]["scoring"])
    (row,) = record["rows"]
    for name in ("predictive", "single", "retry"):
        assert row[name]["value"] == pytest.approx(getattr(found, name).value)
        assert row[name]["low"] <= row[name]["value"] <= row[name]["high"]
    assert row["fields"]["steps"] == 3


def test_the_strongest_is_chosen_by_draws_that_neither_attack_nor_score(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every, seeds = [], []

    def watched(*args: Any, **options: Any) -> Any:
        seeds.append(options["seed"])
        return strongest(*args, **options)

    monkeypatch.setattr(dubio.attacks, "strongest", watched)
    for seed in (0, 1):  # the second replaces what the first kept
        options = ("--attack", "fgsm,random_noise", "--epsilon", 0.2, "--seed", seed, "--out", tmp_path)
        assert invoke("attack", "first", "--images", 20, "--draws", 10, *options, "--runs", runs).exit_code == 0
        record, images = kept(tmp_path)
        every += record["seeds"].values()
        assert seeds[-1] == record["seeds"]["selection"]
    assert len(set(every)) == 6
    model = dubio.load(runs / "first" / "model.safetensors")
    results = [
        kind(epsilon=0.2, seed=record["seeds"]["attack"])(model, images["clean"], images["targets"])
        for kind in (dubio.attacks.FGSM, dubio.attacks.RandomNoise)
    ]
    worst, _ = strongest(model, results, images["targets"], seed=record["seeds"]["selection"])
    assert torch.equal(images["strongest@0.2"], worst)


@pytest.mark.slow
def test_a_larger_epsilon_leaves_less_and_none_leaves_all(runs: Path, tmp_path: Path) -> None:
    assert attack(runs, "--epsilon", "0,0.1,0.5", "--out", tmp_path).exit_code == 0
    records = [kept(tmp_path, f"attack-pgd-linf-{epsilon}-*")[0] for epsilon in ("0", "0.1", "0.5")]
    left = [row["single"]["value"] for record in records for row in record["rows"]]
    assert left[0] == records[0]["clean"]["single"]["value"] > left[1] > left[2]
    images = kept(tmp_path, "attack-pgd-linf-0-*")[1]
    assert torch.equal(images["pgd@0"], images["clean"])


@pytest.mark.slow
@pytest.mark.feature(
    "Attacks of several distances, norms and settings are kept side by side; a repeated one is replaced"
)
def test_attacks_are_kept_side_by_side_and_a_repeated_one_replaces_its_own(runs: Path, tmp_path: Path) -> None:
    first = ("--epsilon", "0.1", "--out", tmp_path)
    assert attack(runs, *first).exit_code == 0
    name = "attack-pgd-linf-0.1-samples2-steps3"
    before, _ = kept(tmp_path, name)
    others = (("--epsilon", "0.3"), ("--norm", "l2", "--epsilon", "0.1"), ("--attack", "fgsm"), ("--loss", "margin"))
    names = [
        *("attack-pgd-linf-0.3-samples2-steps3", "attack-pgd-l2-0.1-samples2-steps3"),
        *("attack-fgsm-linf-0.1-samples2", "attack-pgd-linf-0.1-lossmargin-samples2-steps3"),
    ]
    for options in others:
        steps = () if "fgsm" in options else ("--steps", 3)
        small = ("--images", 40, "--samples", 2, "--draws", 12, *steps)
        assert invoke("attack", "first", *first, *small, *options, "--runs", runs).exit_code == 0
    assert {file.name for file in tmp_path.glob("*.json")} == {f"{own}.json" for own in (name, *names)}
    assert kept(tmp_path, name)[0] == before
    assert attack(runs, *first, "--seed", 1).exit_code == 0
    assert len(list(tmp_path.glob("*.json"))) == 5
    assert kept(tmp_path, name)[0]["seeds"] != before["seeds"]


def test_a_setting_that_is_the_default_names_no_other_attack(runs: Path, tmp_path: Path) -> None:
    for options in ((), ("--epsilon", "8/255", "--norm", "linf", "--loss", "cross_entropy", "--noise", "fresh")):
        assert attack(runs, *options, "--out", tmp_path).exit_code == 0
    assert [path.name for path in tmp_path.glob("*.json")] == ["attack-pgd-linf-0.0313725-samples2-steps3.json"]


def test_transfer_makes_its_images_on_the_noise_off_network(runs: Path, tmp_path: Path) -> None:
    assert attack(runs, "--attack", "transfer", "--epsilon", 0.1, "--out", tmp_path).exit_code == 0
    record, images = kept(tmp_path)
    model = dubio.load(runs / "first" / "model.safetensors")
    value = PGD(epsilon=0.1, steps=3, noise="off", seed=record["seeds"]["attack"])
    expected = value(model, images["clean"], images["targets"]).inputs
    assert torch.equal(images["transfer@0.1"], expected)


def test_the_images_chosen_do_not_depend_on_the_seed_nor_come_first() -> None:
    examples = dubio.data.load_test("digits")
    few, indices = choose_images(examples, 20)
    assert indices == choose_images(examples, 20)[1] == sorted(set(indices))
    assert indices != list(range(20))
    assert torch.equal(few.targets, examples.targets[indices])
    assert choose_images(examples, 10_000)[1] == list(range(len(examples)))


def test_without_matplotlib_everything_but_the_picture_is_there(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    result = attack(runs, "--out", tmp_path)
    assert result.exit_code == 0
    assert "no picture: it needs matplotlib" in result.stdout
    name = "attack-pgd-linf-0.0313725-samples2-steps3"
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{name}.json", f"{name}.safetensors"]


def test_rows_of_a_table_are_attacked_without_a_picture(tmp_path: Path) -> None:
    points = torch.rand(120, 2, generator=torch.Generator().manual_seed(0)).tolist()
    lines = [f"{x},{y},{'warm' if x > y else 'cold'}" for x, y in points]
    (tmp_path / "weather.csv").write_text("\n".join(["left,right,class", *lines]) + "\n")
    (tmp_path / "far.csv").write_text("\n".join(["left,right,class", *("9" + line for line in lines)]) + "\n")
    train = ("train", "weather", "--data", tmp_path / "weather.csv", "--model", "fc:8", "--epochs", 1)
    assert invoke(*train, "--runs", tmp_path).exit_code == 0
    result = invoke("attack", "weather", *QUICK, "--runs", tmp_path)
    assert result.exit_code == 0, result.output
    assert "no picture: inputs of shape (2,) are not images" in result.stdout
    far = invoke("attack", "weather", *QUICK, "--data", tmp_path / "far.csv", "--runs", tmp_path)
    assert far.exit_code == 2
    assert "dubio attack needs inputs in [0, 1], and far has" in far.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--attack", "magic"), "--attack must be of fgsm, pgd, apgd, square, random_noise, transfer"),
        (("--attack", "pgd,pgd"), "--attack must name each attack once"),
        (("--epsilon", "eight"), "--epsilon must be a number or a fraction such as 8/255"),
        (("--epsilon", "8/0"), "--epsilon must be a number or a fraction such as 8/255"),
        (("--epsilon", "8"), "did you mean 8/255?"),
        (("--epsilon", "-0.1"), "epsilon must be in [0, 1]"),
        (("--samples", "0"), "num_samples must be at least 1, got 0"),
        (("--draws", "0"), "num_samples must be at least 1, got 0"),
        (("--steps", "0"), "steps must be a whole number of at least 1, got 0"),
        (("--images", "0"), "--images must be at least 1, got 0"),
        (("--norm", "l7"), "--norm"),
        (("--device", "abacus"), "--device must be cpu, cuda, cuda:1 ... or mps, got 'abacus'"),
        (("--attack", "transfer", "--noise", "fresh"), "--noise means nothing to transfer"),
        (("--attack", "fgsm,random_noise", "--restarts", "3"), "--restarts means nothing to fgsm and random_noise"),
        (("--data", "diabetes"), "this network reads inputs of shape (64,), and diabetes"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(args: tuple[str, ...], message: str, runs: Path, tmp_path: Path) -> None:
    result = invoke("attack", "first", *args, "--out", tmp_path, "--runs", runs)
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_fractions_are_kept_as_written() -> None:
    assert parse_epsilons("8/255, 0.1") == {"8/255": 8 / 255, "0.1": 0.1}
