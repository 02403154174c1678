"""Plots of classifiers: regions of the plane, votes of the draws on single inputs, and clouds of a Wasserstein network.

``draw_regions``: the background has the colour of the most probable class and is paler for less probable ones. Dots
grow with the uncertainty, open ones on a grid and filled ones at the data.

``draw_votes``: a column for each input with its image, the share of draws that vote for each class, and a histogram
over draws of the probability of the answer, which is the class with the largest mean probability.

``draw_embedding``: every input and every class of a Wasserstein network is a cloud of points, and a logit is minus the
distance of two clouds.

Invariants: label, confidence, uncertainty and votes are those of ``dubio.predict`` with the same seed; the area of a
dot rises linearly with uncertainty (``tests/plots/test_regions.py``); the mean of the scores is the confidence, and
each histogram sums to 1 (``tests/plots/test_votes.py``); the clouds are those that the network compares in draw 0 of
the seed (``tests/plots/test_embedding.py``).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dubio._engine import check_module, frozen
from dubio.checks import check_count
from dubio.nn import WassersteinHead
from dubio.plots.figures import blank_figure, check_labels, check_rows, class_colours, class_names, classes_of, write

UncertaintyMeasure = Literal["mutual_information", "entropy", "expected_entropy", "variation_ratio", "top_std"]
"""Name of a measure of uncertainty that a ``ClassificationPredictive`` has."""
UNITS = {"variation_ratio": "share of draws", "top_std": "of a probability"}
SMALLEST, LARGEST = 5.0, 150.0  # areas of dots, in square points
DOTS = 18  # in a row and in a column of the grid of dots
MOST_INPUTS = 8
BINS = 10
BLUE, GREY = "#0072b2", "#b0b7bd"
RIGHT, WRONG = "#1b7837", "#b2182b"


@dataclass(frozen=True, eq=False)
class Regions:
    """Predictions of a network on a grid; rows go up, columns to the right."""

    x: Float[Tensor, " column"]
    y: Float[Tensor, " row"]
    label: Int[Tensor, "row column"]
    """The most probable class."""
    confidence: Float[Tensor, "row column"]
    """Its probability."""
    uncertainty: Float[Tensor, "row column"]
    num_classes: int


@dataclass(frozen=True, eq=False)
class Votes:
    """Votes of the draws on inputs."""

    votes: Float[Tensor, "batch class"]
    """Share of draws in which each class is the most probable."""
    top_scores: Float[Tensor, "sample batch"]
    """Probability of the answer in each draw."""
    label: Int[Tensor, " batch"]
    """The answer: the class with the largest mean probability, which need not have the most votes."""


def regions_of(
    model: nn.Module,
    low: tuple[float, float],
    high: tuple[float, float],
    resolution: int = 120,
    *,
    num_samples: int = 100,
    uncertainty: UncertaintyMeasure = "mutual_information",
    seed: int = 0,
) -> Regions:
    """Predict a grid of the plane with a network that reads two numbers.

    Args:
        model: the network, a classifier.
        low: the lower left corner of the grid.
        high: the upper right corner of the grid.
        resolution: places in a row and in a column.
        num_samples: number of draws.
        uncertainty: the measure: mutual_information, entropy, expected_entropy, variation_ratio or top_std.
        seed: the seed of the draws.
    """
    check_count("resolution", resolution, 2)
    if len(low) != 2 or len(high) != 2 or not all(first < last for first, last in zip(low, high, strict=True)):
        raise ValueError(f"low and high must be corners (x, y), low below high on both axes, got {low} and {high}")
    if uncertainty not in get_args(UncertaintyMeasure):
        raise ValueError(f"uncertainty must be one of {', '.join(get_args(UncertaintyMeasure))}, got {uncertainty!r}")

    x, y = (torch.linspace(first, last, resolution) for first, last in zip(low, high, strict=True))
    across, up = torch.meshgrid(x, y, indexing="xy")
    places = torch.stack([across, up], dim=-1).flatten(0, 1)
    pred = classes_of(model, places, num_samples=num_samples, seed=seed)
    parts = (pred.label, pred.confidence, getattr(pred, uncertainty))
    label, confidence, uncertainties = (part.cpu().unflatten(0, (resolution, resolution)) for part in parts)
    return Regions(x, y, label, confidence, uncertainties, pred.log_probs.shape[-1])


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
    uncertainty: UncertaintyMeasure = "mutual_information",
    classes: Sequence[str] | None = None,
    seed: int = 0,
) -> Any:
    """Plot the predicted classes of the plane, points of data, and uncertainty as the size of dots.

    Args:
        model: a classifier that reads two numbers.
        inputs: points of data.
        labels: their classes, shown as colours.
        path: the file to write; its suffix chooses the format.
        low: the lower left corner; by default a quarter of the extent of the data beyond them.
        high: the upper right corner; the same.
        resolution: places in a row and in a column of the background.
        num_samples: number of draws.
        uncertainty: the measure of dots; mutual_information, entropy, expected_entropy, variation_ratio or top_std.
        classes: names for the legend; numbers by default.
        seed: the seed of the draws.

    Returns:
        The figure of matplotlib.
    """
    if inputs.dim() != 2 or inputs.shape[1] != 2 or len(inputs) == 0:
        raise ValueError(f"inputs must be points of the plane, of shape (n, 2), got {tuple(inputs.shape)}")
    check_labels(inputs, labels)
    figure = blank_figure(7.6, 5.6)

    points, truths = inputs.detach().float().cpu(), labels.cpu()
    low, high = low or _corner(points, -1), high or _corner(points, 1)
    regions = regions_of(model, low, high, resolution, num_samples=num_samples, uncertainty=uncertainty, seed=seed)
    dots = regions_of(model, *_inside(low, high), DOTS, num_samples=num_samples, uncertainty=uncertainty, seed=seed)
    names = class_names(classes, regions.num_classes)
    if not 0 <= int(truths.min()) <= int(truths.max()) < len(names):
        raise ValueError(f"labels must be from 0 to {len(names) - 1}, got {int(truths.min())} to {int(truths.max())}")
    of_points = getattr(classes_of(model, inputs, num_samples=num_samples, seed=seed), uncertainty).cpu()
    most = max(dots.uncertainty.max().item(), of_points.max().item())

    axes = figure.subplots()
    colours = class_colours(len(names))
    _draw_background(axes, regions, colours)
    across, up = torch.meshgrid(dots.x, dots.y, indexing="xy")
    axes.scatter(across, up, s=areas(dots.uncertainty, most), facecolors="none", edgecolors="#444444", linewidths=0.7)
    for number, (name, colour) in enumerate(zip(names, colours, strict=True)):
        members = truths == number
        x, y = points[members].T
        sizes = areas(of_points[members], most)
        axes.scatter(x, y, s=sizes, color=colour, edgecolors="white", linewidths=0.5, zorder=3, label=name)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    _draw_legends(axes, names, colours, uncertainty, most)
    write(figure, path)
    return figure


def areas(uncertainty: Float[Tensor, "*batch"], most: float) -> Float[Tensor, "*batch"]:
    """Areas of dots, linear in uncertainty, from the smallest at 0 to the largest at ``most``."""
    return SMALLEST + (LARGEST - SMALLEST) * uncertainty / max(most, 1e-6)


def votes_of(model: nn.Module, inputs: Float[Tensor, "batch ..."], *, num_samples: int = 100, seed: int = 0) -> Votes:
    """The votes of the draws on inputs, and the probability of the answer in each draw.

    Args:
        model: the network, a classifier.
        inputs: inputs of the network.
        num_samples: number of draws; each is one set of weights.
        seed: the seed of the draws.
    """
    check_rows(model, inputs)
    pred = classes_of(model, inputs, num_samples=num_samples, seed=seed, keep_samples=True)
    assert pred.samples is not None
    answer = pred.label.expand(pred.samples.shape[:-1]).unsqueeze(-1)
    scores = pred.samples.gather(-1, answer).squeeze(-1).exp()
    return Votes(pred.votes.cpu(), scores.cpu(), pred.label.cpu())


def draw_votes(
    model: nn.Module,
    inputs: Float[Tensor, "batch ..."],
    path: str | Path,
    *,
    labels: Int[Tensor, " batch"] | None = None,
    classes: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    num_samples: int = 100,
    seed: int = 0,
) -> Any:
    """Plot the votes and scores of a few inputs, each with its image.

    Args:
        model: a classifier.
        inputs: at most eight; those of shape (n, 1, h, w) or (n, 3, h, w) are shown as images.
        path: the file to write; its suffix chooses the format.
        labels: their true classes; right answers are green, wrong ones red.
        classes: names of the classes; numbers by default.
        names: names of the inputs, shown above their columns.
        num_samples: number of draws.
        seed: the seed of the draws.

    Returns:
        The figure of matplotlib.
    """
    check_rows(model, inputs)
    if not 1 <= len(inputs) <= MOST_INPUTS:
        got = f"{len(inputs)}; choose some"
        raise ValueError(f"inputs must be from 1 to {MOST_INPUTS} to be drawn side by side, got {got}")
    if labels is not None:
        check_labels(inputs, labels)
    if names is not None and len(names) != len(inputs):
        raise ValueError(f"names must be one per input, {len(inputs)}, got {len(names)}")
    are_images = inputs.dim() == 4 and inputs.shape[1] in (1, 3)
    figure = blank_figure(max(1.1 + 1.5 * len(inputs), 3.6), 5.2 if are_images else 3.8)

    votes = votes_of(model, inputs, num_samples=num_samples, seed=seed)
    class_labels = class_names(classes, votes.votes.shape[1])
    heights = [1.0, 1.25, 0.8] if are_images else [1.25, 0.8]
    rows = figure.subplots(len(heights), len(inputs), squeeze=False, height_ratios=heights)
    for axes, image in zip(rows[0], inputs, strict=True) if are_images else ():
        _draw_image(axes, image)
    for number, (votes_axes, scores_axes) in enumerate(zip(rows[-2], rows[-1], strict=True)):
        _draw_votes(votes_axes, votes.votes[number], int(votes.label[number]), class_labels)
        _draw_scores(scores_axes, votes.top_scores[:, number])
        for axes in (votes_axes, scores_axes) if number > 0 else ():
            axes.tick_params(labelleft=False)
    _draw_titles(rows, votes, class_labels, labels, names)
    write(figure, path)
    return figure


@torch.no_grad()
def clouds_of(
    model: nn.Module, inputs: Float[Tensor, "batch ..."], *, seed: int = 0
) -> tuple[Float[Tensor, "batch cloud dim"], Float[Tensor, "class cloud dim"]]:
    """The clouds of inputs and of all classes in draw 0 of a seed.

    Args:
        model: a network that ``dubio.Wasserstein`` has converted, of any dimension.
        inputs: inputs of the network.
        seed: the seed of the draws, as in ``dubio.sample(model, inputs, 1, seed=seed)``.
    """
    head = _head_of(model)
    codes: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda module, args: codes.append(args[0]))
    try:
        with frozen(seed):
            model(inputs)
    finally:
        hook.remove()
    with frozen(seed):
        return head.clouds(codes[0]), head.class_clouds(codes[0])


def draw_embedding(
    model: nn.Module,
    inputs: Float[Tensor, "batch ..."],
    labels: Int[Tensor, " batch"],
    path: str | Path,
    *,
    classes: Sequence[str] | None = None,
    num_inputs: int = 200,
    seed: int = 0,
) -> Any:
    """Plot the clouds of inputs and classes of a network with ``Wasserstein(dim=2)``.

    Args:
        model: the network.
        inputs: inputs to plot.
        labels: their classes, shown as colours.
        path: the file to write; its suffix chooses the format.
        classes: names for the legend; numbers by default.
        num_inputs: the number of inputs to plot, from the first on.
        seed: the seed of the draws.

    Returns:
        The figure of matplotlib.
    """
    head = _head_of(model)
    if head.dim != 2:
        raise ValueError(f"dim must be 2 to be drawn, got {head.dim}; train with Wasserstein(dim=2)")
    if labels.shape != inputs.shape[:1]:
        raise ValueError(f"labels must be one per input, got shapes {tuple(labels.shape)} and {tuple(inputs.shape)}")
    check_count("num_inputs", num_inputs)
    names = class_names(classes, head.num_classes)
    figure = blank_figure(7.4, 6.4)

    shown = labels[:num_inputs].cpu()
    of_inputs, of_classes = (clouds.float().cpu() for clouds in clouds_of(model, inputs[:num_inputs], seed=seed))
    axes = figure.subplots()
    colours = class_colours(len(names))
    for number, colour in enumerate(colours):
        points = of_inputs[shown == number].flatten(0, 1)
        axes.scatter(points[:, 0], points[:, 1], s=10, color=colour, alpha=0.45, linewidths=0, zorder=1)
    for name, colour, points in zip(names, colours, of_classes, strict=True):
        x, y = points.T
        axes.scatter(x, y, s=44, color=colour, edgecolors="black", linewidths=0.9, zorder=2, label=name)
    axes.set(xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set_visible(False)
    legend = figure.legend(loc="outside right center", frameon=False, handletextpad=0.2, alignment="left")
    legend.set_title("classes (outlined)\nand their inputs")
    write(figure, path)
    return figure


def _draw_background(axes: Any, regions: Regions, colours: list[Any]) -> None:
    """Draw the background: white at chance, at most two fifths of a colour, so that dots stand out."""
    chance = 1.0 / regions.num_classes
    strength = 0.4 * (regions.confidence.float() - chance) / (1.0 - chance)
    colour = torch.tensor(colours)[:, :3][regions.label]
    pixels = 1.0 - strength.clamp(0.0, 1.0).unsqueeze(-1) * (1.0 - colour)
    half_x, half_y = (0.5 * (places[1] - places[0]).item() for places in (regions.x, regions.y))
    left, right = regions.x[0].item() - half_x, regions.x[-1].item() + half_x
    bottom, top = regions.y[0].item() - half_y, regions.y[-1].item() + half_y
    place = {"origin": "lower", "extent": (left, right, bottom, top), "aspect": "auto", "zorder": 0}
    axes.imshow(pixels.numpy(), interpolation="bilinear", **place)


def _draw_legends(axes: Any, names: list[str], colours: list[Any], uncertainty: str, most: float) -> None:
    """Draw two legends: one of the colours, one of the sizes."""
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
    title = f"size: {uncertainty.replace('_', ' ')}\n({UNITS.get(uncertainty, 'nats')})"
    axes.legend(handles=sizes, title=title, loc="lower left", bbox_to_anchor=(1.03, 0.0), **looks)


def _corner(points: Float[Tensor, "batch 2"], side: Literal[-1, 1]) -> tuple[float, float]:
    """A corner a quarter of the extent of all points beyond them; 1 beyond a single point."""
    least, most = points.amin(dim=0), points.amax(dim=0)
    beyond = torch.where(most > least, (most - least) / 4, torch.ones(2))
    x, y = (least - beyond if side < 0 else most + beyond).tolist()
    return x, y


def _inside(low: tuple[float, float], high: tuple[float, float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Corners of the grid of dots, half a step from the edges, so that no dot is cut off."""
    x, y = ((last - first) / (2 * DOTS) for first, last in zip(low, high, strict=True))
    return (low[0] + x, low[1] + y), (high[0] - x, high[1] - y)


