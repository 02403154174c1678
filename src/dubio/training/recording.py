"""A whole step of training, recorded as a CUDA graph: the tensors that it reads, and what it holds for.

A recording reads its batch from buffers and its learning rates from the tensors that the optimiser had then; both are
filled anew before every replay. What else it depends on, such as the mode of noise, is told as ``circumstances``: while
these are others, or the batch has another shape, it does not fit.

Invariants: ``tests/training/test_recording.py``, and ``test_captured.py`` on a GPU.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dubio.objectives import Loss
from dubio.sampling.capturing import Buffers, Captured, signature

__all__ = ["Recording"]


class Recording:
    """A step for batches of one shape, under circumstances that stay.

    Args:
        work: the whole step, from the tensors of a batch to what came of it.
        values: the tensors of a first batch; those of all further ones are copied to where copies of these are.
        circumstances: what the step depends on beside its tensors.
        optimizer: whose learning rates the step reads.
        device: the GPU.
    """

    def __init__(
        self,
        work: Callable[..., tuple[Loss, Tensor]],
        values: tuple[Any, ...],
        circumstances: tuple[Any, ...],
        optimizer: torch.optim.Optimizer,
        device: torch.device,
    ) -> None:
        self._buffers = buffers = Buffers(values)
        self._captured = Captured(lambda: work(*buffers.values), device)  # not of self: a circle would outlive us
        self._circumstances, self._optimizer = circumstances, optimizer
        self._rates = [group["lr"] for group in optimizer.param_groups]

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

    def fits(self, values: tuple[Any, ...], circumstances: tuple[Any, ...]) -> bool:
        """Whether a batch can be learned from by it."""
        return signature(values) == self._buffers.signature and circumstances == self._circumstances

    def read(self, values: tuple[Any, ...]) -> None:
        """Take over a batch that fits, and the present learning rates."""
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            if group["lr"] is not rate:  # somebody has set another: the recording reads the one it knows
                group["lr"] = rate.copy_(group["lr"]) if isinstance(group["lr"], Tensor) else rate.fill_(group["lr"])
        self._buffers.copy(values)

    def __call__(self) -> tuple[Loss, Tensor]:
        """Learn from the batch that was read; the next call overwrites what is given."""
        return self._captured()
