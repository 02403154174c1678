"""What the files of a run say of attacks and pruning, as far as a report shows it.

Fields that a report has no use for are left out, so that a file of a later version can still be read.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any

from dubio.evaluation import Estimate

__all__ = [
    "AttackRecord",
    "AttackRow",
    "Density",
    "PruningPoint",
    "PruningRecord",
    "Shares",
]


@dataclass(frozen=True)
class Shares:
    """How often a network is right, in three ways."""

    predictive: Estimate
    """The mean over draws: R_pred."""
    single: Estimate
    """One draw: R_1."""
    retry: Estimate
    """All of several draws: R_retry."""
    predictive_per_example: tuple[int, ...] = ()


@dataclass(frozen=True)
class AttackRow(Shares):
    """What one attack at one distance left."""

    attack: str = ""
    epsilon: str = "0"
    fields: dict[str, Any] | None = None
    """None for the strongest of several."""

    def __post_init__(self) -> None:
        try:
            distance = self.distance
        except (ValueError, ZeroDivisionError, OverflowError):
            distance = math.nan
        if not math.isfinite(distance):
            raise ValueError(f"epsilon must be a number or a fraction such as 8/255, got {self.epsilon[:40]!r}")

    @property
    def distance(self) -> float:
        """Epsilon as a number: 8/255 is 0.0314."""
        above, stroke, below = self.epsilon.partition("/")
        return float(above) / float(below) if stroke else float(above)

    @property
    def settings(self) -> dict[str, Any]:
        """The attack's own fields; where one is passed on, those of the one inside."""
        fields = self.fields or {}
        inner = fields.get("attack")
        return inner if isinstance(inner, dict) else fields


@dataclass(frozen=True)
class AttackRecord:
    """``attack-*.json``: attacks at one distance; ``attack.json`` of earlier versions may hold several."""

    clean: Shares
    rows: tuple[AttackRow, ...]
    num_draws: int
    data: str = ""
    fingerprint: str = ""
    indices: tuple[int, ...] = ()
    seeds: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    when: str = ""
    sha256_of_images: str = ""
    network: str | None = None
    """The tensors that were attacked; see ``dubio.io.Identity``."""
    file_name: str = "attack"
    """Of the record and of its images, without ending."""

    def shared_fields(self) -> dict[str, Any]:
        """Fields that all attacks which have them agree about."""
        found: dict[str, list[Any]] = {}
        for row in self.rows:
            for name, value in row.settings.items():
                found.setdefault(name, []).append(value)
        return {name: values[0] for name, values in found.items() if all(value == values[0] for value in values)}

    @property
    def norm(self) -> str:
        """How distance was measured."""
        return str(self.shared_fields().get("norm", "linf"))

    def distance_text(self) -> str:
        """Its largest distance as it was asked for, with the norm where that is not the largest change."""
        epsilon = max(self.rows, key=lambda row: row.distance).epsilon
        return epsilon if self.norm == "linf" else f"{self.norm} {epsilon}"

    def at(self, distance: float) -> "AttackRecord":
        """What was tried at this distance alone."""
        return replace(self, rows=tuple(row for row in self.rows if row.distance == distance))

    def setting(self) -> str:
        """Which attacks were tried how far, with which settings, images and draws: the same text where they compare."""
        tried = [
            (row.attack, row.distance, {name: value for name, value in row.settings.items() if name != "seed"})
            for row in self.rows
        ]
        return repr((self.fingerprint, self.indices, self.num_draws, tried))

    def weakest(self) -> dict[float, AttackRow]:
        """By distance, the row that leaves least."""
        least: dict[float, AttackRow] = {}
        for row in self.rows:
            known = least.get(row.distance)
            if known is None or row.predictive.value < known.predictive.value:
                least[row.distance] = row
        return dict(sorted(least.items()))


@dataclass(frozen=True)
class PruningPoint:
    """How a network does without a fraction of its weights."""

    by: str
    fraction: float
    accuracy: float | None = None
    nll: float | None = None
    removed: float | None = None
    """The share that was really gone."""


@dataclass(frozen=True)
class Density:
    """How the signal-to-noise ratios of weights are distributed, in decibels."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    threshold_db: float | None = None


@dataclass(frozen=True)
class PruningRecord:
    """``pruning.json``."""

    by: str = ""
    what: str = ""
    fraction: float | None = None
    num_weights: int | None = None
    num_removed: int | None = None
    bytes_before: int | None = None
    bytes_after: int | None = None
    step_seconds_before: float | None = None
    step_seconds_after: float | None = None
    density: Density | None = None
    curve: tuple[PruningPoint, ...] = ()
    made_by: dict[str, str] = field(default_factory=dict)