def _draw_image(axes: Any, image: Float[Tensor, "channel height width"]) -> None:
    """Draw an image; values outside [0, 1] are rescaled to it."""
    pixels = image.detach().float().cpu()
    least, most = pixels.min(), pixels.max()
    if least < 0.0 or most > 1.0:
        pixels = (pixels - least) / (most - least).clamp_min(1e-12)
    shown = pixels.permute(1, 2, 0).squeeze(-1)
    axes.imshow(shown.numpy(), cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
    axes.set(xticks=[], yticks=[])


def _draw_votes(axes: Any, votes: Float[Tensor, " class"], answer: int, classes: list[str]) -> None:
    """Draw a bar for each class from the top down, that of the answer in blue."""
    colours = [BLUE if number == answer else GREY for number in range(len(classes))]
    axes.barh(range(len(classes)), votes.tolist(), color=colours)
    axes.set(xlim=(0.0, 1.0), ylim=(len(classes) - 0.5, -0.5), xticks=[0.0, 0.5, 1.0], xticklabels=["0", ".5", "1"])
    axes.set_yticks(range(len(classes)), classes, fontsize="small" if len(classes) <= 12 else "xx-small")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_scores(axes: Any, scores: Float[Tensor, " sample"]) -> None:
    """Draw a histogram of scores from 0 to 1, as shares of the draws."""
    share = torch.full_like(scores, 1.0 / len(scores))
    axes.hist(scores.numpy(), bins=BINS, range=(0.0, 1.0), weights=share.numpy(), color=BLUE)
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), xticks=[0.0, 0.5, 1.0], xticklabels=["0", ".5", "1"])
    axes.spines[["top", "right"]].set_visible(False)


