"""What experiments ask of every network: the numbers are those of networks whose answers are known."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.data.examples import Examples, Splits
from dubio_lab.protocols import Trial
from dubio_lab.protocols.images import load_unseen
from dubio_lab.protocols.judging import judge
from dubio_lab.protocols.measuring import mean_of, predict_classes, quality, share

SETTINGS = {
    "data": "digits",
    "num_validation": 100,
    "draws": 8,
    "judge_epsilon": 0.1,
    "judge_images": 24,
    "judge_steps": 2,
    "judge_draws": 3,
    "audit_budget": "tiny",
    "audit_images": 12,
}


def test_quality_is_that_of_the_log_probabilities() -> None:
    log_probs = torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.4, 0.6], [0.1, 0.9]]).log()
    found = quality(log_probs, torch.tensor([0, 1, 1, 1]))
    assert found["accuracy"].value == 75.0
    assert found["accuracy"].standard_error == pytest.approx(100 * (0.75 * 0.25 / 4) ** 0.5)
    assert found["nll"].value == pytest.approx(-torch.tensor([0.8, 0.2, 0.6, 0.9]).log().mean().item())
    assert found["ece"].value == pytest.approx(100 * (0.5 * 0.3 + 0.25 * 0.4 + 0.25 * 0.1), abs=1e-4)
    assert share(torch.tensor([True, False])).n == 2
    mean = mean_of(torch.tensor([1.0, 2.0, 6.0]))
    assert (mean.value, mean.n) == (3.0, 3)
    assert mean.standard_error == pytest.approx((7.0 / 3) ** 0.5)
    assert mean_of(torch.tensor([4.0])).standard_error is None


class Reader(nn.Module):
    """Reads the class off the brightest of ten pixels, and is sure of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        with torch.no_grad():
            self.linear.bias.zero_()
            self.linear.weight.copy_(20.0 * torch.eye(10, 64))

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(images.flatten(1))


def test_a_network_is_judged_by_its_predictions_unseen_data_attacks_and_an_audit(tmp_path: Path) -> None:
    labels = torch.arange(10).repeat(10)
    pixels = torch.zeros(100, 1, 8, 8)
    pixels.view(100, 64)[torch.arange(100), labels] = 0.15
    names = tuple("0123456789")
    wrong = labels.clone()
    wrong[:50] = (wrong[:50] + 1) % 10
    splits = Splits(None, Examples(pixels, wrong, names), Examples(pixels, labels, names))
    model = dubio.Deterministic().convert(Reader())
    told: list[str] = []
    found = judge(Trial(SETTINGS, 0, torch.device("cpu"), tmp_path, tmp_path, told.append), model, splits)

    assert found.metrics["accuracy"].value == 100.0
    assert found.metrics["temperature"].value > 1.0  # wrong labels among the held-out data call for more doubt
    assert found.metrics["ece_after_temperature"].value > found.metrics["ece"].value
    assert found.metrics["auroc_mutual_information_noise"].value == 0.5  # no draws, no mutual information
    # At 0.1 the brightest pixel can fall to 0.05 and another rise to 0.1: nothing is left, whatever the draws.
    assert [found.metrics[f"accuracy_pgd_{name}"].value for name in ("one_draw", "eot")] == [0.0, 0.0]
    assert (found.metrics["audit_accuracy"].value, found.metrics["audit_accuracy"].n) == (0.0, 12)
    assert "of 12 images at 0.1" in found.notes["verdict"]
    assert told == ["predicted", "attacked"]


def test_doubt_about_seen_and_unseen_images_is_compared_before_any_scaling(tmp_path: Path) -> None:
    splits = dubio.data.load("digits", validation=200)
    assert splits.test is not None
    torch.manual_seed(0)
    model = dubio.Bayes(init_std=0.3).convert(dubio.models.build("mlp:64-10"))
    trial = Trial({**SETTINGS, "audit_images": 0}, 3, torch.device("cpu"), tmp_path, tmp_path)
    found = judge(trial, model, splits).metrics
    assert abs(found["temperature"].value - 1.0) > 0.2
    noise = load_unseen(trial)["noise"]
    seen, unseen = (predict_classes(trial, model, part.tensors[0]) for part in (splits.test, noise))
    again = dubio.predict(model, noise.tensors[0], 8, seed=1003, decisions=False)
    torch.testing.assert_close(unseen.entropy, again.entropy)
    area = dubio.functional.uncertainty.auroc(seen.entropy.double(), again.entropy.double()).item()
    assert found["auroc_entropy_noise"].value == pytest.approx(area)


def test_attacked_draws_are_sets_of_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = dubio.Bayes(estimator="local").convert(dubio.models.build("mlp:64-10"))
    used: list[Any] = []
    monkeypatch.setattr(type(model[1]), "_local", lambda *given: used.append(given))
    trial = Trial({**SETTINGS, "audit_images": 0}, 0, torch.device("cpu"), tmp_path, tmp_path)
    judge(trial, model, dubio.data.load("digits", validation=200))
    assert used == []
