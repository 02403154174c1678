"""What an evaluation found, as plain values: they go to JSON and back, and reports are made from them alone.

Invariants: ``Evaluation.from_json(evaluation.to_json())`` equals the evaluation; a number that does not exist (the
accuracy of an empty bin) is None, never NaN (``tests/evaluation/test_values.py``).
"""

from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any, ClassVar, Literal

from dubio.codec import Record
from dubio.evaluation.failures import failures
from dubio.evaluation.words import METRICS, SCORE_WORDS, figure

__all__ = [
    "Bins",
    "ClassRow",
    "CorruptionPoint",
    "Curve",
    "DataRecord",
    "DetectionScore",
    "Doubt",
    "DrawCheck",
    "Estimate",
    "Evaluation",
    "Histogram",
    "IntervalRow",
    "NotableExample",
    "PerExample",
    "Thumbnail",
    "UnseenSet",
]


LINE_WIDTH = 80
"""Of a summary, in characters."""


@dataclass(frozen=True)
class Estimate:
    """A number, and how sure it is."""

    value: float
    low: float | None = None
    """Interval at 95 % over examples, by bootstrap."""
    high: float | None = None
    draw_error: float | None = None
    """Standard error over draws: how far another set of as many draws would move it."""
    doubled: float | None = None
    """The same from twice as many draws."""

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return figure(self.value)
        return f"{figure(self.value)} [{figure(self.low)}, {figure(self.high)}]"


@dataclass(frozen=True)
class DataRecord:
    """Which data were judged on."""

    name: str
    num_examples: int
    fingerprint: str
    classes: tuple[str, ...] = ()
    order: str = ""
    """The examples in their order: equal where row by row the same examples were judged. Empty in earlier files."""


@dataclass(frozen=True)
class DrawCheck:
    """Whether the draws were enough: what moves when there are twice as many."""

    num_samples: int
    metric: str
    """The metric that moves most, measured in half widths of its interval, or in parts of its value without one."""
    change: float
    enough: bool
    """Whether no metric moves by more than a quarter of the half width of its interval, or 1 % of its value."""


@dataclass(frozen=True)
class Bins:
    """A reliability plot: by bin of confidence, the share of examples, their mean confidence and their accuracy."""

    share: tuple[float, ...]
    confidence: tuple[float | None, ...]
    accuracy: tuple[float | None, ...]


@dataclass(frozen=True)
class Curve:
    """Points of a curve."""

    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Histogram:
    """How often values fall between edges, for each of several groups; counts are one fewer than edges."""

    edges: tuple[float, ...]
    counts: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Doubt:
    """Mean doubt over a group of examples, in nats, and where it lies."""

    num_examples: int
    entropy: float
    expected_entropy: float
    """In the data."""
    mutual_information: float
    """In the network."""


@dataclass(frozen=True)
class ClassRow:
    """How one class fares."""

    name: str
    num_examples: int
    recall: float | None
    """Share of its examples that are found; None where it has none."""
    precision: float | None
    """Share of what is taken for it that is it; None where nothing is."""
    confidence: float | None
    nll: float | None
    taken_for: str | None
    """The class that its examples are most often mistaken for; None where none is."""


@dataclass(frozen=True)
class PerExample:
    """One number for each example, so that networks can be compared on the same ones (``evaluation.comparison``)."""

    dtype: Literal["bits", "float16", "float32"]
    count: int
    content: str
    """Little-endian numbers, or bits, in base64."""


@dataclass(frozen=True)
class DetectionScore:
    """How well one score tells unseen from known data."""

    auroc: Estimate
    aupr: Estimate
    fpr95: Estimate
    histogram: Histogram
    """Of the score, groups ``known`` and ``unseen``."""
    placements: dict[str, PerExample] = field(default_factory=dict, repr=False)
    """For each example of ``known`` and ``unseen`` the share of the others on its right side; of two scores only."""


@dataclass(frozen=True)
class UnseenSet:
    """How well doubt finds one set of unseen data."""

    num_examples: int
    fingerprint: str
    scores: dict[str, DetectionScore]
    order: str = ""
    """As ``DataRecord.order``."""


@dataclass(frozen=True)
class CorruptionPoint:
    """How a network does at one strength of a corruption."""

    strength: int
    accuracy: float
    nll: float
    ece: float
    entropy: float
    mutual_information: float


