"""Frozen values back from JSON, guided by the types of their fields."""

import dataclasses
import types
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["read_value"]

T = TypeVar("T")


def read_value(kind: type[T], data: Any) -> T:
    """The value of type ``kind`` that JSON stands for; what does not fit is refused."""
    value: T = _read(kind, data, kind.__name__)
    return value


def _read(kind: Any, data: Any, place: str) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if kind is Any:
        return data
    if origin in (Union, types.UnionType):
        return None if data is None else _read(next(part for part in parts if part is not type(None)), data, place)
    if origin is Literal:
        return _checked(data in parts, data, place)
    if origin is tuple:
        _checked(isinstance(data, list | tuple), data, place)
        return tuple(_read(parts[0], part, f"{place}[{number}]") for number, part in enumerate(data))
    if origin is dict:
        _checked(isinstance(data, dict), data, place)
        return {name: _read(parts[1], part, f"{place}.{name}") for name, part in data.items()}
    if dataclasses.is_dataclass(kind):
        return _read_fields(kind, data, place)
    if kind is float:
        return float(_checked(isinstance(data, int | float) and not isinstance(data, bool), data, place))
    return _checked(isinstance(data, kind), data, place)


def _read_fields(kind: Any, data: Any, place: str) -> Any:
    _checked(isinstance(data, dict), data, place)
    hints = get_type_hints(kind)
    unknown = sorted(set(data) - set(hints))
    if unknown:
        raise ValueError(f"{place} has unknown fields {unknown}; was the file written by a newer version?")
    try:
        return kind(**{name: _read(hints[name], value, f"{place}.{name}") for name, value in data.items()})
    except TypeError as error:
        raise ValueError(f"{place} cannot be read: {error}") from error


def _checked(fits: bool, data: Any, place: str) -> Any:
    if not fits:
        raise ValueError(f"{place} has a value of the wrong kind, {data!r}")
    return data
