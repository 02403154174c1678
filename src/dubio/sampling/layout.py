"""How images and filters lie in memory: GPUs convolve them fastest channels last."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

__all__ = ["CHANNELS_LAST", "filters_channels_last", "has_filters", "images_channels_last"]

CHANNELS_LAST = ("cuda",)
"""Devices that convolve images faster so."""


def has_filters(model: nn.Module) -> bool:
    """Whether a network convolves images."""
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


def filters_channels_last(model: nn.Module) -> None:
    """Lay out the filters of a network so."""
    if has_filters(model):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def images_channels_last(values: Any) -> Any:
    """Images laid out so, among whatever else."""
    return pytree.tree_map_only(
        Tensor,
        lambda leaf: leaf.to(memory_format=torch.channels_last) if leaf.dim() == 4 else leaf,
        values,
    )
