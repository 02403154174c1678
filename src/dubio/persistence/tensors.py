"""Tensors as a file can hold them: each once, on the CPU, sharing no memory."""

import torch
from torch import Tensor

__all__ = ["with_ties", "without_ties"]


def without_ties(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, and for tied names the one it is kept under."""
    first: dict[tuple[int, torch.Size, tuple[int, ...]], str] = {}
    kept: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    for name, tensor in tensors.items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and key in first:
            tied[name] = first[key]
            continue
        first[key] = name
        alone = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        own = tensor.detach().cpu().contiguous()
        kept[name] = own if alone else own.clone()  # a view of another tensor, or of a part of one
    return kept, tied


def with_ties(tensors: dict[str, Tensor], tied: dict[str, str]) -> dict[str, Tensor]:
    """All names again."""
    return tensors | {name: tensors[original] for name, original in tied.items()}
