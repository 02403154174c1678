"""The study of weight sampling: what its networks begin with, what is made once, and what is counted how."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio import functional
from dubio.data.registry import load
from dubio.nn.sources import GaussianPosterior
from dubio.objectives import ELBO
from dubio_lab import ExperimentSpec, Measured, load_spec, spec_names
from dubio_lab.protocols import Trial, bws, bws_networks
from dubio_lab.protocols.bws import bws_clean, bws_pruning, bws_sources, bws_transfer, over_ensembles
from dubio_lab.protocols.bws_networks import (
    TRAINING,
    attack_of,
    evaluated_network,
    find_source,
    source_names,
    trained_network,
)
from dubio_lab.protocols.images import load_images

SPECS = [name for name in spec_names() if name.startswith("bws-")]
TABLES = ("bws-transfer", "bws-ensembles", "bws-pruning")


def settings_of(name: str, cell: str, **changed: Any) -> dict[str, Any]:
    """The settings of a tiny run of a cell, some of them changed."""
    spec = load_spec(name)
    found = next(one for one in spec.cells if one.name == cell)
    return {**spec.settings_of(found, "tiny"), **changed}


def trial_of(folder: Path, settings: dict[str, Any], seed: int = 0) -> Trial:
    return Trial(settings, seed, torch.device("cpu"), folder / "shared", folder / "pictures" / "cell")


def values(found: dict[str, Measured]) -> dict[str, float]:
    return {name: one.value for name, one in found.items()}


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Networks stay as they begin; what training was asked for is noted."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(bws_networks, "fit", lambda model, train, validation, **wishes: asked.append(wishes))
    return asked


@pytest.fixture
def pixel_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three classes, read off the brightest of three pixels by every network; weights of Bayesian ones are drawn."""
    labels = torch.arange(3).repeat(4)
    pixels = torch.eye(3)[labels].reshape(12, 1, 1, 3) * 0.5 + 0.25
    examples = dubio.data.Examples(pixels, labels, ("a", "b", "c"))
    splits = dubio.data.Splits(examples, examples, examples)

    def read(model: nn.Module, train: object, validation: object, **wishes: object) -> None:
        weights = [tensor for name, tensor in model.named_parameters() if tensor.shape == (3, 3) and "rho" not in name]
        with torch.no_grad():
            weights[0].copy_(10.0 * torch.eye(3))
            for name, tensor in model.named_parameters():
                if tensor.shape == (3,) and "rho" not in name:
                    tensor.zero_()

    monkeypatch.setattr(bws, "load_images", lambda trial: splits)
    monkeypatch.setattr(bws_networks, "fit", read)


READING = {"model": "fc", "source_models": {"fc10": "fc", "fc200": "fc", "fc1200": "fc"}, "draws": 100}


@pytest.mark.feature("Published tables of weight sampling stand in specs whose averages agree with their rows")
@pytest.mark.parametrize("name", TABLES)
def test_published_averages_are_those_of_the_twelve_sets(name: str) -> None:
    spec = load_spec(name)
    published = [cell.published for cell in spec.cells if cell.published]
    assert len(published) == {"bws-transfer": 11, "bws-ensembles": 5, "bws-pruning": 6}[name]
    for numbers in published:
        own = [numbers[source] for source in source_names(spec.settings)]
        assert len(own) == 12
        assert sum(own) / 12 == pytest.approx(numbers["average"], abs=0.0051)


@pytest.mark.parametrize("name", SPECS)
def test_networks_of_all_tables_are_the_same_networks(name: str) -> None:
    spec, other = load_spec(name), load_spec("bws-clean")
    shared = (*TRAINING, "lr")
    assert {key: spec.settings.get(key) for key in shared} == {key: other.settings.get(key) for key in shared}
    for variant in ("digits", "tiny"):
        own, others = (one.settings_of(one.cells[0], variant) for one in (spec, other))
        assert {key: own.get(key) for key in shared} == {key: others.get(key) for key in shared}
    sources = {key: value for key, value in spec.settings.items() if key.startswith(("source_", "attack_"))}
    ending = "-unsolved" if name.endswith("-unsolved") else ""
    made = load_spec(f"bws-fixed-sources{ending}" if name.startswith("bws-fixed") else "bws-sources")
    assert all(made.settings[key] == value for key, value in sources.items())


