"""The benchmark beside other libraries: what it times, what it records, and what it says of those it cannot run."""

import copy
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dubio

EPOCH_SECONDS = {
    "one after another": ((14.3, 23.0, 32.3, 41.0, 49.5, 58.2, 66.7, 76.2, 85.3, 94.0), 8.841, 0.9999),
    "vmap": ((15.1, 19.0, 23.1, 27.4, 31.7, 35.4, 39.4, 43.6, 47.7, 52.0), 4.092, 0.9999),
    "vmap, local": ((10.2, 11.0, 11.9, 12.7, 13.6, 14.4, 15.1, 15.9, 16.4, 17.1), 0.775, 0.9962),
}
"""Seconds of an epoch for 1 to 10 draws of the project report, and the slope and R^2 found by NumPy's ``polyfit``."""


@pytest.mark.parametrize("way", EPOCH_SECONDS)
def test_the_slope_is_that_of_least_squares(way: str) -> None:
    from peers.line import fitted

    seconds, slope, r2 = EPOCH_SECONDS[way]
    line = fitted(dict(enumerate(seconds, start=1)))
    assert line is not None
    assert line.slope == pytest.approx(slope, abs=5e-4)
    assert line.r2 == pytest.approx(r2, abs=5e-5)
    assert line.intercept == pytest.approx(statistics.mean(seconds) - 5.5 * slope, abs=5e-3)


def test_one_point_has_no_slope_and_level_times_are_explained() -> None:
    from peers.line import Line, fitted

    assert fitted({10: 3.0}) is None
    assert fitted({1: 3.0, 10: 3.0}) == Line(3.0, 0.0, 1.0)


