"""Sections on strange inputs: data of another kind, and corrupted ones."""

from collections.abc import Sequence

from dubio.evaluation import SCORE_WORDS, CorruptionPoint, DetectionScore, Estimate, Evaluation, UnseenSet, metric_curve
from dubio.reporting.judged import shares
from dubio.reporting.reading import RunRecord
from dubio.reporting.values import Bars, Block, Cell, Lines, Section, Series, Table
from dubio.reporting.wording import cell, number

__all__ = ["corruptions", "tells", "unseen", "wrong_labels"]

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
    label = SCORE_WORDS.get(score, score)
    words = (
        f"{label.capitalize()} of {num_examples} unseen examples against known ones: AUROC "
        f"{_with_interval(scored.auroc)}."
    )
    groups = {name: shares(counts) for name, counts in scored.histogram.counts.items()}
    axis = f"{label} (nats)" if score in IN_NATS else label
    return Bars(title, words, axis, "share of the group", scored.histogram.edges, groups)


def _with_interval(found: Estimate) -> str:
    interval = "" if found.low is None or found.high is None else f" ({found.low:.3f} to {found.high:.3f})"
    return f"{found.value:.3f}{interval}"


def _row(run: str, name: str, score: str, scored: DetectionScore) -> tuple[Cell, ...]:
    label = SCORE_WORDS.get(score, score)
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
    words = "; ".join(f"{line.name}: from {number(line.y[0])} to {number(line.y[-1])}" for line in series)
    title, axis = "Accuracy by share of wrong labels", "share of wrong labels"
    lines = Lines(title, f"{words}.", axis, "accuracy", tuple(series), y_range=(0.0, 1.0))
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
) -> Lines:
    lines = []
    for run, kinds in found.items():
        strengths = sorted({point.strength for points in kinds.values() for point in points})
        means = []
        for strength in strengths:
            at = [getattr(point, metric) for points in kinds.values() for point in points if point.strength == strength]
            means.append(sum(at) / len(at))
        lines.append(Series(run, tuple(map(float, strengths)), tuple(means)))
    words = "; ".join(f"{line.name}: from {number(line.y[0])} to {number(line.y[-1])}" for line in lines)
    top = 1.0 if metric == "accuracy" else max(max(line.y) for line in lines) or 1.0
    return Lines(title, f"{words}.", "strength", label, tuple(lines), y_range=(0.0, top))


def _point(kind: str, point: CorruptionPoint) -> tuple[Cell, ...]:
    values = (point.accuracy, point.nll, point.ece, point.entropy, point.mutual_information)
    return (Cell(kind), Cell(str(point.strength), point.strength), *(Cell(number(value), value) for value in values))
