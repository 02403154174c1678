"""How images and filters lie in memory: GPUs convolve them fastest channels last."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

__all__ = ["convolves_channels_last", "filters_channels_last", "images_channels_last"]

DEVICES = ("cuda",)


def convolves_channels_last(model: nn.Module, device: torch.device) -> bool:
    """Whether a network convolves images, on a device that does so faster channels last."""
    return device.type in DEVICES and any(isinstance(module, nn.Conv2d) for module in model.modules())


def filters_channels_last(model: nn.Module, device: torch.device) -> None:
    """Lay out the filters of a network so, where that is faster."""
    if convolves_channels_last(model, device):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def images_channels_last(values: Any) -> Any:
    """Images laid out so, among whatever else."""
    return pytree.tree_map_only(
        Tensor,
        lambda leaf: leaf.to(memory_format=torch.channels_last) if leaf.dim() == 4 else leaf,
        values,
    )
