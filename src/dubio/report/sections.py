"""Sections on how a network was trained, and on what can be taken away from it.

Sections from evaluations: is confidence worth its word, and where does doubt lie?

Sections on strange inputs: data of another kind, and corrupted ones.

Sections that go into detail: classes, single examples, and every number of an evaluation.

Small images inside a page: PNG written by hand, as ``data:`` addresses.

Invariants: any reader of PNG gives the pixels back (``tests/report/test_images.py``).
"""

import base64
import binascii
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from dubio.evaluation import (
    METRICS,
    SCORE_INFO,
    Bins,
    CorruptionPoint,
    DetectionScore,
    Estimate,
    Evaluation,
    Histogram as Counts,
    NotableExample,
    Thumbnail,
    Uncertainty,
    UnseenSet,
    metric_curve,
)
from dubio.report.elements import (
    Bars,
    Block,
    Card,
    Cell,
    Gallery,
    LineChart,
    Note,
    Picture,
    ReliabilityChart,
    Section,
    Series,
    Stacks,
    Table,
    bytes_text,
    cell,
    listed,
    number,
    percent,
    points,
    thinned,
)
from dubio.report.runs import PruningRecord, RunRecord

CURVES = (
    ("val_nll", "Validation NLL", "NLL (nats)"),
    ("nll", "Training NLL", "NLL (nats)"),
    ("val_accuracy", "Validation accuracy", "accuracy"),
    ("val_rmse", "Validation error", "RMSE"),
    ("loss", "Training loss", "loss"),
)


def training(records: Sequence[RunRecord]) -> Section:
    """Did it learn, and for long enough?"""
    kinds = list(dict.fromkeys(record.kind for record in records))
    blocks = [
        figure
        for kind in kinds
        for metric, title, label in CURVES
        for figure in _curve(
            [record for record in records if record.kind == kind],
            metric,
            title if len(kinds) == 1 else f"{title} ({kind})",
            label,
        )
    ]
    about = (
        "Validation data are not trained on. Their curve falls (accuracy: rises) and levels off. Where it turns up "
        "again while the training curve still falls, the network learns by heart; the best epoch is what is kept. The "
        "training loss holds all terms of the objective, so losses of different methods are not comparable."
    )
    return Section("training", "How did it learn?", about, tuple(blocks))


def _curve(records: Sequence[RunRecord], metric: str, title: str, label: str) -> list[LineChart]:
    """One metric of all runs of a kind, epoch by epoch; nothing where none has it."""
    lines = [line for record in records for line in [_learned(record, metric)] if line is not None]
    if not lines:
        return []
    less = metric != "val_accuracy"
    parts = [
        f"{line.name}: {'least' if less else 'most'} {number(best)} in epoch "
        f"{number(line.x[line.y.index(best)])}, {number(line.y[-1])} in the last"
        for line in lines
        for best in [min(line.y) if less else max(line.y)]
    ]
    values = [value for line in lines for value in line.y]
    wide = min(values) > 0.0 and max(values) > 20.0 * min(values)
    return [LineChart(title, f"{'; '.join(parts)}.", "epoch", label, tuple(lines), log_y=less and wide)]


def _learned(record: RunRecord, metric: str) -> Series | None:
    points = [(float(line["epoch"]), line[metric]) for line in record.history if _is_number(line.get(metric))]
    if not points:
        return None
    values = [value for _, value in points]
    extremes = {values.index(min(values)), values.index(max(values))}
    shown = [points[place] for place in sorted({*thinned(len(points)), *extremes})]
    return Series(record.name, tuple(x for x, _ in shown), tuple(float(y) for _, y in shown))


