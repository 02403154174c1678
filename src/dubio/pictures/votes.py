"""The picture of a few single inputs: what each draw takes them for, and how sure the draws are of the answer.

For each input a column: the image itself where it is one; the share of draws that vote for each class; and a histogram
over draws of the probability of the answer, which is the class with the largest mean probability. Draws that agree put
one bar beside one class and all scores at the right end; votes for several classes or widely spread scores are doubt.

Invariants: votes and answer are those of ``dubio.predict`` with the same seed, the mean of the scores its confidence,
and each histogram sums to 1 (``tests/pictures/test_votes.py``).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dubio.pictures.asking import check_labels, check_rows, classes_of
from dubio.pictures.figures import blank_figure, class_names, write

__all__ = ["Votes", "draw_votes", "votes_of"]

MOST = 8
BINS = 10
BLUE, GREY = "#0072b2", "#b0b7bd"
RIGHT, WRONG = "#1b7837", "#b2182b"


@dataclass(frozen=True, eq=False)
class Votes:
    """What the draws say of some inputs."""

    votes: Float[Tensor, "batch class"]
    """Share of draws that hold each class most probable."""
    top_scores: Float[Tensor, "sample batch"]
    """Probability of the answer, draw by draw."""
    label: Int[Tensor, " batch"]
    """The answer: the class with the largest mean probability, which need not have the most votes."""


def votes_of(model: nn.Module, inputs: Float[Tensor, "batch ..."], *, num_samples: int = 100, seed: int = 0) -> Votes:
    """The votes of draws on some inputs, and the scores that they give to the answer.

    Args:
        model: the network; it tells classes apart.
        inputs: what the network reads.
        num_samples: how many draws; each is one set of weights.
        seed: which draws.
    """
    check_rows(model, inputs)
    found = classes_of(model, inputs, num_samples=num_samples, seed=seed, keep_samples=True)
    assert found.samples is not None
    answer = found.label.expand(found.samples.shape[:-1]).unsqueeze(-1)
    scores = found.samples.gather(-1, answer).squeeze(-1).exp()
    return Votes(found.votes.cpu(), scores.cpu(), found.label.cpu())


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
    """Draw the votes and scores of a few single inputs, each with its image; gives matplotlib's figure.

    Args:
        model: a network that tells classes apart.
        inputs: at most eight; those of shape (n, 1, h, w) or (n, 3, h, w) are shown as images.
        path: where the picture goes; its ending says of which kind it is.
        labels: their true classes, which colour the answers: green where right, red where wrong.
        classes: names of the classes; numbers by default.
        names: what each input is called, above its column.
        num_samples: how many draws.
        seed: which draws.
    """
    check_rows(model, inputs)
    _check_inputs(inputs, labels, names)
    figure = blank_figure(max(1.1 + 1.5 * len(inputs), 3.6), 5.2 if _are_images(inputs) else 3.8)

    found = votes_of(model, inputs, num_samples=num_samples, seed=seed)
    called = class_names(classes, found.votes.shape[1])
    heights = [1.0, 1.25, 0.8] if _are_images(inputs) else [1.25, 0.8]
    rows = figure.subplots(len(heights), len(inputs), squeeze=False, height_ratios=heights)
    if _are_images(inputs):
        for axes, image in zip(rows[0], inputs, strict=True):
            _show(axes, image)
    for number, (votes_axes, scores_axes) in enumerate(zip(rows[-2], rows[-1], strict=True)):
        _draw_votes(votes_axes, found.votes[number], int(found.label[number]), called)
        _draw_scores(scores_axes, found.top_scores[:, number])
        if number > 0:
            votes_axes.tick_params(labelleft=False)
            scores_axes.tick_params(labelleft=False)
    _entitle(rows, found, called, labels, names)
    write(figure, path)
    return figure


def _show(axes: Any, image: Float[Tensor, "channel height width"]) -> None:
    """An image; one with values outside [0, 1] is stretched between its least and its largest."""
    pixels = image.detach().float().cpu()
    least, most = pixels.min(), pixels.max()
    if least < 0.0 or most > 1.0:
        pixels = (pixels - least) / (most - least).clamp_min(1e-12)
    shown = pixels.permute(1, 2, 0).squeeze(-1)
    axes.imshow(shown.numpy(), cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
    axes.set(xticks=[], yticks=[])


def _draw_votes(axes: Any, votes: Float[Tensor, " class"], answer: int, called: list[str]) -> None:
    """A bar for each class from the top down, that of the answer in blue."""
    colours = [BLUE if number == answer else GREY for number in range(len(called))]
    axes.barh(range(len(called)), votes.tolist(), color=colours)
    axes.set(xlim=(0.0, 1.0), ylim=(len(called) - 0.5, -0.5), xticks=[0.0, 0.5, 1.0], xticklabels=["0", ".5", "1"])
    axes.set_yticks(range(len(called)), called, fontsize="small" if len(called) <= 12 else "xx-small")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_scores(axes: Any, scores: Float[Tensor, " sample"]) -> None:
    """A histogram of scores from 0 to 1, as shares of the draws."""
    share = torch.full_like(scores, 1.0 / len(scores))
    axes.hist(scores.numpy(), bins=BINS, range=(0.0, 1.0), weights=share.numpy(), color=BLUE)
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), xticks=[0.0, 0.5, 1.0], xticklabels=["0", ".5", "1"])
    axes.spines[["top", "right"]].set_visible(False)


def _entitle(rows: Any, found: Votes, called: list[str], labels: Tensor | None, names: Sequence[str] | None) -> None:
    """What each input is and what it is taken for, above its column; what rows show, beside the first and below."""
    for number, (axes, answer) in enumerate(zip(rows[0], found.label.tolist(), strict=True)):
        name = "" if names is None else f"{names[number]}\n"
        sure = found.top_scores[:, number].mean().item()
        right = None if labels is None else answer == int(labels[number])
        colour = "black" if right is None else RIGHT if right else WRONG
        axes.set_title(f"{name}{called[answer]} ({sure:.0%})", fontsize="medium", color=colour)
    rows[-2][0].set_ylabel("class")
    rows[-1][0].set_ylabel("share of draws")
    draws = len(found.top_scores)
    middle, place = rows.shape[1] // 2, 0.5 if rows.shape[1] % 2 else -0.06  # between two columns where none is midmost
    rows[-2][middle].set_xlabel(f"share of {draws} draws that vote for a class", x=place)
    rows[-1][middle].set_xlabel("probability of the answer, over draws", x=place)


def _are_images(inputs: Tensor) -> bool:
    return inputs.dim() == 4 and inputs.shape[1] in (1, 3)


def _check_inputs(inputs: Tensor, labels: Tensor | None, names: Sequence[str] | None) -> None:
    if not 1 <= len(inputs) <= MOST:
        raise ValueError(f"inputs must be from 1 to {MOST} to be drawn side by side, got {len(inputs)}; choose some")
    if labels is not None:
        check_labels(inputs, labels)
    if names is not None and len(names) != len(inputs):
        raise ValueError(f"names must be one per input, {len(inputs)}, got {len(names)}")
