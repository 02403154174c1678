"""Dropout as a function of uniform noise: what falls below the rate is dropped, the rest scaled so that means stay.

With noise off the layer is the identity, so no factor is left over for evaluation: the reference code of Li and Gal
2017 has one, which would scale twice.

References: Srivastava et al. 2014; Klambauer et al. 2017 for the alpha form, which keeps the variance too.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["alpha_dropout", "dropout"]

SELU_FLOOR = -1.7580993408473766
"""What a SELU gives far below zero: minus its scale times its alpha."""


def dropout(input: Float[Tensor, "*shape"], uniform: Float[Tensor, "*mask"], rate: float) -> Float[Tensor, "*shape"]:
    """Inverted dropout: zero with probability ``rate``, else divided by ``1 - rate``."""
    return torch.where(uniform < rate, 0.0, input * (1.0 / (1.0 - rate)))


def alpha_dropout(
    input: Float[Tensor, "*shape"], uniform: Float[Tensor, "*mask"], rate: float
) -> Float[Tensor, "*shape"]:
    """Dropout to the floor of a SELU, then shifted and scaled so that zero mean and unit variance stay."""
    scale = 1.0 / math.sqrt((1.0 - rate) * (1.0 + rate * SELU_FLOOR**2))
    shift = -scale * SELU_FLOOR * rate
    return torch.where(uniform < rate, SELU_FLOOR, input) * scale + shift