def _is_number(value: Any) -> bool:
    """Whether JSON holds a finite number here."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")


def pruning(records: Sequence[RunRecord]) -> Section:
    """How many weights does it need?"""
    blocks: list[Block] = []
    for record in records:
        found = record.pruning
        if found is None:
            continue
        if sentence := _told(found):
            blocks.append(Note(f"{record.name}: {sentence}"))
        if found.density is not None and len(found.density.edges) == len(found.density.counts) + 1 > 1:
            blocks.append(_density(record.name, found))
        for metric, label in (("accuracy", "accuracy"), ("nll", "NLL (nats)")):
            blocks += _curves(record.name, found, metric, label)
    about = (
        "A weight's signal-to-noise ratio (SNR) is the size of its mean over its standard deviation, here in decibels: "
        "at 0 they are equal, and a weight far below is noise that can go. The curves show what is left when a "
        "fraction of the weights is removed, those of the lowest SNR or the smallest size first. Good: flat far to the "
        "right."
    )
    return Section("pruning", "How many weights does it need?", about, tuple(blocks))


def _told(found: PruningRecord) -> str:
    parts = []
    if found.num_removed and found.num_weights:
        by = f", chosen by {found.by}" if found.by else ""
        share = percent(found.num_removed / found.num_weights)
        parts.append(f"{found.num_removed:,} of {found.num_weights:,} weights removed ({share}){by}")
    if found.bytes_before is not None and found.bytes_after is not None and found.bytes_after != found.bytes_before:
        parts.append(f"the file shrinks from {bytes_text(found.bytes_before)} to {bytes_text(found.bytes_after)}")
    if found.step_seconds_before is not None and found.step_seconds_after is not None:
        before, after = 1e3 * found.step_seconds_before, 1e3 * found.step_seconds_after
        parts.append(f"a pass takes {number(after)} ms, before {number(before)} ms")
    return f"{'; '.join(parts)}." if parts else ""


def _density(name: str, found: PruningRecord) -> Bars:
    assert found.density is not None
    counts, edges, limit = found.density.counts, found.density.edges, found.density.threshold_db
    total = sum(counts) or 1.0
    below = sum(count for count, high in zip(counts, edges[1:], strict=True) if high <= 0.0) / total
    summary = f"{percent(below)} of the weights have more noise than signal (below 0 dB)."
    if limit is not None:
        summary += f" Weights below {number(limit)} dB were removed."
    groups = {"weights": tuple(count / total for count in counts)}
    return Bars(
        f"{name}: signal and noise", summary, "signal-to-noise ratio (dB)", "share of weights", edges, groups, limit
    )


def _curves(name: str, found: PruningRecord, metric: str, label: str) -> list[Block]:
    lines = []
    for by in dict.fromkeys(point.by for point in found.curve):
        points = sorted(
            (point.fraction if point.removed is None else point.removed, value)
            for point in found.curve
            for value in [getattr(point, metric)]
            if point.by == by and value is not None
        )
        if points:
            lines.append(Series(f"by {by}", tuple(x for x, _ in points), tuple(y for _, y in points)))
    if not lines:
        return []
    what = found.what or "weights"
    parts = [
        f"{line.name}: {number(line.y[0])} with {1 - line.x[0]:.0%} of the {what}, "
        f"{number(line.y[-1])} with {1 - line.x[-1]:.0%}"
        for line in lines
    ]
    title = f"{name}: {'NLL' if metric == 'nll' else metric} by fraction removed"
    return [LineChart(title, f"{'; '.join(parts)}.", f"fraction of {what} removed", label, tuple(lines))]


PARTS_OF_OTHERS = (
    "{name}: its entropy is calibrated and the parts of it are not, as an earlier version evaluated it. Run dubio "
    "evaluate {name} again to see where the doubt comes from."
)


def judged_runs(records: Sequence[RunRecord]) -> list[tuple[str, Evaluation]]:
    """Runs that have an evaluation, by name."""
    return [(record.name, record.evaluation) for record in records if record.evaluation is not None]


def shares(counts: tuple[int, ...]) -> tuple[float, ...]:
    """Counts as shares of their sum."""
    return tuple(count / (sum(counts) or 1) for count in counts)


def reliability(records: Sequence[RunRecord]) -> Section:
    """Does 80 % confidence mean right in 80 % of the cases?"""
    blocks = [_reliability(name, found.reliability, found) for name, found in judged_runs(records) if found.reliability]
    about = (
        "Examples are sorted by the network's confidence. A filled bar is the accuracy in one bin of confidence; it "
        "should reach the dotted line, where accuracy equals confidence. Below the line the network is too sure, above "
        "it too modest. The outlined bars say what share of the examples a bin holds: bars with few examples mean "
        "little."
    )
    return Section("reliability", "Can its confidence be taken at its word?", about, tuple(blocks))


def _reliability(name: str, bins: Bins, found: Evaluation) -> ReliabilityChart:
    ece, accuracy, sure = (found.metrics.get(metric) for metric in ("ece", "accuracy", "confidence"))
    summary = ""
    if accuracy is not None and sure is not None:
        gap = sure.value - accuracy.value
        manner = "about as sure as it is right" if abs(gap) < 0.01 else "too sure" if gap > 0 else "too modest"
        summary = f"Mean confidence {percent(sure.value)}, accuracy {percent(accuracy.value)}: {manner}. "
    if ece is not None:
        summary += f"On average over bins the two lie {points(ece.value)} apart (ECE)."
    summary = summary or "Accuracy by bin of confidence."
    return ReliabilityChart(name, summary.strip(), bins.share, bins.confidence, bins.accuracy)


def confidence(records: Sequence[RunRecord]) -> Section:
    """Is it less sure where it is wrong?"""
    blocks = [_confidence(name, found.confidence) for name, found in judged_runs(records) if found.confidence]
    about = (
        "How confidence is distributed over the examples that the network gets right and over those that it gets "
        "wrong, each as shares of its own group. Good: right ones at the right end, wrong ones spread out to the left."
    )
    return Section("confidence", "Is it less sure where it is wrong?", about, tuple(blocks))


def _confidence(name: str, counts: Counts) -> Bars:
    parts = []
    for group, values in counts.counts.items():
        high = sum(count for count, low in zip(values, counts.edges, strict=False) if low >= 0.9 - 1e-9)
        share = f", {percent(high / sum(values))} of them with confidence above 0.9" if sum(values) else ""
        parts.append(f"{sum(values)} {group}{share}")
    groups = {group: shares(values) for group, values in counts.counts.items()}
    return Bars(name, f"{'; '.join(parts)}.", "confidence", "share of the group", counts.edges, groups)


def risk_coverage(records: Sequence[RunRecord]) -> Section:
    """How often is it wrong, if it may decline?"""
    found = {name: judged.risk_coverage for name, judged in judged_runs(records) if judged.risk_coverage}
    lines, parts = [], []
    for name, curve in found.items():
        chosen = thinned(len(curve.x))
        lines.append(Series(name, tuple(curve.x[place] for place in chosen), tuple(curve.y[place] for place in chosen)))
        half = max((place for place in range(len(curve.x)) if curve.x[place] <= 0.9), default=0)
        parts.append(f"{name}: {percent(curve.y[-1])} wrong on all, {percent(curve.y[half])} on the surest 90 %")
    about = (
        "The network answers only where it is surest and declines the rest: from left to right it answers more. The "
        "height is the share of its answers that are wrong. Good: low on the left and rising late, for then its "
        "confidence knows where the errors are."
    )
    highest = max((max(line.y) for line in lines), default=0.0) or 0.01
    figure = LineChart(
        "Error by share answered",
        f"{'; '.join(parts)}.",
        "share of examples answered",
        "share of answers wrong",
        tuple(lines),
        (0.0, 1.0),
        (0.0, highest),
    )
    return Section("risk-coverage", "What if it may decline to answer?", about, (figure,) if lines else ())


def uncertainty(records: Sequence[RunRecord]) -> Section:
    """How much doubt is in the data, and how much in the network?"""
    blocks: list[Block] = []
    for name, found in judged_runs(records):
        if not found.uncertainty:
            continue
        groups = found.uncertainty
        if not all(_adds_up(part) for part in groups.values()):
            blocks.append(Note(PARTS_OF_OTHERS.format(name=name), "warn"))
            continue
        summary = "; ".join(
            f"{group}: entropy {number(part.entropy)}, of it {number(part.mutual_information)} in the network"
            for group, part in groups.items()
        )
        parts = {
            "in the data": tuple(part.expected_entropy for part in groups.values()),
            "in the network": tuple(part.mutual_information for part in groups.values()),
        }
        blocks.append(Stacks(name, f"{summary}.", "mean entropy (nats)", tuple(groups), parts))
    about = (
        "The length of a bar is the mean entropy of predictions: all doubt, in nats; 0 is certain. The filled part is "
        "doubt in the data (expected entropy): every draw of the network has it, and more training data do not take it "
        "away. The outlined part is doubt in the network (mutual information): draws disagree. Good: short on what it "
        "gets right, long on what it gets wrong, and on unseen data long in the network's part. A network without "
        "noise has no such part."
    )
    return Section("uncertainty", "Where does the doubt come from?", about, tuple(blocks))


def _adds_up(part: Uncertainty) -> bool:
    """Whether the entropy is the sum of its parts; earlier versions calibrated the entropy and not its parts."""
    return abs(part.expected_entropy + part.mutual_information - part.entropy) <= 1e-4 + 1e-3 * part.entropy


def intervals(records: Sequence[RunRecord]) -> Section:
    """Do intervals hold as many targets as they say?"""
    lines, widths, parts = [], [], []
    for name, found in judged_runs(records):
        rows = sorted(found.intervals, key=lambda row: row.level)
        if not rows:
            continue
        levels = tuple(row.level for row in rows)
        lines.append(Series(name, levels, tuple(row.coverage.value for row in rows)))
        widths.append(Series(name, levels, tuple(row.width.value for row in rows)))
        parts.append(
            f"{name}: intervals at {percent(levels[-1])} hold {percent(rows[-1].coverage.value)} of the targets"
        )
    about = (
        "An interval of level 90 % should hold the target in 90 % of the cases: lines should lie on the dotted one. "
        "Below it, intervals are too narrow. Of two networks on the line, the one with narrower intervals says more."
    )
    covered = LineChart(
        "Coverage by level",
        f"{'; '.join(parts)}.",
        "level",
        "share of targets held",
        tuple(lines),
        y_range=(0.0, 1.0),
        diagonal="dotted: as it should be",
    )
    wide = "; ".join(f"{line.name}: {number(line.y[-1])} at {percent(line.x[-1])}" for line in widths)
    highest = max((max(line.y) for line in widths), default=1.0)
    told = f"Mean width of intervals: {wide}."
    width = LineChart("Width by level", told, "level", "mean width", tuple(widths), y_range=(0.0, highest))
    return Section("intervals", "Do its intervals hold what they say?", about, (covered, width) if lines else ())


IN_NATS = ("entropy", "mutual_information")


ROUNDING = 1e-5


def unseen(records: Sequence[RunRecord]) -> Section:
    """Does it notice inputs that are none of its classes?"""
    blocks: list[Block] = []
    rows: list[tuple[Cell, ...]] = []
    for record in records:
        for name, found in (record.evaluation.unseen if record.evaluation else {}).items():
            score = _telling(found)
            if score is not None:
                blocks.append(_histogram(f"{record.name}: {name}", score, found.scores[score], found.num_examples))
            rows += [_row(record.name, name, kind, scored) for kind, scored in found.scores.items()]
    about = (
        "The network is shown data of another kind, which it should not be sure about. A score that is high in doubt "
        "tells the two apart where the histograms do not overlap. AUROC is the chance that an unseen example has a "
        "higher score than a known one: 1 is perfect, 0.5 is chance. FPR95 is the share of known examples that raise "
        "an alarm when 95 % of the unseen ones do; less is better. A network without noise has no mutual information, "
        "so its entropy is shown."
    )
    columns = ("run", "unseen data", "score", "AUROC", "AUPR", "FPR95")
    blocks += [Table("All scores", columns, tuple(rows))] if rows else []
    return Section("unseen", "Does it notice what it has never seen?", about, tuple(blocks))


def tells(scored: DetectionScore) -> bool:
    """Whether a score has values that differ by more than rounding; mutual information has none without noise."""
    filled = [any(counts) for counts in zip(*scored.histogram.counts.values(), strict=True)]
    return sum(filled) > 1 and scored.histogram.edges[-1] - scored.histogram.edges[0] > ROUNDING


def _telling(found: UnseenSet) -> str | None:
    """Mutual information where the network has any; else entropy; else whatever there is."""
    for name in ("mutual_information", "entropy", *found.scores):
        if name in found.scores and tells(found.scores[name]):
            return name
    return next(iter(found.scores), None)


def _histogram(title: str, score: str, scored: DetectionScore, num_examples: int) -> Bars:
    label = SCORE_INFO.get(score, score)
    summary = (
        f"{label.capitalize()} of {num_examples} unseen examples against known ones: AUROC "
        f"{_with_interval(scored.auroc)}."
    )
    groups = {name: shares(counts) for name, counts in scored.histogram.counts.items()}
    axis = f"{label} (nats)" if score in IN_NATS else label
    return Bars(title, summary, axis, "share of the group", scored.histogram.edges, groups)


def _with_interval(found: Estimate) -> str:
    interval = "" if found.low is None or found.high is None else f" ({found.low:.3f} to {found.high:.3f})"
    return f"{found.value:.3f}{interval}"


def _row(run: str, name: str, score: str, scored: DetectionScore) -> tuple[Cell, ...]:
    label = SCORE_INFO.get(score, score)
    return (Cell(run), Cell(name), Cell(label), cell(scored.auroc), cell(scored.aupr), cell(scored.fpr95))


def corruptions(records: Sequence[RunRecord]) -> Section:
    """How does it fare when inputs get worse?"""
    found = {
        record.name: record.evaluation.corruptions
        for record in records
        if record.evaluation and record.evaluation.corruptions
    }
    blocks: list[Block] = []
    if found:
        blocks += [
            _by_strength(found, "accuracy", "Accuracy by strength", "accuracy"),
            _by_strength(found, "ece", "Calibration error by strength", "ECE"),
        ]
    for run, kinds in found.items():
        rows = tuple(_point(kind, point) for kind, points in kinds.items() for point in points)
        columns = ("corruption", "strength", "accuracy", "NLL", "ECE", "entropy", "mutual information")
        blocks.append(Table(f"{run}: every corruption", columns, rows))
    about = (
        "Inputs get noisier, blurred or darker, from strength 1 to 5; lines are means over all corruptions. Accuracy "
        "falls for every network. Good: it falls late, and the calibration error stays low, for then the network knows "
        "that it sees less."
    )
    return Section("corruptions", "What if inputs get worse?", about, tuple(blocks))


def wrong_labels(records: Sequence[RunRecord]) -> Section:
    """What do wrong labels in training do? One line for each kind of network that was trained at several strengths."""
    families: dict[tuple[str, ...], dict[float, Evaluation]] = {}
    for record in records:
        strength = str(record.order.get("label_noise") or "none:0").partition(":")[2]
        found = record.evaluation
        if found is not None and found.kind == "classification" and record.order:
            same = (record.method, str(record.order.get("model")), found.data.fingerprint)
            families.setdefault(same, {})[float(strength)] = found
    series = [_accuracies(", ".join(same[:2]), judged) for same, judged in families.items() if len(judged) > 1]
    about = (
        "Networks of one kind that were trained with more and more wrong labels, judged on clean test data. Good: "
        "accuracy stays high although many labels lied."
    )
    summary = "; ".join(f"{line.name}: from {number(line.y[0])} to {number(line.y[-1])}" for line in series)
    title, axis = "Accuracy by share of wrong labels", "share of wrong labels"
    lines = LineChart(title, f"{summary}.", axis, "accuracy", tuple(series), y_range=(0.0, 1.0))
    return Section("labels", "What do wrong labels do?", about, (lines,) if series else ())


def _accuracies(name: str, judged: dict[float, Evaluation]) -> Series:
    """Accuracy against what evaluations differ in, with its interval where all have one."""
    points = metric_curve(judged, "accuracy")
    lows, highs = (
        tuple(end for end in ends if end is not None)
        for ends in zip(*((point.estimate.low, point.estimate.high) for point in points), strict=True)
    )
    band = (lows, highs) if len(lows) == len(highs) == len(points) else ((), ())
    return Series(name, tuple(point.x for point in points), tuple(point.estimate.value for point in points), *band)


def _by_strength(
    found: dict[str, dict[str, tuple[CorruptionPoint, ...]]], metric: str, title: str, label: str
) -> LineChart:
    lines = []
    for run, kinds in found.items():
        strengths = sorted({point.strength for points in kinds.values() for point in points})
        means = []
        for strength in strengths:
            at = [getattr(point, metric) for points in kinds.values() for point in points if point.strength == strength]
            means.append(sum(at) / len(at))
        lines.append(Series(run, tuple(map(float, strengths)), tuple(means)))
    summary = "; ".join(f"{line.name}: from {number(line.y[0])} to {number(line.y[-1])}" for line in lines)
    top = 1.0 if metric == "accuracy" else max(max(line.y) for line in lines) or 1.0
    return LineChart(title, f"{summary}.", "strength", label, tuple(lines), y_range=(0.0, top))


def _point(kind: str, point: CorruptionPoint) -> tuple[Cell, ...]:
    values = (point.accuracy, point.nll, point.ece, point.entropy, point.mutual_information)
    return (Cell(kind), Cell(str(point.strength), point.strength), *(Cell(number(value), value) for value in values))


NOTABLE = {
    "most uncertain": "Examples with the largest entropy: a person may find them hard, too.",
    "most confidently wrong": "Errors of the highest confidence: wrong labels, or what the network has not understood.",
}


def classes(records: Sequence[RunRecord]) -> Section:
    """Which classes are found, and which are mixed up?"""
    blocks = []
    for name, found in judged_runs(records):
        rows = tuple(
            (
                Cell(row.name),
                Cell(str(row.num_examples), float(row.num_examples)),
                Cell(percent(row.recall), row.recall),
                Cell(percent(row.precision), row.precision),
                Cell(percent(row.confidence), row.confidence),
                Cell(number(row.nll), row.nll),
                Cell(row.taken_for or "-"),
            )
            for row in sorted(found.classes, key=lambda row: (row.recall is None, row.recall))
        )
        columns = (
            "class",
            "examples",
            "found (recall)",
            "right when named (precision)",
            "mean confidence",
            "NLL",
            "most often taken for",
        )
        blocks += [Table(f"{name}: classes, those found least first", columns, rows)] if rows else []
    about = "How each class fares. A class that is rarely found, or often named wrongly, needs more or better examples."
    return Section("classes", "Which classes are mixed up?", about, tuple(blocks))


def metrics(records: Sequence[RunRecord]) -> Section:
    """All numbers, and whether the draws were enough for them."""
    judged = judged_runs(records)
    blocks: list[Block] = []
    for name, found in judged:
        blocks += [Note(f"{name}: {sentence}") for sentence in _draws_and_decisions(found)]
    for kind in dict.fromkeys(found.kind for _, found in judged):
        chosen = {name: found.metrics for name, found in judged if found.kind == kind}
        rows = tuple(
            (Cell(summary.label), *(cell(own.get(metric)) for own in chosen.values()), Cell(summary.meaning))
            for metric, summary in METRICS.items()
            if any(metric in own for own in chosen.values())
        )
        blocks.append(Table(f"All numbers, {kind}", ("number", *chosen, "what it is"), rows))
    about = (
        "Every number of the evaluations, with its interval. A number from draws is itself random: what twice as many "
        "draws change is told where it was measured."
    )
    return Section("numbers", "All numbers", about, tuple(blocks))


def _draws_and_decisions(found: Evaluation) -> list[str]:
    told = [f"{what} applied: {value}." for what, value in found.decided.items()]
    if found.draws is not None:
        verdict = "are enough" if found.draws.enough else "are too few; judge it with more: dubio evaluate --samples"
        moved = f"with twice as many, {found.draws.metric} moves most for its size, by {found.draws.change:+.4f}"
        told.append(f"{found.num_samples} draws {verdict} ({moved}).")
    return told


def notable(records: Sequence[RunRecord]) -> Section:
    """Which examples should a person look at?"""
    blocks: list[Block] = []
    for name, found in judged_runs(records):
        for group, examples in found.notable.items():
            summary = NOTABLE.get(group, f"Examples: {group}.")
            cards = tuple(_card(example) for example in examples)
            title = f"{name}: {group}"
            blocks.append(Gallery(title, summary, cards) if cards else Note(f"{title}: there are none."))
    about = (
        "Look at these first. The index is that of the example in the test data; doubt is its entropy in nats, and the "
        "second number the part in the network."
    )
    return Section("examples", "Which examples deserve a look?", about, tuple(blocks))


def _card(example: NotableExample) -> Card:
    others = [f"{label} ({share:.0%})" for label, share in example.probs.items() if label != example.label]
    lines = (
        f"test example {example.index}",
        f"truth {example.target}, taken for {example.label}",
        f"confidence {percent(example.confidence)}",
        f"doubt {number(example.entropy)}, in the network {number(example.mutual_information)}",
        *([f"or else {listed(others)}"] if others else []),
    )
    if example.image is None:
        return Card((), lines)
    summary = f"Test example {example.index}: truth {example.target}, taken for {example.label}"
    return Card((Picture(data_address(from_thumbnail(example.image)), summary),), lines)


GREY, COLOUR = 0, 2


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether inputs of a shape can be shown: one channel or three."""
    return len(shape) == 3 and shape[0] in (1, 3)


