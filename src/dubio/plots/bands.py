"""The picture of a regression on the line: each draw is one function, and bands hold the middle of them.

Filled bands are the doubt of the network: between their edges lies the middle half, say, of the functions drawn. Dotted
lines add the noise of the data to it: between them lies a target with the largest of the probabilities asked for.

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
PLACES = 281  # across the picture


@dataclass(frozen=True, eq=False)
class Bands:
    """Bands at some places, one for each level; `side` is the lower edge, then the upper one."""

    places: Float[Tensor, " place"]
    median: Float[Tensor, " place"]
    """The median of the functions drawn."""
    levels: tuple[float, ...]
    of_draws: Float[Tensor, "level side place"]
    """Edges between which the middle share of the functions lies: the doubt of the network."""
    of_targets: Float[Tensor, "level side place"]
    """Edges between which a target lies with that probability: doubt and noise together."""
    num_samples: int


def bands_of(
    model: nn.Module,
    places: Float[Tensor, "place 1"],
    *,
    levels: Sequence[float] = (0.5, 0.95),
    num_samples: int = 100,
    seed: int = 0,
) -> Bands:
    """Ask a network that reads one number about some places.

    Args:
        model: the network; it has a ``Gaussian`` likelihood and one output.
        places: where.
        levels: which shares of the functions, and of targets, the bands hold; each more than the one before.
        num_samples: how many draws.
        seed: which draws.
    """
    _check_levels(levels)
    check_module(model)
    if places.dim() != 2 or places.shape[1] != 1:
        raise ValueError(f"places must be numbers, of shape (n, 1), got {tuple(places.shape)}")
    found = predict(model, places, num_samples, seed=seed)
    if not isinstance(found, RegressionPredictive):
        raise ValueError("model must be one for regression, got one for classes; convert with likelihood=Gaussian(...)")
    if found.mean.numel() != len(places):
        raise ValueError(f"model must have one output, got {found.mean[0].numel()} for one input")
    assert found.samples is not None

    draws = found.samples.flatten(1).float().cpu()
    of_draws = [torch.stack(functional.uncertainty.central_interval(draws, level)) for level in levels]
    of_targets = [torch.stack([edge.flatten().float().cpu() for edge in found.interval(level)]) for level in levels]
    return Bands(
        places=places.detach().flatten().cpu(),
        median=draws.quantile(0.5, dim=0),
        levels=tuple(levels),
        of_draws=torch.stack(of_draws),
        of_targets=torch.stack(of_targets),
        num_samples=found.num_samples,
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
    """Draw data, the median of the functions that a network draws, and bands around it; gives matplotlib's figure.

    Args:
        model: a network that reads one number and gives one, with a ``Gaussian`` likelihood.
        inputs: points of data, where they are.
        targets: and how high, one number each.
        path: where the picture goes; its ending says of which kind it is.
        grid: where the picture begins and ends; by default beyond the data by a quarter of their extent.
        levels: which shares of the functions the bands hold; each more than the one before.
        num_samples: how many draws.
        truth: the true curve, drawn dashed; where nobody knows it, none.
        noise: whether dotted lines show the widest band with the noise of the data added.
        seed: which draws.
    """
    _check_data(inputs, targets, grid)
    figure = blank_figure(9.6, 4.2)

    x, y = inputs.detach().flatten().cpu(), targets.detach().flatten().cpu()
    low, high = grid or _around(x)
    places = torch.linspace(low, high, PLACES).unsqueeze(1)
    bands = bands_of(model, places, levels=levels, num_samples=num_samples, seed=seed)

    axes = figure.subplots()
    _fill(axes, bands, noise)
    if truth is not None:
        known = truth(places).flatten()
        axes.plot(bands.places, known, color="black", linewidth=1.3, linestyle="--", label="true curve, without noise")
    axes.scatter(x, y, s=5, color=ORANGE, linewidths=0, zorder=1.5, label=f"{len(x)} points of data")
    axes.set(xlabel="x", ylabel="y", xlim=(low, high))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False, markerscale=2.5)
    write(figure, path)
    return figure


def _fill(axes: Any, bands: Bands, noise: bool) -> None:
    """The bands, widest first, and the median; each level darkens what the wider ones have shaded."""
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
    """Beyond all points by a quarter of their extent; by 1 where they have none."""
    low, high = x.min().item(), x.max().item()
    beyond = (high - low) / 4 if high > low else 1.0
    return low - beyond, high + beyond


def _check_levels(levels: Sequence[float]) -> None:
    ordered = all(first < second for first, second in pairwise(levels))
    if not levels or not ordered or not all(0.0 < level < 1.0 for level in levels):
        raise ValueError(f"levels must be probabilities between 0 and 1, each above the one before, got {levels}")


def _check_data(inputs: Tensor, targets: Tensor, grid: tuple[float, float] | None) -> None:
    if inputs.dim() != 2 or inputs.shape[1] != 1 or len(inputs) == 0:
        raise ValueError(f"inputs must be numbers, of shape (n, 1), got {tuple(inputs.shape)}")
    if tuple(targets.shape) not in ((len(inputs),), (len(inputs), 1)):
        raise ValueError(
            f"targets must be one number per input, got shapes {tuple(targets.shape)} and {tuple(inputs.shape)}"
        )
    if grid is not None and (len(grid) != 2 or not grid[0] < grid[1]):
        raise ValueError(f"grid must be (low, high) with low below high, got {grid}")
