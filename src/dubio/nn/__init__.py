"""Stochastic modules: they hold parameters, get noise from the running pass, and keep no state between passes."""

from dubio.nn.bayesian import BAYESIAN as BAYESIAN, BayesianLayer as BayesianLayer, Linear as Linear
from dubio.nn.ensemble import Members as Members, num_members as num_members
from dubio.nn.flow import FlowNoise as FlowNoise, FlowStep as FlowStep, make_step as make_step
from dubio.nn.heads import (
    Distance as Distance,
    GaussianHead as GaussianHead,
    Head as Head,
    WassersteinHead as WassersteinHead,
)
from dubio.nn.noise_layers import (
    DROPOUTS as DROPOUTS,
    ActivationNoise as ActivationNoise,
    EntropicNoise as EntropicNoise,
    GaussianInputNoise as GaussianInputNoise,
    InformationNoise as InformationNoise,
    InputMask as InputMask,
    InputPosterior as InputPosterior,
    Kl as Kl,
    RandomDropout as RandomDropout,
)
from dubio.nn.rewrite import (
    BATCH_NORMS as BATCH_NORMS,
    RESIZABLE_CONVOLUTIONS as RESIZABLE_CONVOLUTIONS,
    UNCALLED as UNCALLED,
    Drawn as Drawn,
    Masked as Masked,
    Noised as Noised,
    NoisyInput as NoisyInput,
    NoisyOutput as NoisyOutput,
    Removed as Removed,
    Rewritten as Rewritten,
    add_noise as add_noise,
    channels_of as channels_of,
    draw_parameters as draw_parameters,
    drawn_names as drawn_names,
    gaussian_of as gaussian_of,
    keep_units as keep_units,
    masked_tensors as masked_tensors,
    num_trained as num_trained,
    posterior_of as posterior_of,
    rebuild as rebuild,
    remove_weights as remove_weights,
    removed_from as removed_from,
    removed_of as removed_of,
    rewrite as rewrite,
    takes_noise as takes_noise,
)
from dubio.nn.sources import (
    GaussianPosterior as GaussianPosterior,
    InputSource as InputSource,
    NoisePer as NoisePer,
    ParametricNoise as ParametricNoise,
    Posterior as Posterior,
    Source as Source,
    WeightSource as WeightSource,
    closed_divergence as closed_divergence,
    closed_entropy as closed_entropy,
    divergence as divergence,
    noise_parameters as noise_parameters,
    posteriors as posteriors,
    sources as sources,
    weight_matrices as weight_matrices,
)
from dubio.nn.vmappable import MAPPABLE as MAPPABLE
