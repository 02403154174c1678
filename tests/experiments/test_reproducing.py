"""Experiments: specs are whole and fixed, every cell and seed has a record, what is there is not made again."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from dubio.cli import app
from dubio.experiments import (
    Cell,
    Curve,
    Findings,
    Measured,
    Result,
    Spec,
    load_spec,
    reproduce,
    spec_names,
    tabulate,
)
from dubio.experiments.protocols import PROTOCOLS, Trial
from dubio.experiments.protocols.watching import Watch
from dubio.experiments.running import result_file
from dubio.experiments.spec import FOLDER
from dubio.version import commit_here, hardware_of

SPEC = Spec(
    "counting",
    "How often it was asked",
    "nobody",
    "counting",
    {"drawn": "a random number", "doubled": "twice the setting"},
    (0, 1),
    (Cell("one", {"number": 1.0}, {"doubled": 2.5}), Cell("two", {"number": 2.0})),
    {"number": 0.0},
    tiny={"number": 9.0},
)

NOT_TINY = ("auroc_", "audit_", "seconds_")
"""Digits have no relatives that a network has not seen; audits and times of many draws take longer than a tiny run."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Trial]:
    """A protocol that remembers its trials."""
    trials: list[Trial] = []

    def counting(trial: Trial) -> Findings:
        trials.append(trial)
        drawn, doubled = Measured(float(torch.rand(()))), Measured(2.0 * trial.settings["number"], 0.1, 7)
        return Findings({"drawn": drawn, "doubled": doubled})

    monkeypatch.setitem(PROTOCOLS, "counting", counting)
    return trials


@pytest.mark.parametrize("name", spec_names())
def test_every_spec_can_be_read_and_has_a_protocol(name: str) -> None:
    spec = load_spec(name)
    assert spec.name == name
    assert spec.protocol in PROTOCOLS
    known = {key for cell in spec.cells for key in spec.settings_of(cell)}
    assert {*spec.tiny} <= {*known, "num_unseen"}  # which full runs take all of


@pytest.mark.slow
@pytest.mark.parametrize("name", spec_names())
def test_every_spec_runs_tiny(name: str, tmp_path: Path) -> None:
    spec = load_spec(name)
    results = reproduce(spec, tmp_path, variant="tiny")
    assert [result.cell for result in results] == [cell.name for cell in spec.cells]
    promised = {name for name in spec.metrics if not name.startswith(NOT_TINY)}
    assert all(promised <= {*result.metrics} for result in results)


def test_every_cell_and_seed_has_a_record(asked: list[Trial], tmp_path: Path) -> None:
    results = reproduce(SPEC, tmp_path)
    assert [(result.cell, result.seed) for result in results] == [("one", 0), ("one", 1), ("two", 0), ("two", 1)]
    assert [trial.settings["number"] for trial in asked] == [1.0, 1.0, 2.0, 2.0]
    kept = Result.load(result_file(tmp_path, SPEC, SPEC.cells[0], 1))
    assert kept == results[1]
    assert (kept.metrics["doubled"], kept.published, kept.attempts) == (Measured(2.0, 0.1, 7), {"doubled": 2.5}, 1)
    assert kept.digest == SPEC.digest_of(SPEC.cells[0])
    assert kept.versions["torch"] == torch.__version__


