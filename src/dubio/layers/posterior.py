"""Posteriors over one tensor of weights.

``weight = mean + perturbation``. The noise is the engine's; a draw belongs to the posterior, so every layer that shares
it sees the same weights in a pass. The Gaussian posterior has ``weight = mean + softplus(rho) * noise`` (E-15, E-16);
weights marked in ``fixed`` (the padding row of an embedding) are not random: no draw moves them and they have no part
in the divergence. Weights marked in ``removed`` (``dubio.prune``) are zero in every draw and with noise off, and have
no part in anything: they are read through ``location``, never as ``mean``, and so get no gradient (T-11).

Invariants: the divergence is a sum over weights, never a mean, in float32 at least, and equals ``torch.distributions``
(``test_divergence.py``); the Monte Carlo form uses the noise itself (T-7).
"""

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Pass, current_pass
from dubio.layers.sources import Posterior, Source
from dubio.priors import CentredNormal, Prior

__all__ = ["GaussianPosterior", "WeightSource", "posteriors"]


class WeightSource(Source):
    """A distribution of weights around their means, which are the parameters of the plain network."""

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
        return values if self.removed is None else values.masked_fill(self.removed, 0.0)

    @property
    def num_removed(self) -> int:
        """How many weights were removed."""
        return 0 if self.removed is None else int(self.removed.sum())

    @torch.no_grad()
    def remove(self, mask: Bool[Tensor, "*shape"]) -> None:
        """Remove the weights that a mask marks, for good; those removed before stay so."""
        self.removed = mask.clone() if self.removed is None else self.removed | mask
        own = [*self._parameters.values(), *(self._buffers[name] for name in self._buffers if name != "removed")]
        for tensor in own:
            if tensor is not None and tensor.shape == mask.shape:
                tensor.masked_fill_(self.removed, 0)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """What was removed stays removed, also with a checkpoint from before."""
        if self.removed is not None:
            state_dict.setdefault(f"{prefix}removed", self.removed)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def is_noise(self, name: str) -> bool:
        """All parameters but the means."""
        return name != "mean"

    @property
    @abstractmethod
    def num_random(self) -> int:
        """How many weights are random."""

    @abstractmethod
    def describe(self) -> str:
        """What kind of distribution this is, in a few words."""

    @abstractmethod
    def scale(self, noise: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The perturbation that noise stands for."""

    def draw(self) -> Float[Tensor, "*shape"]:
        """The weights of the running pass (E-16); outside any pass, and with noise off, their means."""
        run = current_pass()
        return self.location if run is None or run.off else self.location + self.perturbation(run)

    def perturbation(self, run: Pass) -> Float[Tensor, "*shape"]:
        """How far the weights of this pass lie from their means, ``sigma * eps``: drawn once in a pass.

        Kept in place of the weights, from which a small perturbation could not be recovered.
        """
        # By the mean, since an exporter may show the module itself as another object every time.
        key = id(self.mean)
        drawn = run.drawn.get(key)
        if drawn is None and not torch.compiler.is_compiling() and run.ahead is not None:
            drawn = run.ahead.perturbation(self, run)
            if drawn is not None:
                run.drawn[key] = drawn
        if drawn is None:
            noise = run.noise_for_weights(self, self.mean)
            self.collect_from(run, noise)
            drawn = run.drawn[key] = self.without_removed(self.scale(noise))
            if not torch.is_grad_enabled():
                run.noise[key] = noise
        elif torch.is_grad_enabled() and self.learns_noise and not drawn.requires_grad:
            # First read without gradients, and now with them.
            known = run.noise.pop(key, None)
            if known is None and run.ahead is not None:  # which is frozen, and drawn again
                known = run.noise_for_weights(self, self.mean)
            if known is not None:
                drawn = run.drawn[key] = self.without_removed(self.scale(known))
        return drawn

    def collect_from(self, run: Pass, noise: Float[Tensor, "*shape"]) -> None:
        """Hand over what the pass collects about this draw: nothing, for weights without a prior."""

    @property
    def learns_noise(self) -> bool:
        """Whether its scales are trained."""
        own = self.named_parameters(recurse=False)
        return any(parameter.requires_grad for name, parameter in own if self.is_noise(name))


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
        return self.mean.numel() - (0 if self.fixed is None else int(self.fixed.sum())) - self.num_removed

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
        return self.divergence_per_weight().sum()

    @property
    def has_closed_entropy(self) -> bool:
        """Yes: it is a Gaussian."""
        return True

    def closed_entropy(self) -> Float[Tensor, ""]:
        """Entropy, summed over random weights."""
        std = functional.variational.softplus(self.rho.to(torch.promote_types(self.rho.dtype, torch.float32)))
        return self._zero_unless_random(functional.variational.normal_entropy(std)).sum()

    def draw_divergence(self, run: Pass) -> Float[Tensor, ""]:
        """The estimate from the weights of a pass."""
        return self.estimated_divergence(run.noise_for_weights(self, self.mean))

    def divergence_per_weight(self) -> Float[Tensor, "*shape"]:
        """What each weight adds to the closed divergence; nothing where it is not random."""
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
        values = self.without_removed(values)
        return values if self.fixed is None else values.masked_fill(self.fixed, 0.0)

    def _in_full_precision(self) -> tuple[Tensor, Tensor, Tensor | None]:
        dtype = torch.promote_types(self.mean.dtype, torch.float32)
        centre = None if self.centre is None else self.centre.to(dtype)
        return self.location.to(dtype), functional.variational.softplus(self.rho.to(dtype)), centre


def posteriors(model: nn.Module) -> list[WeightSource]:
    """The distributions of weights of a network, each once however many layers share it."""
    return [module for module in model.modules() if isinstance(module, WeightSource)]
