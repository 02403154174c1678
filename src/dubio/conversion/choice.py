"""``where``: which layers a method applies to.

A glob on the qualified name (``"head"``, ``"blocks.*.fc"``; ``"blocks.*"`` reaches everything below ``blocks``), a
module type, a callable of name and module, or a tuple of those, of which one must agree. None chooses every layer.
"""

from collections.abc import Callable
from fnmatch import fnmatchcase

from torch import nn

__all__ = ["ConversionWarning", "Where", "check_where", "chooses", "consists_of"]

Where = str | type[nn.Module] | Callable[[str, nn.Module], bool] | tuple["Where", ...] | None


class ConversionWarning(UserWarning):
    """Something about a converted network that its owner should know."""


def chooses(where: Where, name: str, module: nn.Module) -> bool:
    """Whether ``where`` chooses this module."""
    if where is None:
        return True
    if isinstance(where, tuple):
        return any(chooses(part, name, module) for part in where)
    if isinstance(where, str):
        return fnmatchcase(name, where)
    if isinstance(where, type):
        return isinstance(module, where)
    return bool(where(name, module))


def check_where(where: object) -> None:
    """Refuse what cannot choose layers."""
    parts = where if isinstance(where, tuple) else (where,)
    for part in parts:
        if isinstance(part, tuple):
            check_where(part)
        elif isinstance(part, type) and not issubclass(part, nn.Module):
            raise TypeError(f"where must name a module type, got {part.__name__}")
        elif not (part is None or isinstance(part, str) or callable(part)):
            raise TypeError(f"where must be a glob, a module type, a callable, or a tuple of those, got {part!r}")


def consists_of(where: Where, *kinds: type) -> bool:
    """Whether a choice is made of these kinds alone."""
    if isinstance(where, tuple):
        return all(consists_of(part, *kinds) for part in where)
    return where is None or isinstance(where, kinds)
