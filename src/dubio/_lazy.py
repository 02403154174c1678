"""Names of a package that are imported when they are first used, so that ``import dubio`` stays quick."""

import gc
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["import_later"]


def import_later(package: str, places: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """A package's ``__getattr__``: modules by name, and for each the names that the package takes from it."""
    owners = {name: module for module, names in places.items() for name in names}

    def find(name: str) -> Any:
        if name not in places and name not in owners:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = _import(f"{package}.{owners.get(name, name)}")
        value = getattr(module, name) if name in owners else module
        setattr(sys.modules[package], name, value)  # the next access does not come here
        return value

    return find


def _import(name: str) -> Any:
    """Import a module; a garbage collection in the midst of it takes a tenth of a second and frees nothing."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        if collecting:
            gc.enable()
