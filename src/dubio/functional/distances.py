"""Distances between every row of one set and every row of another, without the array of their differences.

The squared distance is expanded, ``|a|^2 + |b|^2 - 2 a.b``, so that all pairs are one matrix product. Both sets are
first measured from the mean of the second: what is common to all rows would otherwise eat the digits of the difference.
The error that stays is the rounding of the rows' own size about that mean; where small distances must keep their
digits, ``pairwise_norms`` takes the differences themselves, pair by pair and still without keeping them.

Invariants: both equal the plain differences; a squared distance is never negative, and its gradient is right even where
rounding would have made it so; results are in float32 at least, also under autocast.
"""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["at_least_float32", "not_negative", "pairwise_norms", "squared_distances"]


def squared_distances(
    rows: Float[Tensor, "*batch feature"], others: Float[Tensor, "other feature"]
) -> Float[Tensor, "*batch other"]:
    """``|a - b|^2`` of every pair, by one matrix product."""
    with torch.autocast(rows.device.type, enabled=False):
        rows, others = at_least_float32(rows), at_least_float32(others)
        centre = others.mean(dim=0).detach()  # distances do not depend on it, so neither do gradients
        rows, others = rows - centre, others - centre
        squares = rows.square().sum(dim=-1, keepdim=True) + others.square().sum(dim=-1)
        return not_negative(squares - 2.0 * (rows @ others.mT))


def pairwise_norms(
    rows: Float[Tensor, "*batch feature"], others: Float[Tensor, "other feature"], p: int
) -> Float[Tensor, "*batch other"]:
    """``(sum_i |a_i - b_i|^p)^(1/p)`` of every pair, exact for close pairs; slower than ``squared_distances``."""
    flat, others = at_least_float32(rows).reshape(-1, rows.shape[-1]), at_least_float32(others)
    norms = torch.cdist(flat, others, p=float(p), compute_mode="donot_use_mm_for_euclid_dist")
    return norms.reshape(*rows.shape[:-1], others.shape[0])


def not_negative(value: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The value, zero where rounding took it below; the gradient passes unchanged, which a clamp would cut off."""
    return value - value.detach().clamp_max(0.0)


def at_least_float32(value: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The value, in float32 if its own format is narrower."""
    return value.to(torch.promote_types(value.dtype, torch.float32))
