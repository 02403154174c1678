"""Penalties on weights: sums of squares without a factor of one half, which ``weight_decay`` of an optimiser has.

Which tensors are weights is the caller's choice; biases are left out of both penalties by the specification. Squares
are added up in float32 at least.

Invariants: a toy network's value by hand, with the units of each layer (T-21); the gradient is ``2 W`` (T-34).
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["scaled_weight_penalty", "weight_penalty"]


def weight_penalty(weights: Sequence[Tensor]) -> Float[Tensor, ""]:
    """``sum_i ||W_i||_F^2`` (in E-33)."""
    return scaled_weight_penalty(weights, [1] * len(weights))


def scaled_weight_penalty(weights: Sequence[Tensor], num_units: Sequence[int]) -> Float[Tensor, ""]:
    """``sum_l (1 / |l|) sum_{w in l} w^2`` (in E-26), ``|l|`` the number of units (outputs) of the layer."""
    if not weights:
        raise ValueError("weights must hold at least one tensor, got none; leave out the penalty")
    if len(num_units) != len(weights):
        raise ValueError(f"num_units must have one number for each of {len(weights)} weights, got {len(num_units)}")

    exact = [weight.to(torch.promote_types(weight.dtype, torch.float32)) for weight in weights]
    return torch.stack([w.square().sum() / units for w, units in zip(exact, num_units, strict=True)]).sum()