def test_what_a_cell_says_reaches_its_network(fitted: list[dict[str, Any]], tmp_path: Path) -> None:
    trial = trial_of(tmp_path, settings_of("bws-clean", "rho-3", model="fc:100-100"))
    splits = load_images(trial)
    model = trained_network(trial, splits, evaluated_network(trial.settings))
    posteriors = [module for module in model.modules() if isinstance(module, GaussianPosterior)]
    means = torch.cat([posterior.mean.flatten() for posterior in posteriors])
    stds = torch.cat([posterior.std.flatten() for posterior in posteriors])
    assert len(means) == 64 * 100 + 100 * 100 + 100 * 10 + 210  # biases are random too
    torch.testing.assert_close(stds, torch.full_like(stds, 0.048587352))
    assert means.abs().max() <= 2 * 0.260131
    assert means.std().item() == pytest.approx(0.22882, rel=0.02)
    assert [posterior.prior.std for posterior in posteriors] == pytest.approx([0.260131] * 6, rel=1e-5)
    assert dubio.spec(model).method.estimator == "weight"
    plain = trial_of(tmp_path, settings_of("bws-clean", "lambda-1e-2"))
    fixed = trained_network(plain, splits, evaluated_network(plain.settings))
    own = trial_of(tmp_path, settings_of("bws-transfer", "rho-3-matched", lr=0.02, patience=7))
    evaluated, source = evaluated_network(own.settings), find_source(own.settings, "fc10_0").network
    assert (evaluated.lr, source.lr) == (0.01, 0.02)
    assert (evaluated.patience, source.patience) == (20, 7)
    trained_network(own, splits, evaluated)
    assert (fitted[-1]["lr"], fitted[-1]["patience"]) == (0.01, 20)
    assert dubio.spec(fixed).method == dubio.Deterministic(l2=0.01)
    assert fitted[1]["objective"] == ELBO(l2=0.01, l2_per="unit")


def test_inputs_are_doubled_inside_the_network(fitted: list[dict[str, Any]], tmp_path: Path) -> None:
    trial = trial_of(tmp_path, settings_of("bws-clean", "lambda-0", model="fc"))
    model = trained_network(trial, load_images(trial), evaluated_network(trial.settings))
    images = torch.rand(3, 1, 8, 8)
    weight, bias = (dict(model.named_parameters())[f"net.1.{name}"] for name in ("weight", "bias"))
    torch.testing.assert_close(model(images), 2.0 * images.flatten(1) @ weight.T + bias)


def test_training_is_what_the_source_fixes(fitted: list[dict[str, Any]], tmp_path: Path) -> None:
    spec = load_spec("bws-clean")
    settings = {**spec.settings_of(spec.cells[0]), "data": "digits", "num_validation": 100}
    trial = trial_of(tmp_path, settings, seed=2)
    trained_network(trial, load_images(trial), evaluated_network(settings))
    (wishes,) = fitted
    optimizer = wishes.pop("optimizer")([nn.Parameter(torch.zeros(1))])
    assert (type(optimizer), optimizer.defaults["momentum"]) == (torch.optim.SGD, 0.95)
    assert wishes == {
        "objective": ELBO(),
        "epochs": 200,
        "batch_size": 128,
        "lr": 0.001,
        "num_samples": 1,
        "patience": 5,
        "monitor": "val_accuracy",
        "seed": 2,
        "device": torch.device("cpu"),
        "progress": False,
    }


def test_a_network_is_trained_once_for_all_tables(fitted: list[dict[str, Any]], tmp_path: Path) -> None:
    cells = (("bws-clean", "rho-3"), ("bws-transfer", "rho-3"), ("bws-pruning", "snr-75"), ("bws-honest", "rho-3"))
    trials = [trial_of(tmp_path, settings_of(name, cell)) for name, cell in cells]
    splits = load_images(trials[0])
    for trial in trials:
        trained_network(trial, splits, evaluated_network(trial.settings))
    assert len(fitted) == 1
    others = (trial_of(tmp_path, settings_of("bws-clean", "rho-4")), dataclasses.replace(trials[0], seed=1))
    changed = dataclasses.replace(trials[0], settings={**trials[0].settings, "lr": 0.1})
    for number, trial in enumerate((*others, changed)):
        trained_network(trial, splits, evaluated_network(trial.settings))
        assert len(fitted) == number + 2


def test_t23_a_hundred_draws_make_so_many_ensembles(pixel_readers: None, tmp_path: Path) -> None:
    spec = load_spec("bws-ensembles")
    repeats, spreads = [], []
    for cell in spec.cells:
        settings = settings_of("bws-ensembles", cell.name, **READING, rho=2.0)
        found = bws_transfer(trial_of(tmp_path, settings)).metrics
        repeats.append(found["average"].n)
        spreads.append(found["average"].standard_error)
    assert spec.settings["draws"] == 100
    assert repeats == [100, 20, 10, 4, 1]
    assert spreads[0] is not None
    assert spreads[0] > 0.0
    assert spreads[-1] is None


