"""How images lie in memory: a GPU convolves them fastest channels last."""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

__all__ = ["channels_last", "image_channels", "is_faster_channels_last"]

DEVICES = ("cuda",)
"""Where it is faster."""


def is_faster_channels_last(device: torch.device) -> bool:
    """Whether images should lie channels last there."""
    return device.type in DEVICES


def image_channels(model: nn.Module) -> set[int]:
    """Numbers of channels that the convolutions of a network take."""
    return {module.in_channels for module in model.modules() if isinstance(module, nn.Conv2d)}


def channels_last(values: Any, channels: Collection[int]) -> Any:
    """Values, of which those that are images, by their number of channels, lie channels last."""

    def laid_out(leaf: Tensor) -> Tensor:
        is_image = leaf.dim() == 4 and leaf.layout is torch.strided and leaf.shape[1] in channels
        return leaf.to(memory_format=torch.channels_last) if is_image else leaf

    return pytree.tree_map_only(Tensor, laid_out, values) if channels else values
