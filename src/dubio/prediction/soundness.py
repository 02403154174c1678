"""Whether a network gave numbers: outputs are looked at as they come, and asked about as seldom as possible.

On a CPU a NaN is told at once. On other devices each question would wait for all work sent there, so the rows that went
wrong are marked there and asked about once, when the draws are done.
"""

from typing import Any

import torch
from torch import Tensor

__all__ = ["Soundness", "UnsoundError"]

TOLD_AT_ONCE = ("cpu",)
"""Devices that asking costs nothing."""


class UnsoundError(ValueError):
    """A network gave no numbers."""


class Soundness:
    """Looks at the outputs for some batches, draw by draw; ``first_rows`` tells where each batch begins.

    Minus infinity is a logit of probability zero, but no probability is left where all classes have it: ``class_axis``
    says where classes lie in the output of one draw, of a network that tells any apart.
    """

    def __init__(self, first_rows: list[int], class_axis: int | None = None) -> None:
        self._first_rows, self._class_axis = first_rows, class_axis
        self._bad: dict[int, Tensor] = {}

    def checked(self, number: int, outputs: Any) -> Tensor:
        """The outputs of batch ``number``, in float32 at least.

        Raises:
            TypeError: these are no tensor of floating point numbers.
            UnsoundError: there are NaN or positive infinities among them, or rows without any class that is possible,
                and they are on a CPU.
        """
        if not isinstance(outputs, Tensor):
            raise TypeError(
                f"the network must return a tensor, or an object with .logits, to predict with, "
                f"got {type(outputs).__name__}"
            )
        if not outputs.is_floating_point():
            raise TypeError(f"the network must return floating point outputs, got {outputs.dtype}")
        bad = outputs.isnan() | outputs.isposinf()
        if self._class_axis is not None and 1 - outputs.dim() < self._class_axis < outputs.dim() - 1:
            axis = self._class_axis + 1 if self._class_axis > 0 else self._class_axis
            bad = bad | outputs.isneginf().all(dim=axis, keepdim=True)
        bad = bad.any(dim=0)
        rows = bad.flatten(1).any(dim=1) if bad.dim() > 1 else bad.reshape(-1)
        self._bad[number] = rows | self._bad[number] if number in self._bad else rows
        if outputs.device.type in TOLD_AT_ONCE:
            self.check()
        return outputs.to(torch.promote_types(outputs.dtype, torch.float32))

    def check(self) -> None:
        """Raise where any row went wrong since the last time.

        Raises:
            UnsoundError: it did.
        """
        found, self._bad = self._bad, {}
        if not found or not bool(torch.cat(list(found.values())).any()):
            return
        bad = [
            row + self._first_rows[number]
            for number, rows in found.items()
            for row in rows.nonzero().flatten().tolist()
        ]
        raise UnsoundError(f"the network gave NaN or infinity for inputs without NaN, rows {bad[:5]}")
