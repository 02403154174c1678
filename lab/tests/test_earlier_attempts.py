"""lab/results/earlier.json: what replaced records came to, read from the history of a repository."""

import importlib
import subprocess
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from dubio_lab import Cell, ExperimentSpec, Measured, Result, read_earlier
from dubio_lab.running import load_results, result_file
from made_up_records import record, spec_of

LAB = Path(__file__).parents[1]


class History:
    """A repository with a folder of records of one made-up spec."""

    def __init__(self, script: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script, self.folder, self.spec = script, folder, spec_of(curves={})
        monkeypatch.setattr(script, "ROOT", folder)
        monkeypatch.setattr(script, "spec_names", lambda: ["made-up"])
        monkeypatch.setattr(script, "load_spec", lambda name: self.spec)
        monkeypatch.setattr(script, "load_results", lambda spec, out: load_results(spec, out))
        (folder / "results").mkdir()
        self.git("init", "--quiet")

    def git(self, *arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=self.folder, check=True, capture_output=True)

    def commit(self, *results: Result) -> None:
        for result in results:
            file = result_file(self.folder / "results", self.spec, Cell(result.cell), result.seed)
            file.parent.mkdir(parents=True, exist_ok=True)
            result.save(file)
        self.git("add", "-A")
        self.git("commit", "--quiet", "-m", "Record")

    def made(self, spec: ExperimentSpec, value: float, commit: str, attempt: int, cell: str = "first") -> Result:
        return record(spec, cell, 0, value, commit=commit, attempts=attempt)

    def write(self) -> dict[str, list[float]]:
        assert self.script.main() == 0
        stored = read_earlier(self.folder / "results")
        return {one.commit: [*one.metrics.values()] for one in stored}


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> History:
    monkeypatch.syspath_prepend(LAB / "scripts")
    return History(importlib.import_module("earlier_attempts"), tmp_path, monkeypatch)


def test_replaced_records_with_the_same_settings_are_kept(history: History) -> None:
    other = replace(history.spec, settings={"epochs": 3})
    history.commit(history.made(other, 1.0, "a", 1))
    history.commit(history.made(history.spec, 2.0, "b", 2), history.made(history.spec, 5.0, "b", 1, "second"))
    history.commit(history.made(history.spec, 3.0, "c", 3))
    assert history.write() == {"b": [2.0, 2.0]}  # not a, which had other settings, nor c, which is the present one
    assert history.write() == {"b": [2.0, 2.0]}
    (history.folder / "results" / "earlier.json").unlink()
    assert history.write() == {"b": [2.0, 2.0]}


def test_what_is_stored_stays_where_the_history_is_gone_and_goes_when_the_settings_change(history: History) -> None:
    history.commit(history.made(history.spec, 2.0, "b", 1))
    history.commit(history.made(history.spec, 3.0, "c", 2))
    assert history.write() == {"b": [2.0, 2.0]}
    subprocess.run(["rm", "-rf", str(history.folder / ".git")], check=True)
    history.git("init", "--quiet")
    history.commit(history.made(history.spec, 4.0, "d", 3))
    assert history.write() == {"b": [2.0, 2.0]}
    history.spec = replace(history.spec, settings={"epochs": 3})
    history.commit(history.made(history.spec, 5.0, "e", 4))
    assert history.write() == {}


def test_metrics_that_are_no_longer_there_are_left_out(history: History) -> None:
    history.commit(history.made(history.spec, 2.0, "b", 1))
    now = history.made(history.spec, 3.0, "c", 2)
    history.commit(replace(now, metrics={"metric_1": Measured(3.0)}))
    assert history.write() == {"b": [2.0]}
