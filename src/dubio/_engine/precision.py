"""The precision in which a network computes.

``fp32`` keeps the settings of torch: by default, matrix products in full precision and convolutions of a GPU in TF32.
``tf32`` lets a GPU round the factors of matrix products to 10 bits, too. ``bf16`` runs the network under autocast:
factors have 7 bits and the range of float32. Losses, divergences, noise, squares and roots are computed in float32; the
products behind a variance (local reparameterisation) have factors and results in bf16 too, which moves a standard
deviation by less than half a percent (``test_the_noise_of_a_layer_is_as_wide_in_bf16``).
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from dubio.checks import check_choice

Precision = Literal["fp32", "tf32", "bf16"]


def check_precision(precision: str) -> None:
    """Raise an error for anything but a precision."""
    check_choice("precision", precision, get_args(Precision))


@contextmanager
def computing_in(precision: Precision, device: torch.device) -> Iterator[None]:
    """A block that computes in ``precision`` on ``device``: the forward pass only, not the backward pass."""
    check_precision(precision)
    autocast = torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()
    with rounding_products(precision), autocast:
        yield


@contextmanager
def rounding_products(precision: Precision) -> Iterator[None]:
    """A block in which a GPU rounds the factors of float32 products where ``precision`` is lower, in both passes.

    Torch keeps this setting for the whole process: the first thread that enters a block sets it and the last one that
    leaves restores it, whichever of torch's two interfaces set it before.
    """
    if precision == "fp32":
        yield
        return
    with _LOCK:
        _FORMER.append(None if _FORMER else _round())
    try:
        yield
    finally:
        with _LOCK:
            former = _FORMER[0]
            _FORMER.pop()
            if not _FORMER and former is not None:
                _put_back(former)


@dataclass(frozen=True)
class _Former:
    """Torch's settings for products of a GPU, by its newer interface and by its older switches."""

    everything: str
    by_kind: tuple[str | None, ...]
    """Of each kind of product; None where it follows ``everything``."""
    turned: tuple[Any, ...]
    """The switches that were off."""


_LOCK = threading.Lock()
_FORMER: list[_Former | None] = []
"""One entry for each block that rounds products at the moment; the first holds what was set before."""


# Torch has two interfaces for it, and refuses to read one that contradicts the other. In the newer one a kind of
# product follows the setting for all of them unless it has its own; convolutions begin with a default that cannot be
# set again.
_TORCH: Any = torch.backends
_SWITCHES = (_TORCH.cuda.matmul, _TORCH.cudnn)
_KINDS = ((_TORCH.cuda.matmul, _TORCH.cuda.matmul), (_TORCH.cudnn.conv, _TORCH.cudnn), (_TORCH.cudnn.rnn, _TORCH.cudnn))
"""Each kind of product, and the switch that sets it too."""


def _round() -> _Former:
    """Round products, by both interfaces; change nothing that cannot be restored."""
    switches = [_is_on(switch) for switch in _SWITCHES]
    of_devices = _TORCH.fp32_precision
    _TORCH.fp32_precision = "none"
    everything: str = _TORCH.cudnn.fp32_precision  # for all products of a GPU, and not for all devices
    _TORCH.fp32_precision = of_devices
    exact, rounded = _when_all_are("ieee"), _when_all_are("tf32")
    by_kind = tuple(value if value == other else None for value, other in zip(exact, rounded, strict=True))
    for (kind, _), value in zip(_KINDS, by_kind, strict=True):
        if value is not None:
            kind.fp32_precision = "tf32"
    # Now that all are rounded, a switch that cannot be read is off.
    switches = [bool(_is_on(switch)) if on is None else on for switch, on in zip(_SWITCHES, switches, strict=True)]
    turned = tuple(switch for switch, on in zip(_SWITCHES, switches, strict=True) if not on)
    for switch in turned:
        switch.allow_tf32 = True
    return _Former(everything, by_kind, turned)


def _put_back(former: _Former) -> None:
    for switch in former.turned:
        switch.allow_tf32 = False
    for (kind, switch), value in zip(_KINDS, former.by_kind, strict=True):
        if value is not None or switch in former.turned:
            kind.fp32_precision = value or "none"
    _TORCH.cudnn.fp32_precision = former.everything


def _is_on(switch: Any) -> bool | None:
    """The value of a switch; None where it contradicts the newer interface."""
    try:
        return bool(switch.allow_tf32)
    except RuntimeError:
        return None


def _when_all_are(precision: str) -> list[str]:
    """The setting of each kind of product where the one for all of them is ``precision``."""
    _TORCH.cudnn.fp32_precision = precision
    return [kind.fp32_precision for kind, _ in _KINDS]
