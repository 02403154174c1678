"""Experiments with flow noise: networks are what their cells say, one rule trains them all, and numbers are theirs."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import dubio
from dubio.data.examples import Examples
from dubio.flows import NormalAffine, NormalInvConv, NormalPlanar1d
from dubio.models.by_name import build
from dubio.nn.flow import FlowNoise
from dubio.objectives import Loss
from dubio_lab import load_spec
from dubio_lab.protocols import PROTOCOLS, Trial, flow_networks, flow_on_images, flow_on_plane
from dubio_lab.protocols.flow_networks import bound, described, noise_std
from dubio_lab.protocols.images import batches_of
from dubio_lab.protocols.trial import Learned

pytest.importorskip("sklearn")

CELLS = {
    (spec, cell.name): cell
    for spec in (
        *("flow-2d", "flow-lengths", "flow-lengths-curves", "flow-paired", "flow-lenet", "flow-honest"),
        *("nfi-lenet-cifar10", "nfi-lenet-cifar10-honest", "nfi-plane-underfit", "nfi-vgg16-quarter", "nfi-vgg16"),
    )
    for cell in load_spec(spec).cells
}


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Trial]:
    """The tiny trial of a cell, with some settings of one's own."""

    def make(spec: str, cell: str, seed: int = 0, **settings: Any) -> Trial:
        own = load_spec(spec).settings_of(CELLS[spec, cell], "tiny")
        return Trial({**own, **settings}, seed, torch.device("cpu"), tmp_path / "shared", tmp_path / cell)

    return make


def blocks_of(model: nn.Module) -> list[object]:
    """The block of each layer's noise, in order."""
    return [module.block for module in model.modules() if isinstance(module, FlowNoise)]


def points(count: int) -> Examples:
    generator = torch.Generator().manual_seed(3)
    return Examples(torch.randn(count, 2, generator=generator), torch.arange(count) % 2, ("a", "b"))


