"""How images and filters lie in memory: GPUs convolve them fastest channels last.

A network may not take it: ``x.view(len(x), -1)`` wants its rows in one piece. So it is tried, and left alone where it
fails (``test_a_network_that_views_its_images_is_left_as_it_is``).
"""

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio.sampling.drawing import Inputs, arguments
from dubio.sampling.restoring import unchanged
from dubio.sampling.settings import noise_off

__all__ = ["images_channels_last", "lay_out", "takes_channels_last"]

DEVICES = ("cuda",)
"""Where it is faster."""

_TAKES: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


def images_channels_last(model: nn.Module, values: Any) -> Any:
    """Values with their images channels last: what has as many channels as some convolution of the network takes."""
    channels = _channels(model)

    def laid_out(leaf: Tensor) -> Tensor:
        is_image = leaf.dim() == 4 and leaf.shape[1] in channels
        return leaf.to(memory_format=torch.channels_last) if is_image else leaf

    return pytree.tree_map_only(Tensor, laid_out, values)


def takes_channels_last(model: nn.Module, inputs: Inputs, rows: int) -> bool:
    """Whether a network is faster with images channels last, and runs with them: tried once, with two rows of inputs.

    Args:
        model: the network.
        inputs: some of its inputs.
        rows: how many rows these have; what has another first axis goes in whole.
    """
    if not _may_gain(model, inputs):
        return False
    if model not in _TAKES:
        few = pytree.tree_map_only(
            Tensor, lambda leaf: leaf[:2] if leaf.dim() and leaf.shape[0] == rows else leaf, inputs
        )
        _TAKES[model] = _runs(model, images_channels_last(model, few))
    return _TAKES[model]


def lay_out(model: nn.Module, inputs: Inputs) -> bool:
    """Lay out the filters of a network channels last, where that is faster and it runs so; whether that was done."""
    if not _may_gain(model, inputs):
        return False
    before = [parameter for parameter in model.parameters() if parameter.dim() == 4 and parameter.is_contiguous()]
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if _runs(model, images_channels_last(model, inputs)):
        return True
    for parameter in before:
        parameter.data = parameter.data.contiguous()
    return False


def _may_gain(model: nn.Module, inputs: Inputs) -> bool:
    device = next((leaf.device.type for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)), "cpu")
    return device in DEVICES and bool(_channels(model))


def _channels(model: nn.Module) -> set[int]:
    """Numbers of channels that convolutions of images take."""
    return {module.in_channels for module in model.modules() if isinstance(module, nn.Conv2d)}


def _runs(model: nn.Module, inputs: Inputs) -> bool:
    args, kwargs = arguments(inputs)
    try:
        with torch.no_grad(), noise_off(), unchanged(model):
            model(*args, **kwargs)
    except Exception:  # its own fault, or that of the layout
        return False
    return True
