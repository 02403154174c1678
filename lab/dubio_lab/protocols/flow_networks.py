"""What the experiments with flow noise share: the bound that a network reaches.

The bound is ``E_q[log p(D | z)] - KL`` on the examples that were trained on (E-40), here for each example: the mean
log-likelihood over draws less the divergence over the number of examples. The divergence is estimated from the draws
(E-41); of a convolution's noise it is the mean over positions, as in the source, so the bound is not one of the joint
noise there (8.2).
"""

from typing import Any

import torch
from torch import nn

from dubio.data import Examples
from dubio.nn import FlowNoise
from dubio.objectives import ELBO
from dubio_lab.protocols.measuring import mean_of
from dubio_lab.results import Measured

__all__ = ["bound", "described", "noise_std"]

ROWS = 5000
"""Examples at a time, all draws of them together."""
FACTORS = 4096
"""Draws of a layer's factors by which their standard deviation is measured."""


def described(settings: dict[str, Any], names: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    """These of the settings; None for what a run does not limit, and nothing for optional ones that it lacks."""
    return {name: settings.get(name) for name in names} | {
        name: settings[name] for name in optional if name in settings
    }


@torch.no_grad()
def noise_std(model: nn.Module, seed: int) -> Measured:
    """Standard deviation of the factors that layers' inputs are multiplied with, the mean over channels of all layers.

    It is 0 where there is no such noise, and where the posterior has contracted to a point.
    """
    generator, stds = torch.Generator().manual_seed(seed), []
    for noise in (module for module in model.modules() if isinstance(module, FlowNoise)):
        channels = noise.channels
        z = noise.base.mean + noise.base.std * torch.randn(FACTORS, channels, generator=generator)
        z = z.to(next(noise.parameters()).device)
        for step in noise.steps:
            z, _ = step(z)
        stds.append(z.std(dim=0))
    return Measured(torch.cat(stds).mean().item(), n=sum(map(len, stds))) if stds else Measured(0.0, n=0)


@torch.no_grad()
def bound(model: nn.Module, examples: Examples, num_samples: int, num_groups: int, seed: int) -> dict[str, Measured]:
    """Log-likelihood and bound for each example, and divergence in nats, with standard errors over draws.

    Args:
        model: a converted network; one without a posterior has a divergence of 0.
        examples: those that it was trained on.
        num_samples: draws in a group.
        num_groups: groups of draws, from which the standard errors come.
        seed: which draws.
    """
    objective = ELBO(len(examples))
    inputs, targets = examples.tensors
    sums = torch.zeros(num_groups, 2, dtype=torch.float64)
    for group in range(num_groups):
        for part, first in enumerate(range(0, len(examples), ROWS)):
            rows = slice(first, first + ROWS)
            own_seed = (seed * num_groups + group) * len(examples) + part  # no two parts have the same draws
            loss = objective(model, inputs[rows], targets[rows], num_samples, seed=own_seed)
            terms = torch.stack([-loss.nll, loss.terms["divergence"]]).double().cpu()
            sums[group] += terms * len(targets[rows]) / len(examples)
    log_likelihood, divergence = sums.unbind(dim=1)
    return {
        "log_likelihood": mean_of(log_likelihood),
        "kl": mean_of(divergence),
        "elbo": mean_of(log_likelihood - divergence / len(examples)),
    }
