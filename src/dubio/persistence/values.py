"""Methods, priors, likelihoods and what was decided since as JSON, and back.

A value is written as its class's name and its fields. Only the classes listed here are ever made from a file.
"""

import dataclasses
from typing import Any

from dubio import decisions, flows
from dubio.conversion import Removed
from dubio.likelihoods import Bernoulli, Categorical, Gaussian
from dubio.methods import METHODS
from dubio.priors import CentredNormal, Normal, ScaleMixture

__all__ = ["from_json", "to_json"]

LIKELIHOODS = (Bernoulli, Categorical, Gaussian)
PRIORS = (CentredNormal, Normal, ScaleMixture)
SINCE = (*decisions.VALUES, Removed)
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
    kind = VALUES.get(data.get("value", ""))
    if kind is None:
        raise ValueError(f"unknown value {data.get('value')!r}; was the file written by a newer version?")
    known = {field.name for field in dataclasses.fields(kind)}
    unknown = set(data) - known - {"value"}
    if unknown:
        raise ValueError(
            f"unknown fields {sorted(unknown)} of {data['value']}; was the file written by a newer version?"
        )
    fields = {name: from_json(part) for name, part in data.items() if name != "value"}
    return kind(**BEFORE.get(kind.__name__, {}) | fields)
