"""What autocast does to factors, by hand: ``vmap`` takes functions apart before autocast sees them.

Of a mapped product autocast sees what is left of it: a convolution of its own kind, which it lowers on a GPU alone and
not where its bias is in float32; or a bias that is added in float32, and makes float32 of a linear layer's outputs. So
products of mapped draws are lowered where they are called, whoever calls them, if autocast is on as draws begin.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["LoweredProducts", "autocast_dtype", "lowered"]

PRODUCTS = frozenset(
    (
        torch.nn.functional.linear,
        torch.nn.functional.multi_head_attention_forward,  # whose products are out of the mode's sight
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.conv_transpose1d,
        torch.conv_transpose2d,
        torch.conv_transpose3d,
    )
)


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The type that autocast gives to factors on a device; None where it is off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def lowered(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A factor in the type of autocast, where there is one; as there, double precision stays as it is."""
    keeps = dtype is None or not value.is_floating_point()
    return value if keeps or value.dtype == torch.float64 else value.to(dtype)


class LoweredProducts(TorchFunctionMode):
    """A block in which linear layers, convolutions and attention compute in the type of autocast."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in PRODUCTS:
            args = tuple(_lowered_tensor(value) for value in args)
            kwargs = {name: _lowered_tensor(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _lowered_tensor(value: Any) -> Any:
    return lowered(value, autocast_dtype(value.device)) if isinstance(value, Tensor) else value