def test_t10_draws_of_a_network_without_noise_are_equally_right(pixel_readers: None, tmp_path: Path) -> None:
    found = bws_clean(trial_of(tmp_path, settings_of("bws-clean", "rho-30", **READING))).metrics
    assert found["test"] == Measured(100.0, 0.0, 100)
    assert found["validation_ensemble"] == Measured(100.0, None, 1)
    noisy = bws_clean(trial_of(tmp_path, settings_of("bws-clean", "rho-1.5", **READING, rho=3.0))).metrics
    assert noisy["test"].value < 90.0
    assert noisy["test_ensemble"].value > noisy["test"].value


def test_percentages_are_those_of_averaged_probabilities() -> None:
    sure, unsure = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.4, 0.6]])
    draws = torch.stack([sure, unsure, unsure, unsure]).log()
    label = torch.tensor([0])
    assert over_ensembles(draws, label, 1).tolist() == [100.0, 0.0, 0.0, 0.0]
    assert over_ensembles(draws, label, 2).tolist() == [100.0, 0.0]  # 0.65, though one of two votes
    assert over_ensembles(draws, label, 4).tolist() == [100.0]  # 0.525, though three of four vote otherwise


def test_the_average_has_the_draws_of_all_sets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    labels = torch.tensor([0, 1])
    splits = dubio.data.Splits(None, None, dubio.data.Examples(torch.zeros(2, 4), labels, ("a", "b")))
    right = torch.tensor([[0.9, 0.1], [0.1, 0.9]]).log()
    swapped = right.flip(1)

    def draws(trial: Trial, model: nn.Module, examples: dubio.data.Examples) -> Tensor:
        first = examples.name == "fc10_0"  # the draw that is right there is wrong elsewhere
        return torch.stack([right, swapped] if first else [swapped, right])

    monkeypatch.setattr(bws, "_evaluated", lambda trial: (splits, nn.Identity()))
    monkeypatch.setattr(bws, "_draws", draws)
    monkeypatch.setattr(bws, "perturbed_images", lambda *given: {"inputs": torch.zeros(2, 4)})
    found = bws_transfer(trial_of(tmp_path, settings_of("bws-transfer", "rho-3"))).metrics
    assert found["fc10_0"] == Measured(50.0, 50.0, 2)
    assert found["average"].value == pytest.approx(50.0)
    per_draw = torch.tensor([100.0 / 12, 1100.0 / 12])
    assert found["std"].value == pytest.approx(per_draw.std().item())
    assert found["average"].standard_error == pytest.approx(per_draw.std().item() / 2**0.5)


def test_t24_a_source_is_right_on_its_own_images_where_its_attack_failed(unchecked: None, tmp_path: Path) -> None:
    trained = {"num_train": 400, "epochs": 15, "num_test": 60, "attack_steps": 40, "attack_step_size": 0.02}
    trial = trial_of(tmp_path, settings_of("bws-sources", "fc10_0", **trained))
    found = values(bws_sources(trial).metrics)
    assert found["test"] > 80.0
    assert found["success"] == pytest.approx(100.0 - 100.0 * found["failures"] / 60)
    assert found["left"] == pytest.approx(100.0 * found["failures"] / 60, abs=100.0 / 60)  # one at the very boundary
    assert found["failures"] <= 3
    assert 0.05 < found["distortion"] < 0.5
    assert found["distortion"] == pytest.approx(2.0 * found["distortion_unit"])
    weak = dataclasses.replace(trial, settings={**trial.settings, "attack_steps": 1, "attack_step_size": 1e-6})
    failed = values(bws_sources(weak).metrics)
    assert failed["left"] == failed["test"] == pytest.approx(100.0 * failed["failures"] / 60)
    assert failed["distortion"] == 0.0


def test_images_are_made_once_and_anew_for_another_attack(fitted: list[dict[str, Any]], tmp_path: Path) -> None:
    made: list[str] = []

    class Counting(bws_networks.MinimumNorm):
        def __call__(self, *given: Any, **wishes: Any) -> Any:
            made.append(self.mode)
            return super().__call__(*given, **wishes)

    cells = ("fc10_0", "fc10_0", "fc10_0-untargeted", "fc10_1")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bws_networks, "MinimumNorm", Counting)
        for cell in cells:
            bws_sources(trial_of(tmp_path, settings_of("bws-sources", cell)))
    assert made == ["targeted", "untargeted", "targeted"]


