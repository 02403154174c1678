"""The record of an evaluation, the names and meanings of its numbers, and sentences about what fails.

Records are plain values that go to JSON and back; reports are made from them alone. A sentence of ``failures`` is about
one number that lies outside of what chance explains at 95 % (the interval of Clopper and Pearson for shares, the
bootstrap for errors). A network without failures is not proved right: few examples show little.

Invariants: ``Evaluation.from_json(evaluation.to_json())`` equals the evaluation; a number that does not exist (the
accuracy of an empty bin) is None, never NaN (``tests/evaluation/test_values.py``).
"""

from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any, ClassVar, Literal

from dubio import functional
from dubio.codec import Record

LINE_WIDTH = 80
"""Width of a printed evaluation, in characters."""
LEVEL = 0.95
LEAST_GAP = 0.02
"""The smallest difference of mean confidence and accuracy that makes a sentence."""


Better = Literal["more", "less", "neither"]


@dataclass(frozen=True)
class MetricInfo:
    """Name and meaning of a metric, and which direction is better."""

    label: str
    meaning: str
    better: Better


METRIC_TEXTS: dict[str, tuple[str, str, Better]] = {
    "accuracy": ("accuracy", "Share of examples whose most probable class is the true one.", "more"),
    "nll": ("NLL", "What the truth costs in nats at the probabilities given; sure but wrong is worst.", "less"),
    "brier": ("Brier score", "Squared distance of the probabilities from the truth, 0 to 2.", "less"),
    "confidence": ("mean confidence", "Mean probability of the class that is predicted.", "neither"),
    "entropy": ("entropy", "All doubt together, in nats; 0 is certain.", "neither"),
    "ece": ("ECE", "How far confidence and accuracy lie apart, in 15 bins of equal width (calibration error).", "less"),
    "adaptive_ece": ("adaptive ECE", "The same in 15 bins of equally many examples.", "less"),
    "classwise_ece": ("class-wise ECE", "The same for the probability of every class, averaged.", "less"),
    "aurc": (
        "AURC",
        "Error among the most confident, averaged over how many are accepted: whether doubt knows errors.",
        "less",
    ),
    "expected_entropy": ("doubt of the data", "The part of the entropy that all draws have, in nats.", "neither"),
    "mutual_information": (
        "doubt of the network",
        "What draws disagree about, in nats: mutual information.",
        "neither",
    ),
    "single_draw_accuracy": ("accuracy of one draw", "Mean accuracy of single draws.", "more"),
    "accepted_share": ("accepted", "Share of examples above the threshold of doubt.", "more"),
    "accepted_error": ("error among accepted", "Share of the accepted that are wrong.", "less"),
    "set_coverage": ("coverage of sets", "Share of prediction sets that hold the true class.", "neither"),
    "set_size": ("size of sets", "Mean number of classes in a prediction set.", "less"),
    "rmse": ("RMSE", "Root of the mean squared error of the mean.", "less"),
    "mae": ("MAE", "Mean absolute error of the mean.", "less"),
    "crps": ("CRPS", "Ranked probability score, in the unit of the target.", "less"),
    "std": ("predicted std", "Mean standard deviation of the prediction, both kinds of doubt.", "neither"),
    "aleatoric_std": ("std of the data", "The part that lies in the data.", "neither"),
    "epistemic_std": ("std of the network", "The part that draws disagree about.", "neither"),
}
METRICS = {name: MetricInfo(*row) for name, row in METRIC_TEXTS.items()}


SCORE_INFO = {
    "entropy": "entropy",
    "mutual_information": "mutual information",
    "lack_of_confidence": "1 - confidence",
    "top_std": "spread of the top score",
    "variation_ratio": "dissenting votes",
    "energy": "energy",
}


@dataclass(frozen=True)
class Estimate:
    """A number and its errors."""

    value: float
    low: float | None = None
    """Interval at 95 % over examples, by bootstrap."""
    high: float | None = None
    draw_error: float | None = None
    """Standard error over draws."""
    doubled: float | None = None
    """The number from twice as many draws."""

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return figure(self.value)
        return f"{figure(self.value)} [{figure(self.low)}, {figure(self.high)}]"


@dataclass(frozen=True)
class DataRecord:
    """The data of an evaluation."""

    name: str
    num_examples: int
    fingerprint: str
    classes: tuple[str, ...] = ()
    order: str = ""
    """Hash of the examples in their order; empty in files of earlier versions."""


