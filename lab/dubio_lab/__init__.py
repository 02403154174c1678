"""The published tables and figures: a frozen spec for each, one runner, a record of every number."""

from dubio.experiments.claims import CLAIMS, PAPERS, Claim, Outcome, Records
from dubio.experiments.drawing import MeanCurve, draw_curves, draw_heat_map, mean_curve
from dubio.experiments.results import Curve, Findings, Measured, Result
from dubio.experiments.running import Failure, Reproduction, load_results, reproduce, reproduce_many
from dubio.experiments.spec import Cell, Spec, Variant, load_spec, spec_names
from dubio.experiments.sweeps import draw_sweep
from dubio.experiments.tables import Row, tabulate

__all__ = [
    "CLAIMS",
    "PAPERS",
    "Cell",
    "Claim",
    "Curve",
    "Failure",
    "Findings",
    "MeanCurve",
    "Measured",
    "Outcome",
    "Records",
    "Reproduction",
    "Result",
    "Row",
    "Spec",
    "Variant",
    "draw_curves",
    "draw_heat_map",
    "draw_sweep",
    "load_results",
    "load_spec",
    "mean_curve",
    "reproduce",
    "reproduce_many",
    "spec_names",
    "tabulate",
]