def test_works_take_turns_and_leave_when_time_is_spent(cpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    import timing

    clock, calls = [0.0], []

    def work(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            calls.append(name)
            clock[0] += seconds

        return run

    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    works = {"quick": work("quick", 0.25), "slow": work("slow", 1.0)}
    times = timing.alternating_times_ms(works, cpu, seconds=1.0, warm_ups=2, at_least=2)
    assert calls == ["quick", "slow"] * 4 + ["quick"] * 2
    assert times == {"quick": [250.0] * 4, "slow": [1000.0] * 2}


@pytest.mark.feature(
    "make bench times training and prediction beside four other libraries, and records what each cannot do"
)
def test_a_tiny_run_records_everyone_who_takes_part(cpu: torch.device) -> None:
    import peers

    record = peers.measure(cpu, nets=["8-16-3"], tiny=True)
    assert json.loads(json.dumps(record)) == record
    assert set(record["settings"]["nets"]) == {"8-16-3"}
    assert {"load_before", "load_after"} <= set(record["settings"]["nets"]["8-16-3"])
    for rows in (record["steps"], record["predictions"]):
        assert {row["contestant"] for row in rows} <= set(record["contestants"])
        assert all(("milliseconds" in row) != ("error" in row) for row in rows)
    libraries = {one["library"] for one in record["contestants"].values() if one["kind"] == "peer"}
    assert libraries == {"bayesian-torch", "torch-uncertainty", "torchbayesian", "blitz-bayesian-pytorch"}
    for label in ("dubio local, fp32", "dubio weight, fp32"):
        steps = [row for row in record["steps"] if row["contestant"] == label]
        assert [row["num_samples"] for row in steps] == [1, 2]
        assert all(row["milliseconds"] > 0.0 and row["peak_mib"] > 0.0 and row["how"] == "eager" for row in steps)
        (slope,) = (row["slope"] for row in record["slopes"] if row["contestant"] == label)
        assert slope == pytest.approx(steps[1]["milliseconds"] - steps[0]["milliseconds"])
    predicted = {row["contestant"]: row for row in record["predictions"]}
    assert predicted["dubio local, fp32"]["shape"] == predicted["vmap by hand, fp32"]["shape"] == [6, 3]
    assert predicted["dubio local, fp32"]["rows_at_a_time"] is None
    assert predicted["vmap by hand, fp32"]["rows_at_a_time"] == 6
    for row in (row for row in record["steps"] + record["predictions"] if "milliseconds" in row):
        assert row["fastest"] <= row["quarter"] <= row["milliseconds"] <= row["three_quarters"]


def test_times_are_kept_with_their_quartiles() -> None:
    import peers

    assert peers._spread([1.0, 2.0, 4.0, 8.0, 16.0]) == {
        "milliseconds": 4.0,
        "quarter": 2.0,
        "three_quarters": 8.0,
        "fastest": 1.0,
        "repetitions": 5,
    }


def test_networks_are_kept_one_by_one_and_added_to(cpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    import peers
    from peers.entries import Entry
    from peers.ours import Ours

    monkeypatch.setattr(peers, "entries", lambda net, device, draws: [Entry(Ours("local", fast=False), tuple(draws))])
    kept: list[list[str]] = []

    def keep(record: dict[str, Any]) -> None:
        kept.append(list(record["settings"]["nets"]))

    first = peers.measure(cpu, tiny=True, draws=[1], commit="one", keep=keep)
    assert kept == [["8-16-1"], ["8-16-1", "8-16-3"]]
    again = peers.measure(cpu, nets=["8-16-3"], tiny=True, draws=[1, 3], commit="two", earlier=first)
    assert [(row["net"], row["num_samples"]) for row in again["steps"]] == [("8-16-1", 1), ("8-16-3", 1), ("8-16-3", 3)]
    assert again["settings"]["nets"]["8-16-3"]["draws"] == [1, 3]
    assert {name: own["commit"] for name, own in again["settings"]["nets"].items()} == {
        "8-16-1": "one",
        "8-16-3": "two",
    }
    assert again["steps"][0] == first["steps"][0]
    assert [row["net"] for row in again["predictions"]] == ["8-16-1", "8-16-3"]


def test_what_was_measured_otherwise_is_not_added_to(cpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    import peers
    from peers.entries import Entry
    from peers.ours import Ours

    monkeypatch.setattr(peers, "entries", lambda net, device, draws: [Entry(Ours("local", fast=False), tuple(draws))])
    first = peers.measure(cpu, nets=["8-16-1"], tiny=True, draws=[1])
    others = copy.deepcopy(first), copy.deepcopy(first)
    others[0]["settings"]["warm_ups"] = 1
    others[1]["contestants"]["dubio local, fp32"]["version"] = "0.0.1"
    for other, refusal in zip(
        others, ("the same warm_ups of settings: had 1", "the same version of dubio"), strict=True
    ):
        with pytest.raises(SystemExit, match=refusal):
            peers.measure(cpu, nets=["8-16-3"], tiny=True, draws=[1], earlier=other)


def test_a_record_of_another_machine_is_not_added_to(tmp_path: Path) -> None:
    import run

    path = tmp_path / "peers.json"
    about = {"commit": "one", "hardware": "CPU", "versions": {"torch": "2"}}
    assert run.earlier_record(path, about) is None
    settings = {"nets": {"old": {}, "own": {"commit": "none"}}}
    path.write_text(json.dumps({**about, "records": {"peers": {"settings": settings}}}))
    kept = {"nets": {"old": {"commit": "one"}, "own": {"commit": "none"}}}
    assert run.earlier_record(path, about | {"commit": "two"}) == {"settings": kept}
    with pytest.raises(SystemExit, match=r"--add needs a record of the same hardware: .* has 'CPU', this is 'GPU'"):
        run.earlier_record(path, about | {"hardware": "GPU"})
    with pytest.raises(SystemExit, match="--add needs a record of the same versions"):
        run.earlier_record(path, about | {"versions": {"torch": "3"}})


def test_who_fails_is_recorded_with_the_first_line_of_the_error(cpu: torch.device) -> None:
    import peers
    from peers.contestants import Parts, Peer
    from peers.entries import Entry

    def make(net: Any) -> Parts:
        raise RuntimeError("cannot do this\nand more")

    entry = Entry(Peer("broken", "none", "nothing", "none", make), (1,))
    (step,) = peers._steps(peers.TINY["8-16-3"], [entry], 1, cpu, 0.0)
    (prediction,) = peers._predictions(peers.TINY["8-16-3"], [entry], 1, cpu, 0.0)
    assert step["error"] == prediction["error"] == "RuntimeError: cannot do this"
    assert "milliseconds" not in step


@pytest.mark.parametrize("name", ["8-16-1", "8-16-3"])
def test_our_step_minimises_the_objective_of_the_method(name: str, cpu: torch.device) -> None:
    from peers.nets import TINY
    from peers.ours import Ours

    net = TINY[name]
    step = Ours("local", fast=False).training_step(net, 3, cpu)
    before = [parameter.detach().clone() for parameter in step.step.model.parameters()]
    torch.manual_seed(1)
    loss = step()
    assert step.step.objective == dubio.ELBO(net.num_data)
    assert any(not torch.equal(old, new) for old, new in zip(before, step.step.model.parameters(), strict=True))
    assert torch.isfinite(loss.total)


@pytest.mark.parametrize("regression", [False, True])
def test_predictions_of_all_are_means_over_draws(regression: bool, cpu: torch.device) -> None:
    from peers import references
    from peers.nets import TINY
    from peers.ours import Ours

    net = TINY["8-16-1" if regression else "8-16-3"]
    for one in (*references.contestants(), Ours("local", fast=False)):
        probs = one.prediction(net, 4, net.images(cpu))()
        assert probs.shape == (6, net.outputs)
        assert regression or probs.sum(dim=1) == pytest.approx(torch.ones(6), abs=1e-5)


def test_weights_mapped_by_hand_have_the_divergence_that_ours_has() -> None:
    from peers import references
    from peers.nets import TINY

    net = TINY["8-16-3"]
    torch.manual_seed(0)
    parts = references._mapped(net)
    plain = net.plain()
    named = {key.removeprefix("mean/").replace("/", "."): value for key, value in parts.model.items() if "mean" in key}
    plain.load_state_dict({name: value.detach() for name, value in named.items()})
    std = torch.nn.functional.softplus(torch.tensor(-3.0)).item()
    divergence = dubio.divergence(dubio.Bayes(init_std=std).convert(plain))
    inputs, targets = net.batch_of_data(torch.device("cpu"))
    torch.manual_seed(3)
    loss = parts.loss(inputs, targets, 2)
    torch.manual_seed(3)
    nll = net.criterion()(parts.outputs(inputs, 2).flatten(0, 1), targets.repeat(2))
    assert (loss - nll).item() * net.num_data == pytest.approx(divergence.item(), rel=1e-3)


@pytest.mark.parametrize("overwrites", [False, True])
def test_noise_that_is_written_over_before_the_backward_pass_is_noticed(overwrites: bool) -> None:
    from peers.contestants import Parts, Peer
    from peers.gradients import gradient_error

    class Noisy(nn.Module):
        """Noise on the outputs, in a buffer of its own or not."""

        def __init__(self) -> None:
            super().__init__()
            self.linear, self.scale = nn.Linear(8, 3), nn.Parameter(torch.ones(3))
            self.noise = torch.zeros(3)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            noise = self.noise.data.normal_() if overwrites else torch.randn(3)
            return self.linear(inputs) + self.scale * noise

    def make(net: Any) -> Parts:
        model, criterion = Noisy(), net.criterion()

        def loss(inputs: torch.Tensor, targets: torch.Tensor, num_samples: int) -> torch.Tensor:
            return torch.stack([criterion(model(inputs), targets) for _ in range(num_samples)]).mean()

        return Parts(model, loss, lambda images, num_samples: model(images).unsqueeze(0))

    error = gradient_error(Peer("noisy", "none", "a loop", "none", make))
    assert error > 0.01 if overwrites else error < 1e-5


def test_layers_of_a_library_take_the_place_of_plain_ones() -> None:
    from peers.nets import NETS, with_layers

    sizes: list[tuple[int, ...]] = []
    net = with_layers(
        NETS["resnet18"].plain(),
        lambda layer: (sizes.append((layer.in_features, layer.out_features)), nn.Identity())[1],
        lambda layer: (sizes.append(layer.kernel_size), nn.Identity())[1],
    )
    assert not any(isinstance(module, nn.Linear | nn.Conv2d) for module in net.modules())
    assert sizes.count((512, 10)) == 1
    assert len(sizes) == 21


def test_a_library_that_cannot_be_imported_whole_is_imported_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    from peers import of_torch_uncertainty

    package = tmp_path / "torch_uncertainty"
    for folder in ("", "layers", "losses", "methods", "utils"):
        (package / folder).mkdir(exist_ok=True)
        (package / folder / "__init__.py").write_text("import a_module_that_is_not_there\n")
    (package / "layers" / "bayesian.py").write_text("kept = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("torch_uncertainty")]:
        monkeypatch.delitem(sys.modules, name)
    try:
        assert not of_torch_uncertainty.imported_whole()
        from torch_uncertainty.layers.bayesian import kept  # type: ignore[import-not-found]

        assert kept == 3
    finally:
        for name in [name for name in sys.modules if name.startswith("torch_uncertainty")]:
            del sys.modules[name]


def test_what_takes_part_with_many_draws_does_so_on_a_gpu_in_tf32() -> None:
    from peers.entries import DRAWS, entries
    from peers.nets import NETS

    gpu = torch.device("cuda")
    found = {
        (entry.contestant.name, entry.contestant.precision): entry
        for entry in entries(NETS["784-1200-1200-10"], gpu, DRAWS["cuda"])
    }
    for name in ("dubio local", "bayesian-torch", "torchbayesian", "torch-uncertainty", "blitz"):
        assert found[name, "tf32"].draws == (1, 2, 5, 10, 20, 50, 100)
    assert found["dubio local", "bf16"].draws == found["dubio weight", "tf32"].draws == (1, 10, 100)
    assert found["dubio local", "bf16"].predicts
    for name in ("torchbayesian", "vmap by hand"):
        assert found[name, "bf16"].draws == (1, 10)
        assert found[name, "bf16"].predicts
    resnet = [entry.contestant.name for entry in entries(NETS["resnet18"], gpu, (1, 10))]
    assert "vmap by hand" not in resnet


def test_weights_are_mapped_by_hand_in_bf16(cpu: torch.device) -> None:
    from dataclasses import replace

    from peers import references
    from peers.nets import TINY

    _, mapped = references.contestants()
    net, half = TINY["8-16-3"], replace(mapped, precision="bf16")
    half.training_step(net, 2, cpu)()
    rounded, whole = (one.prediction(net, 50, net.images(cpu))() for one in (half, mapped))  # from the same seed
    assert not torch.equal(rounded, whole)
    assert torch.allclose(rounded, whole, atol=0.01)


def test_dubio_knows_its_version_where_it_is_only_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    from peers import contestants

    def nothing(library: str) -> str:
        raise contestants.PackageNotFoundError(library)

    monkeypatch.setattr(contestants, "version", nothing)
    assert contestants.version_of("dubio") == dubio.__version__
    assert contestants.version_of("blitz-bayesian-pytorch") is None


@pytest.mark.parametrize("former", [None, "elsewhere"])
def test_steps_are_built_with_an_empty_cache_of_the_compiler(
    former: str | None, cpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    import peers

    name, found = "TORCHINDUCTOR_CACHE_DIR", []
    monkeypatch.delenv(name, raising=False)
    if former is not None:
        monkeypatch.setenv(name, former)

    def entries(net: Any, device: torch.device, draws: Any) -> list[Any]:
        found.append(list(Path(os.environ[name]).iterdir()))
        return []

    monkeypatch.setattr(peers, "entries", entries)
    peers.measure(cpu, nets=["8-16-3"], tiny=True)
    assert found == [[]]
    assert os.environ.get(name) == former
