"""Dropout with alpha-divergences: protocols measure what they say, where the answer is known."""

import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.data.registry import diabetes_table
from dubio.nn.noise_layers import RandomDropout
from dubio.objectives import Alpha
from dubio.prediction.predictive import ClassificationPredictive, RegressionPredictive
from dubio_lab import load_spec
from dubio_lab.protocols import PROTOCOLS, Trial, alpha_attacks, alpha_networks
from dubio_lab.protocols.alpha_detection import CleanImages, detected
from dubio_lab.protocols.alpha_networks import PARTS, described, dropout_network, summed_log_likelihood, timed_network
from dubio_lab.protocols.alpha_regression import measures_in_units, random_split
from dubio_lab.protocols.images import load_images

SPECS = ("alpha-untargeted", "alpha-targeted", "alpha-mnist", "alpha-samples")


def trial_of(tmp_path: Path, spec: str, cell: int = 0, seed: int = 0, **changed: Any) -> Trial:
    """A tiny trial of a cell."""
    found = load_spec(spec)
    settings = {**found.settings_of(found.cells[cell], "tiny"), **changed}
    return Trial(settings, seed, torch.device("cpu"), tmp_path / "shared", tmp_path / "pictures" / "cell")


def wanted_classes(trial: Trial) -> tuple[Tensor, Tensor]:
    """Test images of other classes than the wanted one, and their labels."""
    test = load_images(trial).test
    assert test is not None
    return test[test.targets != trial.settings["target"]].tensors


def test_what_is_judged_are_the_networks_of_the_other_specs(tmp_path: Path) -> None:
    specs = [load_spec(name) for name in (*SPECS, "alpha-honest")]
    known = [
        {
            str(described(Trial(spec.settings_of(cell), 0, torch.device("cpu"), tmp_path, tmp_path))): cell.name
            for cell in spec.cells
        }
        for spec in specs
    ]
    *others, judged = known
    assert {*judged} <= {what for those in others for what in those}
    plain = {"plain", "mlp-plain", "cnn-plain"}
    assert {name for those in others for what, name in those.items() if what not in judged} == plain
    watched = [(spec.settings["watch_draws"], spec.settings["num_test"]) for spec in specs[3:]]
    assert watched[0] == watched[1]
    every = {cell.settings["watch_every"] for cell in specs[4].cells if "watch_every" in cell.settings}
    assert every == {specs[3].settings["watch_every"]}
    assert [*known[0]] == [*known[1]]  # both attacks are on the same networks


def test_everything_that_a_network_depends_on_makes_another_one(tmp_path: Path) -> None:
    first = described(trial_of(tmp_path, "alpha-untargeted"))
    changes = {
        **dict.fromkeys(("train_draws", "epochs", "batch_size", "num_train", "num_validation"), 3),
        **dict.fromkeys(("rate", "alpha", "l2", "lr", "momentum"), 0.25),
        "hidden": [8],
        "network": "cnn",
        "data": "mnist",
        "precision": "fp32",
    }
    assert {*changes} == {*PARTS}
    for name, value in changes.items():
        assert described(trial_of(tmp_path, "alpha-untargeted", **{name: value})) != first, name
    assert described(trial_of(tmp_path, "alpha-untargeted", draws=7)) == first


@pytest.mark.parametrize(("cell", "rate", "alpha"), [(1, 0.5, 0.5), (2, 0.5, 1.0), (3, 0.0, 0.0)])
def test_the_settings_of_a_cell_reach_the_network(tmp_path: Path, cell: int, rate: float, alpha: float) -> None:
    trial = trial_of(tmp_path, "alpha-untargeted", cell)
    model = dropout_network(trial, load_images(trial))
    assert [module.p for module in model.modules() if isinstance(module, RandomDropout)] == [rate, rate]
    assert [layer.out_features for layer in model.modules() if isinstance(layer, nn.Linear)] == [16, 10]
    method = dubio.spec(model).method
    assert isinstance(method, dubio.Dropout)
    assert method.objective() == Alpha(alpha, l2=1e-6)


