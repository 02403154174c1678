"""Whole networks: choosing layers, replacing them, and saying what became of each."""

from dubio.conversion.choice import Where, chooses
from dubio.conversion.description import Description, describe
from dubio.conversion.replacement import replace_layers
from dubio.conversion.spec import Spec, spec

__all__ = ["Description", "Spec", "Where", "chooses", "describe", "replace_layers", "spec"]
