"""The headline: what is best, what is tied, and what is not compared."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dubio.evaluation.comparison import pack
from dubio.evaluation.records import DataRecord, Estimate
from dubio.io import Identity
from dubio.report.elements import HeadlineTable
from dubio.report.runs import read_runs
from dubio.report.summary import headlines, summarise, unpaired
from report.run_folders import audit, classification, regression, write_attack, write_json, write_run

OTHER_DATA = DataRecord("mnist", 300, "other", order="other order")


def judged(tmp_path: Path, *wrong: set[int], **changed: Any) -> list[Path]:
    """Runs that are wrong on these of 300 examples; marginal intervals are 2.5 points to either side."""
    folders = []
    for number, errors in enumerate(wrong):
        folder = write_run(tmp_path / f"run-{number}")
        right = torch.tensor([row not in errors for row in range(300)])
        accuracy = right.double().mean().item()
        metrics = {**classification().metrics, "accuracy": Estimate(accuracy, accuracy - 0.025, accuracy + 0.025)}
        values = {**classification().per_example, "correct": pack(right, "bits")}
        classification(**{"metrics": metrics, "per_example": values, **changed}).save(folder / "evaluation.json")
        folders.append(folder)
    return folders


def marks(headline: HeadlineTable, name: str) -> list[str]:
    return [row.cells[name].mark for row in headline.rows]


def p_values(headline: HeadlineTable, name: str) -> list[float]:
    return [pair.p_value for pair in headline.comparisons if pair.metric == name]


@pytest.mark.feature("dubio compare decides by paired tests on the same examples which run is best and which are tied")
def test_a_difference_within_the_intervals_is_found_by_the_paired_test(tmp_path: Path) -> None:
    """The intervals overlap: 13 examples that only one network gets wrong, one that only the other does."""
    shared = set(range(100, 106))
    (headline,) = headlines(read_runs(judged(tmp_path, shared | {0}, shared | set(range(1, 14)))))
    first, second = (row.cells["accuracy"] for row in headline.rows)
    assert second.high > first.low  # type: ignore[operator]
    assert marks(headline, "accuracy") == ["best", ""]
    assert p_values(headline, "accuracy") == [pytest.approx(0.0018, abs=5e-5)]
    assert [pair.test for pair in headline.comparisons if pair.metric == "accuracy"] == ["McNemar"]


def test_runs_that_differ_on_few_examples_are_tied(tmp_path: Path) -> None:
    wrong = set(range(60)), set(range(57)), set(range(200))
    (headline,) = headlines(read_runs(judged(tmp_path, *wrong)))
    assert marks(headline, "accuracy") == ["tied", "tied", ""]


def test_p_values_are_corrected_for_the_number_of_pairs(tmp_path: Path) -> None:
    wrong = set(), set(range(7)), set(range(7, 14))
    (alone,) = headlines(read_runs(judged(tmp_path / "two", *wrong[:2])))
    assert p_values(alone, "accuracy") == [pytest.approx(0.0156, abs=5e-5)]
    assert marks(alone, "accuracy") == ["best", ""]
    (headline,) = headlines(read_runs(judged(tmp_path / "three", *wrong)))
    assert p_values(headline, "accuracy")[:2] == [pytest.approx(3 * 0.015625), pytest.approx(3 * 0.015625)]
    assert marks(headline, "accuracy") == ["best", "", ""]
    more = (*wrong, {20})
    (headline,) = headlines(read_runs(judged(tmp_path / "four", *more)))
    assert marks(headline, "accuracy") == ["tied"] * 4  # 6 x 0.016 is no evidence


def test_less_is_better_where_the_number_is_a_cost(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name) for name in ("a", "b")]
    noise = 0.3 * torch.randn(300, generator=torch.Generator().manual_seed(0))
    for folder, nll in zip(folders, (0.5, 0.2), strict=True):
        metrics = {"accuracy": Estimate(0.9), "nll": Estimate(nll, nll - 0.2, nll + 0.2)}
        values = {**classification().per_example, "nll": pack(nll + noise, "float32")}
        classification(metrics=metrics, per_example=values).save(folder / "evaluation.json")
    (headline,) = headlines(read_runs(folders))
    assert marks(headline, "nll") == ["", "best"]
    assert marks(headline, "accuracy") == ["tied", "tied"]


def test_runs_without_results_of_single_examples_are_not_compared(tmp_path: Path) -> None:
    """As earlier versions wrote evaluations: the command that evaluates again is named."""
    folders = judged(tmp_path, set(), set(range(200)))
    for folder in folders:
        old = json.loads((folder / "evaluation.json").read_text())
        del old["per_example"], old["data"]["order"], old["unseen"]["noise"]["order"]
        for score in old["unseen"]["noise"]["scores"].values():
            del score["placements"]
        write_json(folder / "evaluation.json", old)
    (headline,) = headlines(read_runs(folders))
    assert [marks(headline, name) for name in ("accuracy", "nll", "ece", "auroc")] == [["", ""]] * 4
    assert headline.unpaired == ("dubio evaluate run-0", "dubio evaluate run-1")
    assert unpaired([headline]) == [
        "Runs evaluated by an earlier version are not paired and not compared; evaluate again: dubio evaluate run-0; "
        "dubio evaluate run-1"
    ]
    (headline,) = headlines(read_runs(folders[:1]))
    assert headline.unpaired == ()


def test_the_same_examples_in_another_order_are_not_paired(tmp_path: Path) -> None:
    (first,) = judged(tmp_path / "a", set())
    other = DataRecord("digits", 300, classification().data.fingerprint, order="shuffled")
    (second,) = judged(tmp_path / "b", set(range(200)), data=other)
    (headline,) = headlines(read_runs([first, second]))
    assert marks(headline, "accuracy") == ["", ""]


def test_numbers_on_different_data_are_not_compared(tmp_path: Path) -> None:
    (first,) = judged(tmp_path / "a", set())
    (second,) = judged(tmp_path / "b", set(range(150)), data=OTHER_DATA)
    (headline,) = headlines(read_runs([first, second]))
    assert marks(headline, "accuracy") == ["", ""]
    assert [row.data for row in headline.rows] == ["digits", "mnist"]


def test_attacks_are_compared_at_the_largest_distance_that_all_have(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name) for name in ("a", "b")]
    write_attack(folders[0], left=0.9, epsilons=("0.05", "0.1", "0.3"))
    write_attack(folders[1], left=0.3, epsilons=("0.05", "0.1"))
    (headline,) = headlines(read_runs(folders))
    assert "R_pred at 0.1" in [column.title for column in headline.columns]
    assert [row.cells["r_pred"].note for row in headline.rows] == ["", ""]
    assert marks(headline, "r_pred") == ["best", ""]
    write_attack(folders[1], left=0.3, epsilons=("0.2",))
    (headline,) = headlines(read_runs(folders))
    assert "R_pred" in [column.title for column in headline.columns]
    assert [row.cells["r_pred"].note for row in headline.rows] == ["at 0.3", "at 0.2"]
    assert marks(headline, "r_pred") == ["", ""]


def test_the_same_distance_in_two_norms_is_told_apart(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name) for name in ("a", "b")]
    write_attack(folders[0], left=0.9, epsilons=("0.3",), norm="l2")
    write_attack(folders[1], left=0.1, epsilons=("0.3",), norm="linf")
    records = read_runs(folders)
    (headline,) = headlines(records)
    assert "R_pred" in [column.title for column in headline.columns]
    assert [row.cells["r_pred"].note for row in headline.rows] == ["at l2 0.3", "at 0.3"]
    sentences = summarise(records, [headline])
    assert any("a on 90.0 % at epsilon l2 0.3 and b on 10.0 % at epsilon 0.3" in text for text in sentences), sentences
    (headline,) = headlines(records[:1])
    assert "R_pred at l2 0.3" in [column.title for column in headline.columns]


def test_the_same_attack_is_compared_and_not_another_of_the_same_distance(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name) for name in ("a", "b")]
    for folder, left in zip(folders, (0.6, 0.5), strict=True):
        write_attack(folder, left=left, epsilons=("0.1",), file_name="attack-pgd-linf-0.1")
    write_attack(folders[1], left=0.1, epsilons=("0.1",), num_images=20, file_name="attack-pgd-linf-0.1-steps40")
    write_attack(folders[1], left=0.0, epsilons=("0.3",), file_name="attack-pgd-linf-0.3")
    (headline,) = headlines(read_runs(folders))
    assert [row.cells["r_pred"].value for row in headline.rows] == pytest.approx([0.6, 0.5])
    (folders[1] / "attack-pgd-linf-0.1.json").unlink()
    (headline,) = headlines(read_runs(folders))
    assert [row.cells["r_pred"].value for row in headline.rows] == pytest.approx([0.6, 0.1])


def test_an_attack_on_an_earlier_network_is_not_compared_where_there_is_one_on_this(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    write_attack(folder, left=0.7, epsilons=("0.1",), file_name="attack-pgd-linf-0.1")
    write_attack(folder, left=0.2, epsilons=("0.3",), file_name="attack-pgd-linf-0.3")
    (record,) = read_runs([folder])
    identity = Identity(network="now", tensors="now")
    then, now = (replace(attack, network=name) for attack, name in zip(record.attacks, ("now", "then"), strict=True))
    (headline,) = headlines([replace(record, attacks=(then, now), identity=identity)])
    assert headline.rows[0].cells["r_pred"].value == pytest.approx(0.7)


@pytest.mark.feature("Every run has an AUROC by entropy, so that a network without noise can be compared")
def test_a_network_without_noise_detects_by_entropy_and_has_no_mutual_information(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name) for name in ("bayes", "plain")]
    for folder, noise in zip(folders, (0.8, 0.0), strict=True):
        classification(noise=noise).save(folder / "evaluation.json")
    (headline,) = headlines(read_runs(folders))
    noisy, plain = (row.cells["auroc"] for row in headline.rows)
    assert noisy.value is not None
    assert noisy.value > 0.9
    assert (noisy.note, plain.text, plain.value) == ("on noise", "-", None)
    assert all(row.cells["auroc_entropy"].value is not None for row in headline.rows)
    assert sorted(marks(headline, "auroc_entropy")) in (["", "best"], ["tied", "tied"])
    assert [pair.test for pair in headline.comparisons if pair.metric == "auroc_entropy"] == ["DeLong"]


def test_kinds_have_tables_of_their_own_and_columns_that_no_run_has_are_left_out(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / "class"), write_run(tmp_path / "real", likelihood="Gaussian")]
    regression().save(folders[1] / "evaluation.json")
    audit("VALID").save(folders[0] / "audit.json")
    first, second = headlines(read_runs(folders))
    assert [column.name for column in first.columns] == ["audit", "parameters", "bytes"]
    assert second.rows[0].cells["rmse"].value == 0.31
    assert "accuracy" not in second.rows[0].cells
