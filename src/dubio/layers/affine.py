"""``F.linear`` for a mapped pass: products of many draws with their biases.

Torch maps ``F.linear`` to a batched product and an addition of the biases, which reads and writes all outputs once more
in a kernel that does not vectorise: on a GPU nearly as long as the product. A product of one draw adds its bias on the
way out. So, where products are large and nothing is to be differentiated, draws are multiplied one after another,
outside the map, into one tensor; what is launched is small beside the products.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from dubio._engine import autocast_dtype, is_mapped, is_transformed, lowered
from dubio.layers.leaf_loop import apart

__all__ = ["affine"]

DEVICES = ("cuda",)
"""Where the addition of mapped biases costs that much."""
LARGE_PRODUCT, MANY_OUTPUTS = 2**32, 2**21
"""Multiplications and outputs of a draw from which it is worth a launch of its own, and fills a large GPU alone."""


def affine(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear(input, weight, bias)``."""
    if bias is not None and _is_worth_a_launch(input, weight):
        lower = autocast_dtype(input.device)
        factors = [lowered(value, lower) for value in (input, weight, bias)]
        if all(value.dtype == (lower or bias.dtype) for value in factors):
            return apart(_one_by_one, factors)[0]
    return F.linear(input, weight, bias)


def _is_worth_a_launch(input: Tensor, weight: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.is_grad_enabled() or input.device.type not in DEVICES:
        return False
    rows = input.shape[:-1].numel()
    return is_mapped(weight) and rows * weight.numel() >= LARGE_PRODUCT and rows * len(weight) >= MANY_OUTPUTS


def _one_by_one(num_samples: int, tensors: Sequence[Tensor], axes: Sequence[int | None]) -> tuple[Tensor]:
    """Each draw's product, written to its place."""
    inputs, weights, biases = (
        # What draws share is contiguous, so that rows are counted on one axis without a copy for each draw.
        tensor.contiguous().expand(num_samples, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        for tensor, axis in zip(tensors, axes, strict=True)
    )
    rows = inputs.reshape(num_samples, inputs.shape[1:-1].numel(), inputs.shape[-1])
    shape = (*inputs.shape[:-1], weights.shape[1])
    if _is_watched():
        return ((torch.bmm(rows, weights.mT) + biases.unsqueeze(1)).reshape(shape),)
    outputs = rows.new_empty(*rows.shape[:2], weights.shape[1])
    for output, own_rows, weight, bias in zip(outputs, rows, weights, biases, strict=True):
        torch.addmm(bias, own_rows, weight.t(), out=output)
    return (outputs.reshape(shape),)


def _is_watched() -> bool:
    """Whether somebody maps or differentiates around us, which writing into a tensor would escape."""
    return is_transformed() or forward_ad._current_level >= 0
