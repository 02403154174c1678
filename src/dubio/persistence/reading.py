"""JSON objects from files, and frozen values back from JSON, guided by the types of their fields."""

import dataclasses
import json
import types
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

__all__ = ["read_json_lines", "read_object", "read_value"]

T = TypeVar("T")


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an error names the file."""
    return _object(path.read_bytes(), str(path))


def read_json_lines(path: Path, count: int | None = None) -> list[dict[str, Any]]:
    """The objects in a file with one per line, or the first ``count``; an error names the file and the line.

    A last line without an end is being written, or was cut, and does not count.
    """
    lines = path.read_bytes().split(b"\n")[:-1][:count]
    return [_object(line, f"{path}, line {number},") for number, line in enumerate(lines, start=1)]


def read_value(kind: type[T], data: Any) -> T:
    """The value of type ``kind`` that JSON stands for; what does not fit is refused."""
    value: T = _read(kind, data, kind.__name__)
    return value


def _object(content: bytes, source: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{source} must hold a JSON object, got a {type(value).__name__}")
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
