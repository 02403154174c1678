"""The picture of a classifier of the plane: which class it sees where, how sure it is, and what it doubts.

The background has the colour of the most probable class and is the paler the less probable that class is. Dots grow
with the doubt that is asked for, open ones on a grid and filled ones at the data. With mutual information they show
where draws put the border differently; with entropy, all doubt together.

Invariants: label, confidence and doubt at a place are those of ``dubio.predict`` with the same seed; the area of a dot
rises in a straight line with doubt (``tests/pictures/test_regions.py``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dubio.pictures.asking import check_labels, classes_of
from dubio.pictures.figures import blank_figure, class_colours, class_names, write

__all__ = ["Doubt", "Regions", "draw_regions", "regions_of"]

Doubt = Literal["mutual_information", "entropy", "expected_entropy", "variation_ratio", "top_std"]
"""A summary of doubt that a ``ClassPredictive`` has, by its name."""

UNITS = {"variation_ratio": "share of draws", "top_std": "of a probability"}
SMALLEST, LARGEST = 5.0, 150.0  # areas of dots, in square points
DOTS = 18  # in a row and in a column of the grid of dots


@dataclass(frozen=True, eq=False)
class Regions:
    """What a network says of the places of a grid; rows go up, columns to the right."""

    x: Float[Tensor, " column"]
    y: Float[Tensor, " row"]
    label: Int[Tensor, "row column"]
    """The most probable class."""
    confidence: Float[Tensor, "row column"]
    """Its probability."""
    doubt: Float[Tensor, "row column"]
    num_classes: int


def regions_of(
    model: nn.Module,
    low: tuple[float, float],
    high: tuple[float, float],
    resolution: int = 120,
    *,
    num_samples: int = 100,
    doubt: Doubt = "mutual_information",
    seed: int = 0,
) -> Regions:
    """Ask a network that reads two numbers about a grid of places.

    Args:
        model: the network; it tells classes apart.
        low: the lower left corner, which belongs to the grid.
        high: the upper right corner, which does too.
        resolution: places in a row and in a column.
        num_samples: how many draws.
        doubt: which doubt; mutual_information, entropy, expected_entropy, variation_ratio or top_std.
        seed: which draws.
    """
    _check_grid(low, high, resolution, doubt)

    x, y = (torch.linspace(first, last, resolution) for first, last in zip(low, high, strict=True))
    across, up = torch.meshgrid(x, y, indexing="xy")
    places = torch.stack([across, up], dim=-1).flatten(0, 1)
    found = classes_of(model, places, num_samples=num_samples, seed=seed)
    label, confidence, doubts = (
        values.cpu().unflatten(0, (resolution, resolution))
        for values in (found.label, found.confidence, getattr(found, doubt))
    )
    return Regions(x, y, label, confidence, doubts, found.log_probs.shape[-1])


def draw_regions(
    model: nn.Module,
    inputs: Float[Tensor, "batch 2"],
    labels: Int[Tensor, " batch"],
    path: str | Path,
    *,
    low: tuple[float, float] | None = None,
    high: tuple[float, float] | None = None,
    resolution: int = 120,
    num_samples: int = 100,
    doubt: Doubt = "mutual_information",
    classes: Sequence[str] | None = None,
    seed: int = 0,
) -> Any:
    """Draw the classes of the plane, points of data on them, and doubt as the size of dots; gives matplotlib's figure.

    Args:
        model: a network that reads two numbers and tells classes apart.
        inputs: points of data.
        labels: their classes, which give them their colours.
        path: where the picture goes; its ending says of which kind it is.
        low: the lower left corner; by default beyond the data by a quarter of their extent.
        high: the upper right corner; the same.
        resolution: places in a row and in a column of the background.
        num_samples: how many draws.
        doubt: what dots grow with; mutual_information, entropy, expected_entropy, variation_ratio or top_std.
        classes: names for the legend; numbers by default.
        seed: which draws.
    """
    _check_points(inputs, labels)
    figure = blank_figure(7.6, 5.6)

    points, truths = inputs.detach().float().cpu(), labels.cpu()
    low, high = low or _corner(points, -1), high or _corner(points, 1)
    regions = regions_of(model, low, high, resolution, num_samples=num_samples, doubt=doubt, seed=seed)
    dots = regions_of(model, *_inside(low, high), DOTS, num_samples=num_samples, doubt=doubt, seed=seed)
    names = class_names(classes, regions.num_classes)
    if not 0 <= int(truths.min()) <= int(truths.max()) < len(names):
        raise ValueError(f"labels must be from 0 to {len(names) - 1}, got {int(truths.min())} to {int(truths.max())}")
    of_points = getattr(classes_of(model, inputs, num_samples=num_samples, seed=seed), doubt).cpu()
    most = max(dots.doubt.max().item(), of_points.max().item())

    axes = figure.subplots()
    colours = class_colours(len(names))
    _paint(axes, regions, colours)
    across, up = torch.meshgrid(dots.x, dots.y, indexing="xy")
    axes.scatter(across, up, s=areas(dots.doubt, most), facecolors="none", edgecolors="#444444", linewidths=0.7)
    for number, (name, colour) in enumerate(zip(names, colours, strict=True)):
        own = truths == number
        x, y = points[own].T
        sizes = areas(of_points[own], most)
        axes.scatter(x, y, s=sizes, color=colour, edgecolors="white", linewidths=0.5, zorder=3, label=name)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    _explain(figure, axes, names, colours, doubt, most)
    write(figure, path)
    return figure


def areas(doubt: Float[Tensor, "*batch"], most: float) -> Float[Tensor, "*batch"]:
    """Areas of dots: without doubt the smallest, at the most doubt the largest, in proportion between them."""
    return SMALLEST + (LARGEST - SMALLEST) * doubt / max(most, 1e-6)


def _paint(axes: Any, regions: Regions, colours: list[Any]) -> None:
    """The background: white at the confidence of a guess, at most two fifths of a colour, so that dots stand out."""
    chance = 1.0 / regions.num_classes
    strength = 0.4 * (regions.confidence.float() - chance) / (1.0 - chance)
    colour = torch.tensor(colours)[:, :3][regions.label]
    pixels = 1.0 - strength.clamp(0.0, 1.0).unsqueeze(-1) * (1.0 - colour)
    half_x, half_y = (0.5 * (places[1] - places[0]).item() for places in (regions.x, regions.y))
    left, right = regions.x[0].item() - half_x, regions.x[-1].item() + half_x
    bottom, top = regions.y[0].item() - half_y, regions.y[-1].item() + half_y
    axes.imshow(
        pixels.numpy(),
        origin="lower",
        extent=(left, right, bottom, top),
        aspect="auto",
        interpolation="bilinear",
        zorder=0,
    )


def _explain(figure: Any, axes: Any, names: list[str], colours: list[Any], doubt: str, most: float) -> None:
    """Two legends beside the picture: what colours and what sizes mean."""
    from matplotlib.lines import Line2D

    def dot(area: float, label: str, **looks: Any) -> Any:
        return Line2D([], [], linestyle="none", marker="o", markersize=math.sqrt(area), label=label, **looks)

    points = [
        dot(40.0, name, color=colour, markeredgecolor="white") for name, colour in zip(names, colours, strict=True)
    ]
    open_dot = {"markerfacecolor": "none", "markeredgecolor": "#444444", "markeredgewidth": 0.7}
    shown = (0.0, most / 2, most) if most > 1e-6 else (0.0,)
    sizes = [dot(areas(torch.tensor(value), most).item(), f"{value:.2g}", **open_dot) for value in shown]
    looks = {"frameon": False, "alignment": "left", "labelspacing": 0.7, "borderaxespad": 0.0}
    upper = axes.legend(
        handles=points, title="class\n(pale: not sure)", loc="upper left", bbox_to_anchor=(1.03, 1.0), **looks
    )
    axes.add_artist(upper)
    title = f"size: {doubt.replace('_', ' ')}\n({UNITS.get(doubt, 'nats')})"
    axes.legend(handles=sizes, title=title, loc="lower left", bbox_to_anchor=(1.03, 0.0), **looks)


def _corner(points: Float[Tensor, "batch 2"], side: Literal[-1, 1]) -> tuple[float, float]:
    """A corner beyond all points by a quarter of their extent; by 1 where they have none."""
    least, most = points.amin(dim=0), points.amax(dim=0)
    beyond = torch.where(most > least, (most - least) / 4, torch.ones(2))
    x, y = (least - beyond if side < 0 else most + beyond).tolist()
    return x, y


def _inside(low: tuple[float, float], high: tuple[float, float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Corners of the grid of dots: half a step from the edges, so that none is cut off."""
    x, y = ((last - first) / (2 * DOTS) for first, last in zip(low, high, strict=True))
    return (low[0] + x, low[1] + y), (high[0] - x, high[1] - y)


def _check_points(inputs: Tensor, labels: Tensor) -> None:
    if inputs.dim() != 2 or inputs.shape[1] != 2 or len(inputs) == 0:
        raise ValueError(f"inputs must be points of the plane, of shape (n, 2), got {tuple(inputs.shape)}")
    check_labels(inputs, labels)


def _check_grid(low: tuple[float, float], high: tuple[float, float], resolution: int, doubt: str) -> None:
    if isinstance(resolution, bool) or not isinstance(resolution, int) or resolution < 2:
        raise ValueError(f"resolution must be a whole number of at least 2, got {resolution!r}")
    if len(low) != 2 or len(high) != 2 or not all(first < last for first, last in zip(low, high, strict=True)):
        raise ValueError(f"low and high must be corners (x, y), low below high on both axes, got {low} and {high}")
    if doubt not in get_args(Doubt):
        raise ValueError(f"doubt must be one of {', '.join(get_args(Doubt))}, got {doubt!r}")
