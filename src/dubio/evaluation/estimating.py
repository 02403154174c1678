"""Numbers with what makes them unsure: other examples, other draws, more draws."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dubio import functional
from dubio.evaluation.values import DrawCheck, Estimate

__all__ = ["LEVEL", "Measure", "NUM_GROUPS", "can_group", "check_draws", "estimates", "resamples"]

Measure = Callable[[Tensor | None], dict[str, Tensor]]
"""Weights of the examples, or None, to numbers."""
CHUNK = 100
"""Resamples at a time."""
LEVEL = 0.95
NUM_GROUPS = 10
"""Groups of draws, each left out once."""
ENOUGH_OF_INTERVAL, ENOUGH_OF_VALUE = 0.25, 0.01
JUDGED_BY = ("accuracy", "nll", "brier", "ece", "aurc", "rmse", "crps")
"""What must not move for the draws to be enough."""


def estimates(
    measure: Measure,
    num_examples: int,
    num_resamples: int,
    *,
    left_out: list[dict[str, Tensor]] | None = None,
    doubled: Mapping[str, Tensor] | None = None,
    seed: int = 0,
) -> dict[str, Estimate]:
    """All numbers of a measure, with intervals over examples where resamples are asked for.

    ``left_out`` are the numbers with each group of draws left out, ``doubled`` those from twice as many draws.
    """
    found = {name: Estimate(float(value)) for name, value in measure(None).items()}
    if infinite := [name for name, estimate in found.items() if not math.isfinite(estimate.value)]:
        raise ValueError(
            f"{infinite[0]} is not finite: the network gives some target a probability of zero; bound its logits, or "
            "leave such examples out"
        )
    if num_resamples > 0:
        resampled = [measure(weight) for weight in resamples(num_examples, num_resamples, seed)]
        for name in found:
            values = torch.cat([part[name].cpu() for part in resampled])
            low, high = functional.statistics.bootstrap_interval(found[name].value, values, LEVEL)
            found[name] = replace(found[name], low=low, high=high)
    for name in found:
        if left_out is not None and name in left_out[0]:
            values = torch.stack([part[name].cpu() for part in left_out])
            found[name] = replace(found[name], draw_error=functional.statistics.jackknife_error(values))
        if doubled is not None and name in doubled:
            found[name] = replace(found[name], doubled=float(doubled[name]))
    return found


def can_group(num_samples: int) -> bool:
    """Whether there are draws enough to leave groups of them out."""
    return num_samples >= 2 * NUM_GROUPS


def resamples(num_examples: int, num_resamples: int, seed: int) -> Iterator[Float[Tensor, "resample example"]]:
    """Weights of bootstrap resamples, some at a time."""
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, num_resamples, CHUNK):
        yield functional.statistics.resample_weights(num_examples, min(CHUNK, num_resamples - start), generator)


def check_draws(found: Mapping[str, Estimate], num_samples: int) -> DrawCheck:
    """Which number moves most when there are twice as many draws, and whether that is little."""
    moved = {
        name: _movement(estimate)
        for name, estimate in found.items()
        if name in JUDGED_BY and estimate.doubled is not None
    }
    metric = max(moved, key=lambda name: moved[name])
    estimate = found[metric]
    assert estimate.doubled is not None
    return DrawCheck(num_samples, metric, estimate.doubled - estimate.value, moved[metric] <= 1.0)


def _movement(estimate: Estimate) -> float:
    """The change from S to 2S draws, in parts of what is still little."""
    assert estimate.doubled is not None
    change = abs(estimate.doubled - estimate.value)
    if estimate.low is not None and estimate.high is not None and estimate.high > estimate.low:
        return change / (ENOUGH_OF_INTERVAL * 0.5 * (estimate.high - estimate.low))
    return change / max(ENOUGH_OF_VALUE * abs(estimate.value), 1e-12)
