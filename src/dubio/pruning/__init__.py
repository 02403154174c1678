"""Remove what a network can do without: weights or whole units, and measure what that costs."""

from dubio.pruning.cutting import prune
from dubio.pruning.measuring import snr_density
from dubio.pruning.trying import curve
from dubio.pruning.values import By, LayerPruning, Pruning, PruningPoint, SnrDensity, What

__all__ = ["By", "LayerPruning", "Pruning", "PruningPoint", "SnrDensity", "What", "curve", "prune", "snr_density"]
