"""The published tables and figures: a frozen spec for each, one runner, a record of every number."""

from dubio.experiments.results import Measured, Result
from dubio.experiments.running import reproduce
from dubio.experiments.spec import Cell, Spec, load_spec, spec_names

__all__ = ["Cell", "Measured", "Result", "Spec", "load_spec", "reproduce", "spec_names"]
