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

from dubio.prediction.reading import Block
from dubio.prediction.sizing import WORTH_A_TRIAL
from dubio.sampling.drawing import Call, map_draws, one_draw
from dubio.sampling.executors import Executor
from dubio.sampling.layout import channels_last, image_channels, is_faster_channels_last
from dubio.sampling.memory import is_out_of_memory
from dubio.sampling.planning import memory_budget
from dubio.sampling.restoring import unchanged
from dubio.sampling.settings import STATE, settings_for_run

__all__ = ["with_images_laid_out"]

ROWS_TRIED = 2
SHARE_OF_COPIES = 4
"""A copy of the images may take one part in so many of what a chunk of draws may."""
TOLERANCE = 0.05
"""Of the largest output: algorithms for either layout round in other ways, and in tf32 not all of them do."""

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
    few = block.first(ROWS_TRIED).changed(torch.clone)  # a network may change its inputs
    laid_out = few.changed(lay_out)
    if _strides(laid_out) == _strides(few):
        return block
    looped = executor == "loop" or settings.mode == "off"
    key = (*_form(few), looped, settings.estimator, torch.is_autocast_enabled(device.type))
    known = _TAKEN.setdefault(model, {})
    if key not in known:
        known[key] = _gives_the_same(_call(model, few, seed), _call(model, laid_out, seed), looped)
    return block.changed(lay_out) if known[key] else block


def _form(block: Block) -> tuple[Any, ...]:
    """What a forward may go by beside numbers: structure, shapes and types of its arguments, and what is no tensor."""
    leaves, spec = pytree.tree_flatten((block.args, block.kwargs))
    described = [(leaf.shape, leaf.dtype, leaf.device) if isinstance(leaf, Tensor) else repr(leaf) for leaf in leaves]
    return (str(spec), *described)


def _call(model: nn.Module, block: Block, seed: int | None) -> Call:
    return Call(model, block.args, block.kwargs, settings_for_run(seed))


def _gives_the_same(call: Call, laid_out: Call, looped: bool) -> bool:
    try:
        with unchanged(call.model):
            expected, found = _tried(call, looped), _tried(laid_out, looped)
        return _are_close(found, expected)
    except Exception:  # the run itself tells what is wrong, or that nothing is
        return False


def _tried(call: Call, looped: bool) -> Any:
    """Two mapped draws, or one where they are looped or cannot be mapped."""
    if not looped:
        try:
            return map_draws(call, torch.arange(2, device="cpu")).outputs
        except Exception as error:
            if is_out_of_memory(error):
                raise
    return one_draw(call, torch.zeros((), dtype=torch.int64, device="cpu"))[0]


def _are_close(found: Any, expected: Any) -> bool:
    """Whether all tensors agree in shape, mapped draws with mapped ones, and within ``TOLERANCE``."""
    mine, others = _tensors(found), _tensors(expected)
    return len(mine) == len(others) and all(
        one.shape == other.shape and bool((one - other).abs().amax() <= TOLERANCE * other.abs().amax())
        for one, other in zip(mine, others, strict=True)
    )


def _tensors(values: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(values)
    return [leaf.double() for leaf in leaves if isinstance(leaf, Tensor) and leaf.numel()]


def _strides(block: Block) -> list[tuple[int, ...]]:
    return [leaf.stride() for leaf in block.tensors()]
