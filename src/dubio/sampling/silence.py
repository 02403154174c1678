"""Torch warns of every operator that it maps draw by draw. Nobody can act on it, and trials time the result."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["without_fallback_warnings"]

_LOCK = threading.Lock()
_SILENT = [0]
"""How many maps want silence: torch has one switch for all threads, and cannot be asked how it stands."""


@contextmanager
def without_fallback_warnings() -> Iterator[None]:
    """Map without such warnings."""
    _add(1)
    try:
        yield
    finally:
        _add(-1)


def _add(number: int) -> None:
    with _LOCK:
        _SILENT[0] += number
        torch._C._functorch._set_vmap_fallback_warning_enabled(_SILENT[0] == 0)  # type: ignore[attr-defined]
