"""Calibration errors: numbers of the specification, streams, and an independent implementation."""

import numpy as np
import pytest
import torch
from torch import Tensor

from dubio import functional
from dubio.functional.calibration import BinSums


def by_hand(confidence: Tensor, correct: Tensor, num_bins: int) -> float:
    """One bin after another, in NumPy."""
    c, right = confidence.numpy().astype(float), correct.numpy().astype(float)
    error = 0.0
    for k in range(num_bins):
        inside = (c > k / num_bins) & (c <= (k + 1) / num_bins)
        if inside.any():
            error += inside.mean() * abs(right[inside].mean() - c[inside].mean())
    return error


def drawn(count: int = 500, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.rand(count, generator=generator, dtype=torch.float64)
    return confidence, torch.rand(count, generator=generator) < 0.6


def test_t65_six_examples_have_the_error_of_the_specification() -> None:
    confidence = torch.tensor([0.95, 0.90, 0.85, 0.59, 0.55, 0.30], dtype=torch.float64)
    correct = torch.tensor([1, 1, 0, 1, 0, 0]).bool()

    sums = functional.calibration.bin_sums(confidence, correct)

    assert functional.calibration.calibration_error(sums).item() == pytest.approx(0.24)
    share, mean, accuracy = functional.calibration.reliability(sums)
    filled = share > 0
    misprint = ((accuracy - mean).abs()[filled] / share[filled]).sum()  # the weight printed as 1 / B_i
    assert misprint > 1.0
    assert ((accuracy - mean).abs()[filled] * share[filled]).sum().item() == pytest.approx(0.24)


def test_t65_limits() -> None:
    confidence, _ = drawn(200_000)
    calibrated = torch.rand(200_000, generator=torch.Generator().manual_seed(1)) < confidence
    assert functional.calibration.calibration_error(functional.calibration.bin_sums(confidence, calibrated)) < 0.01
    sure, wrong = torch.ones(50), torch.zeros(50, dtype=torch.bool)
    assert functional.calibration.calibration_error(functional.calibration.bin_sums(sure, wrong)) == 1.0
    confidence, correct = drawn()
    one = functional.calibration.calibration_error(functional.calibration.bin_sums(confidence, correct, 1))
    assert one.item() == pytest.approx(abs(correct.double().mean().item() - confidence.mean().item()))


@pytest.mark.parametrize("num_bins", [1, 10, 15, 40])
def test_errors_are_those_of_bins_one_after_another(num_bins: int) -> None:
    confidence, correct = drawn()
    found = functional.calibration.calibration_error(functional.calibration.bin_sums(confidence, correct, num_bins))
    assert found.item() == pytest.approx(by_hand(confidence, correct, num_bins))


def test_edges_belong_to_the_bin_below_and_one_to_the_last() -> None:
    confidence = torch.tensor([0.0, 0.2, 0.2000001, 1.0], dtype=torch.float64)
    sums = functional.calibration.bin_sums(confidence, torch.ones(4, dtype=torch.bool), 5)
    assert sums.size.tolist() == [2.0, 1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("sizes", [[500], [1, 499], [100] * 5, [7, 293, 200]])
def test_t66_a_stream_gives_what_all_at_once_gives(sizes: list[int]) -> None:
    confidence, correct = drawn()
    whole = functional.calibration.bin_sums(confidence, correct)
    parts = [
        functional.calibration.bin_sums(one, other)
        for one, other in zip(confidence.split(sizes), correct.split(sizes), strict=True)
    ]
    total: BinSums = parts[0]
    for part in parts[1:]:
        total = total.plus(part)
    assert functional.calibration.calibration_error(total).item() == pytest.approx(
        functional.calibration.calibration_error(whole).item()
    )
    if len(sizes) == 5:  # the mean of batches' errors is another number
        mean = np.mean([functional.calibration.calibration_error(part).item() for part in parts])
        assert mean > functional.calibration.calibration_error(whole).item() + 0.01


def test_adaptive_bins_hold_equal_numbers() -> None:
    confidence, correct = drawn(300)
    order = np.argsort(confidence.numpy())
    pieces = np.array_split(order, 15)
    c, right = confidence.numpy(), correct.numpy().astype(float)
    expected = sum(len(piece) / 300 * abs(c[piece].mean() - right[piece].mean()) for piece in pieces)
    assert functional.calibration.adaptive_calibration_error(confidence, correct).item() == pytest.approx(expected)


def test_classwise_errors_are_averaged_over_classes() -> None:
    probs = torch.rand(200, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64).softmax(dim=1)
    targets = torch.randint(3, (200,), generator=torch.Generator().manual_seed(3))
    expected = np.mean([by_hand(probs[:, label], targets == label, 15) for label in range(3)])
    assert functional.calibration.classwise_calibration_error(probs, targets).item() == pytest.approx(expected)


def test_the_brier_score_is_that_of_scikit_learn_and_has_its_bounds() -> None:
    from sklearn.metrics import brier_score_loss

    probs = torch.rand(100, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    targets = torch.randint(2, (100,), generator=torch.Generator().manual_seed(5))
    found = functional.calibration.brier_score(torch.stack([1.0 - probs, probs], dim=1), targets)
    assert found.mean().item() == pytest.approx(2.0 * brier_score_loss(targets.numpy(), probs.numpy()))
    sure = torch.tensor([[1.0, 0.0, 0.0]])
    assert functional.calibration.brier_score(sure, torch.tensor([0])).item() == 0.0
    assert functional.calibration.brier_score(sure, torch.tensor([2])).item() == 2.0


def test_what_is_no_confidence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"confidence must be in \[0, 1\], got 0\.5 to 1\.5"):
        functional.calibration.bin_sums(torch.tensor([0.5, 1.5]), torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match="num_bins must be at least 1, got 0"):
        functional.calibration.bin_sums(torch.tensor([0.5]), torch.ones(1, dtype=torch.bool), 0)


def test_examples_match_whose_bin_is_right_as_often_as_it_is_sure() -> None:
    confidence = torch.tensor([0.95, 0.95, 0.75, 0.75, 0.55], dtype=torch.float64)
    sums = functional.calibration.bin_sums(confidence, torch.tensor([True, True, True, False, True]), num_bins=10)
    # Off by 0.05, 0.25 and 0.45, among two, two and one examples.
    shares = [functional.calibration.matching_share(sums, tolerance).item() for tolerance in (0.04, 0.06, 0.3, 0.5)]
    assert shares == pytest.approx([0.0, 0.4, 0.8, 1.0])