@dataclass(frozen=True)
class DrawCheck:
    """Whether the draws were enough, by the change with twice as many."""

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
class Uncertainty:
    """Mean uncertainty of a group of examples, in nats, and its parts."""

    num_examples: int
    entropy: float
    expected_entropy: float
    """Uncertainty of the data."""
    mutual_information: float
    """Uncertainty of the network."""


@dataclass(frozen=True)
class ClassRow:
    """Metrics of one class."""

    name: str
    num_examples: int
    recall: float | None
    """Share of its examples that are predicted as it; None if it has none."""
    precision: float | None
    """Share of the predictions of it that are right; None if there are none."""
    confidence: float | None
    nll: float | None
    taken_for: str | None
    """The class that its examples are most often mistaken for; None if all are right."""


@dataclass(frozen=True)
class PerExample:
    """One number for each example, for paired tests of networks (``evaluation.comparison``)."""

    dtype: Literal["bits", "float16", "float32"]
    count: int
    content: str
    """Little-endian numbers, or bits, in base64."""


@dataclass(frozen=True)
class DetectionScore:
    """How well one score separates unseen data from the data of the evaluation."""

    auroc: Estimate
    aupr: Estimate
    fpr95: Estimate
    histogram: Histogram
    """Of the score, groups ``known`` and ``unseen``."""
    placements: dict[str, PerExample] = field(default_factory=dict, repr=False)
    """For each example of ``known`` and ``unseen`` the share of the other group on its right side; for two scores."""


@dataclass(frozen=True)
class UnseenSet:
    """How well scores of uncertainty detect one set of unseen data."""

    num_examples: int
    fingerprint: str
    scores: dict[str, DetectionScore]
    order: str = ""
    """As ``DataRecord.order``."""


@dataclass(frozen=True)
class CorruptionPoint:
    """Metrics at one strength of a corruption."""

    strength: int
    accuracy: float
    nll: float
    ece: float
    entropy: float
    mutual_information: float


@dataclass(frozen=True)
class IntervalRow:
    """Coverage and mean width of central intervals of one level."""

    level: float
    coverage: Estimate
    width: Estimate


@dataclass(frozen=True)
class Thumbnail:
    """A small image as bytes (channel, height, width) in base64, at most 64 pixels wide."""

    shape: tuple[int, ...]
    pixels: str


@dataclass(frozen=True)
class NotableExample:
    """An example that deserves a look."""

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
    """Metrics of a network on data, with their errors."""

    format: ClassVar = "dubio-evaluation-1"
    called: ClassVar = "an evaluation"

    kind: Literal["classification", "regression"]
    data: DataRecord
    num_samples: int
    seed: int | None
    seconds: float
    metrics: dict[str, Estimate]
    draws: DrawCheck | None = None
    """None for a network without noise, for an ensemble, and with ``double=False``."""
    decided: dict[str, str] = field(default_factory=dict)
    """Decisions applied to predictions: ``calibration``, ``threshold``, ``sets``."""
    reliability: Bins | None = None
    confidence: Histogram | None = None
    """Of the confidence, groups ``right`` and ``wrong``."""
    risk_coverage: Curve | None = None
    """The error among the most confident, by their share."""
    uncertainty: dict[str, Uncertainty] = field(default_factory=dict)
    """By group: ``all``, ``right``, ``wrong``, and each unseen set."""
    classes: tuple[ClassRow, ...] = ()
    intervals: tuple[IntervalRow, ...] = ()
    unseen: dict[str, UnseenSet] = field(default_factory=dict)
    corruptions: dict[str, tuple[CorruptionPoint, ...]] = field(default_factory=dict)
    notable: dict[str, tuple[NotableExample, ...]] = field(default_factory=dict)
    """``most uncertain`` and ``most confidently wrong``."""
    per_example: dict[str, PerExample] = field(default_factory=dict, repr=False)
    """Values for paired tests: ``correct``, ``nll``, ``confidence``; or ``square``, ``mae``, ``nll``, ``crps``."""
    baseline: dict[str, float] = field(default_factory=dict)
    """Metrics of always predicting the mean of these targets: ``rmse``."""
    made_by: dict[str, str] = field(default_factory=dict)
    """Versions, and the command if there was one."""

    def to_dict(self) -> dict[str, Any]:
        """The headline numbers in one flat row, as for ``pandas.DataFrame([evaluation.to_dict(), ...])``.

        Each metric has its value under its name, and its interval under ``<name>_low`` and ``<name>_high``; AUROCs are
        named ``auroc_<score>_<unseen set>``. ``to_json()`` holds everything.
        """
        row: dict[str, Any] = {"kind": self.kind, "data": self.data.name, "num_examples": self.data.num_examples}
        row |= {"num_samples": self.num_samples, "seed": self.seed}
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
                    shown[f"AUROC on {name} by {SCORE_INFO[score]}"] = unseen.scores[score].auroc
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


