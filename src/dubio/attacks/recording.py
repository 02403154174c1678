"""Looks of an attacker, recorded as a CUDA graph: an attack of many steps looks at the same shapes again and again."""

from collections.abc import Callable

import torch
from torch import Tensor

from dubio._engine import Buffers, Captured, free_memory, signature

__all__ = ["Recorder"]

Look = Callable[[Tensor, Tensor], tuple[Tensor, ...]]

WARM_UPS = 2


class Recorder:
    """Replays a look at inputs and labels of one shape; where it cannot be recorded, it says so once and for all."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: Buffers | None = None
        self._captured: Captured[tuple[Tensor, ...]] | None = None
        self._failed = False

    def __call__(self, look: Look, inputs: Tensor, labels: Tensor) -> tuple[Tensor, ...] | None:
        """What the look gives, from its recording; None where there is none, and it must be taken."""
        if self._failed or not self._fits(inputs, labels):
            return None
        if self._captured is None:
            own = self._own
            self._captured = Captured(lambda: look(*own.values), self._device, WARM_UPS)
        self._own.copy((inputs, labels))
        try:
            return tuple(part.clone() for part in self._captured())
        except (RuntimeError, MemoryError):  # a network that asks for values while it runs, or no memory left
            self._failed = True
        # Outside of the handler, where nothing refers to the failed recording any more.
        self.close()
        free_memory()
        return None

    def close(self) -> None:
        """Let go of the recording, which holds whoever looks, who holds this."""
        self._captured = None

    @property
    def _own(self) -> Buffers:
        assert self._buffers is not None
        return self._buffers

    def _fits(self, inputs: Tensor, labels: Tensor) -> bool:
        if self._buffers is None:
            self._buffers = Buffers((inputs, labels))
        return signature((inputs, labels)) == self._buffers.signature
