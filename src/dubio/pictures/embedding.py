"""The picture of a Wasserstein network in two dimensions: where it puts inputs, and where classes.

Every input and every class is a cloud of points, and a logit is minus the distance of two clouds: what lies near a
class is taken for it, and the width of a cloud is what the network leaves open.

Invariants: the points drawn are those that the network compares in draw 0 of the seed, no more and no fewer
(``tests/pictures/test_embedding.py``).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dubio._engine import check_module, frozen
from dubio.nn import WassersteinHead
from dubio.pictures.figures import blank_figure, class_colours, class_names, write

__all__ = ["clouds_of", "draw_embedding"]


@torch.no_grad()
def clouds_of(
    model: nn.Module, inputs: Float[Tensor, "batch ..."], *, seed: int = 0
) -> tuple[Float[Tensor, "batch cloud dim"], Float[Tensor, "class cloud dim"]]:
    """The clouds of some inputs, and those of all classes, in draw 0 of a seed.

    Args:
        model: a network that ``dubio.Wasserstein`` has converted, of any dimension.
        inputs: what the network reads.
        seed: which draws; the same as in ``dubio.sample(model, inputs, 1, seed=seed)``.
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
    """Draw the clouds of inputs and classes of a network with ``Wasserstein(dim=2)``; gives matplotlib's figure.

    Args:
        model: the network.
        inputs: what to draw.
        labels: their classes, which give them their colours.
        path: where the picture goes; its ending says of which kind it is.
        classes: names for the legend; numbers by default.
        num_inputs: how many of the inputs are drawn, from the first on.
        seed: which draws.
    """
    head = _head_of(model)
    if head.dim != 2:
        raise ValueError(f"dim must be 2 to be drawn, got {head.dim}; train with Wasserstein(dim=2)")
    if labels.shape != inputs.shape[:1]:
        raise ValueError(f"labels must be one per input, got shapes {tuple(labels.shape)} and {tuple(inputs.shape)}")
    if isinstance(num_inputs, bool) or not isinstance(num_inputs, int) or num_inputs < 1:
        raise ValueError(f"num_inputs must be a whole number of at least 1, got {num_inputs!r}")
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


def _head_of(model: nn.Module) -> WassersteinHead:
    check_module(model)
    for module in model.modules():
        if isinstance(module, WassersteinHead):
            return module
    raise ValueError(
        f"model must have a Wasserstein head, got a {type(model).__name__} without one; "
        "convert it with dubio.Wasserstein(dim=2)"
    )
