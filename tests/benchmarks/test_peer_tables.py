"""Tables, picture and environment of the benchmark beside other libraries."""

import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

NET = "784-1200-1200-10"


def test_speeds_are_told_beside_the_fastest_peer_in_the_same_precision_and_in_any(record: dict[str, Any]) -> None:
    import peer_tables

    found = peer_tables.PEER_TABLES["peer-steps"](record, NET)
    rows = {row[0]: row[1:] for row in found.rows}
    assert rows["slow, tf32"] == ("4", "40", "4", "-", "1.0", "1.0", "-", "0.50")
    assert rows["dubio, tf32"] == ("0.25", "0.5", "0.0278", "-", "16", "80", "-", "40")
    assert rows["dubio, bf16"] == ("-", "0.25", "-", "-", "-", "80", "-", "80")
    assert rows["plain, tf32"] == ("0.1", "0.1", "-", "-", "40", "400", "-", "200")
    assert found.headings[1:3] == ("S = 1", "S = 10")
    assert [len(row) for row in found.rows] == [len(found.headings)] * 6
    assert found.about.startswith(f"{NET}, batch of 128, 5 warm-ups, medians of runs that take turns.")


def test_what_failed_is_in_the_table_and_never_the_fastest(record: dict[str, Any]) -> None:
    import peer_tables

    rows = {row[0]: row[1:] for row in peer_tables.PEER_TABLES["peer-steps"](record, NET).rows}
    assert rows["broken, tf32"][:2] == ("RuntimeError: no", "RuntimeError: no")
    only_broken = [row for row in record["steps"] if row["contestant"] == "broken, tf32"]
    assert peer_tables.fastest_peer(record, only_broken) is None
    assert peer_tables.fastest_peer(record, record["steps"], 10, "tf32") == record["steps"][4]


def test_a_summary_shows_steps_and_prediction_side_by_side(record: dict[str, Any]) -> None:
    import peer_tables

    found = peer_tables.PEER_TABLES["peer-summary"](record, "")
    assert found.headings == ("milliseconds", "step, S = 1", "step, S = 10", "predict 10,000 with S = 100")
    assert ("slow, tf32", "4", "40", "1,234") in found.rows
    assert ("dubio, bf16", "-", "0.25", "50") in found.rows
    assert [row[0] for row in found.rows] == ["slow, tf32", "slow, bf16", "dubio, tf32", "dubio, bf16"]


def test_predictions_memory_epochs_and_contestants_are_shown(record: dict[str, Any]) -> None:
    import peer_tables

    shown = {kind: peer_tables.PEER_TABLES[kind](record, NET) for kind in peer_tables.PEER_TABLES}
    predicted = (f"{NET}, 10,000 with S = 100", "dubio, bf16", "50", "-", "-", "25")
    assert predicted in shown["peer-predictions"].rows
    assert ("dubio, tf32", "40", "-") in shown["peer-memory"].rows
    assert "dubio, bf16" not in [row[0] for row in shown["peer-memory"].rows]
    assert ("784-800-800-10", "published, vmap", "4.1", "-") in shown["peer-epochs"].rows
    rows = {row[0]: row[1:] for row in shown["peer-contestants"].rows}
    assert rows["broken"] == ("broken (not there)", "broken runs", "closed form", "ImportError: no")
    assert rows["slow"] == ("slow 1.0", "slow runs", "closed form", "no, it is off by 25%")
    assert rows["dubio"][-1] == "-"
    record["contestants"]["dubio, tf32"]["version"] = None
    rows = {row[0]: row[1:] for row in peer_tables.PEER_TABLES["peer-contestants"](record, "").rows}
    assert rows["dubio"][0] == "dubio"  # it was there, if only on the path
    record["settings"]["nets"]["784-800-800-10"] = {"batch": 128, "num_data": 60_000}
    record["slopes"][0]["net"] = "784-800-800-10"
    epochs = peer_tables.PEER_TABLES["peer-epochs"](record, "")
    assert ("784-800-800-10", "slow, tf32", "1.88", "1.0000") in epochs.rows  # 4 ms for each of 469 steps


def test_rows_at_a_time_are_told_where_each_took_its_own(record: dict[str, Any]) -> None:
    import peer_tables

    before = peer_tables.PEER_TABLES["peer-predictions"](record, "")
    assert before.about == "Batches of 1,000 at most; dubio sizes its own."
    del record["settings"]["rows_at_a_time"]
    record["settings"]["rows_tried"] = "fastest of 2,500 and all rows at a time"
    record["predictions"][0]["rows_at_a_time"], record["predictions"][1]["rows_at_a_time"] = 2_500, None
    found = peer_tables.PEER_TABLES["peer-predictions"](record, "")
    assert found.headings[:4] == ("prediction", "by", "rows at a time", "milliseconds")
    assert [row[1:4] for row in found.rows] == [("slow, tf32", "2,500", "1,234"), ("dubio, bf16", "-", "50")]
    assert "took the fastest of 2,500 and all rows at a time" in found.about


