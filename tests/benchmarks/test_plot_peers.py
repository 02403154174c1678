"""The picture of libraries side by side: what is drawn, what is refused, and whether it is that of its record."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NET = "784-1200-1200-10"

pytest.importorskip("matplotlib")


@pytest.fixture
def stored(record: dict[str, Any]) -> dict[str, Any]:
    return {"commit": "0123456789", "hardware": "CPU", "versions": {"torch": "2"}, "records": {"peers": record}}


def test_a_picture_is_drawn_of_what_has_two_points(stored: dict[str, Any], tmp_path: Path) -> None:
    import plot_peers

    assert plot_peers.curves(stored["records"]["peers"], NET, "tf32") == {
        "slow": ([1, 10], [4.0, 40.0]),
        "plain": ([1, 10], [0.1, 0.1]),
        "dubio": ([1, 10], [0.25, 0.5]),
    }
    path, picture = tmp_path / "record.json", tmp_path / "steps.svg"
    path.write_text(json.dumps(stored))
    assert plot_peers.main([str(path), str(picture)]) == 0
    first = picture.read_bytes()
    assert plot_peers.main([str(path), str(picture)]) == 0
    assert picture.read_bytes() == first


def test_the_title_names_torch_and_every_commit(stored: dict[str, Any]) -> None:
    from plot_peers import title_of

    assert title_of(stored, "tf32") == "CPU, tf32, torch 2\ncommit 0123456"
    record = stored["records"]["peers"]
    record["settings"]["nets"]["small"] = {"commit": "89abcdef01"}
    assert title_of(stored, "tf32") == "CPU, tf32, torch 2\ncommit 0123456"  # nothing is drawn of the small one
    record["steps"] += [{**row, "net": "small"} for row in record["steps"]]
    assert title_of(stored, "tf32").endswith(f"commits 0123456 ({NET}) and 89abcde (small)")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "RECORD PICTURE [PRECISION] must be given, got nothing"),
        (["none.json", "x.svg"], "RECORD none.json is missing; benchmarks/run.py peers --output none.json writes it"),
        (["record.json", "x.gif"], "PICTURE must end with .png or .svg, in a folder that exists, got x.gif"),
        (["record.json", "none/x.png"], "PICTURE must end with .png or .svg, in a folder that exists, got none/x.png"),
        (["text.json", "x.png"], "RECORD must be what benchmarks/run.py peers has written, text.json is none"),
        (["other.json", "x.png"], "RECORD must be what benchmarks/run.py peers has written, other.json is none"),
        (["record.json", "x.png", "fp8"], "PRECISION must be one of bf16, tf32 with two numbers of draws, got fp8"),
        (["record.json", "x.png", "bf16"], "PRECISION must be one of bf16, tf32 with two numbers of draws, got bf16"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    arguments: list[str],
    told: str,
    stored: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import plot_peers

    monkeypatch.chdir(tmp_path)
    Path("record.json").write_text(json.dumps(stored))
    Path("text.json").write_text("no record")
    Path("other.json").write_text(json.dumps({**stored, "records": {"fitting": []}}))
    assert plot_peers.main(arguments) == 2
    assert told in capsys.readouterr().err


def test_a_picture_is_shown_where_it_was_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import figures

    monkeypatch.setattr(figures, "PAGES", tmp_path)
    told = figures.table("peer-picture:cpu", "page.md")
    assert told.startswith(
        "Not drawn yet: `.venv/bin/python scripts/plot_peers.py benchmarks/results/peers_cpu.json docs/images/"
    )
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "peers_cpu.png").touch()
    assert figures.table("peer-picture:cpu", "page.md").endswith("](images/peers_cpu.png)")


def change_a_time(stored: dict[str, Any]) -> None:
    stored["records"]["peers"]["steps"][0]["milliseconds"] += 1.0


def change_the_commit(stored: dict[str, Any]) -> None:
    stored["records"]["peers"]["settings"]["nets"][NET]["commit"] = "89abcdef01"


@pytest.mark.parametrize("change", [change_a_time, change_the_commit])
def test_a_picture_that_is_not_of_its_record_is_told_and_then_drawn_anew(
    change: Callable[[dict[str, Any]], None],
    stored: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import figures
    import plot_peers

    for name in ("ROOT", "PAGES", "RESULTS"):
        monkeypatch.setattr(figures, name, tmp_path)
    path, picture = tmp_path / "peers_cpu.json", tmp_path / "images" / "peers_cpu.png"
    picture.parent.mkdir()
    path.write_text(json.dumps(stored))
    assert plot_peers.main([str(path), str(picture)]) == 0
    monkeypatch.setattr("sys.argv", ["figures.py", "--check"])
    assert figures.main() == 0

    change(stored)
    path.write_text(json.dumps(stored))
    assert figures.main() == 1
    assert "the figures in images/peers_cpu.png are out of date; run `make table`" in capsys.readouterr().err
    monkeypatch.setattr("sys.argv", ["figures.py"])
    assert figures.main() == 0
    monkeypatch.setattr("sys.argv", ["figures.py", "--check"])
    assert figures.main() == 0

    path.unlink()
    with pytest.raises(SystemExit):
        figures.main()
    assert "peers_cpu.json is missing; benchmarks/run.py" in capsys.readouterr().err


def test_a_picture_without_a_digest_is_of_no_record(stored: dict[str, Any], tmp_path: Path) -> None:
    from matplotlib import pyplot
    from plot_peers import is_drawn_from

    (tmp_path / "record.json").write_text(json.dumps(stored))
    pyplot.imsave(tmp_path / "other.png", [[0.0, 1.0]])
    assert not is_drawn_from(tmp_path / "other.png", tmp_path / "record.json")
