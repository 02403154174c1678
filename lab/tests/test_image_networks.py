"""Networks of the embeddings paper on images: the recipe reaches training, and numbers are those that are measured."""

import dataclasses
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.attacks import FGSM, PGD, Transfer
from dubio.data.examples import Examples, Splits
from dubio.objectives import ELBO, Adversarial
from dubio_lab import ExperimentSpec, load_spec, spec_names
from dubio_lab.protocols import PROTOCOLS, Trial, image_networks
from dubio_lab.protocols.image_calibration import error_with_interval
from dubio_lab.protocols.image_networks import PARTS, Steps, image_network, objective_of, schedule_of
from dubio_lab.protocols.images import load_images
from dubio_lab.protocols.trial import Learned

pytest.importorskip("sklearn")

# Each is a function in its package, too.
image_calibration, image_defence = (
    import_module(f"dubio_lab.protocols.{name}") for name in ("image_calibration", "image_defence")
)
PROTOCOLS_HERE = ("image_calibration", "image_search", "image_defence", "image_defence_search")
SPECS = [name for name in spec_names() if load_spec(name).protocol in PROTOCOLS_HERE]


def trial_of(tmp_path: Path, spec_name: str, cell: int = 0, seed: int = 0, **changed: Any) -> Trial:
    """A tiny trial of a cell."""
    spec = load_spec(spec_name)
    settings = {**spec.settings_of(spec.cells[cell], "tiny"), **changed}
    return Trial(settings, seed, torch.device("cpu"), tmp_path / "shared", tmp_path / "pictures" / "cell")


