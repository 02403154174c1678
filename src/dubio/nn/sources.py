"""Sources of noise, and posteriors: what is random in a network, and its divergence from the prior.

A *source* asks the running pass for noise. A *posterior* is a source with a prior: it has a divergence from it and an
entropy, in closed form or as an estimate from each draw, which it hands to a pass that collects them. Both are sums
over random variables, never means, and belong to all data together: beside a mean loss they are divided by the number
of training examples.

Weights are ``mean + perturbation``. The noise is the engine's; a draw belongs to the posterior, so every layer that
shares it sees the same weights in a pass.

- ``GaussianPosterior``: ``weight = mean + softplus(rho) * noise`` (E-15, E-16). Weights marked in ``fixed``, such as
  the padding row of an embedding, are not random: no draw moves them and they have no part in the divergence.
- ``ParametricNoise``: ``W + alpha * eta`` with ``eta ~ N(0, std(W)^2)`` and a learned ``alpha`` (E-58; He, Rakin and
  Fan 2019, Parametric Noise Injection). Removed weights count as zeros in the spread.

Weights marked in ``removed`` (``dubio.prune``) are zero in every draw and with noise off, and have no part in anything:
they are read through ``location``, never as ``mean``, and so get no gradient (T-11).

Invariants: the divergence is a sum over weights, never a mean, in float32 at least, and equals ``torch.distributions``
(``test_divergence.py``); the Monte Carlo form uses the noise itself (T-7).
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Literal, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dubio import functional
from dubio._engine import (
    STATE,
    Inputs,
    Pass,
    check_num_samples,
    current_pass,
    device_of,
    fresh,
    name_sources,
    run,
    settings_for_run,
    weight_divergence,
)
from dubio.priors import CentredNormal, Prior


class Source(nn.Module):
    """A module that draws noise. It is named by its place in the network, so that its noise can be frozen."""

    dubio_noise_key: int | None = None

    def is_noise(self, name: str) -> bool:
        """Whether a parameter of this module belongs to the noise, and not to the plain network."""
        return True


class InputSource(Source):
    """Noise on the inputs of a layer: a module that is called with them."""

    @abstractmethod
    def describe(self) -> str:
        """What kind of noise this is, in a few words."""


class Posterior(Source):
    """A source with a prior."""

    per_call: bool = False
    """Whether each call of a layer has its own draw, so that divergence and entropy count for each call."""

    @property
    def has_closed_divergence(self) -> bool:
        """Whether the divergence from the prior has a closed form."""
        return False

    @property
    def has_closed_entropy(self) -> bool:
        """Whether the entropy has a closed form."""
        return False

    def closed_divergence(self) -> Float[Tensor, ""]:
        """Divergence from the prior, where it has a closed form."""
        raise ValueError(f"the divergence of a {type(self).__name__} has no closed form; it is estimated from draws")

    def closed_entropy(self) -> Float[Tensor, ""]:
        """Entropy in nats, where it has a closed form."""
        raise ValueError(f"the entropy of a {type(self).__name__} has no closed form; it is estimated from draws")

    @abstractmethod
    def draw_divergence(self, run: Pass) -> Float[Tensor, ""]:
        """The estimate from a draw that serves nothing else."""

    def wants(self, run: Pass) -> tuple[bool, bool]:
        """Whether a pass collects the divergence of this posterior, and its entropy."""
        divergence = "divergence" in run.collecting and (self.per_call or not self.has_closed_divergence)
        return divergence, "entropy" in run.collecting and (self.per_call or not self.has_closed_entropy)


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
    if STATE.own.settings.mode == "off":  # the divergence of distributions does not vanish with the noise
        with fresh():
            return divergence(model, num_samples, inputs=inputs, seed=seed)
    closed = closed_divergence(model)
    if inputs is not None:
        estimated = run(model, inputs, num_samples, seed=seed, collecting=("divergence",)).terms.get("divergence")
        terms = [] if estimated is None else [estimated.mean()]
    else:
        terms = list(_estimates(model, num_samples, seed))
    terms += [] if closed is None else [closed]
    return torch.stack(terms).sum() if terms else torch.zeros((), device=device_of(model))


def closed_divergence(model: nn.Module) -> Float[Tensor, ""] | None:
    """The part of the divergence that needs no forward; None where no posterior of the network has one."""
    return _sum(p.closed_divergence() for p in _posteriors(model) if p.has_closed_divergence and not p.per_call)


def closed_entropy(model: nn.Module) -> Float[Tensor, ""] | None:
    """The part of the entropy that needs no forward; None where no posterior of the network has one."""
    return _sum(p.closed_entropy() for p in _posteriors(model) if p.has_closed_entropy and not p.per_call)


def noise_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Parameters of the noise: scales, and all that a source learns except the means of weights.

    All other parameters are those of the plain network. Weight decay does not apply to parameters of the noise, and
    methods may train them at another learning rate.
    """
    params = [p for source in sources(model) for name, p in source.named_parameters() if source.is_noise(name)]
    scale = model._parameters.get("observation_rho")
    return [*dict.fromkeys(params), *([] if scale is None else [scale])]


