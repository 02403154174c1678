"""The laboratory of dubio: published tables and figures, each with a frozen spec, and a record of every number.

Names are imported when they are first used, so that ``dubio reproduce --help`` does not wait for torch.
"""

from typing import TYPE_CHECKING

from dubio._lazy import import_later

if TYPE_CHECKING:
    from dubio_lab.claims import (
        CLAIMS,
        EARLIER_FILE,
        PAPERS,
        Claim,
        Earlier,
        Estimate,
        Outcome,
        Records,
        Verdict,
        read_earlier,
    )
    from dubio_lab.drawing import MeanCurve, draw_curves, draw_heat_map, mean_curve
    from dubio_lab.results import Curve, Findings, Measured, Result
    from dubio_lab.running import Failure, Reproduction, default_folder, load_results, reproduce, reproduce_many
    from dubio_lab.spec import Cell, ExperimentSpec, Variant, load_spec, spec_names
    from dubio_lab.sweeps import draw_sweep
    from dubio_lab.tables import Row, tabulate

PLACES: dict[str, tuple[str, ...]] = {
    "claims": (
        *("CLAIMS", "EARLIER_FILE", "PAPERS", "Claim", "Earlier", "Estimate", "Outcome", "Records", "Verdict"),
        "read_earlier",
    ),
    "drawing": ("MeanCurve", "draw_curves", "draw_heat_map", "mean_curve"),
    "results": ("Curve", "Findings", "Measured", "Result"),
    "running": ("Failure", "Reproduction", "default_folder", "load_results", "reproduce", "reproduce_many"),
    "spec": ("Cell", "ExperimentSpec", "Variant", "load_spec", "spec_names"),
    "sweeps": ("draw_sweep",),
    "tables": ("Row", "tabulate"),
}
"""Where each public name is defined."""

__all__ = [
    "CLAIMS",
    "EARLIER_FILE",
    "PAPERS",
    "Cell",
    "Claim",
    "Curve",
    "Earlier",
    "Estimate",
    "ExperimentSpec",
    "Failure",
    "Findings",
    "MeanCurve",
    "Measured",
    "Outcome",
    "Records",
    "Reproduction",
    "Result",
    "Row",
    "Variant",
    "Verdict",
    "default_folder",
    "draw_curves",
    "draw_heat_map",
    "draw_sweep",
    "load_results",
    "load_spec",
    "mean_curve",
    "read_earlier",
    "reproduce",
    "reproduce_many",
    "spec_names",
    "tabulate",
]

if not TYPE_CHECKING:  # a type checker reads the imports above
    __getattr__ = import_later("dubio_lab", PLACES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
