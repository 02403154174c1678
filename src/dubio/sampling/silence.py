"""Torch warns of every operator that it maps draw by draw. Nobody can act on it, and trials time the result."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["without_fallback_warnings"]


@contextmanager
def without_fallback_warnings() -> Iterator[None]:
    """Map without such warnings."""
    warn_of_fallbacks = torch._C._functorch._set_vmap_fallback_warning_enabled  # type: ignore[attr-defined]
    warn_of_fallbacks(False)
    try:
        yield
    finally:
        warn_of_fallbacks(True)  # torch's default; it cannot be asked
