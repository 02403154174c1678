"""Products of mapped draws, taken in hand where they are called: ``vmap`` takes functions apart, and not all goes well.

Of a mapped product autocast sees what is left of it: a convolution of its own kind, which it lowers on a GPU alone and
not where its bias is in float32; or a bias that is added in float32, and makes float32 of a linear layer's outputs. So
factors are lowered first, if autocast is on as draws begin. Of attention a GPU sees parts that cannot be mapped; it is
computed for all draws together (``attending``). Whoever calls these functions, the network stays as it is
(``docs/decisions/0004-products-of-mapped-draws.md``).
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dubio.sampling.attending import attention
from dubio.sampling.autocasting import autocast_dtype, lowered

__all__ = ["MappedProducts", "needs_mapped_products"]

PRODUCTS = frozenset(
    (
        F.linear,
        F.multi_head_attention_forward,  # whose products are out of the mode's sight
        torch.conv1d,
        torch.conv2d,
        torch.conv3d,
        torch.conv_transpose1d,
        torch.conv_transpose2d,
        torch.conv_transpose3d,
    )
)
ATTENDING_TOGETHER = ("cuda",)
"""Devices on which torch can map attention in few cases only."""


def needs_mapped_products(device: torch.device) -> bool:
    """Whether draws must be mapped inside of ``MappedProducts``, on a device."""
    return device.type in ATTENDING_TOGETHER or autocast_dtype(device) is not None


class MappedProducts(TorchFunctionMode):
    """A block in which products compute in the type of autocast, and attention for all draws together."""

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
        if func is F.scaled_dot_product_attention:
            func = attention
        elif func is Tensor.unflatten:
            func = torch.unflatten  # the same, and no method: the compiler could not follow a mode into that
        return func(*args, **kwargs)


def _lowered_tensor(value: Any) -> Any:
    return lowered(value, autocast_dtype(value.device)) if isinstance(value, Tensor) else value
