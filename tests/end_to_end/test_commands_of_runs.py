"""What a run's files say of the commands that made it: numbers of a network that changed since are told apart, and the
commands of a report, run anew, make the same networks and numbers."""

import json
import shlex
import shutil
import warnings
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dubio.calibrators import DecisionWarning
from dubio.cli.commands import app
from dubio.codec import Command, write_commands
from dubio.evaluation.records import Evaluation
from dubio.io import identity_of
from dubio.report.commands import reproduction
from dubio.report.runs import read_run

pytest.importorskip("sklearn")
pytest.importorskip("jinja2")

JUDGED = "judged before the network changed; dubio evaluate s"
ATTACKED = "attacked before the network changed; dubio attack s"
AUDITED = "audited before the network changed; dubio audit s"
MEASURED = "measured for pruning before the network changed; dubio prune s"
CHANGED = (JUDGED, ATTACKED, AUDITED, MEASURED)


def invoke(*args: object) -> Result:
    result = CliRunner(env={"NO_COLOR": "1"}).invoke(app, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def warned(*args: object) -> str:
    """What a command warns of."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", DecisionWarning)
        return invoke(*args).stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    invoke("train", "s", "--model", "mlp:64-16-10", "--epochs", 2, "--lr", 0.02, "--runs", folder)
    return folder


@pytest.fixture
def runs(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained / "s", tmp_path / "s")
    return tmp_path


def stale(runs: Path) -> list[str]:
    """What compare warns of, in its JSON and on stderr."""
    shown = invoke("compare", "s", "--json", "--runs", runs)
    told = json.loads(shown.stdout)["headlines"][0]["runs"][0]["stale"]
    assert shown.stderr.splitlines() == [f"warning: s: {line}" for line in told]
    return told


@pytest.mark.feature("Reports and comparisons warn of numbers that were measured before a network changed")
@pytest.mark.usefixtures("unchecked")
def test_numbers_of_a_network_that_changed_since_are_told(runs: Path) -> None:
    few = ("--samples", 3, "--runs", runs)
    invoke("evaluate", "s", "--ood", "none", "--resamples", 0, *few)
    invoke("attack", "s", "--attack", "fgsm", "--images", 4, "--draws", 2, *few)
    invoke("prune", "s", *few)
    invoke("audit", "s", "--epsilon", 0.1, "--budget", "tiny", "--images", 8, "--runs", runs)
    assert stale(runs) == []
    invoke("calibrate", "s", *few)
    assert stale(runs) == [JUDGED]  # attacks and pruning are of the network without what was decided
    invoke("evaluate", "s", "--ood", "none", "--resamples", 0, *few)
    assert stale(runs) == []
    invoke("train", "s", "--resume", "--epochs", 3, "--runs", runs)
    assert stale(runs) == [*CHANGED]
    assert read_run(runs / "s").commands == ()
    warning = "".join(f"warning: s: {line}\n" for line in CHANGED)
    assert invoke("compare", "s", "--runs", runs).stderr == warning == invoke("report", "s", "--runs", runs).stderr
    summary = json.loads((runs / "s" / "report.json").read_text())["summary"]
    assert summary[-4:] == [f"s: {line}." for line in CHANGED]
    record = json.loads((runs / "s" / "evaluation.json").read_text())
    del record["made_by"]["network"]
    (runs / "s" / "evaluation.json").write_text(json.dumps(record))
    assert stale(runs) == [*CHANGED[1:]]  # an older record does not say which network it judged


def lines_of(folder: Path) -> list[str]:
    """The commands of a report on one run."""
    (block,) = reproduction([read_run(folder)]).blocks
    return list(block.lines)


def test_a_calibration_drops_what_was_decided_before_it(runs: Path) -> None:
    lines = [f"dubio {command} s" for command in ("abstain", "conformal", "calibrate", "conformal --kind aps")]
    write_commands(runs / "s", tuple(Command(line, "s") for line in (*lines, "dubio conformal s --seed 1")))
    assert lines_of(runs / "s")[1:] == ["dubio calibrate s", "dubio conformal s --seed 1"]


@pytest.mark.slow
@pytest.mark.feature("A report's commands make a run again that was pruned twice, calibrated and given a threshold")
def test_commands_make_a_pruned_and_decided_run_again(runs: Path, tmp_path: Path) -> None:
    few = ("--samples", 3, "--runs", runs)
    invoke("calibrate", "s", *few)  # dropped by what follows
    pruned = warned(
        "prune", "s", "--what", "units", "--each-layer", "--max-loss", 0.5, "--seed", 4, "--out", "au", *few
    )
    assert pruned.startswith(
        "warning: pruning changes the predictions, so the calibration of this network had to be removed"
    )
    invoke("prune", "au", "--fraction", 0.4, "--by", "magnitude", *few)
    run = "au-pruned"
    invoke("abstain", run, "--coverage", 0.5, *few)  # dropped by the calibration
    calibrated = warned("calibrate", run, "--kind", "vector", "--seed", 2, *few)
    assert "warning: calibrating changes the predictions, so the threshold of this network" in calibrated
    invoke("abstain", run, "--coverage", 0.7, "--score", "entropy", *few)
    invoke("evaluate", run, "--ood", "none", "--resamples", 0, *few)
    invoke("conformal", run, "--coverage", 0.8, "--allow-empty", *few)
    lines = lines_of(runs / run)
    assert lines == [
        "dubio train s --method bayes --model mlp:64-16-10 --epochs 2 --lr 0.02 --seed 0",
        "dubio prune s --max-loss 0.5 --what units --each-layer --samples 3 --seed 4 --out au",
        "dubio prune au --fraction 0.4 --by magnitude --samples 3 --out au-pruned",
        "dubio calibrate au-pruned --kind vector --samples 3 --seed 2",
        "dubio abstain au-pruned --coverage 0.7 --score entropy --samples 3",
        "dubio evaluate au-pruned --ood none --samples 3 --resamples 0",
        "dubio conformal au-pruned --coverage 0.8 --allow-empty --samples 3",
    ]
    again = tmp_path / "again"
    for line in lines:  # few validation examples for a vector scaling, which a warning says
        run_command = warned if "--kind vector" in line else invoke
        run_command(*shlex.split(line)[1:], "--runs", again)
    before, after = (identity_of(folder / run / "model.safetensors") for folder in (runs, again))
    assert before is not None
    assert after is not None
    assert before.tensors == after.tensors
    first, second = (Evaluation.load(folder / run / "evaluation.json") for folder in (runs, again))
    assert first.decided.keys() == {"calibration", "threshold"}
    assert (first.decided, first.metrics) == (second.decided, second.metrics)
    invoke("prune", run, *few)  # measuring does not hide how the run was made
    assert lines_of(runs / run)[:4] == [*lines[:3], "dubio prune au-pruned --samples 3"]
