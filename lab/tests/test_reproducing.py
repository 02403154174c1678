"""Experiments: specs are whole and fixed, every cell and seed has a record, what is there is not made again."""

import copy
import dataclasses
import json
import subprocess
import sys
import threading
import weakref
import zipfile
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import dubio
from dubio.cli.commands import app
from dubio.training.diagnosis import BrokenLossError
from dubio.version import hardware_of
from dubio_lab import (
    Cell,
    Curve,
    ExperimentSpec,
    Findings,
    Measured,
    Reproduction,
    Result,
    load_results,
    load_spec,
    reproduce,
    reproduce_many,
    results as results_module,
    spec_names,
    tabulate,
)
from dubio_lab.protocols import PROTOCOLS, Trial
from dubio_lab.protocols.trial import Learned
from dubio_lab.protocols.watching import Watch
from dubio_lab.running import result_file
from dubio_lab.spec import FOLDER

SPEC = ExperimentSpec(
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


class Pool(ThreadPoolExecutor):
    """A pool in this process, where the protocols of these tests are known; one at a time, in the order given."""

    def __init__(self, *given: object) -> None:
        super().__init__(1)
        self.is_broken = self.has_ended = False

    def submit(self, *given: Any) -> Future[Any]:
        if self.is_broken:
            raise BrokenProcessPool("it is broken")
        return super().submit(*given)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        self.has_ended = True


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[Pool]:
    """The pools that are made."""
    made: list[Pool] = []

    def make(*given: object) -> Pool:
        made.append(Pool(*given))
        return made[-1]

    monkeypatch.setattr("dubio_lab.running.ProcessPoolExecutor", make)
    return made


def fail_at_one(trial: Trial) -> Findings:
    """A protocol that fails in the cell called one."""
    if trial.settings["number"] == 1.0:
        raise ValueError("it broke,\nand how")
    return Findings({"drawn": Measured(0.5), "doubled": Measured(4.0)})


def spec_of(trial: Trial) -> str:
    return trial.pictures.parent.name


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
    assert [*later.origins.values()] == [f"{results_module.commit_here()}, {hardware_of(torch.device('cpu'))}"]
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


def test_a_training_that_was_interrupted_goes_on_with_all_its_looks(tmp_path: Path) -> None:
    inputs, targets = torch.rand(24, 3, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 2
    net = dubio.Deterministic().convert(nn.Linear(3, 2))

    class StoppedError(Exception):
        pass

    def learned_in(folder: Path, stop_at: int | None = None) -> tuple[Learned[nn.Module], int]:
        trial, looks = Trial({}, 0, torch.device("cpu"), folder, folder / "cell"), 0

        def look(model: nn.Module) -> dict[str, float]:
            nonlocal looks
            looks += 1
            if looks == stop_at:
                raise StoppedError
            return {"weight": next(model.parameters())[0, 0].item()}

        def train(model: nn.Module) -> dict[str, Tensor]:
            place = trial.checkpoints({"name": "net"})
            watch = Watch(lambda: look(model), file=place / "looks.json", steps_per_epoch=3)
            options: Any = {"epochs": 4, "batch_size": 8, "lr": 0.1, "progress": False, "fast": False}
            dubio.fit(model, (inputs, targets), callbacks=[watch], folder=place, resume=True, **options)
            assert place.is_dir()
            return watch.history

        return trial.learned({"name": "net"}, lambda: copy.deepcopy(net), train), looks

    whole, looks = learned_in(tmp_path / "whole")
    assert looks == 4
    with pytest.raises(StoppedError):
        learned_in(tmp_path / "cut", stop_at=3)
    resumed, looks = learned_in(tmp_path / "cut")
    assert looks == 2  # those of the epochs that had no checkpoint
    assert whole.history["epoch"].tolist() == resumed.history["epoch"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert torch.equal(whole.history["weight"], resumed.history["weight"])
    assert torch.equal(next(whole.model.parameters()), next(resumed.model.parameters()))
    assert not [*tmp_path.glob("*/*.training")]  # what was learned is kept, and the checkpoints are not


def test_a_watch_looks_at_the_epochs_that_are_named(tmp_path: Path) -> None:
    watch = Watch(lambda: {"error": 1.0}, at=[2, 5])
    for epoch in range(1, 7):
        watch.on_epoch({"epoch": epoch})
    assert watch.history["epoch"].tolist() == [2.0, 5.0]


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


@pytest.mark.slow
def test_processes_that_several_specs_share_find_the_same_and_outlive_a_failure(tmp_path: Path) -> None:
    spec = load_spec("bbb-regression")
    broken = dataclasses.replace(spec, name="broken", cells=(Cell("bad", {"estimator": "magic"}), spec.cells[0]))
    found = reproduce_many([broken, spec], tmp_path / "together", variant="tiny", workers=2)
    assert [[failure.cell for failure in one.failures] for one in found] == [["bad"], []]
    assert "Traceback" in found[0].failures[0].traceback
    alone = reproduce(spec, tmp_path / "alone", variant="tiny")
    assert [one.metrics for one in found[1].results] == [one.metrics for one in alone]
    assert found[0].results[0].metrics == alone[0].metrics
    with pytest.raises(ValueError, match="magic"):
        reproduce(broken, tmp_path / "again", variant="tiny", workers=2)


def test_several_specs_share_one_pool_and_timed_ones_run_after_it(
    pools: list[Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[tuple[str, bool, bool]] = []

    def watched(trial: Trial) -> Findings:
        ran.append((spec_of(trial), threading.current_thread() is threading.main_thread(), pools[0].has_ended))
        return Findings({"drawn": Measured(0.0), "doubled": Measured(1.0)})

    monkeypatch.setitem(PROTOCOLS, "counting", watched)
    specs = [dataclasses.replace(SPEC, name=name, alone=name == "b") for name in "abc"]
    shown: list[Reproduction] = []
    found = reproduce_many(specs, tmp_path, seeds=[0], workers=2, finished=shown.append)
    assert len(pools) == 1
    pooled, timed = (False, False), (True, True)
    assert ran == [("a", *pooled), ("a", *pooled), ("c", *pooled), ("c", *pooled), ("b", *timed), ("b", *timed)]
    assert [one.spec for one in found] == specs
    assert shown == found
    assert [[(result.spec, result.cell) for result in one.results] for one in found] == [
        [(name, "one"), (name, "two")] for name in "abc"
    ]


def test_a_single_worker_runs_specs_in_order_and_shows_each_before_the_next(
    asked: list[Trial], pools: list[Pool], tmp_path: Path
) -> None:
    specs = [dataclasses.replace(SPEC, name=name, alone=name == "a") for name in "ab"]
    seen: list[tuple[str, list[str]]] = []
    reproduce_many(
        specs, tmp_path, seeds=[0], finished=lambda one: seen.append((one.spec.name, [spec_of(each) for each in asked]))
    )
    assert seen == [("a", ["a", "a"]), ("b", ["a", "a", "b", "b"])]
    assert not pools


def test_no_pool_is_made_for_what_is_timed(asked: list[Trial], pools: list[Pool], tmp_path: Path) -> None:
    specs = [dataclasses.replace(SPEC, name=name, alone=True) for name in "ab"]
    assert [len(one.results) for one in reproduce_many(specs, tmp_path, workers=2)] == [4, 4]
    assert not pools


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failure_keeps_no_other_cell_from_being_run_and_one_spec_alone_raises_it(
    workers: int, asked: list[Trial], pools: list[Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PROTOCOLS, "failing", fail_at_one)
    specs = [dataclasses.replace(SPEC, name="a", protocol="failing"), dataclasses.replace(SPEC, name="b", alone=True)]
    told: list[str] = []
    found = reproduce_many(specs, tmp_path, workers=workers, tell=told.append)
    assert [[(one.cell, one.seed) for one in each.failures] for each in found] == [[("one", 0), ("one", 1)], []]
    assert [(result.cell, result.seed) for result in found[0].results] == [("two", 0), ("two", 1)]
    assert len(found[1].results) == len(asked) == 4
    assert "a, one, seed 1 failed: ValueError: it broke, and how" in told
    assert "fail_at_one" in found[0].failures[0].traceback
    assert ("2 of 4 done" in told, "3 of 4 done" in told) == (workers == 2, False)
    with pytest.raises(ValueError, match="it broke"):
        reproduce(specs[0], tmp_path / "alone", workers=workers)
    assert not [*tmp_path.glob("alone/a/*.json")]  # nothing that waited was run


def test_a_process_that_dies_keeps_no_cell_that_waits_from_being_run(
    pools: list[Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die_at_one(trial: Trial) -> Findings:
        if trial.settings["number"] == 1.0:
            pools[-1].is_broken = True
            raise BrokenProcessPool("it died")
        return fail_at_one(trial)

    monkeypatch.setitem(PROTOCOLS, "counting", die_at_one)
    found = reproduce_many([dataclasses.replace(SPEC, name=name) for name in "ab"], tmp_path, seeds=[0], workers=2)
    assert [[failure.error for failure in one.failures] for one in found] == [["BrokenProcessPool: it died"]] * 2
    assert [[result.cell for result in one.results] for one in found] == [["two"]] * 2
    assert all(pool.has_ended for pool in pools)


class UnsendableError(Exception):
    """Cannot be made again from what it says."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} {number}")


def test_an_error_that_cannot_be_sent_from_a_process_is_sent_in_words(
    pools: list[Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(trial: Trial) -> Findings:
        raise UnsendableError("no", trial.seed) if trial.settings["number"] == 1.0 else BrokenLossError(1.0, "here", 2)

    monkeypatch.setitem(PROTOCOLS, "counting", fail)
    (found,) = reproduce_many([SPEC], tmp_path, seeds=[1], workers=2)
    assert [one.error for one in found.failures] == [
        "RuntimeError: UnsendableError: no 1",
        "BrokenLossError: loss is 1.0, from here",
    ]
    assert "in fail" in found.failures[0].traceback


def test_what_a_failed_cell_held_is_let_go_of_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[nn.Module]] = []
    gone: list[bool] = []

    def hold_and_fail(trial: Trial) -> Findings:
        gone.append(all(one() is None for one in held))
        net = nn.Linear(2, 2)
        held.append(weakref.ref(net))
        raise MemoryError(f"no room for {len(held)}")

    monkeypatch.setitem(PROTOCOLS, "counting", hold_and_fail)
    (found,) = reproduce_many([SPEC], tmp_path)
    assert gone == [True] * 4
    assert [one.error for one in found.failures] == [f"MemoryError: no room for {number}" for number in range(1, 5)]


def test_what_cannot_be_run_is_refused_before_anything_runs(asked: list[Trial], tmp_path: Path) -> None:
    other = dataclasses.replace(SPEC, name="other", cells=(Cell("three"),))
    for specs, refusal in (
        ((SPEC, SPEC), "specs must have names of their own, got counting 2 times"),
        ((dataclasses.replace(SPEC, name="a"), other), "cells must match one of three, got 'one'"),
    ):
        with pytest.raises(ValueError, match=refusal):
            reproduce_many(specs, tmp_path, cells="one")
    with pytest.raises(ValueError, match="other cannot be run on digits"):
        reproduce_many([dataclasses.replace(SPEC, digits={"number": 5.0}), other], tmp_path, variant="digits")
    with pytest.raises(ValueError, match="workers must be at least 1, got 0"):
        reproduce_many([SPEC], tmp_path, workers=0)
    assert not asked


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
        *(("one", "drawn"), ("one", "doubled"), ("two", "drawn"), ("two", "doubled"))
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
    monkeypatch.setattr("dubio_lab.reproduce_command.load_spec", lambda name: searched)
    found = CliRunner().invoke(app, ["reproduce", "counting", "--device", "cpu", "--out", str(tmp_path)])
    assert "2, after" in found.output


def test_a_search_must_be_a_spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (FOLDER / "bbb-error.toml").read_text(encoding="utf-8")
    (tmp_path / "bbb-error.toml").write_text(text, encoding="utf-8")
    monkeypatch.setattr("dubio_lab.spec.FOLDER", tmp_path)
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
    for words in ([], ["bbb-regression", "--all"], ["bbb"], ["bbb-regression", "bbb"], ["bbb-regresion"]):
        refused = runner.invoke(app, ["reproduce", *words, "--tiny", "--out", str(tmp_path / "refused")])
        assert refused.exit_code == 2, words
        assert "bbb-search" in refused.output
    assert "did you mean 'bbb-regression'?" in refused.output
    assert not (tmp_path / "refused").exists()


def test_records_go_to_the_laboratory_of_a_checkout_and_elsewhere_to_a_folder_of_their_own(
    asked: list[Trial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dubio_lab.reproduce_command.load_spec", lambda name: SPEC)
    monkeypatch.chdir(tmp_path)
    words = ["reproduce", "counting", "--cells", "one", "--device", "cpu"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert [result.seed for result in load_results(SPEC)] == [0, 1]
    assert {file.parent.parent.name for file in tmp_path.rglob("*.json")} == {"results"}
    (tmp_path / "lab" / "results").mkdir(parents=True)
    assert load_results(SPEC) == []
    assert CliRunner().invoke(app, words).exit_code == 0
    assert [*map(len, (asked, load_results(SPEC, "lab/results"), load_results(SPEC)))] == [4, 2, 2]


def test_from_the_root_of_the_checkout_the_records_that_are_there_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    folders = {folder.name for folder in Path("lab", "results").iterdir() if folder.is_dir()} - {"shared", "tiny"}
    assert folders <= {*spec_names()}
    assert not folders & {name for name in spec_names() if load_spec(name).not_run}
    assert len(folders) > 30
    assert all(load_results(load_spec(name)) for name in folders)


def test_a_record_names_a_commit_only_where_one_checkout_holds_both_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    commits = {str(Path(results_module.__file__)): "b" * 40}
    monkeypatch.setattr(results_module.version, "commit_here", lambda file="": commits.get(str(file), "a" * 40))
    assert results_module.commit_here() is None
    commits.clear()
    assert results_module.commit_here() == "a" * 40


def test_the_help_of_the_command_imports_no_torch() -> None:
    program = """
import sys
from typer.testing import CliRunner
from dubio.cli import app
assert "--cells" in CliRunner().invoke(app, ["reproduce", "--help"]).stdout
print(*{"torch", "numpy", "dubio.data"} & {*sys.modules})
"""
    finished = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert finished.stdout == "\n"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_wheel_of_the_laboratory_holds_its_specs_and_no_record(tmp_path: Path) -> None:
    lab = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(lab)]
    subprocess.run(command, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = [Path(name) for name in archive.namelist() if ".dist-info/" not in name]
    assert {file.parts[0] for file in files} == {"dubio_lab"}
    assert {file.stem for file in files if file.suffix == ".toml"} == {*spec_names()}
    assert {file.suffix for file in files} == {".py", ".toml", ".typed"}


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> dict[str, ExperimentSpec]:
    """Specs that the command knows in place of its own: one fails in a cell, one has another cell, one is timed."""
    monkeypatch.setitem(PROTOCOLS, "failing", fail_at_one)
    specs = {
        "a": dataclasses.replace(SPEC, name="a", title="The table of a", protocol="failing"),
        "b": dataclasses.replace(SPEC, name="b", cells=(Cell("other"),)),
        "c": dataclasses.replace(SPEC, name="c", title="The table of c", alone=True),
        "d": dataclasses.replace(SPEC, name="d", title="The table of d"),
    }
    monkeypatch.setattr("dubio_lab.reproduce_command.spec_names", lambda: [*specs])
    monkeypatch.setattr("dubio_lab.reproduce_command.load_spec", specs.__getitem__)
    return specs


@pytest.mark.parametrize("workers", ["1", "2"])
def test_all_specs_are_tried_and_failures_told_at_the_end(
    workers: str, asked: list[Trial], pools: list[Pool], several: dict[str, ExperimentSpec], tmp_path: Path
) -> None:
    words = ["reproduce", "--all", "--cells", "[ot][nw]*", "--seed", "1", "--device", "cpu", "--out", str(tmp_path)]
    found = CliRunner().invoke(app, [*words, "--workers", workers])
    assert found.exit_code == 1
    assert "b: has no such cells" in found.output
    assert "Traceback" not in found.output
    *_, named, kept = found.stderr.splitlines()
    assert named == "a, one, seed 1 failed: ValueError: it broke, and how"
    assert kept == "1 failed; all that finished is kept, and the same command tries the rest again"
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.glob("*/*.json")) == [
        *("a/two-1.json", "c/one-1.json", "c/two-1.json", "d/one-1.json", "d/two-1.json")
    ]
    titles = [line.split()[-1] for line in found.stdout.splitlines() if "The table of" in line]
    assert titles == ["a", "c", "d"]
    assert [spec_of(trial) for trial in asked] == [*("ccdd" if workers == "1" else "ddcc")]


def test_the_command_runs_the_specs_that_it_names(
    asked: list[Trial], several: dict[str, ExperimentSpec], tmp_path: Path
) -> None:
    found = CliRunner().invoke(app, ["reproduce", "d", "c", "--seed", "0", "--device", "cpu", "--out", str(tmp_path)])
    assert found.exit_code == 0, found.output
    assert found.stdout.index("The table of d") < found.stdout.index("The table of c")
    assert [spec_of(trial) for trial in asked] == ["d", "d", "c", "c"]
    twice = CliRunner().invoke(app, ["reproduce", "d", "d", "--device", "cpu", "--out", str(tmp_path)])
    assert (twice.exit_code, "got d 2 times" in twice.output) == (2, True)


def test_specs_without_such_cells_are_left_out_unless_none_has_them(
    asked: list[Trial], several: dict[str, ExperimentSpec], tmp_path: Path
) -> None:
    def run(*words: str) -> tuple[int, str]:
        found = CliRunner().invoke(app, ["reproduce", *words, "--device", "cpu", "--out", str(tmp_path)])
        return found.exit_code, found.output

    code, output = run("b", "d", "--cells", "other")
    assert (code, "d: has no such cells or seeds, or cannot be run so; left out" in output) == (0, True)
    assert {spec_of(trial) for trial in asked} == {"b"}
    for words in (["b", "d", "--cells", "nowhere"], ["--all", "--seed", "7"], ["c", "d", "--data", "digits"]):
        code, output = run(*words)
        assert (code, "some spec must have such cells and seeds" in output) == (2, True), words
    code, output = run("d", "--cells", "nowhere")
    assert (code, "cells must match one of one, two, got 'nowhere'" in output) == (2, True)
    assert len(asked) == 2


def test_where_a_cell_failed_is_shown_on_demand(several: dict[str, ExperimentSpec], tmp_path: Path) -> None:
    found = CliRunner().invoke(app, ["--debug", "reproduce", "a", "--device", "cpu", "--out", str(tmp_path)])
    assert found.exit_code == 1
    assert found.output.count("in fail_at_one") == 2


def test_an_interrupted_run_says_how_to_go_on(
    asked: list[Trial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(trial: Trial) -> Findings:
        raise KeyboardInterrupt

    monkeypatch.setitem(PROTOCOLS, "counting", stop)
    monkeypatch.setattr("dubio_lab.reproduce_command.load_spec", lambda name: SPEC)
    found = CliRunner().invoke(app, ["reproduce", "counting", "--device", "cpu", "--out", str(tmp_path)])
    assert found.exit_code == 3
    assert "finished cells are kept; give the same command again to go on" in found.output


def test_a_seed_that_is_given_twice_runs_once(asked: list[Trial], tmp_path: Path) -> None:
    assert [result.seed for result in reproduce(SPEC, tmp_path, cells="one", seeds=[1, 1])] == [1]


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_runs(asked: list[Trial], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    told: list[str] = []
    with pytest.raises(FileExistsError):
        reproduce(SPEC, file, tell=told.append)
    assert told == asked == []


def test_an_error_of_many_cells_is_named_once_at_the_end(
    asked: list[Trial], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promising = dataclasses.replace(SPEC, metrics={"lost": "nothing", **SPEC.metrics})
    monkeypatch.setattr("dubio_lab.reproduce_command.load_spec", lambda name: promising)
    found = CliRunner().invoke(app, ["reproduce", "counting", "--device", "cpu", "--out", str(tmp_path)])
    assert found.exit_code == 1
    last = found.stderr.strip().splitlines()[-2:]
    assert "and so did 3 more" in " ".join(last)
    assert last[-1].startswith("4 failed")
