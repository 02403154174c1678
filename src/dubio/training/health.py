"""Whether every loss so far was finite: kept on the device, so that no step has to wait for an answer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dubio.training.optimising import is_fused

__all__ = ["LOOK_EVERY", "BrokenLossError", "Health"]

LOOK_EVERY = 0.25
"""Seconds between two looks at a GPU: each waits until it has caught up."""


class BrokenLossError(FloatingPointError):
    """The loss is not a finite number."""

    def __init__(self, value: float, culprit: str, num_steps: int) -> None:
        super().__init__(f"loss is {value}, from {culprit}")
        self.value, self.culprit = value, culprit
        self.num_steps = num_steps
        """Steps that went well before."""

    def __reduce__(self) -> tuple[type["BrokenLossError"], tuple[float, str, int]]:
        """As it was made: an exception is by default made again from its message."""
        return type(self), (self.value, self.culprit, self.num_steps)


class Health:
    """Watches losses. A fused optimiser leaves the parameters alone from the first one on that is not finite."""

    def __init__(self, device: torch.device, optimizer: torch.optim.Optimizer) -> None:
        self._on_gpu = device.type == "cuda"
        self._steps = torch.zeros((), dtype=torch.int64, device=device)
        self._value = torch.zeros((), device=device)
        self._broken = torch.zeros((), device=device)
        self.tell(optimizer)

    def tell(self, optimizer: torch.optim.Optimizer) -> None:
        """Let an optimiser know of broken losses, where it is fused; others would not take it."""
        if self._on_gpu and is_fused(optimizer):
            optimizer.found_inf = self._broken  # type: ignore[attr-defined]
        elif getattr(optimizer, "found_inf", None) is self._broken:
            del optimizer.found_inf  # type: ignore[attr-defined]

    @property
    def num_steps(self) -> int:
        """Steps with a finite loss."""
        return int(self._steps)

    def watch(self, total: Tensor, through: Callable[[Any], Any]) -> None:
        """Take note of a loss; ``through`` says how that is run, such as compiled."""
        if self._on_gpu:
            through(_take_note)(total.detach(), self._value, self._broken, self._steps)
        else:
            self._steps += 1

    def restart(self) -> None:
        """Forget all losses."""
        for kept in (self._steps, self._value, self._broken):
            kept.zero_()

    def first_broken(self) -> tuple[float, int] | None:
        """The first loss that is not finite, and how many were before it."""
        if not self._on_gpu or not bool(self._broken):
            return None
        return self._value.item(), self.num_steps


def _take_note(total: Tensor, value: Tensor, broken: Tensor, steps: Tensor) -> None:
    """Keep the first loss that is not finite, and count those before it."""
    value.copy_(torch.where(broken > 0, value, total.float()))
    broken.copy_(torch.where(torch.isfinite(value), 0.0, 1.0))
    steps.add_(1 - broken.long())
