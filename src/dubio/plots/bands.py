"""Plots of regression on the line: the functions that a network draws, as a median and bands around it.

Filled bands show the uncertainty of the network: the middle share of the functions lies between their edges. Dotted
lines add the noise of the data: a target lies between them with the largest of the given probabilities.

Invariants: edges of filled bands are quantiles of the draws of ``dubio.predict`` with the same seed, and dotted lines
its ``interval`` (``tests/plots/test_bands.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dubio import functional
from dubio._engine import check_module
from dubio.plots.figures import blank_figure, write
from dubio.prediction import RegressionPredictive, predict

BLUE, ORANGE = "#0072b2", "#e69f00"
PLACES = 281  # across the plot


@dataclass(frozen=True, eq=False)
class Bands:
    """Bands of a network, one for each level; ``side`` is the lower edge, then the upper one."""

    places: Float[Tensor, " place"]
    median: Float[Tensor, " place"]
    """The median of the draws."""
    levels: tuple[float, ...]
    of_draws: Float[Tensor, "level side place"]
    """Edges of the middle share of the draws: the uncertainty of the network."""
    of_targets: Float[Tensor, "level side place"]
    """Edges between which a target lies with that probability: uncertainty and noise together."""
    num_samples: int


def bands_of(
    model: nn.Module,
    places: Float[Tensor, "place 1"],
    *,
    levels: Sequence[float] = (0.5, 0.95),
    num_samples: int = 100,
    seed: int = 0,
) -> Bands:
    """Predict bands with a network that reads one number.

    Args:
        model: the network; it has a ``Gaussian`` likelihood and one output.
        places: the inputs.
        levels: shares of the draws, and of targets, that the bands hold, in increasing order.
        num_samples: number of draws.
        seed: the seed of the draws.
    """
    ordered = all(first < second for first, second in pairwise(levels))
    if not levels or not ordered or not all(0.0 < level < 1.0 for level in levels):
        raise ValueError(f"levels must be probabilities between 0 and 1, each above the one before, got {levels}")
    check_module(model)
    if places.dim() != 2 or places.shape[1] != 1:
        raise ValueError(f"places must be numbers, of shape (n, 1), got {tuple(places.shape)}")
    pred = predict(model, places, num_samples, seed=seed)
    if not isinstance(pred, RegressionPredictive):
        raise ValueError("model must be one for regression, got one for classes; convert with likelihood=Gaussian(...)")
    if pred.mean.numel() != len(places):
        raise ValueError(f"model must have one output, got {pred.mean[0].numel()} for one input")
    assert pred.samples is not None

    draws = pred.samples.flatten(1).float().cpu()
    of_draws = [torch.stack(functional.uncertainty.central_interval(draws, level)) for level in levels]
    of_targets = [torch.stack([edge.flatten().float().cpu() for edge in pred.interval(level)]) for level in levels]
    return Bands(
        places=places.detach().flatten().cpu(),
        median=draws.quantile(0.5, dim=0),
        levels=tuple(levels),
        of_draws=torch.stack(of_draws),
        of_targets=torch.stack(of_targets),
        num_samples=pred.num_samples,
    )


def draw_bands(
    model: nn.Module,
    inputs: Float[Tensor, "batch 1"],
    targets: Float[Tensor, "batch ..."],
    path: str | Path,
    *,
    grid: tuple[float, float] | None = None,
    levels: Sequence[float] = (0.5, 0.95),
    num_samples: int = 100,
    truth: Callable[[Float[Tensor, "place 1"]], Float[Tensor, "place 1"]] | None = None,
    noise: bool = True,
    seed: int = 0,
) -> Any:
    """Plot data, the median of the functions that a network draws, and bands around it.

    Args:
        model: a network that reads one number and gives one, with a ``Gaussian`` likelihood.
        inputs: inputs of the data.
        targets: targets of the data, one number each.
        path: the file to write; its suffix chooses the format.
        grid: the ends of the x-axis; by default a quarter of the extent of the data beyond them.
        levels: shares of the draws that the bands hold, in increasing order.
        num_samples: number of draws.
        truth: the true curve, drawn dashed.
        noise: whether dotted lines show the widest band with the noise of the data added.
        seed: the seed of the draws.

    Returns:
        The figure of matplotlib.
    """
    if inputs.dim() != 2 or inputs.shape[1] != 1 or len(inputs) == 0:
        raise ValueError(f"inputs must be numbers, of shape (n, 1), got {tuple(inputs.shape)}")
    if tuple(targets.shape) not in ((len(inputs),), (len(inputs), 1)):
        shapes = f"{tuple(targets.shape)} and {tuple(inputs.shape)}"
        raise ValueError(f"targets must be one number per input, got shapes {shapes}")
    if grid is not None and (len(grid) != 2 or not grid[0] < grid[1]):
        raise ValueError(f"grid must be (low, high) with low below high, got {grid}")
    figure = blank_figure(9.6, 4.2)

    x, y = inputs.detach().flatten().cpu(), targets.detach().flatten().cpu()
    low, high = grid or _around(x)
    places = torch.linspace(low, high, PLACES).unsqueeze(1)
    bands = bands_of(model, places, levels=levels, num_samples=num_samples, seed=seed)

    axes = figure.subplots()
    _fill(axes, bands, noise)
    if truth is not None:
        curve = truth(places).flatten()
        axes.plot(bands.places, curve, color="black", linewidth=1.3, linestyle="--", label="true curve, without noise")
    axes.scatter(x, y, s=5, color=ORANGE, linewidths=0, zorder=1.5, label=f"{len(x)} points of data")
    axes.set(xlabel="x", ylabel="y", xlim=(low, high))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, markerscale=2.5)
    write(figure, path)
    return figure


def _fill(axes: Any, bands: Bands, noise: bool) -> None:
    """Draw the bands, the widest first, and the median."""
    for level, (low, high) in reversed(list(zip(bands.levels, bands.of_draws, strict=True))):
        label = "middle half of the draws" if level == 0.5 else f"middle {100 * level:.3g} % of the draws"
        shade = 0.40 if level == bands.levels[0] else 0.18
        axes.fill_between(bands.places, low, high, color=BLUE, alpha=shade, linewidth=0, label=label)
    axes.plot(bands.places, bands.median, color=BLUE, linewidth=2, label=f"median of {bands.num_samples} draws")
    if noise:
        label = f"{100 * bands.levels[-1]:.3g} % of targets, noise added"
        for edge in bands.of_targets[-1]:
            axes.plot(bands.places, edge, color=BLUE, linewidth=1.0, linestyle=":", label=label)
            label = "_nolegend_"


def _around(x: Float[Tensor, " batch"]) -> tuple[float, float]:
    """Ends a quarter of the extent of all points beyond them; 1 beyond a single point."""
    low, high = x.min().item(), x.max().item()
    beyond = (high - low) / 4 if high > low else 1.0
    return low - beyond, high + beyond
