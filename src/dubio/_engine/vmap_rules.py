"""Rules for mapped draws that torch lacks: attention in one call, and products under autocast.

Torch has no rule for ``scaled_dot_product_attention`` under ``vmap``; it maps the operators that it consists of. The
fused kernels of a GPU cannot be differentiated that way, and refuse masks; those of a CPU run draw by draw. Here draws
become rows, which attend to nothing beyond themselves, so that the kernels serve as for a single draw. What draws
share, such as a mask for each row, is copied for each of them.

``vmap`` also takes products apart before autocast sees them. Of a mapped product autocast sees another kind of
convolution, which it lowers on a GPU only and not with a float32 bias, or a bias that is added in float32 and makes a
linear layer's outputs float32. So ``MappedProducts`` lowers factors first, if autocast is on when draws begin. The
network itself does not change (``docs/decisions/0004-products-of-mapped-draws.md``).

Torch warns of every operator that it maps draw by draw. The user cannot act on it, so the warnings are off under a map.

Invariants: values and gradients equal those of each draw, whichever tensors are mapped
(``test_attention_of_draws_is_that_of_each``); the compiler sees torch's own functions.
"""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dubio._engine.passes import current_pass, is_mapped

WITHOUT_ROWS = 2
"""Axes of factors that have no rows: positions and features."""
MOST_ROWS = 2**16 - 1
"""Rows that the fused kernels of a GPU take at once."""
PLAIN = (type(None), Tensor, nn.Parameter)
"""Types of masks without their own implementation of attention."""
RANDOMNESS_OF_MAPS = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchVmapMode)
TRANSPOSED = (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
PRODUCTS = frozenset((F.linear, torch.conv1d, torch.conv2d, torch.conv3d, *TRANSPOSED, F.multi_head_attention_forward))
"""Functions whose factors autocast lowers; the mode does not see the products inside the last one."""
ATTENDING_TOGETHER = ("cuda",)
"""Devices on which torch can map attention in few cases only."""

_LOCK = threading.Lock()
_SILENT = [0]
"""Number of maps without warnings: torch has one switch for all threads, which cannot be read."""


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
    """``scaled_dot_product_attention``, of all draws together where a factor is mapped or draws drop other weights."""
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
    """A custom operator, since only these accept a vmap rule that the compiler does not trace through."""
    raise RuntimeError("nothing is mapped here")


@_attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *options: Any) -> Tensor:
    return query.new_empty(*query.shape[:-1], value.shape[-1])


@_attend.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], query: Tensor, key: Tensor, value: Tensor, *options: Any
) -> tuple[Tensor, int]:
    mask, dropout_p, is_causal, scale, enable_gqa = options
    query, key, value = (_draws_first(*pair) for pair in zip((query, key, value), in_dims, strict=False))
    num_axes = max(query.dim(), key.dim(), value.dim())
    has_rows = num_axes > 1 + WITHOUT_ROWS + enable_gqa  # which needs heads
    query, key, value = (_with_axes(factor, num_axes + (not has_rows)) for factor in (query, key, value))
    axes = info.batch_size, torch.broadcast_shapes(query.shape[1:2], key.shape[1:2], value.shape[1:2])[0]
    query, key, value = (_joined(factor, axes) for factor in (query, key, value))
    if mask is not None and (in_dims[3] is not None or (has_rows and mask.dim() == query.dim() and len(mask) > 1)):
        mask = _joined(_with_axes(_draws_first(mask, in_dims[3]), 1 + query.dim()), axes)
    pieces = zip(*(_pieces(tensor, len(query)) for tensor in (query, key, value, mask)), strict=True)
    with torch._C._ExcludeDispatchKeyGuard(RANDOMNESS_OF_MAPS):  # it would refuse dropout over draws
        outputs = [
            F.scaled_dot_product_attention(q, k, v, m, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
            for q, k, v, m in pieces
        ]
        output = (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).unflatten(0, axes)
    return (output if has_rows else output.squeeze(1)), 0


def _draws_first(tensor: Tensor, dim: int | None) -> Tensor:
    """`(sample, ...)`, or `(1, ...)` where it is not mapped."""
    return tensor.unsqueeze(0) if dim is None else tensor.movedim(dim, 0)


def _with_axes(tensor: Tensor, number: int) -> Tensor:
    """The tensor with ``number`` axes; the missing ones, of size one, follow the axis of draws."""
    return tensor[(slice(None), *(None for _ in range(number - tensor.dim())))]


def _joined(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    """`(sample, row, ...)`, where an axis may have size one, as `(sample row, ...)`."""
    return tensor.expand(*axes, *tensor.shape[2:]).flatten(0, 1)


def _pieces(tensor: Tensor | None, num_rows: int) -> Sequence[Any]:
    """Pieces of at most ``MOST_ROWS`` rows; a tensor without rows is the same for all of them."""
    number = max(1, -(-num_rows // MOST_ROWS))
    return [tensor] * number if tensor is None or len(tensor) != num_rows or number == 1 else tensor.split(MOST_ROWS)


def needs_mapped_products(device: torch.device) -> bool:
    """Whether draws on a device must be mapped inside ``MappedProducts``."""
    return device.type in ATTENDING_TOGETHER or autocast_dtype(device) is not None


class MappedProducts(TorchFunctionMode):
    """A block in which products compute in the dtype of autocast, and attention for all draws together."""

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
            func = torch.unflatten  # the same as a function: the compiler cannot trace the method under a mode
        return func(*args, **kwargs)


def _lowered_tensor(value: Any) -> Any:
    return lowered(value, autocast_dtype(value.device)) if isinstance(value, Tensor) else value


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The dtype that autocast gives to factors on a device; None where it is off."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


def lowered(value: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A factor in the dtype of autocast, if it is on; as under autocast, double precision stays as it is."""
    keeps = dtype is None or not value.is_floating_point()
    return value if keeps or value.dtype == torch.float64 else value.to(dtype)


@contextmanager
def without_fallback_warnings() -> Iterator[None]:
    """A block in which torch does not warn of operators that it maps draw by draw."""
    _count_silent(1)
    try:
        yield
    finally:
        _count_silent(-1)


def _count_silent(change: int) -> None:
    with _LOCK:
        _SILENT[0] += change
        torch._C._functorch._set_vmap_fallback_warning_enabled(_SILENT[0] == 0)  # type: ignore[attr-defined]