def weight_matrices(model: nn.Module) -> list[tuple[nn.Parameter, int]]:
    """The weights of the plain network with two axes or more, and the number of units (outputs) of each.

    Biases, scales of norms and parameters of the noise are left out.
    """
    noise = set(noise_parameters(model))
    weights: dict[nn.Parameter, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            if parameter.dim() > 1 and parameter not in noise:
                transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
                weights.setdefault(parameter, cast(int, module.out_channels) if transposed else len(parameter))
    return list(weights.items())


def _sum(values: Iterable[Tensor]) -> Tensor | None:
    terms = list(values)
    return torch.stack(terms).sum() if terms else None


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


class WeightSource(Source):
    """A distribution of weights around their means, which are the parameters of the plain network."""

    dubio_constant_buffers = ("removed", "centre", "fixed")
    """Buffers that no forward changes."""
    mean: nn.Parameter
    removed: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("removed", None)

    @property
    def location(self) -> Float[Tensor, "*shape"]:
        """The means, zero where a weight was removed."""
        return self.without_removed(self.mean)

    def without_removed(self, values: Tensor) -> Tensor:
        """Values for each weight, zero where it was removed."""
        removed = self._buffers["removed"]  # attributes of modules are slow to read
        return values if removed is None else values.masked_fill(removed, 0.0)

    @property
    def num_removed(self) -> int:
        """How many weights were removed."""
        return 0 if self.removed is None else int(self.removed.sum())

    @torch.no_grad()
    def remove(self, mask: Bool[Tensor, "*shape"]) -> None:
        """Remove the weights that a mask marks, for good; those removed before stay so."""
        self.removed = mask.clone() if self.removed is None else self.removed | mask
        for _, tensor in self.same_shape(mask.shape):
            tensor.masked_fill_(self.removed, 0)

    def same_shape(self, shape: torch.Size) -> list[tuple[str, Tensor]]:
        """Names and tensors of this shape that the mask of removed weights applies to: means, scales, centres."""
        tensors = {**self._parameters, **self._buffers, "removed": None}
        return [(name, tensor) for name, tensor in tensors.items() if tensor is not None and tensor.shape == shape]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Removed weights stay removed, also where a checkpoint from before the pruning is loaded."""
        if self.removed is not None:
            state_dict.setdefault(f"{prefix}removed", self.removed)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def is_noise(self, name: str) -> bool:
        """True for all parameters except the means."""
        return name != "mean"

    @property
    def num_random(self) -> int:
        """How many weights are random: of those that are left, all but the fixed ones."""
        return self.mean.numel() - self.num_removed

    @abstractmethod
    def describe(self) -> str:
        """What kind of distribution this is, in a few words."""

    @abstractmethod
    def scale(self, noise: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The perturbation that standard normal noise becomes."""

    def draw(self) -> Float[Tensor, "*shape"]:
        """The weights of the running pass (E-16); outside any pass, and with noise off, their means."""
        run = current_pass()
        return self.location if run is None or run.off else self.location + self.perturbation(run)

    def perturbation(self, run: Pass) -> Float[Tensor, "*shape"]:
        """How far the weights of this pass lie from their means, ``sigma * eps``: drawn once in a pass.

        The pass keeps it instead of the weights, from which a small perturbation could not be recovered.
        """
        mean = self.mean
        key = id(mean)  # an exporter may show the module as another object every time
        drawn = run.drawn.get(key)
        if drawn is None:
            if run.ahead is not None and not torch.compiler.is_compiling():
                drawn = run.ahead.perturbation(self, run)
            if drawn is None:
                noise = run.noise_for_weights(self, mean)
                if run.collecting:
                    self.collect_from(run, noise)
                drawn = self.without_removed(self.scale(noise))
                if not torch.is_grad_enabled():
                    run.noise[key] = noise
            run.drawn[key] = drawn
        elif torch.is_grad_enabled() and self.learns_noise and not drawn.requires_grad:
            # First read without gradients, and now with them.
            kept = run.noise.pop(key, None)
            if kept is None and run.ahead is not None:  # frozen noise, drawn again
                kept = run.noise_for_weights(self, mean)
            if kept is not None:
                drawn = run.drawn[key] = self.without_removed(self.scale(kept))
        return drawn

    def collect_from(self, run: Pass, noise: Float[Tensor, "*shape"]) -> None:
        """Hand over what the pass collects about this draw: nothing for weights without a prior."""

    @property
    def learns_noise(self) -> bool:
        """Whether its scales are trained."""
        params = self.named_parameters(recurse=False)
        return any(parameter.requires_grad for name, parameter in params if self.is_noise(name))


class GaussianPosterior(WeightSource, Posterior):
    """Mean and softplus argument of a factorised Gaussian over a tensor of weights, with its prior."""

    centre: Tensor | None
    fixed: Tensor | None

    def __init__(
        self,
        weight: Float[Tensor, "*shape"],
        prior: Prior,
        init_std: float,
        fixed: Bool[Tensor, "*shape"] | None = None,
    ) -> None:
        super().__init__()
        self.mean = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        rho = functional.variational.inverse_softplus(torch.tensor(init_std, dtype=torch.float64, device="cpu")).item()
        self.rho = nn.Parameter(torch.full_like(self.mean, rho), requires_grad=self.mean.requires_grad)
        self.prior = prior
        self.register_buffer("centre", weight.detach().clone() if isinstance(prior, CentredNormal) else None)
        self.register_buffer("fixed", fixed)

    @property
    def std(self) -> Float[Tensor, "*shape"]:
        """Standard deviation of each weight."""
        return self._zero_unless_random(functional.variational.softplus(self.rho))

    @property
    def num_random(self) -> int:
        """How many weights are random."""
        return super().num_random - (0 if self.fixed is None else int(self.fixed.sum()))

    def describe(self) -> str:
        """The prior it is held to."""
        return f"prior {self.prior}"

    def scale(self, noise: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """``sigma * eps``."""
        return self.std * noise

    def collect_from(self, run: Pass, noise: Float[Tensor, "*shape"]) -> None:
        """Hand over the divergence, where it has no closed form."""
        if self.wants(run)[0]:
            run.collect("divergence", self.estimated_divergence(noise))

    def variance(self, dtype: torch.dtype) -> Float[Tensor, "*shape"]:
        """Variance of each weight, computed in ``dtype``."""
        return self._zero_unless_random(functional.variational.softplus(self.rho.to(dtype)).square())

    @property
    def has_closed_divergence(self) -> bool:
        """Whether the divergence from the prior has a closed form."""
        return self.prior.has_closed_divergence

    def closed_divergence(self) -> Float[Tensor, ""]:
        """Divergence from the prior, summed over random weights, where it has a closed form."""
        if not self.has_closed_divergence:
            return self.divergence_per_weight().sum()  # the prior says why there is none
        where = {"centre": self.centre, "removed": self.removed, "fixed": self.fixed}
        return weight_divergence(self.mean, self.rho, self.prior.parameters, **where)

    @property
    def has_closed_entropy(self) -> bool:
        """True for a Gaussian."""
        return True

    def closed_entropy(self) -> Float[Tensor, ""]:
        """Entropy, summed over random weights."""
        std = functional.variational.softplus(self.rho.to(torch.promote_types(self.rho.dtype, torch.float32)))
        return self._zero_unless_random(functional.variational.normal_entropy(std)).sum()

    def draw_divergence(self, run: Pass) -> Float[Tensor, ""]:
        """The estimate from the weights of a pass."""
        return self.estimated_divergence(run.noise_for_weights(self, self.mean))

    def divergence_per_weight(self) -> Float[Tensor, "*shape"]:
        """What each weight adds to the closed divergence; zero where it is not random."""
        mean, std, centre = self._in_full_precision()
        return self._zero_unless_random(self.prior.divergence(mean, std, centre))

    def estimated_divergence(self, noise: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
        """One draw's Monte Carlo estimate of the divergence, from the noise that was drawn."""
        mean, std, centre = self._in_full_precision()
        noise = noise.to(mean.dtype)
        prior_log_prob = self.prior.log_prob(mean + std * noise, centre)
        return self._zero_unless_random(functional.variational.monte_carlo_kl(std, noise, prior_log_prob)).sum()

    def extra_repr(self) -> str:
        """Shape and prior, for printing."""
        return f"shape={tuple(self.mean.shape)}, prior={self.prior}"

    def _zero_unless_random(self, values: Tensor) -> Tensor:
        values, fixed = self.without_removed(values), self._buffers["fixed"]
        return values if fixed is None else values.masked_fill(fixed, 0.0)

    def _in_full_precision(self) -> tuple[Tensor, Tensor, Tensor | None]:
        dtype = torch.promote_types(self.mean.dtype, torch.float32)
        centre = None if self.centre is None else self.centre.to(dtype)
        return self.location.to(dtype), functional.variational.softplus(self.rho.to(dtype)), centre


def posteriors(model: nn.Module) -> list[WeightSource]:
    """The distributions of weights of a network, each once however many layers share it."""
    return [module for module in model.modules() if isinstance(module, WeightSource)]


NoisePer = Literal["layer", "channel", "element"]


class ParametricNoise(WeightSource):
    """Noise in proportion to the spread of a layer's weights, whose size is trained and may have either sign."""

    def __init__(self, weight: nn.Parameter, per: NoisePer, init: float) -> None:
        super().__init__()
        self.mean, self.per = weight, per
        shapes = {"layer": (), "channel": (len(weight), *(1,) * (weight.dim() - 1)), "element": tuple(weight.shape)}
        size = torch.full(shapes[per], init, dtype=weight.dtype, device=weight.device)
        self.size = nn.Parameter(size, requires_grad=weight.requires_grad)

    def describe(self) -> str:
        """What kind of distribution this is, in a few words."""
        return f"noise in proportion to the spread of the weights, per {self.per}"

    def scale(self, noise: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """``alpha * eta``."""
        return functional.noise.parametric_noise(self.location, self.size, noise)
