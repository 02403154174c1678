"""In which precision a network computes.

``fp32`` leaves torch as it is set: by default, matrix products in full precision and convolutions of a GPU in TF32.
``tf32`` lets a GPU round the factors of matrix products to 10 bits, too. ``bf16`` runs the network under autocast:
factors have 7 bits and the range of float32. Losses, divergences, noise, squares and roots stay in float32 throughout.
"""

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
    """Let a GPU round the factors of products in float32, where ``precision`` is lower: in both passes."""
    if precision == "fp32":
        yield
        return
    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    former = products.allow_tf32, convolutions.allow_tf32
    products.allow_tf32 = convolutions.allow_tf32 = True
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32 = former
