"""Layers: they hold parameters and no formula, ask the running pass for noise, and remember nothing."""

from dubio.layers.bayesian import BAYESIAN, BayesianLayer, Linear
from dubio.layers.drawn import Drawn, draw_parameters, drawn_class, drawn_names, restore_parameters
from dubio.layers.mappable import MAPPABLE, PLAIN
from dubio.layers.posterior import GaussianPosterior, closed_divergence, divergence, posteriors

__all__ = [
    "BAYESIAN",
    "MAPPABLE",
    "PLAIN",
    "BayesianLayer",
    "Drawn",
    "GaussianPosterior",
    "Linear",
    "closed_divergence",
    "divergence",
    "draw_parameters",
    "drawn_class",
    "drawn_names",
    "posteriors",
    "restore_parameters",
]
