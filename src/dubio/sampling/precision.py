"""In which precision a network computes.

``fp32`` leaves torch as it is set: by default, matrix products in full precision and convolutions of a GPU in TF32.
``tf32`` lets a GPU round the factors of matrix products to 10 bits, too. ``bf16`` runs the network under autocast:
factors have 7 bits and the range of float32. Losses, divergences, noise, squares and roots are computed in float32; the
products behind a variance (local reparameterisation) have factors and results in bf16 too, which moves a standard
deviation by less than half a percent (``test_the_noise_of_a_layer_is_as_wide_in_bf16``).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal, get_args

import torch

__all__ = ["Precision", "check_precision", "computing_in", "rounding_products"]

Precision = Literal["fp32", "tf32", "bf16"]


def check_precision(precision: str) -> None:
    """Refuse what is no precision."""
    if precision not in get_args(Precision):
        raise ValueError(f"precision must be 'fp32', 'tf32' or 'bf16', got {precision!r}")


@contextmanager
def computing_in(precision: Precision, device: torch.device) -> Iterator[None]:
    """Compute in ``precision`` on ``device`` until the block is left: the forward pass, and not the backward one."""
    check_precision(precision)
    autocast = torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
    with rounding_products(precision), autocast:
        yield


@contextmanager
def rounding_products(precision: Precision) -> Iterator[None]:
    """Let a GPU round the factors of products in float32, where ``precision`` is lower: in both passes.

    Torch keeps this for the whole process: the first thread to ask for it sets it, the last one puts it back.
    """
    if precision == "fp32":
        yield
        return
    _ROUNDING.enter()
    try:
        yield
    finally:
        _ROUNDING.leave()


class _Rounding:
    """How many blocks round products at the moment, and what was set before the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._former = (False, False)

    def enter(self) -> None:
        """One more."""
        with self._lock:
            if self._count == 0:
                self._former = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
                self._set(True, True)
            self._count += 1

    def leave(self) -> None:
        """One less."""
        with self._lock:
            self._count -= 1
            if self._count == 0:
                self._set(*self._former)

    def _set(self, products: bool, convolutions: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = products, convolutions


_ROUNDING = _Rounding()
