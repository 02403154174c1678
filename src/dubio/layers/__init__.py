"""Layers: they hold parameters and no formula, ask the running pass for noise, and remember nothing."""

from dubio.layers.bayesian import BAYESIAN, BayesianLayer, Conv1d, Conv2d, Conv3d, Linear
from dubio.layers.mappable import MAPPABLE, BatchNorm1d, BatchNorm2d, BatchNorm3d, Embedding
from dubio.layers.posterior import GaussianPosterior, divergence, posteriors

__all__ = [
    "BAYESIAN",
    "MAPPABLE",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "BayesianLayer",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "Embedding",
    "GaussianPosterior",
    "Linear",
    "divergence",
    "posteriors",
]
