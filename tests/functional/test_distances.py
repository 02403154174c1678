"""Distances of all pairs against the plain differences, and what an expanded square may lose."""

import pytest
import torch

from dubio import functional

FLOAT64 = {"dtype": torch.float64}


def differences(rows: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    return rows.unsqueeze(-2) - others


@pytest.mark.parametrize("batch", [(), (1,), (7,), (2, 3), (0,)])
def test_all_pairs_equal_the_plain_differences_for_any_batch(batch):
    rows, others = torch.randn(*batch, 5, **FLOAT64), torch.randn(4, 5, **FLOAT64)

    gaps = differences(rows, others)

    torch.testing.assert_close(functional.wasserstein.squared_distances(rows, others), gaps.square().sum(dim=-1))
    torch.testing.assert_close(functional.wasserstein.pairwise_norms(rows, others, 1), gaps.abs().sum(dim=-1))
    torch.testing.assert_close(functional.wasserstein.pairwise_norms(rows, others, 2), gaps.norm(dim=-1))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("offset", [0.0, 10.0, 1000.0])
def test_what_all_rows_share_costs_no_digits(offset, autocast):
    rows, others = torch.randn(20, 800) + offset, torch.randn(6, 800) + offset
    exact = differences(rows.double(), others.double()).square().sum(dim=-1)

    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        found = functional.wasserstein.squared_distances(rows, others)

    assert found.dtype == torch.float32
    assert ((found.double() - exact).abs() / exact).max() < 2e-6


def test_half_precision_is_widened():
    rows, others = torch.randn(3, 8).bfloat16() + 16, torch.randn(2, 8).bfloat16() + 16

    exact = differences(rows.float(), others.float())

    torch.testing.assert_close(functional.wasserstein.squared_distances(rows, others), exact.square().sum(dim=-1))
    torch.testing.assert_close(functional.wasserstein.pairwise_norms(rows, others, 1), exact.abs().sum(dim=-1))


def test_a_squared_distance_is_never_negative_and_keeps_its_gradient_where_rounding_would_make_it_so():
    others = 10.0 * torch.randn(64, 100)
    rows = (others + 1e-4 * torch.randn(64, 100)).requires_grad_()

    own = functional.wasserstein.squared_distances(rows, others).diagonal()

    assert own.min() == 0.0  # many are: the rounding of |a|^2 + |b|^2 is far above |a - b|^2
    assert own.max() < 0.02
    (gradient,) = torch.autograd.grad(own.sum(), rows)
    torch.testing.assert_close(gradient, 2.0 * (rows - others).detach(), rtol=0.0, atol=2e-5)


def test_gradients_are_those_of_the_plain_differences():
    rows, others = (torch.randn(n, 3, **FLOAT64, requires_grad=True) for n in (4, 2))
    weights = torch.randn(4, 2, **FLOAT64)

    found = torch.autograd.grad(
        (weights * functional.wasserstein.squared_distances(rows, others)).sum(), (rows, others)
    )

    expected = torch.autograd.grad((weights * differences(rows, others).square().sum(dim=-1)).sum(), (rows, others))
    torch.testing.assert_close(found, expected)


def test_norms_of_coinciding_rows_have_gradient_zero():
    rows = torch.randn(3, 4, requires_grad=True)

    (gradient,) = torch.autograd.grad(
        functional.wasserstein.pairwise_norms(rows, rows.detach(), 2).diagonal().sum(), rows
    )

    assert (gradient == 0.0).all()
