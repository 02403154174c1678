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
    assert rows["slow, tf32"] == ("4", "40", "4", "1.00", "0.50")
    assert rows["dubio, tf32"] == ("0.25", "0.5", "0.0278", "80.00", "40.00")
    assert rows["dubio, bf16"] == ("-", "0.25", "-", "80.00", "80.00")
    assert rows["plain, tf32"] == ("0.1", "0.1", "-", "400.00", "200.00")
    assert found.headings[1:3] == ("S = 1", "S = 10")
    assert found.about == f"{NET}, batch of 128, 5 warm-ups, medians of runs that take turns."
    record["settings"] |= {"device": "cpu", "load_before": 0.5}
    record["settings"]["nets"][NET]["load_after"] = 6.25
    about = peer_tables.PEER_TABLES["peer-steps"](record, NET).about
    assert about.endswith(" The load average was 0.5 before and 6.2 after.")


def test_what_failed_is_in_the_table_and_never_the_fastest(record: dict[str, Any]) -> None:
    import peer_tables

    rows = {row[0]: row[1:] for row in peer_tables.PEER_TABLES["peer-steps"](record, NET).rows}
    assert rows["broken, tf32"][:2] == ("RuntimeError: no", "RuntimeError: no")
    only_broken = [row for row in record["steps"] if row["contestant"] == "broken, tf32"]
    assert peer_tables.fastest_peer(record, only_broken) is None
    assert peer_tables.fastest_peer(record, record["steps"], 10, "tf32") == 40.0


def test_a_summary_shows_steps_and_prediction_side_by_side(record: dict[str, Any]) -> None:
    import peer_tables

    found = peer_tables.PEER_TABLES["peer-summary"](record, "")
    assert found.headings == ("milliseconds", "step, S = 1", "step, S = 10", "predict 10,000 with S = 100")
    assert ("slow, tf32", "4", "40", "1,234") in found.rows
    assert ("dubio, bf16", "-", "0.25", "50") in found.rows


def test_predictions_memory_epochs_and_contestants_are_shown(record: dict[str, Any]) -> None:
    import peer_tables

    shown = {kind: peer_tables.PEER_TABLES[kind](record, NET) for kind in peer_tables.PEER_TABLES}
    predicted = (f"{NET}, 10,000 with S = 100", "dubio, bf16", "50", "-", "24.68")
    assert predicted in shown["peer-predictions"].rows
    assert ("dubio, tf32", "40", "-") in shown["peer-memory"].rows
    assert "dubio, bf16" not in [row[0] for row in shown["peer-memory"].rows]
    assert ("784-800-800-10", "published, vmap", "4.1", "-") in shown["peer-epochs"].rows
    rows = {row[0]: row[1:] for row in shown["peer-contestants"].rows}
    assert rows["broken"] == ("broken (not there)", "broken runs", "closed form", "ImportError: no")
    assert rows["slow"] == ("slow 1.0", "slow runs", "closed form", "no, it is off by 25%")
    assert rows["dubio"][-1] == "-"
    record["settings"]["nets"]["784-800-800-10"] = {"batch": 128, "num_data": 60_000}
    record["slopes"][0]["net"] = "784-800-800-10"
    epochs = peer_tables.PEER_TABLES["peer-epochs"](record, "")
    assert ("784-800-800-10", "slow, tf32", "1.88", "1.0000") in epochs.rows  # 4 ms for each of 469 steps


def test_what_is_not_measured_is_told(record: dict[str, Any]) -> None:
    from peer_tables import missing

    told = missing(None, "results/peers_h200.json", "")
    assert told.startswith("Not measured yet: `results/peers_h200.json` is missing; `make bench ARGS=")
    assert missing(record, "p.json", "resnet18").startswith("Not measured yet: resnet18 is not in `p.json`; ")
    assert missing(record, "p.json", NET) == missing(record, "p.json", "") == ""


def test_every_network_says_which_commit_it_was_measured_at(record: dict[str, Any]) -> None:
    from peer_tables import commits_in_words

    assert commits_in_words(record, "") == commits_in_words(record, NET) == "commit 0123456"
    record["settings"]["nets"] |= {"small": {"commit": "89abcdef01"}, "other": {"commit": "0123456789"}, "old": {}}
    assert commits_in_words(record, NET) == "commit 0123456"
    told = f"commits 0123456 ({NET}, other), 89abcde (small) and not recorded (old)"
    assert commits_in_words(record, "") == told


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
    assert "| dubio, tf32 | 0.25 | 0.5 | 0.0278 | 80.00 | 40.00 |\n" in filled
    assert filled.endswith("CPU, torch 2, commit 0123456: `benchmarks/results/peers_cpu.json`.")
    assert "Not measured yet: resnet18" in figures.table("peer-steps:cpu/resnet18", "page.md")


def test_a_picture_is_shown_where_it_was_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import figures

    monkeypatch.setattr(figures, "PAGES", tmp_path)
    told = figures.table("peer-picture:cpu", "page.md")
    assert told.startswith(
        "Not drawn yet: `python scripts/plot_peers.py benchmarks/results/peers_cpu.json docs/images/"
    )
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "peers_cpu.png").touch()
    assert figures.table("peer-picture:cpu", "page.md").endswith("](images/peers_cpu.png)")


def test_a_picture_is_drawn_of_what_has_two_points(
    record: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    import plot_peers

    assert plot_peers.curves(record, NET, "tf32") == {
        "slow": ([1, 10], [4.0, 40.0]),
        "plain": ([1, 10], [0.1, 0.1]),
        "dubio": ([1, 10], [0.25, 0.5]),
    }
    stored, picture = tmp_path / "record.json", tmp_path / "steps.svg"
    stored.write_text(json.dumps({"hardware": "CPU", "records": {"peers": record}}))
    assert plot_peers.main([str(stored), str(picture)]) == 0
    first = picture.read_bytes()
    assert plot_peers.main([str(stored), str(picture)]) == 0
    assert picture.read_bytes() == first
    assert plot_peers.main([str(tmp_path / "none.json"), "x.svg"]) == 2
    assert "none.json is missing; benchmarks/run.py peers --output " in capsys.readouterr().out


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
    assert reason(OSError("no space left")) == "no space left"


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
