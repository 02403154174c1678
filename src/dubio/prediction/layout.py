"""Images of a prediction channels last, where a GPU convolves them faster and the network takes it.

A network may not: ``x.view(len(x), -1)`` wants its rows in one piece, and some operators cannot be mapped so. It is
tried on a few rows in either layout, once, and must give the same in the same way; else images stay as they are. The
network itself is not touched: filters are small, and a convolution lays them out as its images lie.
"""

import weakref
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio._engine import (
    STATE,
    Call,
    Executor,
    Numbers,
    channels_last,
    image_channels,
    is_faster_channels_last,
    is_out_of_memory,
    map_draws,
    memory_budget,
    one_draw,
    same_numbers,
    settings_for_run,
    signature,
    unchanged,
)
from dubio.prediction.reading import Block
from dubio.prediction.sizing import WORTH_A_TRIAL

__all__ = ["forget_layout", "with_images_laid_out"]

ROWS_TRIED = 2
SHARE_OF_COPIES = 2
"""A copy of the images may take one part in so many of what a chunk of draws may."""
TOLERANCE = 0.05
"""Of the largest output: algorithms for either layout round in other ways, and in tf32 not all of them do."""
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
"""Types of arguments beside tensors that say all about themselves."""

_TAKEN: weakref.WeakKeyDictionary[nn.Module, dict[Any, bool]] = weakref.WeakKeyDictionary()


def with_images_laid_out(
    model: nn.Module, block: Block, num_samples: int, seed: int | None, executor: Executor = "auto"
) -> Block:
    """The same rows; images among them channels last, where that is faster and there is room for a copy."""
    settings, tensors = STATE.own.settings, block.tensors()
    device = tensors[0].device
    worthwhile = is_faster_channels_last(device) and block.num_rows * num_samples >= WORTH_A_TRIAL
    limited = settings.memory is not None  # for a run, with nothing beside it
    if not worthwhile or limited or sum(leaf.nbytes for leaf in tensors) > memory_budget(device) // SHARE_OF_COPIES:
        return block
    lay_out = partial(channels_last, channels=image_channels(model))
    few = block.first(ROWS_TRIED)
    laid_out = few.changed(lay_out)
    form = _form(few)
    if form is None or _strides(laid_out) == _strides(few):
        return block
    looped = executor == "loop" or settings.mode == "off"
    modules = tuple(type(module) for module in model.modules())
    key = (form, modules, looped, settings.estimator, torch.is_autocast_enabled(device.type))
    known = _TAKEN.setdefault(model, {})
    taken = known.get(key)
    if taken is None:
        with same_numbers(model):
            taken = _gives_the_same(model, few, laid_out, seed, looped)
    if taken is not None:
        known[key] = taken
    return block.changed(lay_out) if taken else block


def forget_layout(model: nn.Module) -> None:
    """Lay out no images for a network any more: what a trial promised did not come true."""
    _TAKEN[model] = dict.fromkeys(_TAKEN.get(model, {}), False)


def _form(block: Block) -> tuple[Any, ...] | None:
    """What a forward may go by beside numbers: structure, shapes and types of its arguments, and what is no tensor.

    None where there are other things among them, which may change from call to call.
    """
    values = (block.args, block.kwargs)
    is_plain = all(isinstance(leaf, (Tensor, *PLAIN)) for leaf in pytree.tree_leaves(values))
    return signature(values) if is_plain else None


def _gives_the_same(model: nn.Module, block: Block, laid_out: Block, seed: int | None, looped: bool) -> bool | None:
    """None where the network fails as it is: the run itself tells what is wrong, or that nothing is."""
    try:
        expected = _tried(model, block, seed, looped)
    except Exception:
        return None
    try:
        return _are_close(_tried(model, laid_out, seed, looped), expected)
    except Exception as error:
        return None if is_out_of_memory(error) else False


def _tried(model: nn.Module, block: Block, seed: int | None, looped: bool) -> Any:
    """Two mapped draws, or one where they are looped or cannot be mapped."""
    if not looped:
        try:
            with unchanged(model):
                return map_draws(_call(model, block, seed), Numbers(0, 2)).outputs
        except Exception as error:
            if is_out_of_memory(error):
                raise
    with unchanged(model):
        return one_draw(_call(model, block, seed), torch.zeros((), dtype=torch.int64, device="cpu"))[0]


def _call(model: nn.Module, block: Block, seed: int | None) -> Call:
    copied = block.copied()  # a network may change its inputs
    return Call(model, copied.args, copied.kwargs, settings_for_run(seed))


def _are_close(found: Any, expected: Any) -> bool:
    """Whether all tensors agree in shape, mapped draws with mapped ones, and within ``TOLERANCE``."""
    mine, others = _tensors(found), _tensors(expected)
    return len(mine) == len(others) and all(_is_close(*pair) for pair in zip(mine, others, strict=True))


def _is_close(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    scale = torch.where(other.isfinite(), other.abs(), 0.0).amax()
    return bool(((one == other) | ((one - other).abs() <= TOLERANCE * scale)).all())


def _tensors(values: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(values)
    return [leaf.double() for leaf in leaves if isinstance(leaf, Tensor) and leaf.numel()]


def _strides(block: Block) -> list[tuple[int, ...]]:
    return [leaf.stride() for leaf in block.tensors()]