def png(pixels: UInt8[Tensor, "channel height width"]) -> bytes:
    """An image file: grey for one channel, colours for three."""
    if not is_image(tuple(pixels.shape)):
        raise ValueError(f"pixels must have shape (1 or 3, height, width), got {tuple(pixels.shape)}")
    channels, height, width = pixels.shape
    rows = pixels.permute(1, 2, 0).reshape(height, width * channels)
    unfiltered = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows], dim=1)
    header = struct.pack(">IIBBBBB", width, height, 8, GREY if channels == 1 else COLOUR, 0, 0, 0)
    compressed = zlib.compress(unfiltered.contiguous().numpy().tobytes(), 9)
    parts = ((b"IHDR", header), (b"IDAT", compressed), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in parts)


def data_address(pixels: UInt8[Tensor, "channel height width"]) -> str:
    """An image as the address of an ``img``."""
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"


def from_thumbnail(image: Thumbnail) -> UInt8[Tensor, "channel height width"]:
    """The pixels of an image that an evaluation kept."""
    try:
        content = base64.b64decode(image.pixels, validate=True)
    except binascii.Error as error:
        raise ValueError(f"the pixels of an image must be base64, got {image.pixels[:20]!r}: {error}") from error
    if len(content) != math.prod(image.shape) or not is_image(image.shape):
        raise ValueError(f"an image of shape {image.shape} cannot have {len(content)} bytes")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(image.shape)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
