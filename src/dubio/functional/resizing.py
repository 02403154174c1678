"""Images made smaller by area averaging: a new pixel is the mean of all it covers, fractions of old pixels included.

The mean of an image is kept exactly, whatever the two sizes; where one divides the other it is an average pool.
"""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["area_resized"]


def area_resized(
    images: Float[Tensor, "*batch height width"], size: tuple[int, int]
) -> Float[Tensor, "*batch rows columns"]:
    """Images of ``size`` rows and columns, each pixel the mean of what it covers."""
    if not all(1 <= new <= old for new, old in zip(size, images.shape[-2:], strict=True)):
        raise ValueError(f"size must be from 1 pixel to that of the images, {tuple(images.shape[-2:])}, got {size}")
    rows, columns = (_shares(old, new).to(images) for old, new in zip(images.shape[-2:], size, strict=True))
    return rows @ images @ columns.mT


def _shares(old: int, new: int) -> Float[Tensor, "new old"]:
    """What share of each new pixel every old one has, along one axis."""
    edges = torch.arange(new + 1, dtype=torch.float64) * (old / new)
    before = torch.arange(old, dtype=torch.float64)
    begin, end = edges[:-1, None], edges[1:, None]
    overlap = torch.minimum(end, before + 1.0) - torch.maximum(begin, before)
    return overlap.clamp_min(0.0) * (new / old)
