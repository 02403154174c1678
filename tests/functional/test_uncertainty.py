"""Summaries of doubt against plain NumPy, and their limits (T-68)."""

import math

import numpy as np
import pytest
import torch

from dubio import functional
from reference import uncertainty


@pytest.fixture
def log_probs() -> torch.Tensor:
    """Seven draws that disagree about twelve inputs of five classes."""
    return (3.0 * torch.randn(7, 12, 5, dtype=torch.float64)).log_softmax(dim=-1)


def predictive_and_expected_entropy(log_probs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    predictive = functional.uncertainty.entropy(functional.uncertainty.predictive_log_probs(log_probs).exp())
    return predictive, functional.uncertainty.expected_entropy(log_probs)


def test_probabilities_are_averaged_and_never_logits(log_probs):
    found = functional.uncertainty.predictive_log_probs(log_probs).exp()

    np.testing.assert_allclose(found.numpy(), uncertainty.mean_probs(log_probs.exp().numpy()), rtol=1e-12)
    averaged_logits = log_probs.mean(dim=0).softmax(dim=-1)
    assert (found - averaged_logits).abs().max() > 0.05


def test_mean_probability_survives_where_every_draw_underflows():
    log_probs = torch.tensor([[[0.0, -2000.0]], [[0.0, -1000.0]]])

    found = functional.uncertainty.predictive_log_probs(log_probs)

    np.testing.assert_allclose(found.numpy(), [[0.0, -1000.0 - math.log(2)]], rtol=1e-6)


def test_log_of_the_mean_probability_is_at_least_the_mean_log(log_probs):
    assert (functional.uncertainty.predictive_log_probs(log_probs) >= log_probs.mean(dim=0)).all()


@pytest.mark.feature("Doubt splits into entropy of the data and mutual information, as derived in NumPy")
def test_entropies_and_mutual_information_equal_their_definitions(log_probs):
    probs = log_probs.exp().numpy()

    predictive, expected = predictive_and_expected_entropy(log_probs)
    information = functional.uncertainty.mutual_information(predictive, expected)

    np.testing.assert_allclose(predictive, uncertainty.entropy(uncertainty.mean_probs(probs)), rtol=1e-6)
    np.testing.assert_allclose(expected, uncertainty.expected_entropy(probs), rtol=1e-6)
    np.testing.assert_allclose(information, uncertainty.mutual_information(probs), rtol=1e-6)


def test_entropy_of_certainty_is_zero_and_of_equal_classes_the_log_of_their_number():
    certain, equal = torch.eye(10)[3], torch.full((10,), 0.1)

    assert functional.uncertainty.entropy(certain).item() == 0.0
    assert functional.uncertainty.entropy(equal).item() == pytest.approx(math.log(10), rel=1e-6)


def test_t68_predictive_entropy_is_at_most_the_log_of_the_number_of_classes(log_probs):
    predictive, _ = predictive_and_expected_entropy(log_probs)

    assert (predictive <= math.log(5)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1e-4, 1e-2, 1.0, 30.0])
def test_t68_mutual_information_is_never_negative(spread, dtype):
    shared = torch.randn(200, 10, dtype=dtype)
    log_probs = (shared + spread * torch.randn(4, 200, 10, dtype=dtype)).log_softmax(dim=-1)

    assert (functional.uncertainty.mutual_information(*predictive_and_expected_entropy(log_probs)) >= 0.0).all()


def test_t68_mutual_information_of_equal_draws_is_zero():
    log_probs = torch.randn(200, 10, dtype=torch.float64).log_softmax(dim=-1).expand(8, 200, 10)

    information = functional.uncertainty.mutual_information(*predictive_and_expected_entropy(log_probs))

    np.testing.assert_allclose(information.numpy(), 0.0, atol=1e-14)


def test_mutual_information_of_draws_certain_of_different_classes_is_all_their_doubt():
    log_probs = torch.eye(4, dtype=torch.float64).clamp_min(1e-30).log().unsqueeze(1)

    predictive, expected = predictive_and_expected_entropy(log_probs)

    assert expected.item() == pytest.approx(0.0, abs=1e-25)
    assert functional.uncertainty.mutual_information(predictive, expected).item() == pytest.approx(math.log(4))


def test_class_variance_has_divisor_sample(log_probs):
    probs = log_probs.exp()

    found = functional.uncertainty.class_variance(probs.square().mean(dim=0), probs.mean(dim=0))

    np.testing.assert_allclose(found, uncertainty.class_variance(probs.numpy()), rtol=1e-9, atol=1e-15)


def test_class_variance_is_never_negative_by_rounding():
    probs = torch.full((3, 1), 0.1)

    found = functional.uncertainty.class_variance(probs.square() * (1 - 1e-6), probs)

    assert (found == 0.0).all()


def test_votes_and_variation_ratio_equal_their_definitions(log_probs):
    probs = log_probs.exp().numpy()

    votes = functional.uncertainty.shares_of_counts(functional.uncertainty.vote_counts(log_probs.argmax(dim=-1), 5))

    np.testing.assert_allclose(votes, uncertainty.vote_shares(probs), atol=1e-7)
    np.testing.assert_allclose(
        functional.uncertainty.variation_ratio(votes), uncertainty.variation_ratio(probs), atol=1e-7
    )


def test_votes_of_classes_nobody_chose_are_zero():
    counts = functional.uncertainty.vote_counts(torch.tensor([[1], [1], [2], [1]]), 5)
    votes = functional.uncertainty.shares_of_counts(counts)

    assert counts.tolist() == [[0, 3, 1, 0, 0]]
    assert votes.tolist() == [[0.0, 0.75, 0.25, 0.0, 0.0]]
    assert functional.uncertainty.variation_ratio(votes).tolist() == [0.25]


def test_summaries_take_any_number_of_batch_axes(log_probs):
    pixels = log_probs.unflatten(1, (3, 4))

    for summary in (functional.uncertainty.predictive_log_probs, functional.uncertainty.expected_entropy):
        torch.testing.assert_close(summary(pixels).flatten(0, 1), summary(log_probs), rtol=0.0, atol=0.0)