def test_the_attack_is_as_the_cell_says(tmp_path: Path) -> None:
    spec = load_spec("bws-sources")
    targeted, untargeted = (
        attack_of(trial_of(tmp_path, spec.settings_of(cell), seed=3))
        for cell in spec.cells
        if cell.name.startswith("fc200_1e-2")
    )
    assert (targeted.mode, targeted.target, targeted.loss) == ("targeted", "runner_up", "cross_entropy")
    assert (untargeted.mode, untargeted.loss) == ("untargeted", "margin")
    assert (targeted.steps, targeted.step_size, targeted.c, targeted.bisections) == (300, 0.005, 0.2, 8)
    assert (targeted.bounds, targeted.seed, targeted.search) == ((0.0, 1.0), 3, True)
    fixed = attack_of(trial_of(tmp_path, settings_of("bws-fixed-sources", "fc200_0-weight-2")))
    assert (fixed.c, fixed.search, fixed.keep_unsolved) == (2.0, False, False)
    kept = attack_of(trial_of(tmp_path, settings_of("bws-fixed-sources-unsolved", "fc200_0-weight-2")))
    assert dataclasses.replace(kept, keep_unsolved=False) == fixed != kept


@pytest.mark.parametrize("name", ["bws-fixed-sources", "bws-fixed-transfer"])
def test_images_that_are_kept_are_all_that_is_other(name: str) -> None:
    spec, kept = load_spec(name), load_spec(f"{name}-unsolved")
    assert kept.settings == {**spec.settings, "attack_keep_unsolved": True}
    assert (kept.cells, kept.metrics, kept.tiny) == (spec.cells, spec.metrics, spec.tiny)
    assert {*spec.seeds} <= {*kept.seeds}


def test_pruning_is_measured_by_all_draws_and_by_single_ones(pixel_readers: None, tmp_path: Path) -> None:
    def found(cell: str, **changed: Any) -> dict[str, Measured]:
        return bws_pruning(trial_of(tmp_path, settings_of("bws-pruning", cell, **READING, **changed))).metrics

    whole, none = found("snr-0"), found("snr-25", fraction=1.0)
    assert (whole["test"], whole["test_one"].n) == (Measured(100.0, None, 1), 100)
    assert (whole["removed"].value, none["removed"].value) == (0.0, 100.0)
    assert none["test"].value == pytest.approx(100.0 / 3)  # what biases say is the same for all images
    assert none["average_one"].value == pytest.approx(100.0 / 3)
    assert found("lambda-0-25", fraction=1.0)["average_one"].n == 1


def test_pruning_ranks_by_what_the_cell_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[float, str]] = []

    def prune(model: nn.Module, fraction: float, by: str) -> None:
        asked.append((fraction, by))
        raise InterruptedError

    monkeypatch.setattr(bws, "_evaluated", lambda trial: (None, nn.Identity()))
    monkeypatch.setattr(bws, "prune", prune)
    for cell in ("snr-75", "magnitude-98", "lambda-1e-2-50"):
        with pytest.raises(InterruptedError):
            bws_pruning(trial_of(tmp_path, settings_of("bws-pruning", cell)))
    assert asked == [(0.75, "snr"), (0.98, "magnitude"), (0.5, "magnitude")]


def test_the_last_training_images_are_held_out(tmp_path: Path) -> None:
    splits = load_images(trial_of(tmp_path, {"data": "digits", "num_validation": 100}))
    whole = load("digits", validation=0).train
    assert whole is not None
    assert splits.train is not None
    assert splits.validation is not None
    assert torch.equal(splits.train.inputs, whole.inputs[:-100])
    assert torch.equal(splits.validation.inputs, whole.inputs[-100:])
    assert load_images(trial_of(tmp_path, {"data": "digits", "num_validation": 0})).validation is None


def test_sources_and_beginnings_that_are_not_there_are_refused() -> None:
    settings = load_spec("bws-transfer").settings
    with pytest.raises(ValueError, match=r"source must be one of fc10_0, .*, fc1200_1, got 'fc100_0'"):
        find_source(settings, "fc100_0")
    with pytest.raises(ValueError, match="init must be 'prior' or 'torch', got 'zero'"):
        evaluated_network({**settings, "rho": -3.0, "init": "zero"})
    wide = find_source(settings, "fc1200_1e-2").network
    assert (wide.model, wide.method, wide.like_prior) == ("fc:1200-1200", dubio.Deterministic(l2=0.01), False)
    std = functional.variational.softplus(torch.tensor(-3.0)).item()
    method = evaluated_network({**settings, "rho": -3.0}).method
    assert isinstance(method, dubio.Bayes)
    assert method.init_std == pytest.approx(std)


def test_every_cell_of_a_table_has_all_that_was_published() -> None:
    def of(spec: ExperimentSpec) -> dict[str, set[str]]:
        return {cell.name: {*cell.published} for cell in spec.cells if cell.published}

    assert {*map(len, of(load_spec("bws-clean")).values())} == {2}
    assert {*map(len, of(load_spec("bws-transfer")).values())} == {13}
    assert {*map(len, of(load_spec("bws-pruning")).values())} == {18}
