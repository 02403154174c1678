"""lab/RESULTS.md and the table of the first page: written from records, the same from the same records."""

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dubio_lab import CLAIMS, Cell, Earlier, ExperimentSpec, Measured, Result, headlines, load_spec, spec_names
from dubio_lab.running import result_file
from made_up_records import record, spec_of

LAB = Path(__file__).parents[1]


class Desk:
    """The script that writes the page, in a folder with one spec and records of its own."""

    def __init__(self, page: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.page, self.folder, self.monkeypatch = page, folder, monkeypatch
        monkeypatch.setattr(page, "ROOT", folder)
        self.use(spec_of(curves={}))

    def use(self, spec: ExperimentSpec) -> None:
        self.spec = spec
        self.monkeypatch.setattr(self.page, "spec_names", lambda: [spec.name])
        self.monkeypatch.setattr(self.page, "load_spec", lambda name: spec)

    def keep(self, *results: Result) -> None:
        for result in results:
            file = result_file(self.folder / "results", self.spec, Cell(result.cell), result.seed)
            file.parent.mkdir(parents=True, exist_ok=True)
            result.save(file)

    def keep_all(self, **changed: Any) -> None:
        self.keep(
            *(
                record(self.spec, cell, seed, 2.0 + 2 * seed, **changed)
                for cell in ("first", "second")
                for seed in (0, 1)
            )
        )

    def text(self) -> str:
        return str(self.page.write_page(self.page.find(self.folder / "results")))

    def run(self, *arguments: str) -> int:
        self.monkeypatch.setattr("sys.argv", ["results_page.py", *arguments])
        return int(self.page.main())


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    monkeypatch.syspath_prepend(LAB / "scripts")
    return Desk(importlib.import_module("results_page"), tmp_path, monkeypatch)


@pytest.mark.feature(
    "The page of results is written from records: published, ours, difference, attempts, command, commit"
)
def test_published_numbers_stand_beside_ours(desk: Desk) -> None:
    desk.keep_all()
    text = desk.text()
    assert "| cell | metric | published | ours | difference | seeds | attempts |" in text
    assert "| first | `metric_0` | 2.5 | 3 +- 1 | +0.5 | 2 | 1 |" in text
    assert "| second | `metric_0` | - | 3 +- 1 | - | 2 | 1 |" in text
    assert "- `metric_1`: what is measured, number 1" in text
    assert "```\ndubio reproduce made-up\n```\n\n| cell |" in text
    assert "| [made-up](#made-up) | Nobody 1900, Table 0 | 2 of 2 | `dubio reproduce made-up` |" in text
    assert "Source: Nobody 1900, Table 0." in text
    assert "Records: 4 from commit 0123456, a machine, torch 2.11.0, 2,402 seconds." in text


def test_a_search_before_stands_beside_the_attempts(desk: Desk) -> None:
    desk.use(spec_of(curves={}, searched_in=("grid",)))
    desk.keep_all()
    assert "| first | `metric_0` | 2.5 | 3 +- 1 | +0.5 | 2 | 1, after grid |" in desk.text()
    desk.use(spec_of(7, curves={}, searched_in=("grid",)))
    desk.keep_all(attempts=3)
    assert "| attempts | 3, after grid | 3, after grid |\n" in desk.text()


def test_the_claims_stand_first_and_the_list_of_specs_after_them(desk: Desk) -> None:
    text = desk.text()
    counted = sum(claim.is_counted for claim in CLAIMS)
    assert f"## Claims\n\n{counted} published statements: 0 reproduced, " in text
    assert text.index("## Claims") < text.index("\n## Specs\n\n| spec | source |") < text.index("\n## made-up")
    about = "A cell is done when it has a record of the present spec for every seed."
    assert f"{about}\n\n## made-up" in text


def test_a_metric_and_a_curve_of_one_name_are_both_described(desk: Desk) -> None:
    desk.use(spec_of(curves={"metric_0": "share, by epoch"}))
    desk.keep_all()
    text = desk.text()
    assert "- `metric_0`: what is measured, number 0\n- `metric_1`: what is measured, number 1\n" in text
    assert "\n- `metric_0`: share, by epoch (a curve)\n" in text


@pytest.mark.feature(
    "The page lists what training again with the same seed has moved, and which networks are not shared"
)
def test_what_training_again_moved_is_listed(desk: Desk) -> None:
    cells, metrics = (Cell("first"), Cell("second")), {"share": "right, in percent", "nats": "likelihood"}
    desk.use(spec_of(curves={}, cells=cells, metrics=metrics))
    desk.keep(
        record(desk.spec, "first", 0, metrics={"share": Measured(49.31), "nats": Measured(-9.0)}),
        record(desk.spec, "second", 0, metrics={"share": Measured(90.0), "nats": Measured(-9.0)}),
    )
    stored = desk.page.find(desk.folder / "results")
    assert desk.page.training_again(stored, []) == []

    def earlier(cell: str, share: float, digest: str) -> Earlier:
        return Earlier("made-up", cell, 0, 1, digest, "a", "a machine", {"share": share, "nats": 500.0})

    first, second = (desk.spec.digest_of(cell) for cell in desk.spec.cells)
    moved = [earlier("first", 90.09, first), earlier("second", 89.0, second), earlier("second", 5.0, "other settings")]
    about, table = desk.page.training_again(stored, moved)
    assert about.startswith("## Training again\n")
    assert table.splitlines()[2:] == ["| [made-up](#made-up) | 2 | first, seed 0, `share` | 90.09 | 49.31 |"]


def test_networks_that_were_trained_more_than_once_are_listed(desk: Desk) -> None:
    desk.keep(
        record(desk.spec, "first", 0, origins={"net": "0123456789, one GPU", "other": "0123456789, one GPU"}),
        record(desk.spec, "second", 0, origins={"net": "fedcba9876, one GPU"}),
    )
    stored = desk.page.find(desk.folder / "results")
    assert desk.page.networks_not_shared(stored) == [("1", "made-up at 0123456; made-up at fedcba9")]


def test_a_spec_without_records_is_not_run_yet(desk: Desk) -> None:
    text = desk.text()
    assert "| 0 of 2 |" in text
    assert text.endswith("Not run yet: `dubio reproduce made-up` does it.\n")
    assert "| cell |" not in text


def test_a_table_of_many_metrics_has_a_column_for_each(desk: Desk) -> None:
    many = tuple(Cell(f"cell {number}") for number in range(5))
    desk.use(spec_of(7, curves={}, cells=(Cell("first", {}, {"metric_0": 2.5}), Cell("second"), *many)))
    desk.keep_all(attempts=3)
    desk.keep(*(record(desk.spec, cell.name, 0) for cell in many))
    text = desk.text()
    columns = " | ".join(f"`metric_{number}`" for number in range(7))
    assert f"| cell | {columns} | seeds | attempts |" in text
    assert f"| first | 3 +- 1<br>(2.5) | {' | '.join(['3 +- 1'] * 6)} | 2 | 3 |" in text
    assert f"| second | {' | '.join(['3 +- 1'] * 7)} | 2 | 3 |" in text
    assert "In brackets: what was published." in text


def test_a_table_of_many_cells_has_a_row_for_each(desk: Desk) -> None:
    cells = tuple(Cell(f"cell {number}") for number in range(25))
    desk.use(spec_of(curves={}, cells=cells))
    desk.keep(*(record(desk.spec, cell.name, 0) for cell in cells[1:]))
    assert "| cell 24 | `metric_1` | - | 1 | - | 1 | 1 |" in desk.text()
    desk.keep(record(desk.spec, "cell 0", 0))
    assert "| cell | `metric_0` | `metric_1` | seeds | attempts |" in desk.text()
    assert "| cell 24 | 1 | 1 | 1 | 1 |" in desk.text()


def test_a_table_of_more_metrics_than_cells_has_a_row_for_each(desk: Desk) -> None:
    desk.use(spec_of(7, curves={}))
    desk.keep_all(attempts=3)
    text = desk.text()
    assert "| cell | first | second |\n|---|---|---|\n| `metric_0` | 3 +- 1<br>(2.5) | 3 +- 1 |\n" in text
    assert "| `metric_6` | 3 +- 1 | 3 +- 1 |\n| seeds | 2 | 2 |\n| attempts | 3 | 3 |\n" in text
    desk.use(spec_of(6, curves={}))
    assert "| first | `metric_5` | - |" in desk.text()


def test_numbers_of_an_earlier_spec_are_marked_and_give_way(desk: Desk) -> None:
    desk.keep_all(digest="earlier")
    text = desk.text()
    assert "| first | `metric_0` | 2.5 | 3 +- 1 (made under an earlier spec) | +0.5 |" in text
    assert "| 0 of 2 |" in text
    desk.keep(record(desk.spec, "first", 0, 9.0, attempts=2))
    text = desk.text()
    assert "| first | `metric_0` | 2.5 | 9 | +6.5 | 1 | 2 |" in text
    assert "| second | `metric_0` | - | 3 +- 1 (made under an earlier spec) |" in text
    desk.use(spec_of(8, curves={}, settings={"epochs": 3}))  # with metrics that the records do not have
    assert "| cell | first (made under an earlier spec) | second (made under an earlier spec) |" in desk.text()
    assert "| `metric_7` | - | - |" in desk.text()


def test_a_cell_is_done_when_all_its_seeds_are(desk: Desk) -> None:
    desk.keep(*(record(desk.spec, cell, seed) for cell, seed in (("first", 0), ("first", 1), ("second", 0))))
    assert "| 1 of 2 |" in desk.text()


def test_notes_and_origins_are_told_once(desk: Desk) -> None:
    desk.keep(
        record(desk.spec, "first", 0, notes={"verdict": "wide\nenough"}),
        record(desk.spec, "first", 1, notes={"verdict": "wide enough"}, commit="fedcba9876543210-dirty"),
        record(desk.spec, "second", 0, notes={"verdict": "narrow"}, commit=None),
        record(desk.spec, "third", 0),
    )
    text = desk.text()
    assert "- first, verdict: wide enough (seed 0, 1)\n- second, verdict: narrow (seed 0)\n" in text
    origins = (
        "1 from a commit not recorded, a machine, torch 2.11.0, 600 seconds",
        "1 from commit 0123456, a machine, torch 2.11.0, 600 seconds",
        "1 from commit fedcba9 with changed files, a machine, torch 2.11.0, 600 seconds",
    )
    left_out = "1 more of cells or seeds that the spec no longer has are left out."
    assert f"Records: {'; '.join(origins)}. {left_out}" in text


def test_pictures_are_drawn_and_linked(desk: Desk) -> None:
    desk.use(
        spec_of(
            name="made-up",
            curves={"rise": "height", "rise_error": "its error"},
            cells=(Cell("first-1"), Cell("first-2")),
        )
    )
    desk.keep(*(record(desk.spec, f"first-{number}", seed) for number in (1, 2) for seed in (0, 1)))
    for name in ("first-1-0-images", "first-1-1-images", "first-2-1-images"):
        (desk.folder / "results" / "made-up" / f"{name}.png").touch()
    desk.monkeypatch.setattr(desk.page, "HEAT_MAPS", ("made-up",))
    desk.monkeypatch.setattr(
        desk.page, "SWEEPS", {"made-up": desk.page.Sweep("strength", ("metric_1",), less="first-1")}
    )
    assert desk.run() == 0
    text = (desk.folder / "RESULTS.md").read_text()
    for name in ("made-up.png", "made-up-sweep.png", "made-up-table.png"):
        assert f"](images/{name})" in text
        assert (desk.folder / "images" / name).stat().st_size > 0
    assert "![rise: one line for each cell" in text  # whose error is its band, not a line
    assert "![first-1-0-images](results/made-up/first-1-0-images.png)" in text
    assert "![first-2-1-images](results/made-up/first-2-1-images.png)" in text
    assert "first-1-1-images" not in text  # one seed of a cell is enough
    assert (
        "![metric_1 by strength: means over seeds and their standard errors; and the same less that of first-1" in text
    )
    assert "- `rise`: height (a curve)" in text
    assert desk.run("--check") == 0
    (desk.folder / "images" / "made-up.png").unlink()
    assert desk.run("--check") == 1


def test_a_stale_page_is_told_and_then_mended(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    page = desk.folder / "RESULTS.md"
    assert desk.run("--check") == 1
    assert "lab/RESULTS.md is out of date or missing; run `make table`" in capsys.readouterr().err
    assert not page.exists()
    assert desk.run() == 0
    assert desk.run("--check") == 0
    desk.keep_all()
    assert desk.run("--check") == 1
    assert desk.run() == 0
    assert page.read_text() == desk.text()


def test_records_of_no_spec_are_refused(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.keep_all()
    for name in ("shared", "tiny", "forgotten"):
        (desk.folder / "results" / name).mkdir()
    (desk.folder / "results" / "tiny" / "x.json").touch()
    assert desk.text()
    (desk.folder / "results" / "forgotten" / "x.json").touch()
    with pytest.raises(SystemExit) as stopped:
        desk.text()
    assert stopped.value.code == 2
    assert "records must be of a spec, got lab/results/forgotten; remove it" in capsys.readouterr().err


def test_the_first_page_has_the_effects_of_main_claims(tmp_path: Path) -> None:
    table = headlines.headlines_table(tmp_path, "lab/")
    head, _, *rows = table.splitlines()
    assert head == "| paper | statement | published | ours, with interval | seeds | verdict |"
    assert len(rows) == len(headlines.HEADLINES)
    assert "([flow-paired](lab/RESULTS.md#flow-paired)) | +0.085 (0.094 less 0.009) | - | - | not run |" in table
    chosen = headlines.headlines_table(tmp_path, headlines=("bws-gain",))
    assert chosen.splitlines()[2:] == [row.replace("lab/", "") for row in rows[:1]]


def test_headlines_are_claims_that_are_counted() -> None:
    by_name = {claim.name: claim for claim in CLAIMS}
    assert all(by_name[name].is_counted for name in headlines.HEADLINES)


def test_pictures_are_drawn_as_the_page_says(desk: Desk) -> None:
    desk.use(spec_of(curves={"rise": "height"}))
    desk.keep_all()
    (found,) = desk.page.find(desk.folder / "results")
    drawn: list[dict[str, Any]] = []
    desk.monkeypatch.setattr(desk.page, "draw_curves", lambda *_, **options: drawn.append(options))
    how = desk.page.Curves(groups={"": {"one": "first"}}, heights={"rise": (0.0, 1.0)}, diagonal=("rise",))
    desk.monkeypatch.setattr(desk.page, "CURVES", {"made-up": how})
    (picture,) = desk.page.pictures_of(found)
    picture.draw(picture.file)
    assert drawn == [{"groups": how.groups, "heights": how.heights, "diagonal": how.diagonal}]
    assert picture.words.startswith("rise: one line for each cell but second, the mean")
    only_second = replace(found, results=[one for one in found.results if one.cell == "second"])
    assert desk.page.pictures_of(only_second) == []
    desk.monkeypatch.setattr(desk.page, "NO_CURVES", ("made-up",))
    assert desk.page.pictures_of(found) == []


def test_pictures_are_of_what_their_specs_have(desk: Desk) -> None:
    page = desk.page
    assert {*page.SWEEPS, *page.CURVES, *page.NO_CURVES, *page.HEAT_MAPS} <= {*spec_names()}
    for name, sweep in page.SWEEPS.items():
        spec = load_spec(name)
        cells = [cell.name for cell in spec.cells]
        assert {*sweep.metrics} <= {*spec.metrics}, name
        for line in sweep.lines:
            assert any(cell.startswith(f"{line}-") for cell in cells), (name, line)
        less = sweep.less
        assert less is None or less in cells or any(cell.startswith(f"{less}-") for cell in cells), name
    for name, how in page.CURVES.items():
        spec = load_spec(name)
        assert {*how.heights, *how.diagonal} <= {*spec.curves}, name
        drawn = [cell for lines in (how.groups or {}).values() for cell in lines.values()]
        assert {*drawn} <= {cell.name for cell in spec.cells}, name