def test_a_rate_falls_by_steps() -> None:
    schedule = schedule_of({"at": [0.5, 0.75], "factor": 0.1})
    assert schedule == Steps((0.5, 0.75), 0.1)
    assert [schedule(done) for done in (0.0, 0.49, 0.5, 0.74, 0.75, 0.99)] == pytest.approx(
        [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
    )
    assert schedule_of("cosine") == "cosine"


def test_the_recipe_reaches_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []

    def fit(model: nn.Module, train: Any, **options: Any) -> Any:
        calls.append({**options, "train": train})
        history = ({"accuracy": 0.5, "nll": 1.0},)
        return SimpleNamespace(history=history, mode="eager", reason="", seconds=0.0)

    monkeypatch.setattr(image_networks, "fit", fit)
    recipe = {"lr": 0.3, "noise_lr": 0.2, "momentum": 0.8, "nesterov": True, "weight_decay": 0.01}
    trial = trial_of(tmp_path, "iwe-ece-r18", schedule={"at": [0.5], "factor": 0.2}, train_draws=2, **recipe)
    learned = image_network(trial, load_images(trial))
    (call,) = calls
    optimizer = call["optimizer"]([nn.Parameter(torch.ones(1))])
    assert isinstance(optimizer, torch.optim.SGD)
    assert (optimizer.defaults["momentum"], optimizer.defaults["nesterov"]) == (0.8, True)
    assert (call["lr"], call["noise_lr"], call["weight_decay"], call["num_samples"]) == (0.3, 0.2, 0.01, 2)
    assert call["schedule"] == Steps((0.5,), 0.2)
    assert call["resume"]
    assert call["folder"].suffix == ".training"
    assert learned.history["train_accuracy"].tolist() == [50.0]


def test_everything_that_a_network_depends_on_makes_another_one(tmp_path: Path) -> None:
    files = set()
    changes: list[dict[str, Any]] = [{}, {"lr": 0.05}, {"epochs": 2}, {"weight_decay": 0.1}, {"schedule": "linear"}]
    for number, changed in enumerate(changes):
        trial = trial_of(tmp_path, "iwe-ece-r18", **changed)
        assert {*changed} <= {*PARTS}
        image_network(trial, load_images(trial))
        files = {*(tmp_path / "shared").glob("*.safetensors")}
        assert len(files) == number + 1
    trial = trial_of(tmp_path, "iwe-ece-r18", draws=7)
    image_network(trial, load_images(trial))
    assert {*(tmp_path / "shared").glob("*.safetensors")} == files


def test_adversarial_training_attacks_what_the_network_says_of_each_image() -> None:
    model = dubio.SESNN(margin=0.5).convert(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    assert objective_of(model, {}) == ELBO()
    settings = {"weight": 0.25, "epsilon": 0.03, "steps": 3, "step_size": 0.02, "label": "own"}
    expected = Adversarial(ELBO(), PGD(0.03, steps=3, step_size=0.02, num_samples=1), 0.25, "own")
    assert objective_of(model, settings) == expected


def test_a_calibration_error_lies_in_its_interval() -> None:
    torch.manual_seed(0)
    confidence = torch.full((4000,), 0.9)
    right = torch.rand(4000) < 0.7  # too sure by 0.2
    log_probs = torch.stack([confidence, 1.0 - confidence], dim=1).log()
    found = error_with_interval("ece", log_probs, (~right).long(), 0)
    value, low, high = (found[name].value for name in ("ece", "ece_low", "ece_high"))
    assert value == pytest.approx(100.0 * (0.9 - right.double().mean().item()), abs=1e-3)
    assert low < value < high
    half = 1.96 * 100.0 * (0.7 * 0.3 / 4000) ** 0.5
    assert (high - low) / 2.0 == pytest.approx(half, rel=0.15)


class Sure(nn.Module):
    """Gives the class of the brightest of ten pixels, with one confidence, or a wrong one where the last is bright."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(8.0))

    def forward(self, images: Tensor) -> Tensor:
        return self.weight * images.flatten(1)[:, :10]


@pytest.fixture
def sure(monkeypatch: pytest.MonkeyPatch) -> Learned[nn.Module]:
    """A network that stands in the place of the trained one."""
    curve = torch.tensor([50.0, 75.0])
    history = {"epoch": torch.tensor([1.0, 2.0]), "accuracy": curve, "ece": curve, "nll": curve}
    learned = Learned(
        dubio.Deterministic().convert(Sure()).eval(), history | {"train_accuracy": curve, "train_nll": curve}
    )
    for module in (image_calibration, image_defence):
        monkeypatch.setattr(module, "image_network", lambda trial, splits: learned)
    labels = torch.arange(200) % 10
    images = torch.nn.functional.one_hot(labels, 64).float().reshape(200, 1, 8, 8)
    wrong = labels.clone()
    wrong[::4] = (wrong[::4] + 1) % 10
    examples = Examples(images, wrong, tuple("0123456789"))
    for module in (image_calibration, image_defence):
        monkeypatch.setattr(module, "load_images", lambda trial: Splits(examples, examples, examples))
    return learned


def test_calibration_is_that_of_the_prediction_before_and_after_the_temperature(
    tmp_path: Path, sure: Learned[nn.Module]
) -> None:
    found = PROTOCOLS["image_calibration"](trial_of(tmp_path, "iwe-ece-r18", draws=1))
    values = {name: value.value for name, value in found.metrics.items()}
    confidence = 100.0 * torch.tensor([8.0, *[0.0] * 9]).softmax(dim=0)[0].item()
    assert values["accuracy"] == 75.0
    assert values["ece"] == pytest.approx(confidence - 75.0, abs=1e-3) == values["ece_one_draw"]
    assert values["adaptive_ece"] == pytest.approx(values["ece"], abs=1e-3)
    assert values["ece_after_temperature"] < 3.0  # one confidence for all, which the temperature moves to 0.75
    assert values["temperature"] > 1.5
    assert values["nll_after_temperature"] < values["nll"]
    assert values["train_accuracy"] == 75.0
    assert found.curves["validation_ece"].x == (1.0, 2.0)
    promised = {name for name in load_spec("iwe-ece-r18").metrics if not name.startswith("auroc_")}
    assert promised <= {*values}


def test_a_search_looks_at_validation_images_alone(
    tmp_path: Path, sure: Learned[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = image_calibration.load_images(trial_of(tmp_path, "iwe-ece-search"))
    for module in (image_calibration, image_defence):
        monkeypatch.setattr(module, "load_images", lambda trial: dataclasses.replace(splits, test=None))
    assert PROTOCOLS["image_search"](trial_of(tmp_path, "iwe-ece-search")).metrics["validation_accuracy"].value == 75.0
    trial = trial_of(tmp_path, "iwe-defence-search", attack_epsilon=0.6, attack_step_size=0.2, attack_steps=5)
    found = PROTOCOLS["image_defence_search"](trial).metrics
    assert found["validation_pgd"].value < 30.0
    both = (found["validation_accuracy"].value + found["validation_pgd"].value) / 2.0
    assert found["validation_both"].value == pytest.approx(both)


def test_attacks_are_the_published_ones_and_those_that_take_noise_into_account(
    tmp_path: Path, sure: Learned[nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    moved = image_defence._moved

    def record(model: nn.Module, attack: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        made.append((attack, len(inputs)))
        return moved(model, attack, inputs, targets)

    monkeypatch.setattr(image_defence, "_moved", record)
    own = {"attack_epsilon": 0.031, "attack_steps": 7, "attack_step_size": 0.01, "judge_steps": 20, "judge_draws": 10}
    found = PROTOCOLS["image_defence"](trial_of(tmp_path, "iwe-defence-w16", draws=1, judge_images=40, **own))
    pgd = PGD(0.031, steps=7, step_size=0.01, num_samples=1, seed=0)
    eot = dataclasses.replace(pgd, steps=20, num_samples=10)
    still = dataclasses.replace(pgd, steps=20, noise="off")
    through = Transfer(attack=dataclasses.replace(pgd, steps=20), num_samples=1, seed=0)
    fgsm = FGSM(0.031, num_samples=1, seed=0)
    assert made == [(fgsm, 200), (pgd, 200), (pgd, 40), (eot, 40), (through, 40), (still, 40)]
    values = {name: value.value for name, value in found.metrics.items()}
    assert values["accuracy"] == values["fgsm"] == 75.0  # a pixel moves by 0.031, and is ahead by one
    far = PROTOCOLS["image_defence"](trial_of(tmp_path, "iwe-defence-w16", attack_epsilon=0.6, judge_images=40))
    assert far.metrics["fgsm"].value < 30.0
    promised = {name for name in load_spec("iwe-defence-w16").metrics if not name.startswith("audit_")}
    assert promised <= {*values}


@pytest.mark.slow
def test_an_audit_says_what_is_left_and_how_sure_that_is(tmp_path: Path, sure: Learned[nn.Module]) -> None:
    trial = trial_of(tmp_path, "iwe-defence-w16", draws=1, audit_images=60, audit_budget="tiny", attack_epsilon=0.031)
    found = PROTOCOLS["image_defence"](trial)
    assert found.metrics["audit_low"].value < found.metrics["audit_accuracy"].value < found.metrics["audit_high"].value
    assert found.notes["verdict"]


@pytest.mark.parametrize("name", SPECS)
def test_every_cell_can_be_built_and_trained_in_full(name: str) -> None:
    spec = load_spec(name)
    for cell in spec.cells:
        settings = spec.settings_of(cell)
        method = image_networks.from_json(settings["networks"][settings["network"]]["method"])
        num_classes = 100 if settings["data"] == "cifar100" else 10
        with torch.device("meta"):
            net = image_networks.build(settings["model"], inputs=(3, 32, 32), num_classes=num_classes)
        model = method.convert(nn.Sequential(nn.Flatten(), nn.Linear(3072, 4), nn.ReLU(), nn.Linear(4, num_classes)))
        assert sum(parameter.numel() for parameter in net.parameters()) > 200_000
        objective_of(model, settings["adversarial"])
        schedule_of(settings["schedule"])
        assert {*PARTS} <= {*settings}


def methods_of(spec: ExperimentSpec) -> dict[str, Any]:
    return {name: network["method"] for name, network in spec.settings["networks"].items()}


def settings_apart(one: str, other: str) -> set[str]:
    first, second = load_spec(one).settings, load_spec(other).settings
    return {name for name in {**first, **second} if first.get(name) != second.get(name)}


def test_tables_of_one_paper_differ_by_what_they_say_they_do() -> None:
    assert settings_apart("iwe-ece-r18", "iwe-ece-r18-cifar100") == {"data", "model"}
    assert settings_apart("iwe-ece-r18-cifar100", "iwe-ece-r50") == {"model", "epochs"}
    assert methods_of(load_spec("iwe-ece-r18")) == methods_of(load_spec("iwe-ece-r50"))
