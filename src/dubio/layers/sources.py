"""What is random in a network, and how far it is from its prior.

A *source* asks the running pass for noise. A *posterior* is a source with a prior: it has a divergence from it and an
entropy, in closed form or as an estimate from each draw, which it hands to a pass that collects them. Both are sums
over what is random, never means, and belong to all data together: beside a mean loss they are divided by the number of
training examples.
"""

from abc import abstractmethod
from collections.abc import Iterator
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dubio._engine import STATE, Inputs, Pass, check_num_samples, device_of, fresh, name_sources, run, settings_for_run

__all__ = [
    "InputSource",
    "Posterior",
    "Source",
    "closed_divergence",
    "closed_entropy",
    "divergence",
    "noise_parameters",
    "sources",
    "weight_matrices",
]


class Source(nn.Module):
    """Something that is random. It is named by where it stands in the network, so that its noise can be frozen."""

    dubio_noise_key: int | None = None

    def is_noise(self, name: str) -> bool:
        """Whether a parameter of this module is one of the noise itself, and not of the plain network."""
        return True


class InputSource(Source):
    """Noise on the inputs of a layer: a module that is called with them."""

    @abstractmethod
    def describe(self) -> str:
        """What kind of noise this is, in a few words."""


class Posterior(Source):
    """A source with a prior."""

    per_call: bool = False
    """Whether each call of a layer draws something of its own, whose divergence and entropy count for each call."""

    @property
    @abstractmethod
    def has_closed_divergence(self) -> bool:
        """Whether the divergence from the prior has a closed form."""

    @property
    @abstractmethod
    def has_closed_entropy(self) -> bool:
        """Whether the entropy has a closed form."""

    @abstractmethod
    def closed_divergence(self) -> Float[Tensor, ""]:
        """Divergence from the prior, where it has a closed form."""

    @abstractmethod
    def closed_entropy(self) -> Float[Tensor, ""]:
        """Entropy in nats, where it has a closed form."""

    @abstractmethod
    def draw_divergence(self, run: Pass) -> Float[Tensor, ""]:
        """The estimate from a draw made for nothing else."""

    def wants(self, run: Pass) -> tuple[bool, bool]:
        """Whether a pass collects the divergence of this posterior, and its entropy."""
        return (
            "divergence" in run.collecting and (self.per_call or not self.has_closed_divergence),
            "entropy" in run.collecting and (self.per_call or not self.has_closed_entropy),
        )


def sources(model: nn.Module) -> list[Source]:
    """The sources of noise of a network, each once however many layers share it."""
    return [module for module in model.modules() if isinstance(module, Source)]


def divergence(
    model: nn.Module, num_samples: int = 1, *, inputs: Inputs | None = None, seed: int | Tensor | None = None
) -> Float[Tensor, ""]:
    """Divergence of the posterior from the prior, summed over all that is random in the network.

    Exact where there is a closed form; else the mean of ``num_samples`` Monte Carlo draws, frozen by ``seed`` or by
    ``with dubio.frozen(...)`` (weights are then those that ``dubio.sample`` uses with that seed). To be divided by the
    number of training examples beside a mean loss; never by the number of weights or of batches.

    Noise on activations is drawn for rows: with ``inputs`` the network runs on them and the estimate is that of its own
    draws, those of every call of a layer; without, each layer counts once, and where there is no closed form some rows
    are drawn for the estimate alone.
    """
    check_num_samples(num_samples)
    if STATE.own.settings.mode == "off":  # a divergence is one of distributions: it does not vanish with the noise
        with fresh():
            return divergence(model, num_samples, inputs=inputs, seed=seed)
    closed = closed_divergence(model)
    if inputs is not None:
        estimated = run(model, inputs, num_samples, seed=seed, collecting=("divergence",)).terms.get("divergence")
        terms = [] if estimated is None else [estimated.mean()]
    else:
        terms = list(_estimates(model, num_samples, seed))
    terms += [] if closed is None else [closed]
    if terms:
        return torch.stack(terms).sum()
    return torch.zeros((), device=device_of(model))


def closed_divergence(model: nn.Module) -> Float[Tensor, ""] | None:
    """The part of the divergence that is known before a forward; None where no posterior of the network has one."""
    terms = [
        posterior.closed_divergence()
        for posterior in _posteriors(model)
        if posterior.has_closed_divergence and not posterior.per_call
    ]
    return torch.stack(terms).sum() if terms else None


def closed_entropy(model: nn.Module) -> Float[Tensor, ""] | None:
    """The part of the entropy that is known before a forward; None where no posterior of the network has one."""
    terms = [
        posterior.closed_entropy()
        for posterior in _posteriors(model)
        if posterior.has_closed_entropy and not posterior.per_call
    ]
    return torch.stack(terms).sum() if terms else None


def noise_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Parameters of the noise itself: scales, and whatever else a source learns but the means of weights.

    All other parameters are those of the plain network. Weight decay is not for these, and methods may train them at a
    rate of their own.
    """
    found = {
        id(parameter): parameter
        for source in sources(model)
        for name, parameter in source.named_parameters()
        if source.is_noise(name)
    }
    scale = model._parameters.get("observation_rho")
    return [*found.values(), *([] if scale is None else [scale])]


def weight_matrices(model: nn.Module) -> list[tuple[nn.Parameter, int]]:
    """The weights of the plain network that have two axes or more, and how many units (outputs) each leads to.

    Neither biases nor scales of norms, and no noise.
    """
    noise = {id(parameter) for parameter in noise_parameters(model)}
    found: dict[int, tuple[nn.Parameter, int]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.dim() > 1 and id(parameter) not in noise:
                transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
                units = cast(int, module.out_channels) if transposed else len(parameter)
                found.setdefault(id(parameter), (parameter, units))
    return list(found.values())


def _posteriors(model: nn.Module) -> list[Posterior]:
    return [source for source in sources(model) if isinstance(source, Posterior)]


def _estimates(model: nn.Module, num_samples: int, seed: int | Tensor | None) -> Iterator[Tensor]:
    settings = settings_for_run(seed)
    if settings.seed is not None and not torch.compiler.is_compiling():
        name_sources(model)
    for posterior in _posteriors(model):
        if posterior.has_closed_divergence and posterior.per_call:
            yield posterior.closed_divergence()
        elif not posterior.has_closed_divergence:
            runs = [Pass(settings, torch.tensor(draw)) for draw in range(num_samples)]
            yield torch.stack([posterior.draw_divergence(run) for run in runs]).mean()
