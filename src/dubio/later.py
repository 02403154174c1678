"""Names of a package that are imported when they are first asked for, so that ``import dubio`` stays quick."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["import_later"]


def import_later(package: str, places: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """What a package has as its ``__getattr__``: modules by name, and for each the names that the package lends."""

    def find(name: str) -> Any:
        for module, names in places.items():
            if name == module or name in names:
                found = importlib.import_module(f"{package}.{module}")
                return found if name == module else getattr(found, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
