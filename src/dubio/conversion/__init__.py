"""Whole networks: choosing layers, replacing them, and saying what became of each."""

from dubio.conversion.choice import Where, chooses
from dubio.conversion.description import Description, describe
from dubio.conversion.replacement import parameter_names, randomise, to_mean
from dubio.conversion.spec import Spec, spec

__all__ = [
    "Description",
    "Spec",
    "Where",
    "chooses",
    "describe",
    "parameter_names",
    "randomise",
    "spec",
    "to_mean",
]
