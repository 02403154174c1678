"""A whole step of training, recorded as a CUDA graph: the tensors that it reads, and what it holds for.

A recording reads its batch from buffers and its learning rates from the tensors that the optimiser had then; both are
filled anew before every replay. What else it depends on, such as the mode of noise, is told as ``circumstances``: while
these are others, some module is in another mode, or the batch has another shape, it does not fit. It is outdated where
that lasts, and where parameters, buffers or the optimiser's state are no longer those that it reads and writes.

Invariants: ``tests/training/test_recording.py`` and ``test_replaying.py``, and ``test_captured.py`` on a GPU.
"""

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dubio._engine import Buffers, Captured, signature
from dubio.objectives import Loss
from dubio.training.holding import Holding
from dubio.training.shapes import OTHERS_TO_CHANGE

__all__ = ["Recording", "unheld"]


class Recording:
    """A step for batches of one shape, under circumstances that stay.

    Args:
        work: the whole step, from the tensors of a batch to what came of it.
        values: the tensors of a first batch; those of all further ones are copied to where copies of these are.
        circumstances: what the step depends on beside its tensors.
        model: the network that learns.
        optimizer: what updates it, whose learning rates are tensors on the device.
        device: the GPU.
    """

    def __init__(
        self,
        work: Callable[..., tuple[Loss, Tensor]],
        values: tuple[Any, ...],
        circumstances: tuple[Any, ...],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
    ) -> None:
        self._buffers = buffers = Buffers(values)
        self._captured = Captured(lambda: work(*buffers.values), device)  # not of self: a circle would outlive us
        self._circumstances, self._model, self._optimizer = circumstances, model, optimizer
        self._rates = [group["lr"] for group in optimizer.param_groups]
        self._holding = Holding(model, optimizer)
        self._num_misfits = 0
        self._gradients: list[tuple[nn.Parameter, Tensor | None]] = []
        self.replaced = ""
        """What the step puts another tensor in place of every time, as a replay does not: then it must not be used."""

    @property
    def is_ready(self) -> bool:
        """Whether the next step is a replay."""
        return self._captured.is_ready

    @property
    def seconds(self) -> float:
        """How long warming up and recording took, since it was last forgotten."""
        return self._captured.seconds

    def forget_seconds(self) -> None:
        """Count them from here on."""
        self._captured.seconds = 0.0

    @property
    def is_outdated(self) -> bool:
        """Whether another recording should take its place."""
        return self.is_ready and (self._num_misfits >= OTHERS_TO_CHANGE or bool(self._holding.moved))

    def fits(self, values: tuple[Any, ...], circumstances: tuple[Any, ...]) -> bool:
        """Whether a batch can be learned from by it."""
        is_alike = signature(values) == self._buffers.signature and circumstances == self._circumstances
        fits = is_alike and self._holding.has_same_modes
        self._num_misfits = 0 if fits else self._num_misfits + 1
        return fits

    def read(self, values: tuple[Any, ...]) -> None:
        """Take over a batch that fits, and the present learning rates."""
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if group["lr"] is not rate:  # somebody has set another: the recording reads the one it knows
                group["lr"] = rate.copy_(group["lr"]) if isinstance(group["lr"], Tensor) else rate.fill_(group["lr"])
        self._buffers.copy(values)

    def __call__(self) -> tuple[Loss, Tensor]:
        """Learn from the batch that was read; the next call overwrites what is given."""
        if self.is_ready:
            self._put_gradients_back()
            return self._captured()
        before = Holding(self._model, self._optimizer)
        found = self._captured()
        if self.is_ready:
            self.replaced = before.moved
            self._holding = Holding(self._model, self._optimizer)
            trained = (parameter for group in self._optimizer.param_groups for parameter in group["params"])
            self._gradients = [(parameter, parameter.grad) for parameter in trained]
        return found

    def _put_gradients_back(self) -> None:
        """Let parameters have the gradients that replays write, also after a batch that was learned from otherwise."""
        for parameter, gradient in self._gradients:
            if parameter.grad is not gradient:
                parameter.grad = gradient


def unheld(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that does not keep its object alive, as a recording of it would that the object holds itself."""
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> Any:
        present = reference()
        assert present is not None
        return present(*args)

    return call
