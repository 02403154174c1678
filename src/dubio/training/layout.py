"""How images and filters lie in memory: GPUs convolve them fastest channels last.

A network may not take it: ``x.view(len(x), -1)`` wants its rows in one piece. So it is tried, and everything is put
back where it was if that fails (``test_a_network_that_does_not_run_channels_last_is_left_as_it_was``). After training,
filters stay so: their values are the same, and ``dubio.save`` writes them as ever.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from dubio._engine import Inputs, arguments, channels_last, image_channels, is_faster_channels_last, unchanged
from dubio.training.optimising import match_layouts

__all__ = ["Layout"]


class Layout:
    """Where the parameters of a network lie, and how: filters channels last, where that is faster and it runs so.

    Args:
        model: the network.
        optimizer: whose state lies as the parameters do.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer
        self._is_tried = False
        self._before: list[tuple[nn.Parameter, Tensor]] = []
        self._channels: set[int] = set()
        self._places = _places(model)

    @property
    def is_last(self) -> bool:
        """Whether filters lie channels last."""
        return bool(self._before)

    @property
    def is_in_place(self) -> bool:
        """Whether parameters and buffers are where they were left: a recording knows no others."""
        return self._places == _places(self._model)

    def lay_out(self, inputs: Inputs) -> None:
        """Lay out filters, tried with a batch; from the second time on, leave all as it is."""
        if self._is_tried:
            return
        leaves = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
        if leaves and is_faster_channels_last(leaves[0].device):
            self._try_out(inputs)
        self._take_places()
        self._is_tried = True

    def of(self, values: Any) -> Any:
        """Values laid out likewise, where they are images: have as many channels as some convolution takes."""
        return channels_last(values, self._channels) if self.is_last else values

    def undo(self) -> None:
        """Lay filters out as they were."""
        if self.is_last:
            for filters, values in self._before:
                filters.data = values.copy_(filters.data)
            self._before = []
            self._take_places()

    def _try_out(self, inputs: Inputs) -> None:
        convolutions = [module for module in self._model.modules() if isinstance(module, nn.Conv2d)]
        self._channels = image_channels(self._model)
        runs = False
        try:
            for filters in {id(each): each for module in convolutions for each in module.parameters()}.values():
                if not is_lazy(filters) and filters.dim() == 4:
                    self._before.append((filters, filters.data))
                    filters.data = filters.data.to(memory_format=torch.channels_last)
            runs = bool(self._before) and _runs(self._model, self.of(inputs))
        finally:
            if not runs:
                self.undo()

    def _take_places(self) -> None:
        """Go by where parameters are now."""
        match_layouts(self._optimizer)
        self._places = _places(self._model)


def _places(model: nn.Module) -> tuple[tuple[Any, ...], ...]:
    """Where parameters and buffers are and how they lie, and which are trained."""
    return tuple((*_place(tensor), tensor.requires_grad) for tensor in (*model.parameters(), *model.buffers()))


def _place(tensor: Tensor) -> tuple[Any, ...]:
    try:
        return tensor.data_ptr(), tensor.stride(), tensor.dtype
    except RuntimeError:  # a sparse one, for which the object must do
        return (id(tensor),)


def _runs(model: nn.Module, inputs: Inputs) -> bool:
    args, kwargs = arguments(inputs)
    try:
        with torch.no_grad(), unchanged(model):  # a fresh draw: not all have a mean network, or can be frozen
            model(*args, **kwargs)
    except Exception:  # its own fault, or that of the layout
        return False
    return True
