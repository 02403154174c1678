"""Penalties on weights."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["weight_penalty"]


def weight_penalty(weights: Sequence[Float[Tensor, "..."]]) -> Float[Tensor, ""]:
    """Sum of squares (E-33)."""
    return torch.stack([weight.square().sum() for weight in weights]).sum()