def test_a_seed_gives_the_same_number_again_and_leaves_the_generator_alone(asked: list[Trial], tmp_path: Path) -> None:
    before = torch.get_rng_state()
    first, second = (reproduce(SPEC, tmp_path / str(number)) for number in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    drawn = [result.metrics["drawn"].value for result in first]
    assert drawn == [result.metrics["drawn"].value for result in second]
    assert drawn[0] != drawn[1]


def test_what_has_a_record_is_not_run_again_until_the_spec_changes(asked: list[Trial], tmp_path: Path) -> None:
    told: list[str] = []
    first = reproduce(SPEC, tmp_path)
    result_file(tmp_path, SPEC, SPEC.cells[1], 1).unlink()  # as if interrupted before the last
    assert reproduce(SPEC, tmp_path, tell=told.append)[:3] == first[:3]
    assert len(asked) == 5
    assert told[0] == "counting, one, seed 0: there already"
    changed = dataclasses.replace(SPEC, settings={"number": 0.0, "epochs": 3})
    assert changed.digest_of(SPEC.cells[0]) != SPEC.digest_of(SPEC.cells[0])
    reworded = dataclasses.replace(SPEC, title="Other words", seeds=(0,), metrics={**SPEC.metrics, "drawn": "a number"})
    assert reworded.digest_of(SPEC.cells[0]) == SPEC.digest_of(SPEC.cells[0])
    again = reproduce(changed, tmp_path)
    assert len(asked) == 9
    assert [result.attempts for result in again] == [2, 2, 2, 2]


def test_tiny_runs_have_a_place_and_settings_of_their_own(asked: list[Trial], tmp_path: Path) -> None:
    results = reproduce(SPEC, tmp_path, variant="tiny")
    assert [(result.seed, result.settings["number"], result.variant) for result in results] == [(0, 9.0, "tiny")] * 2
    assert result_file(tmp_path, SPEC, SPEC.cells[0], 0, variant="tiny").parent == tmp_path / "tiny" / "counting"
    assert dataclasses.replace(SPEC, tiny={}).digest_of(SPEC.cells[0]) == SPEC.digest_of(SPEC.cells[0])
    assert not (tmp_path / "counting").exists()


def test_some_cells_and_seeds_can_be_run_alone(asked: list[Trial], tmp_path: Path) -> None:
    results = reproduce(SPEC, tmp_path, cells="t*", seeds=[1])
    assert [(result.cell, result.seed) for result in results] == [("two", 1)]
    with pytest.raises(ValueError, match="cells must match one of one, two, got 'three'"):
        reproduce(SPEC, tmp_path, cells="three")
    with pytest.raises(ValueError, match="seeds must be some of 0, 1, got 2"):
        reproduce(SPEC, tmp_path, seeds=[0, 2])


def test_runs_on_digits_have_a_place_of_their_own_and_tiny_runs_build_on_them(
    asked: list[Trial], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="counting cannot be run on digits"):
        reproduce(SPEC, tmp_path, variant="digits")
    spec = dataclasses.replace(SPEC, digits={"number": 5.0, "data": "digits"})
    assert [result.settings["number"] for result in reproduce(spec, tmp_path, variant="digits")] == [5.0] * 4
    assert (tmp_path / "digits" / "counting" / "one-0.json").is_file()
    assert spec.settings_of(spec.cells[0], "tiny") == {"number": 9.0, "data": "digits"}
    assert spec.digest_of(spec.cells[0]) == SPEC.digest_of(spec.cells[0]) != spec.digest_of(spec.cells[0], "digits")


def test_what_trials_share_is_made_once(tmp_path: Path) -> None:
    def trial(seed: int) -> Trial:
        return Trial({}, seed, torch.device("cpu"), tmp_path / "shared", tmp_path / "pictures" / "cell")

    made: list[int] = []

    def train(net: nn.Linear) -> None:
        made.append(1)
        nn.init.constant_(net.weight, float(len(made)))

    nets = [trial(seed).trained({"some": "net"}, lambda: nn.Linear(2, 2), train) for seed in (0, 1, 0, 1)]
    assert len(made) == 2
    assert [net.weight[0, 0].item() for net in nets] == [1.0, 2.0, 1.0, 2.0]
    assert not nets[0].training
    later = trial(0)
    later.trained({"some": "net"}, lambda: nn.Linear(2, 2), train)
    assert [*later.origins.values()] == [f"{commit_here()}, {hardware_of(torch.device('cpu'))}"]
    assert trial(0).judging_seed == 1000


def test_a_network_is_learned_once_for_each_seed_and_keeps_how_it_went(tmp_path: Path) -> None:
    trained: list[int] = []

    def train(net: nn.Linear) -> dict[str, Tensor]:
        trained.append(1)
        nn.init.constant_(net.bias, 7.0)
        return {"loss": torch.tensor([3.0, 2.0])}

    places = [(0, "here"), (1, "here"), (0, "here"), (0, "elsewhere")]
    trials = [Trial({}, seed, torch.device("cpu"), tmp_path / place, tmp_path / "cell") for seed, place in places]
    found = [trial.learned({"some": "net"}, lambda: nn.Linear(2, 2), train) for trial in trials]
    weights = [one.model.weight for one in found]
    assert len(trained) == 3
    assert torch.equal(weights[0], weights[2])
    assert torch.equal(weights[0], weights[3])  # begun anew, from the seed alone
    assert not torch.equal(weights[0], weights[1])
    assert found[2].history["loss"].tolist() == [3.0, 2.0]
    assert found[2].model.bias.tolist() == [7.0, 7.0]
    assert not found[2].model.training


def test_a_watch_looks_when_it_is_time_and_does_not_count_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, clock = iter((5.0, 4.0, 3.0)), [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def look() -> dict[str, float]:
        clock[0] += 0.5
        return {"error": next(seen)}

    watch = Watch(look, every=2, last=5)
    assert watch.history == {}
    for epoch in range(1, 6):
        watch.on_epoch({"epoch": epoch})
    assert {name: values.tolist() for name, values in watch.history.items()} == {
        "epoch": [2.0, 4.0, 5.0],
        "error": [5.0, 4.0, 3.0],
    }
    assert watch.seconds == 1.0


def test_a_picture_that_cannot_be_drawn_costs_no_numbers(tmp_path: Path) -> None:
    told: list[str] = []
    trial = Trial({}, 0, torch.device("cpu"), tmp_path, tmp_path / "pictures" / "cell", told.append)
    trial.draw("images", lambda file: file.write_text("drawn"))
    assert (tmp_path / "pictures" / "cell-images.png").read_text() == "drawn"

    def fail(file: Path) -> None:
        raise ImportError("matplotlib is missing")

    trial.draw("images", fail)
    assert told == ["no picture: matplotlib is missing"]


def test_what_is_there_is_run_again_where_that_is_asked_for(asked: list[Trial], tmp_path: Path) -> None:
    reproduce(SPEC, tmp_path, cells="one")
    again = reproduce(SPEC, tmp_path, cells="one", again=True)
    assert (len(asked), [result.attempts for result in again]) == (4, [2, 2])


def test_cells_that_are_timed_run_alone(asked: list[Trial], tmp_path: Path) -> None:
    results = reproduce(dataclasses.replace(SPEC, alone=True), tmp_path, workers=4)
    assert len(asked) == len(results) == 4  # in this process, where the protocol is known


def test_a_cell_depends_on_its_own_network_alone() -> None:
    cell = Cell("one", {"network": "a"})
    specs = [
        dataclasses.replace(SPEC, settings={"networks": {"a": 1, "b": number}}, cells=(cell,)) for number in (2, 3)
    ]
    assert specs[0].digest_of(cell) == specs[1].digest_of(cell)
    assert specs[0].settings_of(cell)["networks"] == {"a": 1}


@pytest.mark.slow
def test_several_processes_find_what_one_finds(tmp_path: Path) -> None:
    spec = load_spec("bbb-regression")
    alone, together = (
        reproduce(spec, tmp_path / str(workers), variant="tiny", seeds=[0, 1], workers=workers) for workers in (1, 2)
    )
    assert [(one.cell, one.seed, one.metrics) for one in alone] == [
        (one.cell, one.seed, one.metrics) for one in together
    ]
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        reproduce(spec, tmp_path, workers=0)


def test_findings_are_joined_and_nothing_is_found_twice() -> None:
    ours = Findings({"a": Measured(1.0)}, notes={"verdict": "fine"})
    joined = ours | Findings({"b": Measured(2.0)}, {"line": Curve((0.0,), (1.0,))})
    assert (*joined.metrics, *joined.curves, *joined.notes) == ("a", "b", "line", "verdict")
    with pytest.raises(ValueError, match="a was found twice"):
        joined | ours
    with pytest.raises(ValueError, match="must have the same length, got 2 and 1"):
        Curve((0.0, 1.0), (1.0,))


def test_a_table_has_means_over_seeds_and_what_was_published(asked: list[Trial], tmp_path: Path) -> None:
    rows = tabulate(SPEC, reproduce(SPEC, tmp_path))
    assert [(row.cell, row.metric) for row in rows] == [
        *(("one", "drawn"), ("one", "doubled"), ("two", "drawn"), ("two", "doubled")),
    ]
    assert (rows[1].ours, rows[1].difference, rows[1].num_seeds) == ("2 +- 0", "-0.5", 2)
    assert (rows[3].published, rows[3].difference) == (None, "-")
    alone = tabulate(SPEC, reproduce(SPEC, tmp_path, cells="one", seeds=[0]))
    assert [row.ours for row in alone][1] == "2 +- 0.1"


def test_specs_that_are_not_whole_are_refused(asked: list[Trial], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must have cells, each with a name of its own, got \['one', 'one'\]"):
        dataclasses.replace(SPEC, cells=(SPEC.cells[0], SPEC.cells[0]))
    with pytest.raises(ValueError, match="must say in words what speed of three is"):
        dataclasses.replace(SPEC, cells=(Cell("three", {}, {"speed": 1.0}),))
    with pytest.raises(ValueError, match="must have one seed or more"):
        dataclasses.replace(SPEC, seeds=())
    with pytest.raises(ValueError, match=r"an experiment must be one of .*bbb-regression.*got 'bbb'"):
        load_spec("bbb")
    with pytest.raises(ValueError, match=r"protocol of counting must be one of .*, got 'magic'"):
        reproduce(dataclasses.replace(SPEC, protocol="magic"), tmp_path)
    with pytest.raises(ValueError, match="protocol counting must measure lost, which counting promises"):
        reproduce(dataclasses.replace(SPEC, metrics={"lost": "nothing", **SPEC.metrics}), tmp_path)
    assert result_file(tmp_path, SPEC, SPEC.cells[0], 0).is_file()  # what was measured is not lost


def test_a_search_before_is_told_beside_the_attempts_and_changes_no_digest(
    asked: list[Trial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched = dataclasses.replace(SPEC, searched_in=("grid",))
    assert searched.digest_of(SPEC.cells[0]) == SPEC.digest_of(SPEC.cells[0])
    assert {row.tries for row in tabulate(SPEC, reproduce(SPEC, tmp_path))} == {"1"}
    assert {row.tries for row in tabulate(searched, reproduce(searched, tmp_path, again=True))} == {"2, after grid"}
    twice = dataclasses.replace(SPEC, searched_in=("grid", "line"))
    assert {row.tries for row in tabulate(twice, reproduce(twice, tmp_path))} == {"2, after grid and line"}
    monkeypatch.setattr("dubio.cli.reproduce_command.load_spec", lambda name: searched)
    found = CliRunner().invoke(app, ["reproduce", "counting", "--device", "cpu", "--out", str(tmp_path)])
    assert "2, after" in found.output


def test_a_search_must_be_a_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (FOLDER / "bbb-error.toml").read_text(encoding="utf-8")
    (tmp_path / "bbb-error.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr("dubio.experiments.spec.FOLDER", tmp_path)
    with pytest.raises(ValueError, match="searched_in of bbb-error must name specs, got 'bbb-search'"):
        load_spec("bbb-error")
    (tmp_path / "bbb-search.toml").touch()
    assert load_spec("bbb-error").searched_in == ("bbb-search",)


def test_the_command_lists_runs_and_refuses(tmp_path: Path) -> None:
    runner = CliRunner()
    listed = runner.invoke(app, ["reproduce", "--list"])
    assert listed.exit_code == 0
    assert "bbb-regression" in listed.output
    found = runner.invoke(app, ["reproduce", "bbb-regression", "--tiny", "--out", str(tmp_path), "--device", "cpu"])
    assert found.exit_code == 0, found.output
    assert "ratio" in found.output
    record = json.loads((tmp_path / "tiny" / "bbb-regression" / "local-0.json").read_text())
    assert record["format"] == "dubio-result-1"
    for words in (["reproduce"], ["reproduce", "bbb-regression", "--all"], ["reproduce", "bbb"]):
        refused = runner.invoke(app, words)
        assert refused.exit_code == 2, words
        assert "bbb-regression" in refused.output


def test_all_specs_are_tried_and_failures_told_at_the_end(
    asked: list[Trial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trial: Trial) -> Findings:
        raise ValueError("it broke")

    monkeypatch.setitem(PROTOCOLS, "failing", fail)
    specs = {
        "a": dataclasses.replace(SPEC, name="a", protocol="failing"),
        "b": dataclasses.replace(SPEC, name="b", cells=(Cell("other"),)),
        "c": dataclasses.replace(SPEC, name="c"),
    }
    monkeypatch.setattr("dubio.cli.reproduce_command.spec_names", lambda: [*specs])
    monkeypatch.setattr("dubio.cli.reproduce_command.load_spec", specs.__getitem__)
    words = ["reproduce", "--all", "--cells", "one", "--seed", "1", "--device", "cpu", "--out", str(tmp_path)]
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 1
    assert "b: has no such cells" in found.output
    assert "failed: a; all that finished is kept" in found.output
    assert [(trial.seed, trial.settings["number"]) for trial in asked] == [(1, 1.0)]


def test_an_interrupted_run_says_how_to_go_on(
    asked: list[Trial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(trial: Trial) -> Findings:
        raise KeyboardInterrupt

    monkeypatch.setitem(PROTOCOLS, "counting", stop)
    monkeypatch.setattr("dubio.cli.reproduce_command.load_spec", lambda name: SPEC)
    found = CliRunner().invoke(app, ["reproduce", "counting", "--device", "cpu", "--out", str(tmp_path)])
    assert found.exit_code == 3
    assert "finished cells are kept; give the same command again to go on" in found.output
