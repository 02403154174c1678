"""Attention of mapped draws in one call: draws become rows, which attend to nothing beyond themselves.

Torch has no rule for ``scaled_dot_product_attention`` under ``vmap``; it maps what that is made of. The fused kernels
of a GPU cannot be differentiated so, and refuse masks; those of a CPU run draw by draw. With draws as rows they serve
as they do for a single draw. What draws share, such as a mask for each row, is copied for each of them.

Invariants: values and gradients are those of each draw, whichever tensors are mapped
(``test_attention_of_draws_is_that_of_each``); the compiler sees torch's own functions.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dubio.sampling.autocasting import autocast_dtype, lowered
from dubio.sampling.passes import current_pass, is_mapped

__all__ = ["attention"]

WITHOUT_ROWS = 2
"""Axes of factors that have no rows: positions and features."""
MOST_ROWS = 2**16 - 1
"""What the fused kernels of a GPU take at once."""
PLAIN = (type(None), Tensor, nn.Parameter)
"""Types of masks that are what they hold; others have their own way to attend."""
RANDOMNESS_OF_MAPS = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchVmapMode)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """``scaled_dot_product_attention``, of all draws together where anything is mapped or draws drop other weights."""
    run = current_pass()
    mapped = is_mapped(query, key, value, attn_mask)
    if not mapped and dropout_p > 0.0 and run is not None and run.mapped and run.draw is not None:
        query, mapped = query + (run.draw * 0).to(query), True  # from here on draws differ
    if not mapped or type(attn_mask) not in PLAIN:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    num_axes = max(query.dim(), key.dim(), value.dim())
    if attn_mask is not None and attn_mask.dim() > num_axes:
        raise ValueError(f"attn_mask must have at most the {num_axes} axes of its factors, got {attn_mask.dim()}")
    lower = autocast_dtype(query.device)
    query, key, value = (lowered(factor, lower) for factor in (query, key, value))
    attn_mask = None if attn_mask is None else lowered(attn_mask, lower)
    output: Tensor
    with torch.autocast(query.device.type, enabled=False):  # it would see the parts of attention, and lower a few more
        output = _attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    return output


@torch.library.custom_op("dubio::attend", mutates_args=())
def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """A custom operator because its vmap rule can be written for nothing less: the compiler would trace past it."""
    raise RuntimeError("nothing is mapped here")


@_attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *options: Any) -> Tensor:
    return query.new_empty(*query.shape[:-1], value.shape[-1])


@_attend.register_vmap
def _(
    info: Any,
    in_dims: tuple[int | None, ...],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> tuple[Tensor, int]:
    query, key, value = (_draws_first(*pair) for pair in zip((query, key, value), in_dims, strict=False))
    num_axes = max(query.dim(), key.dim(), value.dim())
    has_rows = num_axes > 1 + WITHOUT_ROWS + enable_gqa  # which needs heads
    query, key, value = (_with_axes(factor, num_axes + (not has_rows)) for factor in (query, key, value))
    axes = info.batch_size, torch.broadcast_shapes(query.shape[1:2], key.shape[1:2], value.shape[1:2])[0]
    query, key, value = (_joined(factor, axes) for factor in (query, key, value))
    if mask is not None and (in_dims[3] is not None or (has_rows and mask.dim() == query.dim() and len(mask) > 1)):
        mask = _joined(_with_axes(_draws_first(mask, in_dims[3]), 1 + query.dim()), axes)
    pieces = zip(*(_pieces(tensor, len(query)) for tensor in (query, key, value, mask)), strict=True)
    with torch._C._ExcludeDispatchKeyGuard(RANDOMNESS_OF_MAPS):  # which asks dropout for draws that it can tell apart
        outputs = [
            F.scaled_dot_product_attention(q, k, v, m, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
            for q, k, v, m in pieces
        ]
        output = (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).unflatten(0, axes)
    return (output if has_rows else output.squeeze(1)), 0


def _draws_first(tensor: Tensor, dim: int | None) -> Tensor:
    """`(sample, ...)`, or one for all draws."""
    return tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)


def _with_axes(tensor: Tensor, number: int) -> Tensor:
    """So many axes, the missing ones of size one behind that of draws."""
    return tensor[(slice(None), *(None for _ in range(number - tensor.dim())))]


def _joined(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """`(sample, row, ...)`, where one may stand for all of an axis, as `(sample row, ...)`."""
    return tensor.expand(*axes, *tensor.shape[2:]).flatten(0, 1)


def _pieces(tensor: Tensor | None, num_rows: int) -> Sequence[Any]:
    """Of no more than ``MOST_ROWS`` each; what has no rows is the same for all."""
    number = max(1, -(-num_rows // MOST_ROWS))
    return [tensor] * number if tensor is None or len(tensor) != num_rows or number == 1 else tensor.split(MOST_ROWS)
