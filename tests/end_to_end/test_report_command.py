"""``dubio report`` and ``dubio compare`` on tiny runs of the real commands."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dubio.cli.commands import app
from dubio.evaluation.records import Estimate
from dubio.report.commands import attack_command, train_command
from dubio.report.runs import read_run
from report.run_folders import regression, write_full_run, write_run

pytest.importorskip("sklearn")
pytest.importorskip("jinja2")

NAME = "a-name-that-is-rather-long-for-a-run"


def invoke(*args: object, columns: int = 80) -> Result:
    settings = {"COLUMNS": str(columns), "NO_COLOR": "1"}
    return CliRunner(env=settings).invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def assert_refused(result: Result, *parts: str) -> None:
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    for part in parts:
        assert part in result.stderr


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run that was judged and attacked, and one that was only trained."""
    folder = tmp_path_factory.mktemp("runs")
    tiny = ("--model", "mlp:64-16-10", "--epochs", 2, "--runs", folder)
    assert invoke("train", NAME, *tiny, "--method", "bayes", "--init-std", 0.1, "--seed", 3).exit_code == 0
    assert invoke("train", "plain", *tiny, "--method", "deterministic").exit_code == 0
    assert invoke("evaluate", NAME, "--samples", 20, "--resamples", 20, "--runs", folder).exit_code == 0
    attacks = ("--attack", "fgsm,pgd", "--epsilon", "0.05,8/255", "--steps", 3, "--images", 8, "--draws", 12)
    assert invoke("attack", NAME, *attacks, "--seed", 2, "--runs", folder).exit_code == 0
    return folder


def test_a_report_on_one_run_goes_to_its_folder_and_on_several_beside_them(runs: Path) -> None:
    one = invoke("report", NAME, "--runs", runs)
    assert one.exit_code == 0, one.output
    assert (runs / NAME / "report.html").is_file()
    assert (runs / NAME / "report.html").resolve().as_uri() in one.stdout
    several = invoke("report", NAME, runs / "plain", "--title", "Two of them", "--runs", runs)
    assert several.exit_code == 0, several.output
    assert "more would be in it after: dubio attack plain; dubio evaluate plain" in several.stdout
    assert "<h1>Two of them</h1>" in (runs / "report.html").read_text()
    data = json.loads((runs / "report.json").read_text())
    assert [run["run"] for run in data["headlines"][0]["runs"]] == [NAME, "plain"]


@pytest.mark.feature("dubio compare shows runs side by side in 80 columns, and the same as JSON")
def test_runs_are_compared_in_the_terminal(runs: Path) -> None:
    shown = invoke("compare", NAME, "plain", "--runs", runs)
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "plain was not evaluated yet: dubio evaluate plain" in shown.stdout
    told = json.loads(invoke("compare", NAME, "plain", "--json", "--runs", runs).stdout)
    assert told["format"] == "dubio-comparison-1"
    judged, plain = told["headlines"][0]["runs"]
    kept = json.loads((runs / NAME / "evaluation.json").read_text())["metrics"]["accuracy"]
    assert judged["cells"]["accuracy"]["value"] == kept["value"]
    assert f"{100 * kept['value']:.1f} %" in shown.stdout
    assert plain["cells"]["accuracy"]["value"] is None


@pytest.mark.feature("dubio compare keeps the names of runs at 80 columns, also beside large numbers")
def test_names_of_runs_stay_whole_beside_large_numbers(tmp_path: Path) -> None:
    sizes = {"house-bayes": 1.0, "house-plain": 63079.343, NAME: 119587213221.373}
    for name, size in sizes.items():
        folder = write_run(tmp_path / name, likelihood="Gaussian")
        large = {
            metric: Estimate(found.value * size, found.value * size - size / 30, found.value * size + size / 30)
            for metric, found in regression().metrics.items()
        }
        regression(metrics=large).save(folder / "evaluation.json")
    shown = invoke("compare", *sizes, "--runs", tmp_path)
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines())) <= 80
    first = "".join(line.split(" ")[0] for line in shown.stdout.splitlines())
    for name in sizes:
        assert first.count(name) == 2, shown.stdout  # the columns need two tables, both with names
    for text in ("=0.310", "=19554.6", "=3.71e+10", "3.31e+10", "of the network"):
        assert text in shown.stdout
    assert "\u2026" not in shown.stdout  # nothing is cut


def test_columns_of_classifiers_and_their_names_fit_into_80(tmp_path: Path) -> None:
    folders = [write_full_run(tmp_path / name, seed=seed) for seed, name in enumerate((NAME, "demo-bayes"))]
    shown = invoke("compare", *folders)
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert "AUROC (H)" in shown.stdout
    assert "AUROC (MI)" in shown.stdout
    assert "Audit" in shown.stdout
    assert "\u2026" not in shown.stdout
    assert NAME in "".join(line.split(" ")[0] for line in shown.stdout.splitlines())