def _draw_titles(
    rows: Any, votes: Votes, classes: list[str], labels: Tensor | None, names: Sequence[str] | None
) -> None:
    """Draw titles of the columns and labels of the rows."""
    for number, (axes, answer) in enumerate(zip(rows[0], votes.label.tolist(), strict=True)):
        name = "" if names is None else f"{names[number]}\n"
        confidence = votes.top_scores[:, number].mean().item()
        right = None if labels is None else answer == int(labels[number])
        colour = "black" if right is None else RIGHT if right else WRONG
        axes.set_title(f"{name}{classes[answer]} ({confidence:.0%})", fontsize="medium", color=colour)
    rows[-2][0].set_ylabel("class")
    rows[-1][0].set_ylabel("share of draws")
    draws = len(votes.top_scores)
    middle, place = rows.shape[1] // 2, 0.5 if rows.shape[1] % 2 else -0.06  # between two columns where none is midmost
    rows[-2][middle].set_xlabel(f"share of {draws} draws that vote for a class", x=place)
    rows[-1][middle].set_xlabel("probability of the answer, over draws", x=place)


def _head_of(model: nn.Module) -> WassersteinHead:
    check_module(model)
    for module in model.modules():
        if isinstance(module, WassersteinHead):
            return module
    got = f"got a {type(model).__name__} without one; convert it with dubio.Wasserstein(dim=2)"
    raise ValueError(f"model must have a Wasserstein head, {got}")
