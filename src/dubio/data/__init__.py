"""Data: datasets by name, from a folder or a table, held in memory."""

from dubio.data.examples import Examples, Splits, scaled
from dubio.data.loading import CropAndFlip, Loader, epoch_order

__all__ = ["CropAndFlip", "Examples", "Loader", "Splits", "epoch_order", "scaled"]
