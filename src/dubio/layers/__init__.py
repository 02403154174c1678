"""Layers: they hold parameters and no formula, ask the running pass for noise, and remember nothing."""

from dubio.layers.bayesian import BAYESIAN, BayesianLayer, Linear
from dubio.layers.drawn import Drawn, draw_parameters, drawn_class, drawn_names, restore_parameters
from dubio.layers.dropout import DROPOUTS, InputMask, RandomDropout
from dubio.layers.flow_noise import FlowNoise
from dubio.layers.flow_steps import FlowStep, make_step
from dubio.layers.input_noise import GaussianInputNoise, InputPosterior, Kl
from dubio.layers.mappable import MAPPABLE, PLAIN
from dubio.layers.noised import Noised, channels_of, noise_input, plain_input, takes_noise
from dubio.layers.posterior import GaussianPosterior, WeightSource, posteriors
from dubio.layers.sources import (
    InputSource,
    Posterior,
    Source,
    closed_divergence,
    closed_entropy,
    divergence,
    noise_parameters,
    sources,
    weight_matrices,
)

__all__ = [
    "BAYESIAN",
    "DROPOUTS",
    "MAPPABLE",
    "PLAIN",
    "BayesianLayer",
    "Drawn",
    "FlowNoise",
    "FlowStep",
    "GaussianInputNoise",
    "GaussianPosterior",
    "InputMask",
    "InputPosterior",
    "InputSource",
    "Kl",
    "Linear",
    "Noised",
    "Posterior",
    "RandomDropout",
    "Source",
    "WeightSource",
    "channels_of",
    "closed_divergence",
    "closed_entropy",
    "divergence",
    "draw_parameters",
    "drawn_class",
    "drawn_names",
    "make_step",
    "noise_input",
    "noise_parameters",
    "plain_input",
    "posteriors",
    "restore_parameters",
    "sources",
    "takes_noise",
    "weight_matrices",
]