def test_without_noise_the_bound_is_the_log_likelihood(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = points(50)
    net = nn.Linear(2, 2)
    model = dubio.Deterministic().convert(net).eval()
    monkeypatch.setattr(flow_networks, "ROWS", 7)  # cut anywhere, the last part short
    found = bound(model, examples, num_samples=3, num_groups=2, seed=0)
    expected = -nn.functional.cross_entropy(net(examples.inputs), examples.targets).item()
    assert found["log_likelihood"].value == pytest.approx(expected, abs=1e-6)
    assert found["elbo"].value == pytest.approx(expected, abs=1e-6)
    assert found["kl"].value == 0.0


def test_the_bound_of_gaussian_noise_is_less_by_its_divergence_over_the_examples() -> None:
    model = dubio.Flow(NormalAffine()).convert(nn.Linear(2, 2)).eval()
    noise = next(module for module in model.modules() if isinstance(module, FlowNoise))
    began = bound(model, points(200), num_samples=16, num_groups=4, seed=0)
    assert began["kl"].value == pytest.approx(0.0, abs=1e-5)  # base and prior are one (T-39)
    with torch.no_grad():
        next(iter(noise.steps.parameters())).fill_(0.25)
    moved = [parameter.tolist() for parameter in noise.steps.parameters()]
    assert moved == [[0.25, 0.25], [0.0, 0.0]]
    found = bound(model, points(200), num_samples=16, num_groups=4, seed=0)
    error = found["kl"].standard_error
    assert error is not None
    assert abs(found["kl"].value - 2 * 0.25**2 / (2 * 0.5**2)) < 4 * error  # two factors, each shifted by a quarter
    assert found["elbo"].value == pytest.approx(found["log_likelihood"].value - found["kl"].value / 200, abs=1e-9)
    assert found["elbo"].n == 4


@pytest.mark.feature("the published experiments of flow noise run from frozen specs: the plane, flow lengths, LeNet")
def test_the_length_of_a_cell_is_the_number_of_planar_steps_before_both_layers(tiny: Callable[..., Trial]) -> None:
    for length in (0, 4):
        model = flow_on_plane._learn(tiny("flow-lengths", f"length-{length}")).model
        assert blocks_of(model) == [NormalPlanar1d(length)] * 2
    assert blocks_of(flow_on_plane._learn(tiny("flow-2d", "stochastic")).model) == [NormalPlanar1d(12)] * 2
    assert blocks_of(flow_on_plane._learn(tiny("flow-2d", "deterministic")).model) == []


def test_networks_of_a_seed_have_the_same_points_and_are_tested_on_others(tiny: Callable[..., Trial]) -> None:
    train, test = flow_on_plane.plane_points(tiny("flow-2d", "stochastic", num_test=64))
    other, _ = flow_on_plane.plane_points(tiny("flow-2d", "deterministic", num_test=9))
    assert torch.equal(train.inputs, other.inputs)
    assert (len(train), len(test)) == (64, 64)
    assert not torch.equal(train.inputs, test.inputs)
    assert not torch.equal(train.inputs, flow_on_plane.plane_points(tiny("flow-2d", "stochastic", 1))[0].inputs)


@pytest.mark.parametrize(("early", "most"), [(False, 30), (True, 20)])
def test_one_rule_says_when_a_network_of_the_plane_has_converged(
    early: bool, most: int, tiny: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def fit(model: nn.Module, train: Any, **options: Any) -> Any:
        asked.append(options)
        return SimpleNamespace(history=({"loss": float(len(asked))},), mode="eager", reason="", seconds=0.0)

    monkeypatch.setattr(flow_on_plane, "fit", fit)
    rule = {"max_epochs": 30, "early_epochs": 20, "patience": 5, "settle_epochs": 3, "early": early}
    found = flow_on_plane._learn(tiny("flow-2d", "stochastic", **rule))
    assert [(one["epochs"], one["patience"], one["schedule"]) for one in asked] == [
        *((most, 5, "constant"), (3, None, "linear"))
    ]
    assert {one["monitor"] for one in asked} == {"loss"}
    assert asked[0]["steps"] is asked[1]["steps"]
    assert found.history["loss"].tolist() == [1.0, 2.0]


def test_calibration_on_the_plane_is_that_of_the_prediction(
    tiny: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    trial = tiny("flow-2d", "deterministic", num_test=400, picture_seeds=[0])
    sure = nn.Linear(2, 2)
    with torch.no_grad():
        sure.weight.zero_()
        sure.bias.copy_(torch.tensor([math.log(0.9), math.log(0.1)]))  # always 0.9 for purple, which is half of them
    found = Learned(dubio.Deterministic().convert(sure).eval(), {"loss": torch.zeros(6)})
    monkeypatch.setattr(flow_on_plane, "_learn", lambda trial: found)
    measured = PROTOCOLS["flow_plane"](trial)
    accuracy = measured.metrics["accuracy"].value
    assert abs(accuracy - 50.0) < 10.0
    assert measured.metrics["ece"].value == pytest.approx(abs(0.9 - accuracy / 100.0), abs=1e-6)
    assert measured.metrics["mean_confidence"].value == pytest.approx(90.0, abs=1e-3)
    assert (measured.metrics["matching"].value, measured.metrics["epochs"].value) == (0.0, 6.0)
    assert measured.curves["reliability"].y == pytest.approx((accuracy / 100.0,))
    assert trial.pictures.with_name(f"{trial.pictures.name}-plane.png").is_file()
    wide = tiny("flow-2d", "deterministic", num_test=400, tolerance=0.6)
    assert PROTOCOLS["flow_plane"](wide).metrics["matching"].value == 100.0


@pytest.mark.parametrize(("cell", "sign"), [("ece-stochastic-deterministic", -1.0), ("elbo-12-8", 1.0)])
def test_a_difference_is_positive_where_the_claim_holds(
    cell: str, sign: float, tiny: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(trial: Trial) -> float:
        return sign * (trial.settings["length"] * 0.5 + trial.seed * (trial.settings["length"] == 12))

    monkeypatch.setattr(flow_on_plane, "_measure", measure)
    found = PROTOCOLS["flow_paired"](tiny("flow-paired", cell, pair_seeds=[0, 1, 2])).metrics
    least = 0.5 * (12 - (8 if cell == "elbo-12-8" else 0))
    assert (found["difference"].value, found["difference"].n) == (least + 1.0, 3)
    assert found["difference"].standard_error == pytest.approx(3**-0.5)
    assert found["low"].value == pytest.approx(least + 1.0 - 4.302653 * 3**-0.5, abs=1e-3)  # t at 0.975, two degrees
    assert found["high"].value == pytest.approx(least + 1.0 + 4.302653 * 3**-0.5, abs=1e-3)
    assert found["holds"].value == 100.0


def test_what_is_paired_are_the_networks_of_the_other_specs() -> None:
    paired, known = load_spec("flow-paired"), []
    for name in ("flow-2d", "flow-lengths"):
        spec = load_spec(name)
        known += [described(spec.settings_of(cell), flow_on_plane.NETWORK) for cell in spec.cells]
        assert set(paired.settings["pair_seeds"]) == set(spec.seeds)
    for cell in paired.cells:
        settings = paired.settings_of(cell)
        for own in (settings, {**settings, **settings["against"]}):
            assert described(own, flow_on_plane.NETWORK) in known


def network_of(settings: dict[str, Any]) -> dict[str, Any]:
    """All that a network of images depends on."""
    required = (*flow_on_images.EARLIER, *flow_on_images.LATER)
    return described(settings, required, (*flow_on_images.ALSO_EARLIER, *flow_on_images.ALSO_LATER))


@pytest.mark.parametrize(
    ("table_name", "honest_name", "left_out"),
    [
        ("flow-lenet", "flow-honest", {"pretrained"}),
        ("nfi-lenet-cifar10", "nfi-lenet-cifar10-honest", {"pretrained", "dropout", "no-flow-entropy", "flow-entropy"}),
    ],
)
def test_the_honest_figures_are_those_of_the_networks_of_the_table(
    table_name: str, honest_name: str, left_out: set[str]
) -> None:
    table, honest = load_spec(table_name), load_spec(honest_name)
    known = {cell.name: network_of(table.settings_of(cell)) for cell in table.cells}
    assert {cell.name: network_of(honest.settings_of(cell)) for cell in honest.cells} == {
        name: settings for name, settings in known.items() if name not in left_out
    }


def test_settings_that_only_some_specs_have_change_no_other_network() -> None:
    (cell,) = (cell for cell in load_spec("flow-lenet").cells if cell.name == "flow")
    settings = load_spec("flow-lenet").settings_of(cell)
    assert not {*network_of(settings)} & {"augment", "gamma", "flow_blocks", "spatial", "watch_mean"}
    assert network_of({**settings, "gamma": 0.1}) == {**network_of(settings), "gamma": 0.1}


def test_what_is_followed_by_epoch_are_the_networks_of_flow_lengths(tiny: Callable[..., Trial]) -> None:
    lengths, curves = load_spec("flow-lengths"), load_spec("flow-lengths-curves")
    for cell, other in zip(lengths.cells, curves.cells, strict=True):
        assert cell == other
        assert curves.settings_of(cell) == {**lengths.settings_of(cell), "follow_bound": True}
    assert lengths.seeds == curves.seeds
    options = {"max_epochs": 3, "settle_epochs": 2, "num_data": 256}
    found = PROTOCOLS["flow_lengths"](tiny("flow-lengths-curves", "length-2", **options))
    without = PROTOCOLS["flow_lengths"](tiny("flow-lengths", "length-2", **options))
    assert found.metrics == without.metrics
    assert {*without.curves} == {"loss"}
    assert {*found.curves} == {"loss", "elbo", "log_likelihood", "kl"}
    assert found.curves["elbo"].x == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert found.curves["elbo"].y == pytest.approx([-loss for loss in found.curves["loss"].y], abs=1e-6)
    parts = (found.curves[name].y for name in ("log_likelihood", "kl"))
    assert found.curves["elbo"].y == pytest.approx(
        [likelihood - kl / 256 for likelihood, kl in zip(*parts, strict=True)]
    )


def test_networks_of_few_epochs_are_those_of_flow_2d_stopped_there(tiny: Callable[..., Trial]) -> None:
    converged, few = load_spec("flow-2d"), load_spec("nfi-plane-underfit")
    ends = {"max_epochs", "patience", "settle_epochs"}
    for cell in few.cells:
        kind = "deterministic" if cell.name.startswith("deterministic") else "stochastic"
        own, other = few.settings_of(cell), converged.settings_of(CELLS["flow-2d", kind])
        assert {name for name in flow_on_plane.NETWORK if own[name] != other[name]} == ends
        assert own["max_epochs"] == int(cell.name.rpartition("-")[2]) < own["patience"]
    found = PROTOCOLS["flow_plane"](tiny("nfi-plane-underfit", "deterministic-5", max_epochs=4))
    assert found.metrics["epochs"].value == 4.0


def test_the_spread_of_the_noise_is_that_of_its_factors() -> None:
    model = dubio.Flow(NormalAffine()).convert(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)))
    assert noise_std(model, 0).value == pytest.approx(0.5, rel=0.02)  # as it begins, the prior
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, FlowNoise):
                module.steps[0].log_scale.fill_(math.log(0.1) if module.channels == 2 else -30.0)
    found = noise_std(model, 0)
    assert found.value == pytest.approx(2 * 0.05 / 5, rel=0.05)  # two channels of 0.05, three that are points
    assert found.n == 5
    assert noise_std(dubio.Deterministic().convert(nn.Linear(2, 2)), 0).value == 0.0


def test_settings_of_images_reach_the_method_and_the_batches(tiny: Callable[..., Trial]) -> None:
    net = build("lenet:3x32x32-10")
    blocks = ["inv-conv", "affine", "planar-1d", "affine", "affine"]
    trial = tiny("nfi-lenet-cifar10", "flow-entropy", flow_blocks=blocks, augment="crop-and-flip")
    method = flow_on_images._method(trial, net)
    assert blocks_of(method.convert(net)) == [
        *(NormalInvConv(), NormalAffine(), NormalPlanar1d(), NormalAffine(), NormalAffine())
    ]
    assert method.objective(10) == dubio.ELBO(10, gamma=0.1)
    train = Examples(torch.rand(20, 3, 32, 32), torch.arange(20) % 10, tuple("0123456789"))
    batches = batches_of(trial, train)
    assert (batches.batch_size, batches.augment) == (128, dubio.data.CropAndFlip())
    assert batches_of(tiny("flow-lenet", "flow"), train) is train
    with pytest.raises(ValueError, match="augment must be 'none' or 'crop-and-flip', got 'mixup'"):
        batches_of(tiny("nfi-lenet-cifar10", "flow", augment="mixup"), train)


@pytest.mark.parametrize("spec", ["nfi-vgg16-quarter", "nfi-vgg16"])
def test_vgg16_has_flows_at_convolutions_4_8_and_11_and_at_the_second_linear_layer(
    spec: str, tiny: Callable[..., Trial]
) -> None:
    settings = load_spec(spec).settings_of(CELLS[spec, "flow"])
    blocks = settings["flow_blocks"]
    with torch.device("meta"):
        net = build(settings["model"], inputs=(3, 32, 32), num_classes=10)
        model = flow_on_images._method(tiny(spec, "flow", flow_blocks=blocks, spatial="sum"), net).convert(net)
        still = flow_on_images._method(tiny(spec, "no-flow", flow_blocks=blocks), net).convert(net)
    noises = {
        name.removesuffix(".input_noise"): module
        for name, module in model.named_modules()
        if isinstance(module, FlowNoise)
    }
    kinds = [type(model.get_submodule(name)).__name__.startswith("Linear") for name in noises]
    assert kinds == [False] * 13 + [True] * 3
    placed = {number: noise.block for number, noise in enumerate(noises.values(), 1) if noise.block != NormalAffine()}
    assert placed == {4: NormalInvConv(), 8: NormalInvConv(), 11: NormalInvConv(), 15: NormalPlanar1d()}
    assert all(noise.sum_positions for noise in noises.values())
    assert blocks_of(still) == [NormalAffine()] * 16


def test_ordinary_dropout_is_the_same_network_with_its_masks_off(tiny: Callable[..., Trial]) -> None:
    options = {"pretrain_epochs": 2, "epochs": 2, "pretrain_lr": 0.1, "draws": 3}
    trials = [tiny("nfi-lenet-cifar10", name, **options) for name in ("dropout", "dropout-draws")]
    ordinary, drawn = (PROTOCOLS["flow_images"](trial) for trial in trials)
    splits = flow_on_images.load_images(trials[0])
    one, other = (flow_on_images._learn(trial, splits).model.state_dict() for trial in trials)
    assert all(torch.equal(value, other[name]) for name, value in one.items())
    assert splits.test is not None
    inputs, targets = splits.test.tensors
    model = flow_on_images._learn(trials[0], splits).model
    with dubio.noise_off(), torch.no_grad():
        expected = nn.functional.cross_entropy(model(inputs), targets).item()
    assert ordinary.metrics["nll"].value == pytest.approx(expected, abs=1e-5) != drawn.metrics["nll"].value
    assert ordinary.curves["accuracy"].y[-1] == pytest.approx(ordinary.metrics["accuracy"].value)
    assert ordinary.curves["ece"].y != drawn.curves["ece"].y
    assert {*ordinary.curves} == {*drawn.curves} == {*load_spec("nfi-lenet-cifar10").curves}


def test_lenet_has_the_noise_of_the_source_layer_by_layer(tiny: Callable[..., Trial]) -> None:
    net = build("lenet,normalise=signed", inputs=(1, 28, 28), num_classes=10)
    images = torch.rand(2, 1, 28, 28)
    models = {
        name: flow_on_images._method(tiny("flow-lenet", name), net).convert(net, example=images)
        for name in ("deterministic", "dropout", "no-flow", "flow")
    }
    assert blocks_of(models["flow"]) == [
        *(NormalAffine(), NormalInvConv(), NormalAffine(), NormalPlanar1d(), NormalAffine())
    ]
    assert blocks_of(models["no-flow"]) == [NormalAffine()] * 5
    assert blocks_of(models["deterministic"]) == blocks_of(models["dropout"]) == []
    masked = [name for name, module in models["dropout"].named_modules() if hasattr(module, "input_noise")]
    assert masked == ["net.classifier.2", "net.classifier.4"]
    assert models["dropout"].get_submodule("net.classifier.2.input_noise").p == 0.5


def test_networks_with_noise_begin_as_the_pretrained_one_and_test_images_decide_nothing(
    tiny: Callable[..., Trial], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = tiny("flow-lenet", "flow")
    splits = flow_on_images.load_images(trial)
    first = flow_on_images._learn(tiny("flow-lenet", "pretrained"), splits).model
    begun: list[nn.Module] = []

    def fit(model: nn.Module, train: Examples, **options: Any) -> Any:
        with dubio.noise_off():
            assert torch.equal(model(train.inputs), first(train.inputs))
        assert (options["lr"], options["noise_lr"], options["optimizer"]) == (2e-4, 2e-3, torch.optim.Adam)
        assert "validation" not in options
        begun.append(model)
        zero = torch.zeros(())
        options["callbacks"][0].on_step(2, Loss(zero, zero, {}, None))  # the second of two batches ends the epoch
        return SimpleNamespace(history=({"nll": 1.0, "divergence": 128.0},), mode="eager", reason="", seconds=0.0)

    monkeypatch.setattr(flow_on_images, "fit", fit)
    found = flow_on_images._learn(trial, splits)
    assert len(begun) == 1
    assert {name: values.tolist() for name, values in found.history.items() if name not in ("accuracy", "ece")} == {
        "epoch": [1.0],
        "log_likelihood": [-1.0],
        "kl": [128.0],
        "elbo": [-1.0 - 128.0 / 64],
    }


def test_the_last_point_of_a_curve_is_the_network_that_is_measured(tiny: Callable[..., Trial]) -> None:
    changes = {"pretrain_epochs": 3, "epochs": 3, "batch_size": 8, "pretrain_lr": 0.1, "lr": 0.05}
    found = PROTOCOLS["flow_images"](tiny("flow-lenet", "deterministic", **changes))
    assert len(found.curves["accuracy"].x) == 3
    for name in ("accuracy", "ece"):  # without noise, the number of draws has no part in it
        assert found.curves[name].y[-1] == pytest.approx(found.metrics[name].value, abs=1e-4)
    assert found.metrics["best_accuracy"].value == max(found.curves["accuracy"].y)
    before = PROTOCOLS["flow_images"](tiny("flow-lenet", "pretrained", **changes))
    assert before.metrics["log_likelihood"].value < found.metrics["log_likelihood"].value
