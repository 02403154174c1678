"""Time of drawing the weights of 784-1200-1200-10, of their divergence from the prior, and of the backward pass.

On a CPU with two threads: the kernels in C, with draws in a stack or apart, the formula in operations of torch, and the
posterior of a converted network. They take turns. Medians and fastest times are given: other work on the machine can
only add to a time.
"""

import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch
from timing import alternating_times_ms
from torch import Tensor, nn

from dubio._engine import joined_pass, kernels
from dubio.functional import variational
from dubio.nn.sources import GaussianPosterior
from dubio.priors import Normal

SHAPES = ((1200, 784), (1200, 1200), (10, 1200))
DRAWS = (1, 10)
THREADS = 2
SECONDS = 3.0
PRIOR = (0.0, 1.0)

Outputs = tuple[Tensor | list[Tensor], Tensor]
Draw = Callable[[GaussianPosterior, Tensor], Outputs]
"""Draws of the weights of a posterior by keys, and their divergence."""


def by_kernels(posterior: GaussianPosterior, keys: Tensor) -> Outputs:
    weights, divergence = kernels.draw_weights(posterior.mean, posterior.rho, keys, prior=PRIOR)
    assert divergence is not None
    return weights, divergence


def apart_by_kernels(posterior: GaussianPosterior, keys: Tensor) -> tuple[list[Tensor], Tensor]:
    weights, divergence = kernels.draw_each(posterior.mean, posterior.rho, keys, prior=PRIOR)
    assert divergence is not None
    return weights, divergence


def stack_unbound(posterior: GaussianPosterior, keys: Tensor) -> tuple[list[Tensor], Tensor]:
    weights, divergence = by_kernels(posterior, keys)
    return list(weights.unbind()), divergence


def by_formula(posterior: GaussianPosterior, keys: Tensor) -> Outputs:
    std = variational.softplus(posterior.rho)
    weights = posterior.mean + std * torch.randn(*keys.shape, *posterior.mean.shape)
    return weights, variational.gaussian_kl(posterior.mean, std, *PRIOR).sum()


def by_posterior(posterior: GaussianPosterior, keys: Tensor) -> Outputs:
    draws = []
    for _ in keys:
        with joined_pass():
            draws.append(posterior.draw())
    return torch.stack(draws) if len(draws) > 1 else draws[0][None], posterior.closed_divergence()


def divergence_by_formula(posterior: GaussianPosterior, keys: Tensor) -> Outputs:
    std = variational.softplus(posterior.rho)
    return posterior.mean[:0], variational.gaussian_kl(posterior.mean, std, *PRIOR).sum()


def divergence_alone(posterior: GaussianPosterior, keys: Tensor) -> Outputs:
    return posterior.mean[:0], kernels.weight_divergence(posterior.mean, posterior.rho, PRIOR)


DRAWING: Mapping[str, Draw] = {
    "kernels": by_kernels,
    "kernels, apart": apart_by_kernels,
    "kernels, unbound": stack_unbound,
    "formula": by_formula,
    "posterior": by_posterior,
    "divergence by kernels": divergence_alone,
    "divergence by formula": divergence_by_formula,
}


def work_of(draw: Draw, num_draws: int) -> Callable[[], None]:
    """Draws, divergence and backward pass of all three tensors."""
    posteriors = [GaussianPosterior(nn.Parameter(torch.randn(shape) * 0.05), Normal(), 0.01) for shape in SHAPES]
    stacks = [torch.randn(num_draws, *shape) * 1e-3 for shape in SHAPES]

    def work() -> None:
        for posterior, of_stack in zip(posteriors, stacks, strict=True):
            of_each = list(of_stack.unbind())
            weights, divergence = draw(posterior, torch.randint(2**63 - 1, (num_draws,)))
            draws, gradients = (weights, of_each) if isinstance(weights, list) else ([weights], [of_stack])
            draws, gradients = ([], []) if draws[0].numel() == 0 else (draws, gradients)
            torch.autograd.backward([divergence, *draws], [torch.ones_like(divergence), *gradients])
            posterior.mean.grad = posterior.rho.grad = None

    return work


def measure(device: torch.device) -> list[dict[str, Any]]:
    if not kernels.kernels_available():
        print(kernels.kernels_unavailable_reason())
        return []
    threads, records = torch.get_num_threads(), []
    torch.set_num_threads(THREADS)
    try:
        for num_draws in DRAWS:
            works = {name: work_of(draw, num_draws) for name, draw in DRAWING.items()}
            for name, times in alternating_times_ms(works, torch.device("cpu"), SECONDS).items():
                median, fastest = statistics.median(times), min(times)
                print(
                    f"{name:<22} {num_draws:3} draws   median {median:8.2f} ms   fastest {fastest:8.2f} ms", flush=True
                )
                records.append({"what": name, "draws": num_draws, "milliseconds": median, "fastest": fastest})
    finally:
        torch.set_num_threads(threads)
    return records
