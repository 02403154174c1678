"""``dubio audit``: a table for a reader, a record for the report, gates for a pipeline."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import dubio
from audit_cases import TINY
from dubio.auditing.records import Audit, CheckRecord
from dubio.cli.attack import gates_failed, summary
from dubio.cli.commands import app

pytest.importorskip("sklearn")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    options = ("--method", "deterministic", "--epochs", 10, "--model", "fc:50", "--runs", folder)
    assert invoke("train", "first", *options).exit_code == 0
    data = ("--data", "curve", "--epochs", 1, "--model", "fc:10", "--runs", folder)
    assert invoke("train", "line", *data).exit_code == 0
    return folder


@pytest.fixture(scope="module")
def result(runs: Path) -> Audit:
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(dubio.auditing.BUDGETS, "quick", TINY)
        shown = invoke("audit", "first", "--epsilon", "0.1", "--images", 100, "--seed", 3, "--runs", runs)
    assert shown.exit_code == 0, shown.output
    assert max(map(len, shown.stdout.splitlines()[:-1])) <= 80
    result = Audit.load(runs / "first" / "audit.json")
    for check in result.checks:
        assert f" {check.id}{'*' if check.required else ' '}" in shown.stdout
    assert result.status in shown.stdout
    assert f"R_pred(10)   {result.r_pred}" in shown.stdout
    assert "a change below 3 points counts as" in shown.stdout
    assert not (runs / "first" / "audit-parts").exists()
    return result


@pytest.mark.feature("dubio audit says whether the robustness of a run is real, with exit code 1 for a failed gate")
def test_a_run_is_audited_as_python_does(result: Audit, runs: Path) -> None:
    assert result.made_by["command"] == "dubio audit first --epsilon 0.1 --images 100 --seed 3"
    assert result.headline.num_images == 100
    model = dubio.load(runs / "first" / "model.safetensors")
    test = dubio.data.load_test("digits")
    again = dubio.audit(model, test, epsilon=0.1, budget=TINY, num_images=100, seed=3, progress=False)
    assert again.headline == result.headline


@pytest.mark.parametrize(
    ("gates", "code", "told"),
    [
        (("--require", "VALID", "--min-accuracy", "0.01"), 0, ""),
        (("--min-accuracy", "0.9"), 1, "gate failed: --min-accuracy 0.9, but the lower bound of the headline is 0."),
        (("--require", "VALID"), 1, "gate failed: --require VALID, but the audit is UPPER BOUND ONLY, because of C5"),
    ],
)
def test_a_gate_that_fails_is_exit_code_1_and_one_line(
    gates: tuple[str, ...], code: int, told: str, result: Audit, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = CheckRecord("C5", "Enough steps?", True, "fail", "No.")
    good = replace(result, status="VALID", checks=())
    given = replace(result, status="UPPER BOUND ONLY", checks=(failing,)) if "UPPER" in told else good
    monkeypatch.setattr("dubio.cli.attack.audit", lambda *args, **options: given)
    shown = invoke("audit", "first", *gates, "--runs", runs, "--out", runs / "first")
    assert shown.exit_code == code, shown.output
    assert told in shown.stderr
    assert len(shown.stderr.splitlines()) == code


def test_a_gate_holds_the_lower_end_of_the_interval(result: Audit) -> None:
    between = (result.headline.low + result.headline.accuracy) / 2.0
    assert result.headline.low > 0.0
    assert gates_failed(result, None, result.headline.low) == []
    assert len(gates_failed(result, None, between)) == 1
    assert len(gates_failed(replace(result, status="EXTRAORDINARY"), "VALID", 1.0)) == 2


@pytest.mark.feature("An audit of few images, or without AutoAttack, does not say VALID without its reservations")
def test_what_a_status_means_is_said(result: Audit) -> None:
    checks = tuple(replace(check, status="pass") for check in result.checks)
    enough = replace(result, status="VALID", checks=checks, headline=replace(result.headline, num_images=200))
    assert enough.caveats == ()
    assert summary(enough)[-1].endswith("the headline can be believed as far as these attacks go.")
    few = replace(enough, headline=replace(result.headline, num_images=60, low=0.2134, high=0.469))
    told = "VALID: every required check (*) passed, with reservations: only 60 images, interval 21.3% to 46.9%; use at"
    assert summary(few)[-1].startswith(told)
    skipped = tuple(replace(check, status="skipped") if check.id == "C12" else check for check in checks)
    told = "VALID: every required check (*) passed, with reservations: not made: C12 (AutoAttack)."
    assert summary(replace(enough, checks=skipped))[-1] == told
    assert "not made: C12" in str(replace(enough, checks=skipped))
    tiny = replace(enough, threat=replace(result.threat, budget="tiny"))
    assert "with reservations: budget tiny tries few attacks" in summary(tiny)[-1]
    assert "look again" in summary(replace(result, status="EXTRAORDINARY"))[-1]
    failing = (CheckRecord("C5", "", True, "fail", ""), CheckRecord("C9", "", True, "skipped", ""))
    assert "(C5, C9)" in summary(replace(result, status="UPPER BOUND ONLY", checks=failing))[-1]


@pytest.mark.parametrize("status", ["VALID", "UPPER BOUND ONLY", "EXTRAORDINARY"])
def test_few_images_are_told_whatever_the_status_is(result: Audit, status: Any) -> None:
    few = replace(result, status=status, headline=replace(result.headline, num_images=60, low=0.2134, high=0.469))
    assert "only 60 images, interval 21.3% to 46.9%; use at least" in summary(few)[-1]
    many = replace(few, headline=replace(few.headline, num_images=200))
    assert "only 200 images" not in summary(many)[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("first", "--epsilon", "8"), "epsilon must be in [0, 1] for inputs in [0, 1], got 8.0; did you mean 8/255?"),
        (("first", "--epsilon", "0.1,0.2"), "--epsilon must be one distance for an audit, got '0.1,0.2'"),
        (("first", "--epsilon", "far"), "--epsilon must be a number or a fraction such as 8/255"),
        (("first", "--min-accuracy", "40"), "--min-accuracy must be in [0, 1], got 40"),
        (("first", "--images", "0"), "num_images must be a whole number of at least 1, got 0"),
        (("first", "--budget", "huge"), "--budget"),
        (("line",), "an attack needs classes to leave, and curve has numbers for targets"),
        (("frist",), "did you mean 'first'?"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(arguments: tuple[str, ...], message: str, runs: Path) -> None:
    refused = invoke("audit", *arguments, "--runs", runs)
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def interrupt(after: int) -> Callable[..., Any]:
    """An attack that stops everything after some have been run."""
    call, ran = dubio.attacks.Attack.__call__, []

    def run(attack: Any, *args: Any, **options: Any) -> Any:
        ran.append(attack)
        if len(ran) > after:
            raise KeyboardInterrupt
        return call(attack, *args, **options)

    return run


@pytest.mark.feature("Ctrl-C during dubio audit keeps what is finished, exits with 3, and the same command goes on")
def test_an_interrupted_audit_exits_with_3_and_goes_on(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(dubio.auditing.BUDGETS, "quick", TINY)
    arguments = ("first", "--epsilon", "0.1", "--out", tmp_path / "there", "--runs", runs)
    with monkeypatch.context() as patched:
        patched.setattr(dubio.attacks.Attack, "__call__", interrupt(after=5))
        stopped = invoke("audit", *arguments)
    assert stopped.exit_code == 3
    command = f"dubio audit first --epsilon 0.1 --out {tmp_path / 'there'} --runs {runs}"
    assert stopped.stderr == f"interrupted: finished attacks are kept; go on with: {command}\n"
    assert len(list((tmp_path / "there" / "audit-parts").glob("*.safetensors"))) == 4  # one looked whether it can be
    assert invoke("audit", *arguments).exit_code == 0
    assert Audit.load(tmp_path / "there" / "audit.json").headline.num_images == 40
