"""Layers: they hold parameters and no formula, ask the running pass for noise, and remember nothing."""

from dubio.layers.bayesian import BAYESIAN, BayesianLayer, Linear
from dubio.layers.drawn import Drawn, draw_parameters, drawn_class, drawn_names, restore_parameters
from dubio.layers.flow_steps import FlowStep, make_step
from dubio.layers.mappable import MAPPABLE, PLAIN
from dubio.layers.posterior import GaussianPosterior, closed_divergence, divergence, posteriors

__all__ = [
    "BAYESIAN",
    "MAPPABLE",
    "PLAIN",
    "BayesianLayer",
    "Drawn",
    "FlowStep",
    "GaussianPosterior",
    "Linear",
    "closed_divergence",
    "divergence",
    "draw_parameters",
    "drawn_class",
    "drawn_names",
    "make_step",
    "posteriors",
    "restore_parameters",
]