def failures(evaluation: Evaluation, run: str | None = None) -> tuple[str, ...]:
    """Sentences about what fails, worst first; empty if nothing is seen to fail.

    Args:
        evaluation: the result of ``dubio.evaluate``.
        run: name of the run, for advice as commands; without it, advice is in Python.
    """
    if evaluation.kind == "regression":
        sentences = (_no_better_than_the_mean(evaluation), _intervals(evaluation, run))
    else:
        sentences = (_no_better_than_one_class(evaluation), _confidence(evaluation, run))
    return tuple(filter(None, sentences))


def _intervals(evaluation: Evaluation, run: str | None) -> str:
    row = next((row for row in evaluation.intervals if abs(row.level - LEVEL) < 1e-9), None)
    if row is None:
        return ""
    low, high = _chance(row.coverage.value, evaluation.data.num_examples)
    if low <= LEVEL <= high:
        return ""
    held = f"95 % intervals hold {100 * row.coverage.value:.1f} % of the targets"
    if row.coverage.value > LEVEL:
        return f"{held}: too wide; train for more epochs."
    advice = "with --likelihood gaussian or --method ensemble"
    if run is None:
        advice = "with likelihood=dubio.Gaussian.for_targets(train_targets, 'output', beta=0.5)"
    return f"{held}: too narrow; train on more data, or, where it was trained otherwise, {advice}."


def _no_better_than_the_mean(evaluation: Evaluation) -> str:
    rmse, constant = evaluation.metrics.get("rmse"), evaluation.baseline.get("rmse")
    if rmse is None or constant is None:
        return ""
    values = f"RMSE {figure(rmse.value)}, of the mean {figure(constant)}"
    if rmse.value < constant and (rmse.high is None or rmse.high < constant):
        return ""
    how = "No better" if rmse.value >= constant else "Not clearly better"
    return f"{how} than always predicting the mean of these targets: {values}."


def _no_better_than_one_class(evaluation: Evaluation) -> str:
    accuracy = evaluation.metrics.get("accuracy")
    if accuracy is None or not evaluation.classes:
        return ""
    most = max(evaluation.classes, key=lambda row: row.num_examples)
    share = most.num_examples / max(sum(row.num_examples for row in evaluation.classes), 1)
    if share == 1.0 or _chance(accuracy.value, evaluation.data.num_examples)[0] > share:
        return ""
    how = "No better" if accuracy.value <= share else "Not clearly better"
    return (
        f"{how} than always predicting {most.name!r}: accuracy {100 * accuracy.value:.1f} %, of that class "
        f"{100 * share:.1f} %."
    )


def _confidence(evaluation: Evaluation, run: str | None) -> str:
    confidence, accuracy = evaluation.metrics.get("confidence"), evaluation.metrics.get("accuracy")
    if confidence is None or accuracy is None or abs(confidence.value - accuracy.value) < LEAST_GAP:
        return ""
    low, high = _chance(accuracy.value, evaluation.data.num_examples)
    if low <= confidence.value <= high:
        return ""
    advice = f"run dubio calibrate {run}" if run is not None else "use dubio.calibrate(model, validation)"
    if "calibration" in evaluation.decided:
        advice = "calibrate on more data"
    manner = "overconfident" if confidence.value > accuracy.value else "underconfident"
    return f"Mean confidence {confidence.value:.3f} where accuracy is {accuracy.value:.3f}: {manner}; {advice}."


def _chance(share: float, num_examples: int) -> tuple[float, float]:
    """The interval of true shares that explain an observed one."""
    return functional.statistics.clopper_pearson(round(share * num_examples), num_examples, LEVEL)


def figure(value: float, digits: int = 4) -> str:
    """A number with ``digits`` decimals; large numbers have fewer, and very small ones are in scientific notation."""
    size = abs(value)
    if 0.0 < size < 0.5 * 10.0**-digits:
        return f"{value:.2e}"
    if size < 1e4:
        return f"{value:.{digits}f}"
    return f"{value:.0f}" if size < 1e7 else f"{value:.3e}"
