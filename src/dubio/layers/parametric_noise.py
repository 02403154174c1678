"""Weights with noise of a learned size: ``W + alpha * eta``, ``eta ~ N(0, std(W)^2)`` (E-58).

Weights that were removed count as zeros in the spread.

Reference: He, Rakin and Fan 2019, Parametric Noise Injection.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dubio import functional
from dubio.layers.posterior import WeightSource

__all__ = ["NoisePer", "ParametricNoise"]

NoisePer = Literal["layer", "channel", "element"]


class ParametricNoise(WeightSource):
    """Noise in proportion to the spread of a layer's weights, whose size is trained and may have either sign."""

    def __init__(self, weight: nn.Parameter, per: NoisePer, init: float) -> None:
        super().__init__()
        self.mean, self.per = weight, per
        shapes = {"layer": (), "channel": (len(weight), *(1,) * (weight.dim() - 1)), "element": tuple(weight.shape)}
        size = torch.full(shapes[per], init, dtype=weight.dtype, device=weight.device)
        self.size = nn.Parameter(size, requires_grad=weight.requires_grad)

    @property
    def num_random(self) -> int:
        """All weights that are left."""
        return self.mean.numel() - self.num_removed

    def describe(self) -> str:
        """What kind of distribution this is, in a few words."""
        return f"noise in proportion to the spread of the weights, per {self.per}"

    def scale(self, noise: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """``alpha * eta``."""
        return functional.noise.parametric_noise(self.location, self.size, noise)
