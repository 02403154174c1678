"""Names of a package that are imported on first use, so that ``import dubio`` is fast and does not import torch."""

import gc
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["import_later"]


def import_later(package: str, places: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package.

    Args:
        package: the name of the package.
        places: the modules of the package, each with the names that the package exports from it.
    """
    owners = {name: module for module, names in places.items() for name in names}

    def import_name(name: str) -> Any:
        if name not in places and name not in owners:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = _import(f"{package}.{owners.get(name, name)}")
        value = getattr(module, name) if name in owners else module
        setattr(sys.modules[package], name, value)  # later accesses do not call __getattr__
        return value

    return import_name


def _import(name: str) -> Any:
    """Import a module without garbage collection, which takes 0.1 s during an import and frees nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        if was_enabled:
            gc.enable()
