"""Wrong labels and embeddings: what is learned, what is measured, and that all methods are given the same."""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.data.examples import Examples, Splits
from dubio.io import from_json
from dubio.methods.method import Deterministic
from dubio.methods.se_snn import SESNN
from dubio.methods.wasserstein import Wasserstein
from dubio.objectives import BootstrapHard, BootstrapSoft
from dubio_lab import load_spec
from dubio_lab.protocols import Trial, embeddings, noised_networks, wrong_labels
from dubio_lab.protocols.noised_networks import train_network
from dubio_lab.protocols.wrong_labels import with_wrong_labels

NAMES = tuple("0123456789")
METHODS = ("wasserstein", "se-snn", "bootstrap-hard", "bootstrap-soft", "plain")


def images(count: int) -> Examples:
    """Images whose brightest pixel is their label."""
    labels = torch.arange(count) % 10
    pixels = torch.zeros(count, 1, 8, 8)
    pixels.view(count, 64)[torch.arange(count), labels] = 1.0
    return Examples(pixels, labels, NAMES)


SPLITS = Splits(images(600), images(200), images(50))


def trial(folder: Path, name: str = "label-noise", cell: int = 0, seed: int = 0, **settings: Any) -> Trial:
    spec = load_spec(name)
    chosen = {**spec.settings_of(spec.cells[cell], "tiny"), **settings}
    return Trial(chosen, seed, torch.device("cpu"), folder / "shared", folder / "pictures")


