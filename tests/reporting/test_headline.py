"""The headline: what is best, what is tied, and what is not compared."""

from pathlib import Path
from typing import Any

import pytest

from dubio.evaluation import DataRecord, Estimate
from dubio.reporting import Headline, headlines, read_runs
from reporting.run_folders import audit, classification, regression, write_attack, write_run

OTHER_DATA = DataRecord("mnist", 300, "other")


def judged(tmp_path: Path, *accuracies: tuple[float, float, float], **changed: Any) -> list[Path]:
    folders = []
    for number, (value, low, high) in enumerate(accuracies):
        folder = write_run(tmp_path / f"run-{number}")
        found = classification(**changed)
        metrics = {**found.metrics, "accuracy": Estimate(value, low, high)}
        classification(metrics=metrics, **changed).save(folder / "evaluation.json")
        folders.append(folder)
    return folders


def marks(headline: Headline, name: str) -> list[str]:
    return [row.cells[name].mark for row in headline.rows]


def test_a_run_whose_interval_lies_apart_is_best(tmp_path: Path) -> None:
    (headline,) = headlines(read_runs(judged(tmp_path, (0.97, 0.96, 0.98), (0.9, 0.88, 0.92), (0.8, 0.78, 0.82))))
    assert marks(headline, "accuracy") == ["best", "", ""]


@pytest.mark.feature("dubio compare marks a run as best only where its interval lies apart from all others")
def test_a_difference_within_the_intervals_makes_no_best(tmp_path: Path) -> None:
    (headline,) = headlines(read_runs(judged(tmp_path, (0.97, 0.95, 0.99), (0.94, 0.92, 0.96), (0.8, 0.78, 0.82))))
    assert marks(headline, "accuracy") == ["tied", "tied", ""]


def test_less_is_better_where_the_number_is_a_cost(tmp_path: Path) -> None:
    folders = judged(tmp_path, (0.9, 0.8, 1.0), (0.9, 0.8, 1.0))
    for folder, nll in zip(folders, (0.5, 0.2), strict=True):
        metrics = {"accuracy": Estimate(0.9), "nll": Estimate(nll, nll - 0.1, nll + 0.1)}
        classification(metrics=metrics).save(folder / "evaluation.json")
    (headline,) = headlines(read_runs(folders))
    assert marks(headline, "nll") == ["", "best"]
    assert marks(headline, "accuracy") == ["", ""]  # without intervals nothing can be told


def test_numbers_on_different_data_are_not_compared(tmp_path: Path) -> None:
    (first,) = judged(tmp_path / "a", (0.97, 0.96, 0.98))
    (second,) = judged(tmp_path / "b", (0.5, 0.49, 0.51), data=OTHER_DATA)
    (headline,) = headlines(read_runs([first, second]))
    assert marks(headline, "accuracy") == ["", ""]
    assert [row.data for row in headline.rows] == ["digits", "mnist"]


def test_attacks_are_compared_at_the_largest_distance_that_all_have(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name) for name in ("a", "b")]
    write_attack(folders[0], left=0.9, epsilons=("0.05", "0.1", "0.3"))
    write_attack(folders[1], left=0.3, epsilons=("0.05", "0.1"))
    (headline,) = headlines(read_runs(folders))
    assert [row.cells["r_pred"].note for row in headline.rows] == ["at 0.1", "at 0.1"]
    assert marks(headline, "r_pred") == ["best", ""]
    write_attack(folders[1], left=0.3, epsilons=("0.2",))
    (headline,) = headlines(read_runs(folders))
    assert [row.cells["r_pred"].note for row in headline.rows] == ["at 0.3", "at 0.2"]
    assert marks(headline, "r_pred") == ["", ""]


def test_a_network_without_noise_has_no_mutual_information_to_detect_by(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name) for name in ("bayes", "plain")]
    for folder, noise in zip(folders, (0.8, 0.0), strict=True):
        classification(noise=noise).save(folder / "evaluation.json")
    (headline,) = headlines(read_runs(folders))
    noisy, plain = (row.cells["auroc"] for row in headline.rows)
    assert noisy.value is not None
    assert noisy.value > 0.9
    assert (noisy.note, plain.text, plain.value) == ("on noise", "-", None)


def test_kinds_have_tables_of_their_own_and_columns_that_no_run_has_are_left_out(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "class"), write_run(tmp_path / "real", likelihood="Gaussian")]
    regression().save(folders[1] / "evaluation.json")
    audit("VALID").save(folders[0] / "audit.json")
    first, second = headlines(read_runs(folders))
    assert [column.name for column in first.columns] == ["audit", "parameters", "bytes"]
    assert second.rows[0].cells["rmse"].value == 0.31
    assert "accuracy" not in second.rows[0].cells
