"""Reading runs: what is missing stays out, what is damaged is refused with what to do."""

import json
from pathlib import Path

import pytest

from dubio.report.commands import attack_command, prune_commands, train_command
from dubio.report.runs import RobustnessRecord, read_run, read_runs
from report.run_folders import PRUNING, attack_record, audit, write_attack, write_full_run, write_json, write_run


def test_a_whole_run_is_read(tmp_path: Path) -> None:
    result = read_run(write_full_run(tmp_path / "first"))
    assert (result.name, result.method, result.data, result.kind) == ("first", "bayes", "digits", "classification")
    assert result.num_parameters == 100 * 64 + 100
    assert result.num_bytes == 71272
    assert len(result.history) == 30
    assert result.evaluation is not None
    assert result.attack is not None
    assert result.pruning is not None
    assert result.audit is not None
    assert result.attack.norm == "linf"
    assert [row.distance for row in result.attack.rows] == [0.05, 0.1]
    assert result.audit == audit()


def test_a_run_that_was_only_trained_has_nothing_else(tmp_path: Path) -> None:
    result = read_run(write_run(tmp_path / "first", likelihood="Gaussian"))
    assert (result.evaluation, result.attack, result.pruning, result.audit) == (None, None, None, None)
    assert result.kind == "regression"


