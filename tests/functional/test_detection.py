"""Scores that tell two sets apart, against scikit-learn, with ties."""

import numpy as np
import pytest
import torch
from torch import Tensor

from dubio import functional


def sets(decimals: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    negative = torch.randn(83, generator=generator, dtype=torch.float64)
    positive = torch.randn(57, generator=generator, dtype=torch.float64) + 0.7
    return negative.round(decimals=decimals), positive.round(decimals=decimals)


@pytest.mark.parametrize("decimals", [0, 1, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_areas_are_those_of_scikit_learn(decimals: int, seed: int) -> None:
    from sklearn.metrics import average_precision_score, roc_auc_score

    negative, positive = sets(decimals, seed)
    labels = np.r_[np.zeros(len(negative)), np.ones(len(positive))]
    scores = np.r_[negative.numpy(), positive.numpy()]
    assert functional.uncertainty.auroc(negative, positive).item() == pytest.approx(roc_auc_score(labels, scores))
    expected = average_precision_score(labels, scores)
    assert functional.uncertainty.average_precision(negative, positive).item() == pytest.approx(expected)


@pytest.mark.parametrize("recall", [0.5, 0.95, 1.0])
@pytest.mark.parametrize("decimals", [0, 8])
def test_false_positives_at_a_recall_are_those_of_the_curve(recall: float, decimals: int) -> None:
    from sklearn.metrics import roc_curve

    negative, positive = sets(decimals, 2)
    labels = np.r_[np.zeros(len(negative)), np.ones(len(positive))]
    false, true, _ = roc_curve(labels, np.r_[negative.numpy(), positive.numpy()], drop_intermediate=False)
    expected = false[true >= recall - 1e-12].min()
    assert functional.uncertainty.false_positive_rate(negative, positive, recall).item() == pytest.approx(expected)


def test_order_alone_matters_and_swapping_the_sets_mirrors() -> None:
    negative, positive = sets(8, 3)
    found = functional.uncertainty.auroc(negative, positive)
    torch.testing.assert_close(functional.uncertainty.auroc(negative.exp(), positive.exp()), found)
    torch.testing.assert_close(functional.uncertainty.auroc(positive, negative), 1.0 - found)
    assert functional.uncertainty.auroc(torch.zeros(4), torch.zeros(3)) == 0.5
    assert functional.uncertainty.auroc(torch.zeros(4), torch.ones(3)) == 1.0


def test_risk_and_coverage_by_hand() -> None:
    confidence = torch.tensor([0.9, 0.8, 0.8, 0.4])
    correct = torch.tensor([True, False, True, False])
    coverage, risk = functional.uncertainty.risk_coverage(confidence, correct)
    assert coverage.tolist() == [0.25, 0.75, 1.0]
    assert risk.tolist() == pytest.approx([0.0, 1 / 3, 0.5])
    area = functional.uncertainty.area_under_risk(confidence, correct)
    assert area.item() == pytest.approx(0.25 * 0.0 + 0.5 / 3 + 0.25 * 0.5)


def test_the_best_order_has_the_least_area() -> None:
    correct = torch.rand(60, generator=torch.Generator().manual_seed(6)) < 0.7
    best = functional.uncertainty.area_under_risk(correct.float() + torch.linspace(0, 0.1, 60), correct)
    worst = functional.uncertainty.area_under_risk(-correct.float() + torch.linspace(0, 0.1, 60), correct)
    constant = functional.uncertainty.area_under_risk(torch.ones(60), correct)
    assert best < constant < worst
    assert constant.item() == pytest.approx(1.0 - correct.double().mean().item())


def test_what_has_no_order_is_refused() -> None:
    with pytest.raises(ValueError, match=r"positive must hold one score per example, and at least one, got \(0,\)"):
        functional.uncertainty.auroc(torch.zeros(3), torch.zeros(0))
    with pytest.raises(ValueError, match="negative must hold numbers, got NaN"):
        functional.uncertainty.auroc(torch.tensor([float("nan")]), torch.zeros(1))
    with pytest.raises(ValueError, match=r"recall must be in \(0, 1\], got 0\.0"):
        functional.uncertainty.false_positive_rate(torch.zeros(3), torch.zeros(3), 0.0)
