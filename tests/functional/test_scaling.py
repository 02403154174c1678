"""Temperature and vector scaling: limits, and what they leave as it is (T-67)."""

import math

import pytest
import torch

from dubio import functional


@pytest.fixture
def logits() -> torch.Tensor:
    return 3.0 * torch.randn(50, 6, dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 4.0])
def test_t67_a_temperature_on_log_probabilities_is_one_on_logits_and_keeps_the_order(logits, temperature):
    found = functional.calibration.scaled_log_probs(logits.log_softmax(dim=-1), temperature)

    torch.testing.assert_close(found, (logits / temperature).log_softmax(dim=-1))
    assert (found.argsort(dim=-1) == logits.argsort(dim=-1)).all()


def test_t67_at_one_nothing_changes_and_far_above_all_classes_are_equal(logits):
    log_probs = logits.log_softmax(dim=-1)

    torch.testing.assert_close(functional.calibration.scaled_log_probs(log_probs, 1.0), log_probs)
    far = functional.calibration.scaled_log_probs(log_probs, 1e6)
    torch.testing.assert_close(far, torch.full_like(far, -math.log(6)), atol=1e-4, rtol=0.0)


def test_draws_are_scaled_before_they_are_averaged():
    samples = torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]]], dtype=torch.float64).log()

    found = functional.calibration.scaled_mixture(samples, 0.5).exp()

    first, second = 0.81 / (0.81 + 0.01), 0.04 / (0.04 + 0.64)
    assert found[0, 0].item() == pytest.approx((first + second) / 2)
    assert found[0, 0].item() != pytest.approx(
        functional.calibration.scaled_log_probs(torch.tensor([0.55, 0.45]).log(), 0.5)[0]
    )


def test_vector_scaling_multiplies_and_adds_class_by_class(logits):
    scale, bias = torch.rand(6, dtype=torch.float64) + 0.5, torch.randn(6, dtype=torch.float64)
    log_probs = logits.log_softmax(dim=-1)

    found = functional.calibration.vector_scaled_log_probs(log_probs, scale, bias)

    torch.testing.assert_close(found, (log_probs * scale + bias).log_softmax(dim=-1))
    identity = functional.calibration.vector_scaled_log_probs(log_probs, torch.ones_like(scale), torch.zeros_like(bias))
    torch.testing.assert_close(identity, log_probs)
    assert functional.calibration.departure_from_identity(torch.ones_like(scale), torch.zeros_like(bias)) == 0.0
    assert functional.calibration.departure_from_identity(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 0.0])) == 2.5


def test_an_impossible_class_stays_impossible_and_is_no_nan():
    log_probs = torch.tensor([[0.0, -math.inf, -math.inf]])

    assert functional.calibration.scaled_log_probs(log_probs, 5.0).exp().tolist() == [[1.0, 0.0, 0.0]]
    turned = functional.calibration.vector_scaled_log_probs(log_probs, torch.ones(3), torch.tensor([0.0, 1.0, -1.0]))
    assert turned.exp().tolist() == [[1.0, 0.0, 0.0]]


def test_a_free_number_becomes_its_exponential_near_zero_and_stays_within_bounds():
    free = torch.tensor([0.0, 0.01, -0.01], dtype=torch.float64)

    found = torch.stack([functional.calibration.bounded_temperature(number, 20.0) for number in free])

    torch.testing.assert_close(found, free.exp(), rtol=1e-6, atol=0.0)
    for far, edge in ((1e6, 20.0), (-1e6, 0.05)):
        assert functional.calibration.bounded_temperature(torch.tensor(far), 20.0).item() == pytest.approx(edge)
