"""Records of pruning, as plain values that go to JSON and back; tables are made from them alone.

Invariant: ``Pruning.from_json(pruning.to_json())`` equals the record (``tests/pruning/test_measuring.py``).
"""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from dubio.codec import Record

By = Literal["snr", "magnitude"]
What = Literal["weights", "units"]


@dataclass(frozen=True)
class Removal:
    """The result of one removal."""

    share: float
    """The removed share of all original weights or units that can be removed."""
    shrunk: tuple[str, ...] = ()
    """Layers and batch norms that became smaller."""
    units: dict[str, int] = field(default_factory=dict)
    """Units that layers had before any pruning."""


@dataclass(frozen=True)
class LayerPruning:
    """Counts of one parameter (``what="weights"``) or of one layer (``what="units"``)."""

    num_weights: int
    num_removed: int
    units_before: int | None = None
    """Outputs of a layer; None where single weights were removed."""
    units_after: int | None = None


@dataclass(frozen=True)
class SnrDensity:
    """How the logarithms of signal-to-noise ratios are distributed, before pruning: a histogram over decibels.

    Ratios of zero count in the first bin.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    """One fewer than edges."""
    threshold_db: float | None = None
    """The highest ratio that was removed; None where none was, or weights were ranked by another score."""


@dataclass(frozen=True)
class PruningPoint:
    """Accuracy and loss of a network with a share of its weights or units removed."""

    by: By
    fraction: float
    """The requested share."""
    accuracy: float | None
    """None where targets are numbers."""
    nll: float
    removed: float | None = None
    """The share actually removed: every layer keeps a unit, and earlier pruning stays."""


@dataclass(frozen=True)
class Pruning(Record):
    """The weights or units removed from a network, and the loss of accuracy."""

    format: ClassVar = "dubio-pruning-1"
    called: ClassVar = "a pruning"

    by: By
    what: What
    fraction: float
    """The requested share, or the one that keeps the budget."""
    num_weights: int
    num_removed: int
    """Weights removed, those of an earlier pruning included; for units, the weights removed with them this time."""
    per_layer: dict[str, LayerPruning]
    bytes_before: int
    """What ``dubio.save`` would have written."""
    bytes_after: int
    step_seconds_before: float | None = None
    """Median time of a forward pass with one draw on the example, if there is one."""
    step_seconds_after: float | None = None
    density: SnrDensity | None = None
    """None for a network without Gaussian posteriors."""
    curve: tuple[PruningPoint, ...] = ()
    """All shares tried, in increasing order."""
    max_loss: float | None = None
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    nll_before: float | None = None
    nll_after: float | None = None
    removed: float | None = None
    """The share actually removed: every layer keeps a unit, and earlier pruning stays."""
    made_by: dict[str, str] = field(default_factory=dict)
    """The command, the run and the network, if a command made the record."""

    def __str__(self) -> str:
        lines = [
            f"{self.num_removed:,} of {self.num_weights:,} weights removed ({self.what} by {self.by}, "
            f"fraction {self.fraction:g}); {self.bytes_before:,} bytes before, {self.bytes_after:,} after"
        ]
        if self.what == "units" and self.removed is not None:
            lines[0] += f"; {self.removed:.1%} of the units are gone"
        for name, layer in self.per_layer.items():
            units = "" if layer.units_before is None else f", {layer.units_before} units to {layer.units_after}"
            lines.append(f"  {name}: {layer.num_removed:,} of {layer.num_weights:,}{units}")
        if self.step_seconds_before is not None and self.step_seconds_after is not None:
            before, after = 1e3 * self.step_seconds_before, 1e3 * self.step_seconds_after
            lines.append(f"forward {before:.3g} ms before, {after:.3g} ms after")
        if self.accuracy_before is not None and self.accuracy_after is not None:
            lines.append(f"accuracy {self.accuracy_before:.4f} before, {self.accuracy_after:.4f} after")
        if self.nll_before is not None and self.nll_after is not None:
            lines.append(f"NLL {self.nll_before:.4f} before, {self.nll_after:.4f} after")
        return "\n".join(lines)
