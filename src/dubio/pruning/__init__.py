"""Remove what a network can do without: weights or whole units, and measure what that costs."""

from dubio.pruning.prune import curve, prune, snr_density
from dubio.pruning.records import By, LayerPruning, Pruning, PruningPoint, SnrDensity, What

__all__ = ["By", "LayerPruning", "Pruning", "PruningPoint", "SnrDensity", "What", "curve", "prune", "snr_density"]
