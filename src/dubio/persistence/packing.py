"""Pruned tensors as a file holds them: the weights that are left, and one bit for every weight that there was.

One mask serves all tensors of a parameter: mean, scale, centre. Tensors that were not pruned stay as they are.

Invariant: what was packed comes back bit for bit, zero where weights were removed (``tests/persistence``).
"""

import numpy as np
import torch
from torch import Tensor, nn

from dubio.nn import masked_tensors

__all__ = ["packed", "unpacked"]


def packed(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a network, those that have a mask without what was removed."""
    small = dict(tensors)
    for _, mask, names in masked_tensors(model):
        removed = tensors[mask].numpy()
        small[mask] = torch.from_numpy(np.packbits(removed))
        small |= {name: tensors[name][~tensors[mask]] for name in names}
    return small


def unpacked(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """All tensors in the shapes that the network wants; refuses masks that do not fit it or what is left."""
    wanted = model.state_dict()
    whole = dict(tensors)
    for parameter, mask, names in masked_tensors(model):
        removed = _unpacked_mask(parameter, tensors.get(mask), wanted[mask].shape)
        whole[mask] = removed
        for name in names:
            whole[name] = _filled(name, tensors.get(name), removed)
    return whole


def _unpacked_mask(parameter: str, bits: Tensor | None, shape: torch.Size) -> Tensor:
    count = shape.numel()
    if bits is None or bits.dtype != torch.uint8 or tuple(bits.shape) != (-(-count // 8),):
        found = "none" if bits is None else f"{bits.dtype} of shape {tuple(bits.shape)}"
        raise ValueError(f"the mask of {parameter} must have one bit for each of {count} weights, got {found}")
    flat = np.unpackbits(bits.numpy())
    if flat[count:].any():
        raise ValueError(f"the mask of {parameter} must have one bit for each of {count} weights, got more")
    return torch.from_numpy(flat[:count].astype(bool)).reshape(shape)


def _filled(name: str, left: Tensor | None, removed: Tensor) -> Tensor:
    count = removed.numel() - int(removed.sum())
    if left is None or tuple(left.shape) != (count,):
        found = "none" if left is None else f"shape {tuple(left.shape)}"
        raise ValueError(f"{name} must hold the {count} weights that its mask leaves, got {found}")
    whole = torch.zeros(removed.shape, dtype=left.dtype)
    whole[~removed] = left
    return whole