def test_a_run_trained_in_python_has_a_method_by_its_class(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first")
    (folder / "command.json").unlink()
    write_json(folder / "config.json", {"method": "None", "epochs": 3})
    assert read_run(folder).method == "Deterministic"
    assert read_run(folder).num_parameters is None


def test_masks_of_an_older_pruned_run_are_no_parameters(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first")
    shapes = {"1.weight_posterior.mean": [10, 6], "1.weight_posterior.removed": [10, 6], "2.weight_removed": [6]}
    write_json(folder / "config.json", {"method": "Bayes()", "epochs": 3, "parameters": shapes})
    assert read_run(folder).num_parameters == 60


def test_epsilons_are_read_as_fractions_and_the_row_that_leaves_least_counts(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first")
    write_attack(folder, epsilons=("8/255",))
    record = json.loads((folder / "attack.json").read_text())
    stronger = record["rows"][0] | {"attack": "strongest", "fields": None}
    stronger["predictive"] = {"value": 0.1, "low": 0.05, "high": 0.2}
    write_json(folder / "attack.json", record | {"rows": [*record["rows"], stronger]})
    attack = read_run(folder).attack
    assert attack is not None
    ((distance, row),) = attack.weakest().items()
    assert distance == pytest.approx(8 / 255)
    assert row.attack == "strongest"


@pytest.mark.parametrize("epsilon", ["", "far", "1/0", "1/", "nan", "1e999", "1e300/1e-300"])
def test_an_attack_at_no_distance_is_refused_by_name(epsilon: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first")
    write_attack(folder, epsilons=("8/255",))
    record = json.loads((folder / "attack.json").read_text())
    write_json(folder / "attack.json", record | {"rows": [record["rows"][0] | {"epsilon": epsilon}]})
    with pytest.raises(
        ValueError, match=r"attack\.json does not hold an attack: .*epsilon must be a number or a fraction"
    ):
        read_run(folder)


def test_an_attack_goes_to_json_and_back_and_its_class_may_have_the_name_of_an_earlier_version() -> None:
    data = attack_record(0.4)
    record = RobustnessRecord.from_json(data)
    assert RobustnessRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert "file_name" not in record.to_json()
    former = [row | {"fields": row["fields"] | {"kind": "Pgd"}} for row in data["rows"]]
    assert RobustnessRecord.from_json(data | {"rows": former}) == record


def test_fields_that_attacks_disagree_about_are_not_shared(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first")
    write_attack(folder, epsilons=("0.1",))
    record = json.loads((folder / "attack.json").read_text())
    fields = {"kind": "Transfer", "seed": 0, "attack": record["rows"][0]["fields"] | {"loss": "margin"}}
    passed_on = record["rows"][0] | {"attack": "transfer", "fields": fields}
    write_json(folder / "attack.json", record | {"rows": [*record["rows"], passed_on]})
    attack = read_run(folder).attack
    assert attack is not None
    assert "loss" not in attack.shared_fields()
    assert attack.shared_fields()["steps"] == 10
    assert attack_command("first", attack) == (
        "dubio attack first --attack pgd,transfer --epsilon 0.1 --norm linf --steps 10 --restarts 1 --samples 10 "
        "--objective predictive --noise fresh --draws 20 --images 40 --data digits --seed 2"
    )


def test_a_pruned_run_is_made_from_the_one_that_was_trained(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first-pruned")
    write_json(folder / "pruning.json", PRUNING)
    record = read_run(folder)
    assert train_command(record) == "dubio train first --method bayes --seed 0"
    assert prune_commands(record) == ["dubio prune first --fraction 0.75 --by snr --out first-pruned"]
    write_json(folder / "pruning.json", PRUNING | {"num_removed": 0, "what": "units"})
    measured = read_run(folder)
    assert train_command(measured) == "dubio train first-pruned --method bayes --seed 0"
    assert prune_commands(measured) == ["dubio prune first-pruned --what units"]


def test_parts_of_a_record_may_be_missing(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first")
    write_json(folder / "pruning.json", {key: PRUNING[key] for key in PRUNING if key not in ("curve", "density")})
    pruning = read_run(folder).pruning
    assert pruning is not None
    assert (pruning.curve, pruning.density) == ((), None)


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        ("config.json", "{", r"config\.json cannot be read"),
        ("config.json", "{}", r"config\.json is not the configuration of a run: it names no method"),
        ("command.json", "[]", r"command\.json must hold an object, got a list"),
        ("metrics.jsonl", "nonsense\n", r"metrics\.jsonl cannot be read"),
        ("metrics.jsonl", '{"loss": 1}\n', r"metrics\.jsonl must have an epoch in every line"),
        (
            "evaluation.json",
            "{}",
            r"evaluation\.json does not hold an evaluation: .*; write it anew: dubio evaluate first",
        ),
        (
            "evaluation.json",
            '{"format": "dub',
            r"evaluation\.json does not hold an evaluation: .*: dubio evaluate first",
        ),
        (
            "commands.jsonl",
            '{"line": "rm -r .", "run": "a"}',
            r"commands\.jsonl cannot be read: every line must hold a",
        ),
        ("commands.jsonl", '{"line": "dubio"}', r"commands\.jsonl cannot be read: .*without it, reports leave these"),
        (
            "attack.json",
            "{}",
            r"attack\.json does not hold an attack: .*'dubio-attack-1', got None; .*: dubio attack first",
        ),
        ("attack.json", '{"format": "dubio-attack-1"}', r"attack\.json does not hold an attack: .*anew: dubio attack"),
        (
            "attack.json",
            json.dumps(attack_record(0.4) | {"something_new": 1}),
            r"unknown fields \['something_new'\]; was the file written by a newer version\?; .*: dubio attack first",
        ),
        ("pruning.json", json.dumps(PRUNING | {"num_weights": "many"}), r"num_weights.*'many'.*dubio prune first"),
        (
            "audit.json",
            json.dumps(audit().to_json() | {"checks": 3}),
            r"audit\.json does not hold an audit: .*dubio audit first",
        ),
    ],
)
def test_damaged_files_are_refused_by_name(tmp_path: Path, file: str, content: str, told: str) -> None:
    folder = write_run(tmp_path / "first")
    (folder / file).write_text(content)
    with pytest.raises(ValueError, match=told):
        read_run(folder)


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "first")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 31, "lo')
    assert len(read_run(folder).history) == 30


def test_folders_that_hold_no_run_and_runs_named_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"is not the folder of a run: it has no config\.json; dubio runs lists"
    ):
        read_run(tmp_path)
    with pytest.raises(ValueError, match="folders must be at least one run, got none"):
        read_runs([])
    folder = write_run(tmp_path / "first")
    with pytest.raises(ValueError, match=r"each run may be named once, got .*first twice"):
        read_runs([folder, tmp_path / "." / "first"])


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / part / "first") for part in ("old", "new")]
    assert [record.name for record in read_runs(folders)] == ["old/first", "new/first"]
