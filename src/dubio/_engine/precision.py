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
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

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

    Torch keeps this for the whole process: the first thread to ask for it sets it, the last one puts it back, whichever
    of torch's two ways of saying it was used before.
    """
    if precision == "fp32":
        yield
        return
    _ROUNDING.enter()
    try:
        yield
    finally:
        _ROUNDING.leave()


@dataclass(frozen=True)
class _Former:
    """What torch had been told about products of a GPU, in its newer words and by its older switches."""

    everything: str
    own: tuple[str | None, ...]
    """Of each kind of product; None where it goes by ``everything``."""
    turned: tuple[Any, ...]
    """The switches that were off."""


class _Rounding:
    """How many blocks round products at the moment, and what was set before the first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._former: _Former | None = None

    def enter(self) -> None:
        """One more."""
        with self._lock:
            if self._count == 0:
                self._former = _round()
            self._count += 1

    def leave(self) -> None:
        """One less."""
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._former is not None:
                _put_back(self._former)


_ROUNDING = _Rounding()

# Torch has two ways to say it, and refuses to tell where one contradicts the other. In the newer one a kind of product
# goes by what was said of all, unless it was set itself; convolutions begin with a default that nobody can set again.
_TORCH: Any = torch.backends
_SWITCHES = (_TORCH.cuda.matmul, _TORCH.cudnn)
_KINDS = ((_TORCH.cuda.matmul, _TORCH.cuda.matmul), (_TORCH.cudnn.conv, _TORCH.cudnn), (_TORCH.cudnn.rnn, _TORCH.cudnn))
"""Each kind of product, and the switch that sets it too."""


def _round() -> _Former:
    """Let products be rounded, by both ways; touch nothing that cannot be put back."""
    switches = [_is_on(switch) for switch in _SWITCHES]
    everything = _said_of_all()
    exact, rounded = _when_all_are("ieee"), _when_all_are("tf32")
    own = tuple(value if value == other else None for value, other in zip(exact, rounded, strict=True))
    for (kind, _), value in zip(_KINDS, own, strict=True):
        if value is not None:
            kind.fp32_precision = "tf32"
    # Now that all are rounded, a switch that says nothing is off.
    switches = [bool(_is_on(switch)) if on is None else on for switch, on in zip(_SWITCHES, switches, strict=True)]
    turned = tuple(switch for switch, on in zip(_SWITCHES, switches, strict=True) if not on)
    for switch in turned:
        switch.allow_tf32 = True
    return _Former(everything, own, turned)


def _put_back(former: _Former) -> None:
    for switch in former.turned:
        switch.allow_tf32 = False
    for (kind, switch), value in zip(_KINDS, former.own, strict=True):
        if value is not None or switch in former.turned:
            kind.fp32_precision = value or "none"
    _TORCH.cudnn.fp32_precision = former.everything


def _is_on(switch: Any) -> bool | None:
    """What a switch says; None where it contradicts the newer words."""
    try:
        return bool(switch.allow_tf32)
    except RuntimeError:
        return None


def _said_of_all() -> str:
    """What was said of all products of a GPU, and not of all devices."""
    of_devices = _TORCH.fp32_precision
    _TORCH.fp32_precision = "none"
    said: str = _TORCH.cudnn.fp32_precision
    _TORCH.fp32_precision = of_devices
    return said


def _when_all_are(precision: str) -> list[str]:
    """How each kind is computed where all are told so."""
    _TORCH.cudnn.fp32_precision = precision
    return [kind.fp32_precision for kind, _ in _KINDS]
