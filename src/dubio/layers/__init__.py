"""Layers: they hold parameters and no formula, ask the running pass for noise, and remember nothing."""

from dubio.layers.activation_noise import ActivationNoise, EntropicNoise, InformationNoise
from dubio.layers.bayesian import BAYESIAN, BayesianLayer, Linear
from dubio.layers.drawn import (
    Drawn,
    draw_parameters,
    drawn_class,
    drawn_names,
    gaussian_of,
    posterior_of,
    restore_parameters,
)
from dubio.layers.dropout import DROPOUTS, InputMask, RandomDropout
from dubio.layers.ensemble import Members, num_members
from dubio.layers.flow_noise import FlowNoise
from dubio.layers.flow_steps import FlowStep, make_step
from dubio.layers.heads import Distance, GaussianHead, Head, WassersteinHead
from dubio.layers.input_noise import GaussianInputNoise, InputPosterior, Kl
from dubio.layers.mappable import MAPPABLE, PLAIN
from dubio.layers.masked import Masked, masked_tensors, num_trained, remove_weights, removed_of, restore_masked
from dubio.layers.noised import (
    UNCALLED as UNCALLED,
    Noised,
    channels_of,
    noise_input,
    noise_output,
    plain_layer,
    takes_noise,
)
from dubio.layers.parametric_noise import NoisePer, ParametricNoise
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
    "ActivationNoise",
    "BayesianLayer",
    "Distance",
    "Drawn",
    "EntropicNoise",
    "FlowNoise",
    "FlowStep",
    "GaussianHead",
    "GaussianInputNoise",
    "GaussianPosterior",
    "Head",
    "InformationNoise",
    "InputMask",
    "InputPosterior",
    "InputSource",
    "Kl",
    "Linear",
    "Masked",
    "Members",
    "NoisePer",
    "Noised",
    "ParametricNoise",
    "Posterior",
    "RandomDropout",
    "Source",
    "WassersteinHead",
    "WeightSource",
    "channels_of",
    "closed_divergence",
    "closed_entropy",
    "divergence",
    "draw_parameters",
    "drawn_class",
    "drawn_names",
    "gaussian_of",
    "make_step",
    "masked_tensors",
    "num_trained",
    "noise_input",
    "noise_parameters",
    "noise_output",
    "num_members",
    "plain_layer",
    "posterior_of",
    "posteriors",
    "remove_weights",
    "removed_of",
    "restore_masked",
    "restore_parameters",
    "sources",
    "takes_noise",
    "weight_matrices",
]
