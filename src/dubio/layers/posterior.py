"""A Gaussian posterior over one tensor of weights, and the divergence of a network from its priors.

``weight = mean + softplus(rho) * noise`` (E-15, E-16). The noise is the engine's; a draw belongs to the posterior, so
every layer that shares it sees the same weights in a pass. Weights marked in ``fixed`` (the padding row of an
embedding) are not random: no draw moves them and they have no part in the divergence.

Invariants: the divergence is a sum over weights, never a mean, in float32 at least, and equals ``torch.distributions``
(``test_divergence.py``); the Monte Carlo form uses the noise itself (T-7).
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dubio import functional
from dubio.priors import CentredNormal, Prior
from dubio.sampling import Pass, Settings, current_pass, name_sources
from dubio.sampling.settings import STATE, check_num_samples, fresh, settings_for_run

__all__ = ["GaussianPosterior", "closed_divergence", "divergence", "posteriors"]


class GaussianPosterior(nn.Module):
    """Mean and softplus argument of a factorised Gaussian over a tensor of weights, with its prior."""

    dubio_noise_key: int | None = None
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
        rho = functional.inverse_softplus(torch.tensor(init_std, dtype=torch.float64)).item()
        self.rho = nn.Parameter(torch.full_like(self.mean, rho), requires_grad=self.mean.requires_grad)
        self.prior = prior
        self.register_buffer("centre", weight.detach().clone() if isinstance(prior, CentredNormal) else None)
        self.register_buffer("fixed", fixed)

    @property
    def std(self) -> Float[Tensor, "*shape"]:
        """Standard deviation of each weight."""
        return self._zero_where_fixed(functional.softplus(self.rho))

    @property
    def num_random(self) -> int:
        """How many weights are random."""
        return self.mean.numel() - (0 if self.fixed is None else int(self.fixed.sum()))

    def draw(self) -> Float[Tensor, "*shape"]:
        """The weights of the running pass (E-16); outside any pass, and with noise off, their means."""
        run = current_pass()
        return self.mean if run is None or run.off else self.mean + self.perturbation(run)

    def perturbation(self, run: Pass) -> Float[Tensor, "*shape"]:
        """How far the weights of this pass lie from their means, ``sigma * eps``: drawn once in a pass.

        Kept in place of the weights, from which a small perturbation could not be recovered.
        """
        # By the mean, since an exporter may show the module itself as another object every time.
        key = id(self.mean)
        drawn = run.drawn.get(key)
        if drawn is None:
            noise = run.noise_for_weights(self, self.mean)
            if run.collecting and not self.has_closed_divergence:
                run.collect("divergence", self.estimated_divergence(noise))
            drawn = run.drawn[key] = self.std * noise
            if not torch.is_grad_enabled():
                run.noise[key] = noise
        elif torch.is_grad_enabled() and self.rho.requires_grad and not drawn.requires_grad and key in run.noise:
            drawn = run.drawn[key] = self.std * run.noise.pop(key)  # first read without gradients, and now with them
        return drawn

    def variance(self, dtype: torch.dtype) -> Float[Tensor, "*shape"]:
        """Variance of each weight, computed in ``dtype``."""
        return self._zero_where_fixed(functional.softplus(self.rho.to(dtype)).square())

    @property
    def has_closed_divergence(self) -> bool:
        """Whether the divergence from the prior has a closed form."""
        return self.prior.has_closed_divergence

    def closed_divergence(self) -> Float[Tensor, ""]:
        """Divergence from the prior, summed over random weights, where it has a closed form."""
        return self.divergence_per_weight().sum()

    def divergence_per_weight(self) -> Float[Tensor, "*shape"]:
        """What each weight adds to the closed divergence; nothing where it is fixed."""
        mean, std, centre = self._in_full_precision()
        return self._zero_where_fixed(self.prior.divergence(mean, std, centre))

    def estimated_divergence(self, noise: Float[Tensor, "*shape"]) -> Float[Tensor, ""]:
        """One draw's Monte Carlo estimate of the divergence, from the noise that was drawn."""
        mean, std, centre = self._in_full_precision()
        noise = noise.to(mean.dtype)
        prior_log_prob = self.prior.log_prob(mean + std * noise, centre)
        return self._zero_where_fixed(functional.monte_carlo_kl(std, noise, prior_log_prob)).sum()

    def extra_repr(self) -> str:
        """Shape and prior, for printing."""
        return f"shape={tuple(self.mean.shape)}, prior={self.prior}"

    def _zero_where_fixed(self, values: Tensor) -> Tensor:
        return values if self.fixed is None else values.masked_fill(self.fixed, 0.0)

    def _in_full_precision(self) -> tuple[Tensor, Tensor, Tensor | None]:
        dtype = torch.promote_types(self.mean.dtype, torch.float32)
        centre = None if self.centre is None else self.centre.to(dtype)
        return self.mean.to(dtype), functional.softplus(self.rho.to(dtype)), centre


def posteriors(model: nn.Module) -> list[GaussianPosterior]:
    """The posteriors of a network, each once however many layers share it."""
    return [module for module in model.modules() if isinstance(module, GaussianPosterior)]


def divergence(model: nn.Module, num_samples: int = 1, *, seed: int | Tensor | None = None) -> Float[Tensor, ""]:
    """Divergence of the posterior from the prior, summed over all weights of the network.

    Exact where the prior has a closed form; else the mean of ``num_samples`` Monte Carlo draws, frozen by ``seed`` or
    by ``with dubio.frozen(...)`` (the draws are then those that ``dubio.sample`` uses with that seed). To be divided
    by the number of training examples beside a mean loss; never by the number of weights or of batches.
    """
    check_num_samples(num_samples)
    if STATE.own.settings.mode == "off":  # a divergence is one of distributions: it does not vanish with the noise
        with fresh():
            return divergence(model, num_samples, seed=seed)
    settings = settings_for_run(seed)
    if settings.seed is not None and not torch.compiler.is_compiling():
        name_sources(model)

    terms = [
        posterior.closed_divergence()
        if posterior.has_closed_divergence
        else _mean_estimate(posterior, settings, num_samples)
        for posterior in posteriors(model)
    ]
    return torch.stack(terms).sum() if terms else torch.zeros(())


def closed_divergence(model: nn.Module) -> Float[Tensor, ""] | None:
    """The part of the divergence that has a closed form; None where no posterior of the network has one."""
    terms = [posterior.closed_divergence() for posterior in posteriors(model) if posterior.has_closed_divergence]
    return torch.stack(terms).sum() if terms else None


def _mean_estimate(posterior: GaussianPosterior, settings: Settings, num_samples: int) -> Tensor:
    runs = [Pass(settings, torch.tensor(draw)) for draw in range(num_samples)]
    draws = [posterior.estimated_divergence(run.noise_for_weights(posterior, posterior.mean)) for run in runs]
    return torch.stack(draws).mean()
