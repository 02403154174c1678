"""Images made smaller by area averaging: a new pixel is the mean of all it covers, fractions of old pixels included.

The mean of an image is kept exactly, whatever the two sizes; where one divides the other it is an average pool.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

__all__ = ["area_resized", "small_image"]


def area_resized(
    images: Float[Tensor, "*batch height width"], size: tuple[int, int]
) -> Float[Tensor, "*batch rows columns"]:
    """Images of ``size`` rows and columns, each pixel the mean of what it covers."""
    if not all(1 <= new <= old for new, old in zip(size, images.shape[-2:], strict=True)):
        raise ValueError(f"size must be from 1 pixel to that of the images, {tuple(images.shape[-2:])}, got {size}")
    rows, columns = (_shares(old, new).to(images) for old, new in zip(images.shape[-2:], size, strict=True))
    return rows @ images @ columns.mT


def small_image(
    image: Float[Tensor, "channel height width"], largest: int = 64
) -> UInt8[Tensor, "channel rows columns"]:
    """An image with values from 0 to 1 as bytes, made smaller where a side is longer than ``largest``."""
    height, width = image.shape[-2:]
    factor = min(1.0, largest / max(height, width))
    size = (max(1, round(height * factor)), max(1, round(width * factor)))
    resized = image if size == (height, width) else area_resized(image, size)
    return (resized.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8)


def _shares(old: int, new: int) -> Float[Tensor, "new old"]:
    """What share of each new pixel every old one has, along one axis."""
    edges = torch.arange(new + 1, dtype=torch.float64) * (old / new)
    before = torch.arange(old, dtype=torch.float64)
    begin, end = edges[:-1, None], edges[1:, None]
    overlap = torch.minimum(end, before + 1.0) - torch.maximum(begin, before)
    return overlap.clamp_min(0.0) * (new / old)
