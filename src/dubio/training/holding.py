"""Whether the tensors that a recording reads and writes are where they were.

A recording knows parameters, buffers and what the optimiser keeps by their addresses. Whoever puts another tensor in
such a place (``optimizer.load_state_dict``, ``load_state_dict(assign=True)``, ``parameter.data = ...``) is not seen by
it, and what it goes on writing to may be somebody else's by then. So a ``Holding`` is asked before every replay; it
compares objects and addresses alone, some ten microseconds for an MLP, and fifty for a ResNet.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

__all__ = ["Holding"]


class Holding:
    """The tensors of a network and its optimiser as they are when this is made.

    Args:
        model: the network.
        optimizer: what updates it, with all that it keeps.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer, self._state = optimizer, optimizer.state
        self._groups = list(optimizer.param_groups)
        self._modes = [(module, module.training) for module in model.modules()]
        self._entries: list[tuple[dict[Any, Any], Any, Any, str]] = []
        for path, module in model.named_modules():
            for holder in (module._parameters, module._buffers, module._modules):
                self._entries += [(holder, name, value, f"{path}.{name}".lstrip(".")) for name, value in holder.items()]
        self._tensors = [
            (value, value.data_ptr(), value.requires_grad, label)
            for _, _, value, label in self._entries
            if isinstance(value, Tensor) and not is_lazy(value) and value.layout == torch.strided
        ]
        for values in optimizer.state.values():
            self._entries += [(values, name, value, f"the optimiser's {name}") for name, value in values.items()]

    @property
    def has_same_modes(self) -> bool:
        """Whether every module is in training or in eval mode, as it was."""
        return all(module.training is mode for module, mode in self._modes)

    @property
    def moved(self) -> str:
        """The name of something that is not where it was, or is not trained as it was; nothing where all is."""
        optimizer = self._optimizer
        groups = optimizer.param_groups
        if optimizer.state is not self._state or len(groups) != len(self._groups):
            return "what the optimiser keeps"
        if any(group is not known for group, known in zip(groups, self._groups, strict=True)):
            return "a group of the optimiser"
        for holder, name, value, label in self._entries:
            if holder.get(name) is not value:
                return label
        for tensor, place, is_trained, label in self._tensors:
            if tensor.data_ptr() != place or tensor.requires_grad is not is_trained:
                return label
        return ""
