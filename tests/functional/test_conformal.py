"""Prediction sets against plain NumPy, their known answers, and the coverage they promise."""

import numpy as np
import pytest
import torch

from dubio import functional
from reference import conformal


@pytest.fixture
def probs() -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.full(5, 0.5), size=40)


def test_known_scores():
    log_probs = torch.tensor([[0.2, 0.5, 0.3], [0.4, 0.2, 0.4]], dtype=torch.float64).log()

    lac = functional.calibration.conformal_scores(log_probs, "lac")
    aps = functional.calibration.conformal_scores(log_probs, "aps")

    np.testing.assert_allclose(lac, [[0.8, 0.5, 0.7], [0.6, 0.8, 0.6]])
    np.testing.assert_allclose(aps, [[0.8, 0.0, 0.5], [0.0, 0.8, 0.0]])  # equal classes have the same ones before them


@pytest.mark.parametrize("kind", ["lac", "aps"])
@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.9])
def test_scores_quantile_and_sets_equal_those_of_numpy(probs, kind, coverage):
    log_probs = torch.from_numpy(probs).log()
    labels = np.random.default_rng(1).integers(5, size=40)

    found = functional.calibration.conformal_scores(log_probs, kind)
    quantile = functional.calibration.conformal_quantile(
        found[torch.arange(40), torch.from_numpy(labels)], coverage
    ).item()
    sets = functional.calibration.prediction_sets(log_probs, kind, quantile, allow_empty=True)

    wanted = conformal.scores(probs, kind)
    bound = conformal.quantile(wanted[np.arange(40), labels], coverage)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    assert quantile == pytest.approx(bound, abs=1e-12)
    assert [row.nonzero().flatten().tolist() for row in sets] == conformal.sets(probs, kind, bound + 1e-12)


@pytest.mark.parametrize(
    ("count", "coverage", "rank"),
    [(9, 0.9, 9), (8, 0.9, 9), (99, 0.9, 90), (100, 0.9, 91), (19, 0.95, 19), (9, 0.3, 3)],
)
def test_the_rank_is_rounded_up_but_for_rounding_errors(count, coverage, rank):
    assert functional.calibration.conformal_rank(count, coverage) == rank


def test_no_set_is_empty_unless_it_may_be():
    log_probs = torch.tensor([[0.4, 0.3, 0.3], [0.9, 0.05, 0.05]]).log()

    sets = functional.calibration.prediction_sets(log_probs, "lac", 0.5)
    may = functional.calibration.prediction_sets(log_probs, "lac", 0.5, allow_empty=True)

    assert sets.tolist() == [[True, False, False], [True, False, False]]
    assert may.tolist() == [[False, False, False], [True, False, False]]


@pytest.mark.parametrize("kind", ["lac", "aps"])
def test_a_probability_too_small_for_one_minus_it_still_tells_classes_apart_where_it_can(kind):
    log_probs = torch.tensor([[0.0, -50.0, -100.0]], dtype=torch.float32)

    scores = functional.calibration.conformal_scores(log_probs, kind)

    assert scores.dtype == torch.float64
    assert scores[0, 0] < scores[0, 1] <= scores[0, 2]


@pytest.mark.parametrize("kind", ["lac", "aps"])
def test_coverage_is_what_was_asked_for_even_of_a_network_that_is_wrong(kind):
    generator = torch.Generator().manual_seed(0)
    count, coverage, repeats = 50, 0.8, 2000
    logits = 2.0 * torch.randn(repeats, count + 1, 4, generator=generator)
    labels = torch.multinomial(logits.flatten(0, 1).softmax(dim=-1), 1, generator=generator).view(repeats, count + 1, 1)
    believed = (-0.3 * logits + torch.randn(logits.shape, generator=generator)).log_softmax(
        dim=-1
    )  # nearly the opposite
    own = functional.calibration.conformal_scores(believed, kind).gather(-1, labels).squeeze(-1)

    covered = torch.stack(
        [row[-1] <= functional.calibration.conformal_quantile(row[:-1], coverage) for row in own]
    ).double()

    exact = functional.calibration.conformal_rank(count, coverage) / (count + 1)
    assert (covered.mean() - exact).abs() < 4 * (exact * (1 - exact) / repeats) ** 0.5


def test_refusals():
    with pytest.raises(ValueError, match=r"coverage must be in \(0, 1\), got 1.0"):
        functional.calibration.conformal_quantile(torch.rand(10), 1.0)
    with pytest.raises(ValueError, match=r"coverage 0\.95 needs more scores than 10: the bound would be their 11th"):
        functional.calibration.conformal_quantile(torch.rand(10), 0.95)
