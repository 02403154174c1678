"""What experiments ask of every network: the numbers are those of networks whose answers are known."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.data import Examples, Splits
from dubio.experiments.protocols import Trial
from dubio.experiments.protocols.judging import judge, quality, share

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
