"""Methods, priors, likelihoods and what was decided since as JSON, and back.

A value is written as its class's name and its fields. Only the classes listed here are ever made from a file.
"""

import dataclasses
from typing import Any, get_type_hints

from dubio import calibrators as decisions, flows
from dubio.codec import RecordError, fits
from dubio.likelihoods import Bernoulli, Categorical, Gaussian
from dubio.methods import METHODS
from dubio.nn import Removed
from dubio.priors import CentredNormal, Normal, ScaleMixture

__all__ = ["from_json", "to_json"]

LIKELIHOODS = (Bernoulli, Categorical, Gaussian)
PRIORS = (CentredNormal, Normal, ScaleMixture)
SINCE = (*decisions.VALUES, Removed)
"""What comes after conversion."""
VALUES = {kind.__name__: kind for kind in (*METHODS.values(), *LIKELIHOODS, *PRIORS, *flows.VALUES, *SINCE)}

BEFORE: dict[str, dict[str, Any]] = {"Bayes": {"beta": 1.0}}
"""What stood for fields that files of earlier versions do not have, where the default is another now."""


def to_json(value: Any) -> Any:
    """A value as JSON."""
    if dataclasses.is_dataclass(value) and type(value).__name__ in VALUES:
        fields = {field.name: to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"value": type(value).__name__, **fields}
    if isinstance(value, tuple | list):
        return [to_json(part) for part in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"cannot write {value!r} to a file")


def from_json(data: Any) -> Any:
    """The value that JSON stands for."""
    if isinstance(data, list):
        return tuple(from_json(part) for part in data)
    if not isinstance(data, dict):
        return data
    name = data.get("value")
    kind = VALUES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise RecordError(f"unknown value {name!r}; was the file written by a newer version?")
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = set(data) - known - {"value"}
    if unknown:
        raise RecordError(f"unknown fields {sorted(unknown)} of {name}; was the file written by a newer version?")
    hints = get_type_hints(kind)
    values = {field: from_json(part) for field, part in data.items() if field != "value"}
    for field, value in values.items():
        if not fits(hints[field], value):
            raise RecordError(f"{field} of {name} has a value of the wrong kind, {value!r}")
    return kind(**BEFORE.get(kind.__name__, {}) | values)
