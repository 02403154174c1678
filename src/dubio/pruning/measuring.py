"""What pruning is judged by: how well a network does, how long a forward takes, and how its signal-to-noise ratios lie.

All tries of one pruning are judged by the same draws, so that they differ by what was removed alone.
"""

import statistics
import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Inputs, Stream, Watch, arguments
from dubio.convert import Where
from dubio.data import batches_from
from dubio.pruning.tracing import in_eval
from dubio.pruning.values import By, PruningPoint, SnrDensity
from dubio.pruning.weights import prunable, scores_of
from dubio.training import validate

__all__ = ["judge", "snr_density", "step_seconds", "with_threshold"]

BATCH_SIZE = 256
WARM_UPS, REPETITIONS = 3, 20


def judge(
    model: nn.Module, data: Any, by: By, fraction: float, removed: float, num_samples: int, seed: int
) -> PruningPoint:
    """Accuracy and negative log-likelihood of the mean prediction, as a point of the curve."""
    device = next(model.parameters()).device
    batches = batches_from(data, BATCH_SIZE, name="validation", device=device)
    with in_eval(model):
        found = validate(model, batches, seed, device, num_samples)
    return PruningPoint(by, fraction, found.get("val_accuracy"), found["val_nll"], removed)


@torch.no_grad()
def step_seconds(model: nn.Module, example: Inputs) -> float:
    """Median time of a forward with one draw, in eval mode; the process's generators are left alone."""
    args, kwargs = arguments(example)
    device = next(model.parameters()).device
    seconds: list[float] = []

    def run(times: int) -> None:
        for _ in range(times):
            began = time.perf_counter()
            model(*args, **kwargs)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - began)

    with in_eval(model), Stream().in_use() as stream:
        with Watch() as watch:
            run(WARM_UPS)
        with stream.lent(device) if watch.itself else nullcontext():
            run(REPETITIONS)
    return statistics.median(seconds[WARM_UPS:])


def snr_density(model: nn.Module, *, where: Where = None, biases: bool = False, num_bins: int = 60) -> SnrDensity:
    """A histogram of the signal-to-noise ratios of all weights with a Gaussian posterior, in decibels.

    Args:
        model: a converted network.
        where: which layers; see ``dubio.Where``. All by default.
        biases: whether biases count.
        num_bins: bins between the least and the largest ratio.
    """
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1, got {num_bins}")
    levels = _levels(model, where, biases)
    finite = levels[levels.isfinite()]
    low, high = (finite.min().item(), finite.max().item()) if len(finite) else (0.0, 0.0)
    edges = torch.linspace(low, high if high > low else low + 1.0, num_bins + 1, dtype=torch.float64)
    places = torch.bucketize(levels.double(), edges[1:-1], right=True)
    counts = torch.bincount(places, minlength=num_bins)
    return SnrDensity(tuple(edges.tolist()), tuple(counts.tolist()))


def with_threshold(density: SnrDensity, removed: Tensor) -> SnrDensity:
    """The density with the highest of the ratios that were removed."""
    if not len(removed):
        return density
    highest = functional.variational.decibels(removed.max()).item()
    return SnrDensity(density.edges, density.counts, min(max(highest, density.edges[0]), density.edges[-1]))


@torch.no_grad()
def _levels(model: nn.Module, where: Where, biases: bool) -> Tensor:
    parts = prunable(model, "snr", where, biases)
    return torch.cat(
        [functional.variational.decibels(scores_of(part, "snr")[part.counted & ~part.removed]).cpu() for part in parts]
    )
