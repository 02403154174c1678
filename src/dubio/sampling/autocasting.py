"""What autocast does to factors, by hand: ``vmap`` takes functions apart before autocast sees them."""

import torch
from torch import Tensor

__all__ = ["autocast_dtype", "lowered"]


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The type that autocast gives to factors on a device; None where it is off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def lowered(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A factor in the type of autocast, where there is one; as there, double precision stays as it is."""
    keeps = dtype is None or not value.is_floating_point()
    return value if keeps or value.dtype == torch.float64 else value.to(dtype)