def test_what_is_not_measured_is_told(record: dict[str, Any]) -> None:
    from peer_words import missing

    told = missing(None, "results/peers_h200.json", "")
    assert told.startswith("Not measured yet: `results/peers_h200.json` is missing; `make bench ARGS=")
    assert missing(record, "p.json", "resnet18").startswith("Not measured yet: resnet18 is not in `p.json`; ")
    assert missing(record, "p.json", NET) == missing(record, "p.json", "") == ""


def test_every_network_says_which_commit_it_was_measured_at(record: dict[str, Any]) -> None:
    from peer_words import commits_in_words

    assert commits_in_words(record, ()) == commits_in_words(record, (NET,)) == "commit 0123456"
    record["settings"]["nets"] |= {"small": {"commit": "89abcdef01"}, "other": {"commit": "0123456789"}, "old": {}}
    assert commits_in_words(record, (NET,)) == "commit 0123456"
    told = f"commits 0123456 ({NET}, other), 89abcde (small) and not recorded (old)"
    assert commits_in_words(record, ()) == told


def test_a_page_holds_a_table_of_a_record_or_says_that_there_is_none(
    record: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import figures

    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    assert "peers_cpu.json` is missing" in figures.table("peer-summary:cpu", "page.md")
    stored = {"commit": "0123456789", "hardware": "CPU", "versions": {"torch": "2"}, "records": {"peers": record}}
    (tmp_path / "peers_cpu.json").write_text(json.dumps(stored))
    filled = figures.table(f"peer-steps:cpu/{NET}", "page.md")
    assert "| dubio, tf32 | 0.25 | 0.5 | 0.0278 | - | 16 | 80 | - | 40 |\n" in filled
    assert filled.endswith("CPU, torch 2, commit 0123456: `benchmarks/results/peers_cpu.json`.")
    assert "Not measured yet: resnet18" in figures.table("peer-steps:cpu/resnet18", "page.md")


def test_an_environment_is_made_once_for_the_same_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import environments

    ran: list[tuple[str, ...]] = []

    def run(*command: str) -> None:
        ran.append(command)
        (tmp_path / "own" / "lib" / "python3" / "site-packages").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(environments, "_run", run)
    python = environments.make_environment(tmp_path / "own", ("one",), "one")
    assert python == tmp_path / "own" / "bin" / "python"
    assert [command[1:3] for command in ran] == [("-m", "venv"), ("-m", "pip"), ("-c", "import one")]
    assert "--no-deps" in ran[1]
    environments.make_environment(tmp_path / "own", ("one",), "one")
    assert len(ran) == 3
    environments.make_environment(tmp_path / "own", ("one", "two"), "one")
    assert len(ran) == 6


def test_why_an_environment_could_not_be_made_is_one_line() -> None:
    from environments import reason

    failed = subprocess.CalledProcessError(1, ["pip"], output="Looking\nERROR: no network\n")
    assert reason(failed) == "ERROR: no network"
    several = "WARNING: retrying\nERROR: no index\nERROR: nothing found\n\n[notice] a new pip\n"
    assert reason(subprocess.CalledProcessError(1, ["pip"], output=several)) == "ERROR: no index"
    assert (
        reason(subprocess.CalledProcessError(1, ["python"], output="Traceback\nImportError: no\n")) == "ImportError: no"
    )
    assert reason(OSError()) == "OSError"
    assert reason(OSError("no space left")) == "no space left"


@pytest.mark.parametrize(("before", "after"), [(None, "src"), ("wheels", "src:wheels")])
def test_what_was_on_the_path_stays_there_and_the_way_without_an_index_is_named(
    before: str | None, after: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import peer_environment

    def make(*arguments: object) -> Path:
        raise subprocess.CalledProcessError(1, ["pip"], output="ERROR: no index\n")

    def run(command: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        assert env["PYTHONPATH"] == after.replace("src", str(peer_environment.ROOT / "src"))
        assert command[2:] == ["peers", "--tiny"]
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(peer_environment, "make_environment", make)
    monkeypatch.setattr(peer_environment.subprocess, "run", run)
    if before is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", before)
    assert peer_environment.main(["peers", "--tiny"]) == 0
    told = capsys.readouterr().out
    assert "could not be made: ERROR: no index\n" in told
    assert "`scripts/peer_environment.py --unpack FOLDER`" in told


def test_wheels_of_pure_python_are_unpacked_and_missing_ones_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import peer_environment

    def download(command: list[str]) -> subprocess.CompletedProcess[str]:
        wheels = Path(command[command.index("--dest") + 1])
        for name in ("one-1.0-py3-none-any.whl", "two-1.0-cp311-linux.whl"):
            with zipfile.ZipFile(wheels / name, "w") as archive:
                archive.writestr(f"{name[:3]}/__init__.py", "")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(peer_environment.subprocess, "run", download)
    assert peer_environment.main(["--unpack", str(tmp_path / "to")]) == 1
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["one"]
    assert "1 of 4 libraries are in" in capsys.readouterr().out
    assert peer_environment.main(["peers", "--unpack"]) == 2
    told = "--unpack must be followed by one folder and nothing else, got peers --unpack"
    assert told in capsys.readouterr().out
