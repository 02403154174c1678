"""What autocast does to factors in float32, by hand: ``vmap`` takes functions apart before autocast sees them."""

import torch
from torch import Tensor

__all__ = ["autocast_dtype", "lowered"]


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The type that autocast gives to factors on a device; None where it is off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def lowered(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A value in the type of autocast, where there is one and the value is in float32."""
    return value if dtype is None or value.dtype != torch.float32 else value.to(dtype)
