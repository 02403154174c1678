"""Data: datasets by name, from a folder or a table, held in memory."""

from dubio.data.corruptions import (
    CORRUPTIONS,
    Blur,
    Contrast,
    Corruption,
    GaussianNoise,
    Inversion,
    Rotation,
    corrupt,
)
from dubio.data.examples import Examples, Splits, scaled
from dubio.data.loading import CropAndFlip, Loader, epoch_order

__all__ = [
    "Blur",
    "CORRUPTIONS",
    "Contrast",
    "Corruption",
    "CropAndFlip",
    "Examples",
    "GaussianNoise",
    "Inversion",
    "Loader",
    "Rotation",
    "Splits",
    "corrupt",
    "epoch_order",
    "scaled",
]