def test_one_draw_makes_every_alpha_the_same(tmp_path: Path) -> None:
    states = []
    for alpha in (0.0, 1.0):
        trial = trial_of(tmp_path, "alpha-samples", train_draws=1, alpha=alpha)
        states.append(timed_network(trial, load_images(trial)).model.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_timed_network_is_trained_once_and_tells_how_it_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = trial_of(tmp_path, "alpha-samples", 1, epochs=4, watch_every=2)
    first = timed_network(trial, load_images(trial))
    told = first.history
    assert told["epoch"].tolist() == [2.0, 4.0]
    assert told["accuracy"].shape == told["test_ll"].shape == (2,)
    assert told["seconds"].item() > 0.0
    monkeypatch.setattr("dubio_lab.protocols.alpha_networks.fit", None)
    again = timed_network(trial, load_images(trial))
    assert torch.equal(again.history["test_ll"], told["test_ll"])
    assert all(torch.equal(value, again.model.state_dict()[name]) for name, value in first.model.state_dict().items())
    found = PROTOCOLS["alpha_samples"](trial)
    # The last look and the answer are by the same draws of the same network.
    assert found.curves["test_ll"].y[-1] == pytest.approx(found.metrics["test_ll"].value)
    assert found.curves["accuracy"].y[-1] == pytest.approx(found.metrics["accuracy"].value)
    assert found.metrics["seconds"].value == pytest.approx(4 * told["seconds"].item())
    assert found.curves["test_ll"].x == pytest.approx((2 * told["seconds"].item(), 4 * told["seconds"].item()))


def test_seconds_of_looking_are_not_those_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = trial_of(tmp_path, "alpha-samples", epochs=3, watch_every=1)
    real = alpha_networks._look

    def look(*given: Any) -> dict[str, float]:
        time.sleep(0.5)
        return real(*given)

    monkeypatch.setattr(alpha_networks, "_look", look)
    assert 0.0 < timed_network(trial, load_images(trial)).history["seconds"].item() < 0.3


def test_log_likelihoods_are_summed_over_images() -> None:
    log_probs = torch.tensor([[0.8, 0.2], [0.3, 0.7], [0.5, 0.5]]).log()
    found = ClassificationPredictive(1, 0, None, log_probs, torch.zeros(3), log_probs.exp(), log_probs.exp(), None)
    total, error = summed_log_likelihood(found, torch.tensor([0, 0, 1]))
    own = torch.tensor([0.8, 0.3, 0.5]).log().double()
    assert total == pytest.approx(own.sum().item())
    assert error == pytest.approx(own.std().item() * math.sqrt(3))


class Brightness(nn.Module):
    """Takes an image for a zero the surer the brighter its first pixel is, else for a nine."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(20.0))

    def forward(self, images: Tensor) -> Tensor:
        bright = images.flatten(1)[:, 0] - 0.055
        return self.weight * torch.stack([bright, *[torch.zeros_like(bright) - 9.0] * 8, -bright], dim=1)


@pytest.fixture
def bright(monkeypatch: pytest.MonkeyPatch) -> nn.Module:
    """A network that stands in the place of the trained one."""
    model = dubio.Deterministic().convert(Brightness())
    monkeypatch.setattr(alpha_attacks, "dropout_network", lambda trial, splits: model)
    return model


@pytest.mark.feature("`dubio reproduce`: dropout with alpha-divergences (Li and Gal 2017), under attack and on MNIST")
def test_steps_towards_a_class_are_told_one_by_one_and_its_own_images_left_out(
    tmp_path: Path, bright: nn.Module
) -> None:
    trial = trial_of(tmp_path, "alpha-targeted", steps=10, middle_step=5, draws=1, attack_draws=1)
    images, labels = wanted_classes(trial)
    assert (images[:, 0, 0, 0] == 0.0).all()  # the corner of digits is dark
    found = PROTOCOLS["alpha_targeted"](trial)
    # The first pixel rises by 0.01 a step, and passes 0.055 with the sixth.
    nines = 100.0 * (labels == 9).double().mean().item()
    assert found.curves["target"].y == (0.0,) * 6 + (100.0,) * 5
    assert found.curves["original"].y == pytest.approx([nines] * 6 + [0.0] * 5)
    assert found.curves["target"].x == tuple(map(float, range(11)))
    assert (found.metrics["target_middle"].value, found.metrics["target_end"].value) == (0.0, 100.0)
    assert found.metrics["target_end"].n == len(images)
    entropy = found.curves["entropy"].y
    assert max(entropy) == max(entropy[5:7])  # most in doubt where it changes its mind
    assert (tmp_path / "pictures" / "cell-ways.png").stat().st_size > 1000


def test_one_step_leaves_what_the_network_takes_an_image_for(tmp_path: Path, bright: nn.Module) -> None:
    trial = trial_of(tmp_path, "alpha-untargeted", draws=1, attack_draws=1, etas=[0.0, 0.02, 0.1, 0.2, 0.3])
    test = load_images(trial).test
    assert test is not None
    shares = [100.0 * (test.targets == label).double().mean().item() for label in (0, 9)]
    found = PROTOCOLS["alpha_untargeted"](trial)
    # All are taken for nines, whatever they are; from 0.055 on, for zeros.
    assert found.curves["accuracy"].y == pytest.approx([shares[1]] * 2 + [shares[0]] * 3)
    assert found.metrics["accuracy_at_0.1"].value == pytest.approx(shares[0])
    rise = found.metrics["entropy_at_0.3"].value - found.metrics["entropy_at_0"].value
    assert found.metrics["entropy_rises"].value == pytest.approx(rise)
    assert found.curves["entropy_error"].y[0] == pytest.approx(0.0, abs=1e-6)  # the same answer for all of them


def test_detection_is_tried_on_the_networks_of_the_untargeted_attack(tmp_path: Path) -> None:
    tried, attacked = (load_spec(name) for name in ("dad-detection", "alpha-untargeted"))

    def networks(spec: Any) -> set[str]:
        device = torch.device("cpu")
        return {str(described(Trial(spec.settings_of(cell), 0, device, tmp_path, tmp_path))) for cell in spec.cells}

    assert networks(tried) == networks(attacked)
    near, far = ([cell for cell in tried.cells if cell.name.endswith("-far") is is_far] for is_far in (False, True))
    assert [{**cell.settings, "epsilon": 0.2} for cell in near] == [cell.settings for cell in far]
    names = {name.rpartition("evade_")[2] for name in tried.metrics if "evade_" in name}
    assert names == {f"{weight:g}" for weight in tried.settings["evade_weights"]}


def said(confidence: list[float], labels: list[int]) -> ClassificationPredictive:
    """The answers of one draw for two classes, each with some confidence."""
    top = torch.tensor(confidence)[:, None]
    probs = torch.where(torch.arange(2) == torch.tensor(labels)[:, None], top, 1.0 - top)
    entropy = -(probs * probs.log()).sum(dim=-1)
    return ClassificationPredictive(1, 0, None, probs.log(), entropy, probs.square(), probs, None)


def test_what_an_attack_turns_to_wrong_is_to_be_detected_and_what_was_wrong_is_not() -> None:
    targets = torch.zeros(5).long()
    before = said([0.9, 0.8, 0.95, 0.7, 0.99], [0, 0, 0, 0, 1])  # the last is wrong already
    noise = said([0.55, 0.8, 0.95, 0.7, 0.99], [0, 0, 0, 0, 1])
    after = said([0.6, 0.97, 0.9, 0.7, 0.99], [1, 1, 0, 0, 1])  # two are turned, one of them sure
    clean = CleanImages(before, targets, threshold=float(before.entropy[1]) + 1e-6)
    found = {name: value.value for name, value in detected(clean, noise, after).items()}
    assert found["accuracy"] == pytest.approx(40.0)
    assert found["accepted_wrong"] == pytest.approx(40.0)  # the sure one of the two, and the one that was wrong
    assert found["auroc"] == pytest.approx((5 + 1) / 10)  # 0.6 above all five, 0.97 above 0.99 alone
    assert found["auroc_over_noise"] == pytest.approx((4 + 1) / 10)  # less sure than 0.6 is a noisy one
    assert found["false_alarms"] == pytest.approx(80.0)  # all but 0.99 are less sure than 0.97
    assert found["auroc_mutual_information"] == pytest.approx(0.5)
    nothing = detected(clean, noise, before)
    assert {name: (nothing[name].value, nothing[name].n) for name in ("auroc", "false_alarms")} == {
        "auroc": (1.0, 0),
        "false_alarms": (0.0, 0),
    }


def test_the_threshold_rejects_a_share_of_held_out_images_and_attackers_try_to_stay_below_it(tmp_path: Path) -> None:
    options = {"hidden": [32], "epochs": 40, "lr": 0.1, "num_train": 1000, "draws": 20, "num_test": 400}
    trial = trial_of(
        tmp_path, "dad-detection", 0, **options, attack_draws=10, attack_steps=20, epsilon=0.15, rejected_percent=20.0
    )
    found = {name: value.value for name, value in PROTOCOLS["alpha_detection"](trial).metrics.items()}
    assert found["accuracy_clean"] > 85.0
    assert 10.0 < found["rejected_clean"] < 35.0  # held-out images are others
    assert found["accuracy_pgd"] < found["accuracy_noise"] - 20.0
    aware = max(found[f"accepted_wrong_evade_{weight}"] for weight in ("0.1", "1", "10"))
    assert aware > found["accepted_wrong_pgd"] >= found["accepted_wrong_noise"]
    assert found["auroc_evade_10"] < found["auroc_pgd"]
    assert found["rejected_raised"] > 40.0


def test_splits_are_random_disjoint_and_cover_the_table() -> None:
    table = diabetes_table()
    (train, test), (other, _) = (random_split(table, 0.1, seed) for seed in (0, 1))
    assert (len(train), len(test)) == (398, 44)
    both = torch.cat([train.inputs, test.inputs])
    assert torch.equal(both.sort(dim=0).values, table.inputs.sort(dim=0).values)
    assert not torch.equal(train.inputs, other.inputs)


def test_regression_is_judged_in_the_unit_of_the_targets() -> None:
    seen = torch.tensor([[80.0], [100.0], [120.0]])  # mean 100, standard deviation 20
    samples = torch.tensor([0.0, 1.0]).reshape(2, 1, 1)
    half, none = torch.full((2, 1, 1), 0.5), torch.zeros(1, 1)
    found = RegressionPredictive(2, 0, samples, samples.mean(dim=0), none, none, half)
    measures = measures_in_units(found, torch.tensor([[105.0]]), seen)
    densities = torch.distributions.Normal(torch.tensor([100.0, 120.0]), 10.0).log_prob(torch.tensor(105.0))
    assert measures["square"].item() == pytest.approx(25.0)
    assert measures["nll"].item() == pytest.approx(-densities.exp().mean().log().item(), rel=1e-6)


def test_the_precision_is_that_of_the_likeliest_held_out_rows(tmp_path: Path) -> None:
    trial = trial_of(tmp_path, "alpha-regression", precisions=[1e-2, 1.0, 1e4])
    found = PROTOCOLS["alpha_regression"](trial)
    assert found.metrics["precision"].value == 1.0
    assert found.metrics["rmse"].n == 44
