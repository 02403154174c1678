"""The published tables and figures: a frozen spec for each, one runner, a record of every number."""

from dubio.experiments.results import Curve, Findings, Measured, Result
from dubio.experiments.running import reproduce
from dubio.experiments.spec import Cell, Spec, Variant, load_spec, spec_names
from dubio.experiments.tables import Row, tabulate

__all__ = [
    "Cell",
    "Curve",
    "Findings",
    "Measured",
    "Result",
    "Row",
    "Spec",
    "Variant",
    "load_spec",
    "reproduce",
    "spec_names",
    "tabulate",
]