class Reader(nn.Module):
    """Gives the label that the brightest pixel tells."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(20.0))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.scale * inputs.flatten(1)[:, :10]


def test_labels_go_wrong_by_one_pattern_in_training_and_held_out_images_and_never_in_the_test() -> None:
    found = with_wrong_labels(SPLITS, 0.4, seed=3)
    assert found.train is not None
    assert found.validation is not None
    assert SPLITS.train is not None
    assert SPLITS.validation is not None
    assert found.test is SPLITS.test
    labels = torch.cat([found.train.targets, found.validation.targets])
    true = torch.cat([SPLITS.train.targets, SPLITS.validation.targets])
    wrong = labels != true
    assert 0.3 < wrong.double().mean().item() < 0.5
    assert all(len({*labels[wrong & (true == number)].tolist()}) == 1 for number in range(10))
    assert (found.validation.targets != SPLITS.validation.targets).any()


def test_labels_depend_on_the_seed_alone_and_more_of_them_are_wrong_at_a_larger_share() -> None:
    def wrong(share: float, seed: int) -> Tensor:
        train = with_wrong_labels(Splits(SPLITS.train, None, None), share, seed).train
        assert train is not None
        return train.targets

    true = wrong(0.0, 1)
    assert torch.equal(true, images(600).targets)
    assert torch.equal(wrong(0.4, 1), wrong(0.4, 1))
    assert not torch.equal(wrong(0.4, 1), wrong(0.4, 2))
    less, more = wrong(0.2, 1), wrong(0.4, 1)
    assert torch.equal(more[less != true], less[less != true])


@pytest.mark.feature("The label-noise figure chooses without true labels and is judged by true ones")
def test_the_test_is_true_and_what_is_chosen_by_is_as_wrong_as_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Examples] = []

    def train_reader(trial: Trial, train: Examples, share: float) -> nn.Module:
        given.append(train)
        return dubio.Deterministic().convert(Reader())

    monkeypatch.setattr(wrong_labels, "load_images", lambda trial: SPLITS)
    monkeypatch.setattr(wrong_labels, "train_network", train_reader)
    found = wrong_labels.label_noise_search(trial(tmp_path, "label-noise-search", seed=5)).metrics
    expected = with_wrong_labels(SPLITS, 0.4, 5)
    assert expected.train is not None
    assert expected.validation is not None
    assert torch.equal(given[0].targets, expected.train.targets)
    right = (expected.validation.targets == images(200).targets).double().mean().item()
    assert found["validation_accuracy"].value == pytest.approx(100.0 * right)
    assert (found["accuracy"].value, found["accuracy"].n) == (100.0, 50)
    assert wrong_labels.label_noise(trial(tmp_path, cell=4)).metrics["accuracy"].value == 100.0
    wrong = (given[1].targets != images(600).targets).double().mean().item()
    assert wrong == pytest.approx(load_spec("label-noise").cells[4].settings["wrong_labels"], abs=0.06)


def test_the_figure_has_every_method_at_every_share() -> None:
    cells = load_spec("label-noise").cells
    expected = {f"{name}-{tenths / 10}": (name, tenths / 10) for name in METHODS for tenths in range(7)}
    assert {cell.name: (cell.settings["network"], cell.settings["wrong_labels"]) for cell in cells} == expected


@pytest.mark.parametrize("network", METHODS)
def test_a_cell_trains_its_network_by_its_objective_from_the_same_weights(
    network: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def fit(model: nn.Module, train: Examples, **options: Any) -> None:
        asked.update(options, model=copy.deepcopy(model))

    monkeypatch.setattr(noised_networks, "fit", fit)
    cell = 7 * METHODS.index(network)
    run = trial(tmp_path, cell=cell, seed=4)
    train_network(run, images(20))
    own = run.settings["networks"][network]
    method = dubio.spec(asked["model"]).method
    assert type(method) is type(from_json(own["method"]))
    objectives = {"bootstrap-hard": BootstrapHard(0.8), "bootstrap-soft": BootstrapSoft(0.95)}
    assert asked["objective"] == objectives.get(network)
    assert (asked["lr"], asked["weight_decay"], asked["batch_size"], asked["seed"]) == (2e-3, 1e-6, 32, 4)
    if network == "se-snn":
        assert (method.where, method.at) == ("5", "input")
    first = next(value for name, value in asked["model"].state_dict().items() if value.shape == (128, 64))
    torch.manual_seed(4)
    plain = dubio.models.build("mlp:64-128-128-10")
    noised_networks._draw_weights(plain)
    assert torch.equal(first, plain.state_dict()["1.weight"])
    assert first.std().item() == pytest.approx(1 / 8, rel=0.05)
    assert not plain.state_dict()["1.bias"].any()


def test_networks_are_trained_in_one_module_and_are_those_trained_alone(tmp_path: Path) -> None:
    def train(seed: int, share: float, folder: str) -> dict[str, Tensor]:
        labelled = with_wrong_labels(SPLITS, share, seed).train
        assert labelled is not None
        return train_network(trial(tmp_path / folder, cell=7, seed=seed), labelled, share).state_dict()

    noised_networks.WORKSHOP.clear()
    together = [train(0, 0.0, "a"), train(1, 0.0, "a"), train(1, 0.3, "a")]
    [(_, steps)] = noised_networks.WORKSHOP.values()
    assert steps.num_made == 1
    for number, (seed, share) in enumerate([(0, 0.0), (1, 0.0), (1, 0.3)]):
        noised_networks.WORKSHOP.clear()
        alone = train(seed, share, "b")
        assert all(torch.equal(value, together[number][name]) for name, value in alone.items())
    assert len([*(tmp_path / "a" / "shared").glob("*.safetensors")]) == 3  # none was taken for another
    train(1, 0.3, "a")
    assert len([*(tmp_path / "a" / "shared").glob("*.safetensors")]) == 3


def test_the_search_is_as_long_as_it_says_and_never_tries_the_same_twice() -> None:
    cells = load_spec("label-noise-search").cells
    tried = [(from_json(cell.settings["networks"][cell.settings["network"]]["method"])) for cell in cells]
    assert [type(method) for method in tried] == [Wasserstein] * 16 + [SESNN] * 8 + [Deterministic] * 9
    assert len({json.dumps(cell.settings, sort_keys=True) for cell in cells}) == 33
    assert sum(isinstance(method, Wasserstein) and method.trained_scale for method in tried) == 8


def test_the_plane_has_numbers_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = trial(tmp_path, "embedding-2d")
    found = embeddings.embedding_plane(run)
    assert run.pictures.with_name(f"{run.pictures.name}-embedding.png").is_file()
    assert found.metrics["cloud_variance"].value > 0.0
    assert found.metrics["spread_of_images"].n == 32


def test_clouds_spread_by_their_own_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_images = torch.tensor([[0.0, 2.0], [0.0, 2.0], [10.0, 12.0], [10.0, 12.0]]).unsqueeze(-1).expand(4, 2, 2)
    of_classes = torch.tensor([[0.0, 2.0], [3.0, 5.0]]).unsqueeze(-1).expand(2, 2, 2)
    monkeypatch.setattr(embeddings, "clouds_of", lambda model, inputs, seed: (of_images, of_classes))
    examples = Examples(torch.zeros(4, 1), torch.tensor([0, 0, 1, 1]), ("a", "b"))
    found = embeddings._spreads(trial(tmp_path, "embedding-2d"), nn.Identity(), examples)
    assert found["spread_of_images"].value == pytest.approx(25.0)  # 5^2 around the mean of all, 1^2 around their own
    assert found["spread_of_classes"].value == pytest.approx(2.25)
    assert found["cloud_variance"].value == pytest.approx(2.0)


@pytest.mark.parametrize("name", ["label-noise", "embedding-2d", "wasserstein-honest"])
def test_a_spec_names_every_number_of_the_method_so_that_no_default_changes_it(name: str) -> None:
    networks = load_spec(name).settings["networks"].values()
    methods = [network["method"] for network in networks if network.get("method", {}).get("value") == "Wasserstein"]
    left_out = {"prototype", "distance", "regularisation", "num_iterations", "where"}
    every = {field.name for field in dataclasses.fields(Wasserstein)} - left_out
    assert methods
    assert [{*method} - {"value"} for method in methods] == [every] * len(methods)
