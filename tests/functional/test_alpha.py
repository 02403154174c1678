"""Alpha-divergences: identities, limits and the numbers of the specification (T-28 to T-32)."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from dubio import functional

ALPHAS = (0.0, 1e-9, 1e-3, 0.5, 1.0, 3.0, -0.5)
LOSSES = torch.tensor([0.1, 2.3, 0.7], dtype=torch.float64)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_t28_with_one_draw_every_alpha_is_the_loss(alpha: float) -> None:
    losses = torch.tensor([[0.3, 2.0, 7.0]], dtype=torch.float64, requires_grad=True)
    energy = functional.variational.alpha_energy(losses, alpha)
    torch.testing.assert_close(energy, losses[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(energy.sum(), losses)[0], torch.ones_like(losses))


@pytest.mark.parametrize(
    ("alpha", "expected"), [(0.0, 1.0333333), (1e-3, 1.0329023), (0.5, 0.8385660), (1.0, 0.6920268)]
)
def test_t29_values_are_those_of_the_specification(alpha: float, expected: float) -> None:
    assert functional.variational.alpha_energy(LOSSES, alpha).item() == pytest.approx(expected, abs=5e-8)


def test_t29_small_alphas_follow_the_expansion() -> None:
    for alpha in (1e-7, 9e-7, 1.1e-6, 1e-5, 1e-4):
        expansion = LOSSES.mean() - 0.5 * alpha * LOSSES.var(correction=0)
        assert abs(functional.variational.alpha_energy(LOSSES, alpha) - expansion).item() < 10 * alpha**2 + 1e-9


def test_t30_alpha_one_is_the_loss_of_the_mean_probability() -> None:
    log_probs = torch.randn(6, 4, 5, dtype=torch.float64).log_softmax(dim=-1)
    targets = torch.tensor([0, 3, 2, 4])
    losses = -log_probs[:, range(4), targets]
    expected = -functional.uncertainty.predictive_log_probs(log_probs)[range(4), targets]
    torch.testing.assert_close(functional.variational.alpha_energy(losses, 1.0), expected)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=8), st.randoms())
def test_t31_energies_fall_with_alpha_between_least_and_mean_whatever_the_order(values, random) -> None:
    losses = torch.tensor(values, dtype=torch.float64)
    energies = [functional.variational.alpha_energy(losses, alpha).item() for alpha in (0.0, 1e-4, 0.1, 0.5, 1.0, 5.0)]
    assert all(later <= earlier + 1e-6 for earlier, later in pairwise(energies))
    assert all(losses.min() - 1e-6 <= energy <= losses.mean() + 1e-6 for energy in energies)
    random.shuffle(values)
    shuffled = functional.variational.alpha_energy(torch.tensor(values, dtype=torch.float64), 0.5).item()
    assert shuffled == pytest.approx(energies[3], abs=1e-9)


def test_t31_equal_losses_give_exactly_that_loss() -> None:
    for alpha in ALPHAS:
        assert functional.variational.alpha_energy(torch.full((4,), 0.7), alpha).item() == pytest.approx(0.7, abs=1e-6)


def test_t32_large_logits_do_not_overflow_and_weights_of_draws_sum_to_one() -> None:
    logits = torch.tensor([[[1e4, -1e4, 0.0]], [[-1e4, 1e4, 0.0]]], requires_grad=True)
    losses = -logits.log_softmax(dim=-1)[..., 0]
    energy = functional.variational.alpha_energy(losses, 0.5)
    assert energy.isfinite().all()
    energy.sum().backward()
    assert logits.grad.isfinite().all()
    free = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    functional.variational.alpha_energy(free, 0.5).sum().backward()
    torch.testing.assert_close(free.grad.sum(dim=0), torch.ones(3, dtype=torch.float64))
    np.testing.assert_allclose(free.grad, torch.softmax(-0.5 * free.detach(), dim=0), rtol=1e-12)