def test_long_names_are_cut_after_a_hyphen(tmp_path: Path) -> None:
    folders = [write_full_run(tmp_path / name, seed=seed) for seed, name in enumerate(("demo-deterministic", "b" * 40))]
    lines = [line.split(" ")[0] for line in invoke("compare", *folders).stdout.splitlines()]
    assert lines[lines.index("demo-") + 1] == "deterministic"
    assert "b" * 40 in "".join(lines)


@pytest.mark.feature("A report says how to make each number again: its commands, run anew, give the same numbers")
def test_the_commands_of_a_report_make_the_same_run_again(runs: Path, tmp_path: Path) -> None:
    record = read_run(runs / NAME)
    assert len(record.attacks) == 2
    commands = [train_command(record), *(attack_command(NAME, found) for found in record.attacks)]
    for command in commands:
        words = shlex.split(str(command))
        assert words[0] == "dubio"
        assert invoke(*words[1:], "--runs", tmp_path).exit_code == 0
    for file in ("command.json", "config.json"):
        assert json.loads((tmp_path / NAME / file).read_text()) == json.loads((runs / NAME / file).read_text())
    for found in record.attacks:
        file = f"{found.file_name}.json"
        before, after = (json.loads((folder / NAME / file).read_text()) for folder in (runs, tmp_path))
        assert after["sha256_of_images"] == before["sha256_of_images"]
        assert after["clean"] == before["clean"]


@pytest.mark.feature("dubio compare shows runs at the distance that all were attacked at, and names it in the heading")
def test_another_distance_does_not_change_what_is_compared(runs: Path, tmp_path: Path) -> None:
    for name in (NAME, "plain"):
        shutil.copytree(runs / name, tmp_path / name)
    quick = ("--images", 8, "--draws", 12, "--steps", 3, "--runs", tmp_path)
    for name in (NAME, "plain"):
        assert invoke("attack", name, "--epsilon", "0.1", *quick).exit_code == 0
    before = invoke("compare", NAME, "plain", "--runs", tmp_path)
    assert invoke("attack", NAME, "--epsilon", "0.3", *quick).exit_code == 0
    after = invoke("compare", NAME, "plain", "--runs", tmp_path)
    assert after.stdout == before.stdout
    assert "at 0.1" in after.stdout
    told = json.loads(invoke("compare", NAME, "plain", "--json", "--runs", tmp_path).stdout)
    assert "R_pred at 0.1" in [column["title"] for column in told["headlines"][0]["columns"]]
    assert invoke("report", NAME, "plain", "--runs", tmp_path).exit_code == 0
    (table,) = [
        block
        for section in json.loads((tmp_path / "report.json").read_text())["sections"]
        for block in section["blocks"]
        if block.get("caption") == "All attacks"
    ]
    assert [row[2]["text"] for row in table["rows"] if row[0]["text"] == NAME and row[1]["text"] == "pgd"] == [
        *("8/255", "0.05", "0.1", "0.3")
    ]


@pytest.mark.parametrize("speed", ["--eager", "--fast"])
def test_the_commands_of_a_report_tell_precision_speed_and_memory(
    speed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dubio.training.batch_loss.BACKEND", "eager")
    options = ["--precision", "bf16", speed, "--memory", "1 GiB"]
    small = ["--model", "mlp:64-8-10", "--epochs", "1", "--runs", tmp_path]
    assert invoke("train", "one", *options, *small).exit_code == 0
    command = train_command(read_run(tmp_path / "one"))
    assert command is not None
    for option in ("--precision bf16", speed, "--memory '1 GiB'"):
        assert option in command
    assert invoke("train", "one", "--resume", "--epochs", "2", "--runs", tmp_path).exit_code == 0


def test_bad_names_and_places_are_refused(runs: Path, tmp_path: Path) -> None:
    assert_refused(invoke("report", "plane", "--runs", runs), "there is no run 'plane'", "did you mean 'plain'?")
    assert_refused(invoke("compare", "plain", "plain", "--runs", runs), "each run may be named once")
    assert_refused(invoke("report", "plain", "--out", tmp_path / "page.txt", "--runs", runs), "path must end in .html")
    assert_refused(invoke("report", "plain", "--out", tmp_path / "no" / "a.html", "--runs", runs), "there is no folder")
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text('{"method": "Bayes()", "epochs": 1}')
    (damaged / "attack.json").write_text("{}")
    assert_refused(invoke("report", damaged, "--runs", tmp_path), "an attack must have format 'dubio-attack-1'")