@dataclass(frozen=True)
class IntervalRow:
    """How often central intervals of one level hold the target, and how wide they are."""

    level: float
    coverage: Estimate
    width: Estimate


@dataclass(frozen=True)
class Thumbnail:
    """A small image: bytes (channel, height, width) in base64; shown as it was read, at most 64 pixels wide."""

    shape: tuple[int, ...]
    pixels: str


@dataclass(frozen=True)
class NotableExample:
    """An example worth looking at."""

    index: int
    target: str
    label: str
    confidence: float
    entropy: float
    mutual_information: float
    probs: dict[str, float]
    """The most probable classes."""
    image: Thumbnail | None = None


@dataclass(frozen=True)
class Evaluation(Record):
    """How far a network can be trusted on some data."""

    format: ClassVar = "dubio-evaluation-1"
    called: ClassVar = "an evaluation"

    kind: Literal["classification", "regression"]
    data: DataRecord
    num_samples: int
    seed: int | None
    seconds: float
    metrics: dict[str, Estimate]
    draws: DrawCheck | None = None
    """None for a network without noise, an ensemble, or where it was not asked for."""
    decided: dict[str, str] = field(default_factory=dict)
    """What was applied to predictions: ``calibration``, ``threshold``, ``sets``."""
    reliability: Bins | None = None
    confidence: Histogram | None = None
    """Of the confidence, groups ``right`` and ``wrong``."""
    risk_coverage: Curve | None = None
    """The error among the most confident, by their share."""
    doubt: dict[str, Doubt] = field(default_factory=dict)
    """By group: ``all``, ``right``, ``wrong``, and each unseen set."""
    classes: tuple[ClassRow, ...] = ()
    intervals: tuple[IntervalRow, ...] = ()
    unseen: dict[str, UnseenSet] = field(default_factory=dict)
    corruptions: dict[str, tuple[CorruptionPoint, ...]] = field(default_factory=dict)
    notable: dict[str, tuple[NotableExample, ...]] = field(default_factory=dict)
    """``most uncertain`` and ``most confidently wrong``."""
    per_example: dict[str, PerExample] = field(default_factory=dict, repr=False)
    """What paired tests need: ``correct``, ``nll``, ``confidence``; or ``square``, ``mae``, ``nll``, ``crps``."""
    baseline: dict[str, float] = field(default_factory=dict)
    """What always predicting the mean of these targets gives: ``rmse``."""
    made_by: dict[str, str] = field(default_factory=dict)
    """Versions, and the command where there was one."""

    def to_dict(self) -> dict[str, Any]:
        """The headline numbers in one flat row, as for ``pandas.DataFrame([evaluation.to_dict(), ...])``.

        Each metric has its value under its name, and its interval under ``<name>_low`` and ``<name>_high``; AUROCs are
        named ``auroc_<score>_<unseen set>``. All that was measured is in ``to_json()``.
        """
        row: dict[str, Any] = {
            "kind": self.kind,
            "data": self.data.name,
            "num_examples": self.data.num_examples,
            "num_samples": self.num_samples,
            "seed": self.seed,
        }
        areas = {
            f"auroc_{score}_{name}": scored.auroc
            for name, unseen in self.unseen.items()
            for score, scored in unseen.scores.items()
        }
        for name, estimate in {**self.metrics, **areas}.items():
            row |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        return row

    def __str__(self) -> str:
        shown = {METRICS[name].label if name in METRICS else name: value for name, value in self.metrics.items()}
        for name, unseen in self.unseen.items():
            for score in ("entropy", "mutual_information"):
                if score in unseen.scores:
                    shown[f"AUROC on {name} by {SCORE_WORDS[score]}"] = unseen.scores[score].auroc
        width = max(map(len, shown), default=0)
        draws = "1 draw" if self.num_samples == 1 else f"{self.num_samples} draws"
        return "\n".join(
            [
                f"{self.kind} of {self.data.num_examples} examples of {self.data.name}, {draws}, seed {self.seed}",
                *(line for sentence in failures(self) for line in wrap(sentence, LINE_WIDTH)),
                *(f"{label:{width}}  {estimate}" for label, estimate in shown.items()),
                *(f"{name}: {value}" for name, value in self.decided.items()),
            ]
        )
