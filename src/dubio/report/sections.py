"""Sections on training, pruning and evaluations, in the order of the page but for ``training``.

Each public function up to ``notable`` makes one section of all runs. A section without blocks is left out of the page.
Images are written as PNG and stand in the page as ``data:`` addresses.

Invariants: any PNG reader gives the pixels back (``tests/report/test_images.py``); a number that is not finite is not
drawn (``tests/report/test_writing.py``).
"""

import base64
import binascii
import math
import struct
import zlib
from collections.abc import Sequence

import torch
from jaxtyping import UInt8
from torch import Tensor

from dubio.checks import listed
from dubio.codec import fits
from dubio.evaluation import (
    METRICS,
    SCORE_INFO,
    DetectionScore,
    Evaluation,
    NotableExample,
    Thumbnail,
    UnseenSet,
    metric_curve,
)
from dubio.pruning import Pruning, SnrDensity
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
    line_of,
    number,
    percent,
    points,
    ranges_of,
    thinned,
)
from dubio.report.runs import RunRecord

CURVES = (
    ("val_nll", "Validation NLL", "NLL (nats)"),
    ("nll", "Training NLL", "NLL (nats)"),
    ("val_accuracy", "Validation accuracy", "accuracy"),
    ("val_rmse", "Validation error", "RMSE"),
    ("loss", "Training loss", "loss"),
)
NOTABLE = {
    "most uncertain": "Examples with the largest entropy: a person may find them hard, too.",
    "most confidently wrong": "Errors of the highest confidence: wrong labels, or what the network has not understood.",
}
UNCALIBRATED_PARTS = (
    "{name}: its entropy is calibrated and the parts of it are not, as an earlier version evaluated it. Run dubio "
    "evaluate {name} again to see where the doubt comes from."
)
IN_NATS = ("entropy", "mutual_information")
ROUNDING = 1e-5
"""Scores whose range is smaller differ by rounding only."""
PNG_TYPES = {1: 0, 3: 2}
"""Colour type of a PNG file by number of channels: grey and RGB."""


def training(records: Sequence[RunRecord]) -> Section:
    """Training curves."""
    kinds = list(dict.fromkeys(run.kind for run in records))
    blocks: list[Block] = []
    for kind in kinds:
        for metric, title, label in CURVES:
            lines = [line for run in records if run.kind == kind for line in _training_curve(run, metric)]
            if lines:
                blocks.append(_training_chart(lines, metric, title if len(kinds) == 1 else f"{title} ({kind})", label))
    about = (
        "Validation data are not trained on. Their curve falls (accuracy: rises) and levels off. Where it turns up "
        "again while the training curve still falls, the network learns by heart; the best epoch is what is kept. The "
        "training loss holds all terms of the objective, so losses of different methods are not comparable."
    )
    return Section("training", "How did it learn?", about, tuple(blocks))


def pruning(records: Sequence[RunRecord]) -> Section:
    """Weights that were removed, their signal-to-noise ratios, and the cost of removing more."""
    blocks: list[Block] = []
    for name, record in ((run.name, run.pruning) for run in records if run.pruning):
        if sentence := _pruning_summary(record):
            blocks.append(Note(f"{name}: {sentence}"))
        density = record.density
        if density is not None and len(density.edges) == len(density.counts) + 1 > 1:
            blocks.append(_density_chart(name, density))
        for metric, label in (("accuracy", "accuracy"), ("nll", "NLL (nats)")):
            blocks += _pruning_chart(name, record, metric, label)
    about = (
        "A weight's signal-to-noise ratio (SNR) is the size of its mean over its standard deviation, here in decibels: "
        "at 0 they are equal, and a weight far below is noise that can go. The curves show what is left when a "
        "fraction of the weights is removed, those of the lowest SNR or the smallest size first. Good: flat far to the "
        "right."
    )
    return Section("pruning", "How many weights does it need?", about, tuple(blocks))


def reliability(records: Sequence[RunRecord]) -> Section:
    """Accuracy by bin of confidence."""
    blocks = [
        ReliabilityChart(name, _reliability_summary(evaluation), bins.share, bins.confidence, bins.accuracy)
        for name, evaluation in _evaluations(records)
        if (bins := evaluation.reliability)
    ]
    about = (
        "Examples are sorted by the network's confidence. A filled bar is the accuracy in one bin of confidence; it "
        "should reach the dotted line, where accuracy equals confidence. Below the line the network is too sure, above "
        "it too modest. The outlined bars say what share of the examples a bin holds: bars with few examples mean "
        "little."
    )
    return Section("reliability", "Can its confidence be taken at its word?", about, tuple(blocks))


def confidence(records: Sequence[RunRecord]) -> Section:
    """Histograms of confidence on right and wrong examples."""
    blocks = []
    for name, evaluation in _evaluations(records):
        histogram = evaluation.confidence
        if not histogram:
            continue
        parts = []
        for group, counts in histogram.counts.items():
            high = sum(count for count, low in zip(counts, histogram.edges, strict=False) if low >= 0.9 - 1e-9)
            share = f", {percent(high / sum(counts))} of them with confidence above 0.9" if sum(counts) else ""
            parts.append(f"{sum(counts)} {group}{share}")
        groups = {group: shares(counts) for group, counts in histogram.counts.items()}
        blocks.append(Bars(name, f"{'; '.join(parts)}.", "confidence", "share of the group", histogram.edges, groups))
    about = (
        "How confidence is distributed over the examples that the network gets right and over those that it gets "
        "wrong, each as shares of its own group. Good: right ones at the right end, wrong ones spread out to the left."
    )
    return Section("confidence", "Is it less sure where it is wrong?", about, tuple(blocks))


def risk_coverage(records: Sequence[RunRecord]) -> Section:
    """Error among the most confident examples, by their share."""
    lines, parts = [], []
    for name, evaluation in _evaluations(records):
        if curve := evaluation.risk_coverage:
            lines.append(line_of(name, [(curve.x[place], curve.y[place]) for place in thinned(len(curve.x))]))
            most = max((place for place in range(len(curve.x)) if curve.x[place] <= 0.9), default=0)
            parts.append(f"{name}: {percent(curve.y[-1])} wrong on all, {percent(curve.y[most])} on the surest 90 %")
    about = (
        "The network answers only where it is surest and declines the rest: from left to right it answers more. The "
        "height is the share of its answers that are wrong. Good: low on the left and rising late, for then its "
        "confidence knows where the errors are."
    )
    title, x_label, y_label = "Error by share answered", "share of examples answered", "share of answers wrong"
    y_range = (0.0, _highest(lines) or 0.01)
    figure = LineChart(title, f"{'; '.join(parts)}.", x_label, y_label, tuple(lines), (0.0, 1.0), y_range)
    return Section("risk-coverage", "What if it may decline to answer?", about, (figure,) if lines else ())


def uncertainty(records: Sequence[RunRecord]) -> Section:
    """Uncertainty of the data and of the network, by group of examples."""
    blocks: list[Block] = []
    for name, evaluation in _evaluations(records):
        groups = evaluation.uncertainty
        data = {group: part.expected_entropy for group, part in groups.items()}
        network = {group: part.mutual_information for group, part in groups.items()}
        # Earlier versions calibrated the entropy and not its parts, which then do not add up to it.
        sums = ((part.expected_entropy + part.mutual_information, part.entropy) for part in groups.values())
        if any(abs(total - entropy) > 1e-4 + 1e-3 * entropy for total, entropy in sums):
            blocks.append(Note(UNCALIBRATED_PARTS.format(name=name), "warn"))
        elif groups:
            summary = "; ".join(
                f"{group}: entropy {number(part.entropy)}, of it {number(network[group])} in the network"
                for group, part in groups.items()
            )
            parts = {"in the data": tuple(data.values()), "in the network": tuple(network.values())}
            blocks.append(Stacks(name, f"{summary}.", "mean entropy (nats)", tuple(groups), parts))
    about = (
        "The length of a bar is the mean entropy of predictions: all doubt, in nats; 0 is certain. The filled part is "
        "doubt in the data (expected entropy): every draw of the network has it, and more training data do not take it "
        "away. The outlined part is doubt in the network (mutual information): draws disagree. Good: short on what it "
        "gets right, long on what it gets wrong, and on unseen data long in the network's part. A network without "
        "noise has no such part."
    )
    return Section("uncertainty", "Where does the doubt come from?", about, tuple(blocks))


def intervals(records: Sequence[RunRecord]) -> Section:
    """Coverage and width of prediction intervals, by level."""
    coverages, widths = [], []
    for name, evaluation in _evaluations(records):
        if rows := sorted(evaluation.intervals, key=lambda row: row.level):
            coverages.append(line_of(name, [(row.level, row.coverage.value) for row in rows]))
            widths.append(line_of(name, [(row.level, row.width.value) for row in rows]))
    about = (
        "An interval of level 90 % should hold the target in 90 % of the cases: lines should lie on the dotted one. "
        "Below it, intervals are too narrow. Of two networks on the line, the one with narrower intervals says more."
    )
    held = (f"{line.name}: intervals at {percent(line.x[-1])} hold {percent(line.y[-1])}" for line in coverages)
    summary, label = f"{'; '.join(f'{part} of the targets' for part in held)}.", "share of targets held"
    shown, ideal = tuple(coverages), "dotted: as it should be"
    coverage = LineChart("Coverage by level", summary, "level", label, shown, y_range=(0.0, 1.0), diagonal=ideal)
    wide = "; ".join(f"{line.name}: {number(line.y[-1])} at {percent(line.x[-1])}" for line in widths)
    summary, y_range = f"Mean width of intervals: {wide}.", (0.0, _highest(widths))
    width = LineChart("Width by level", summary, "level", "mean width", tuple(widths), y_range=y_range)
    return Section("intervals", "Do its intervals hold what they say?", about, (coverage, width) if widths else ())


def unseen(records: Sequence[RunRecord]) -> Section:
    """Detection of unseen data by scores of uncertainty."""
    blocks: list[Block] = []
    rows: list[tuple[Cell, ...]] = []
    for run, evaluation in _evaluations(records):
        for name, dataset in evaluation.unseen.items():
            if chosen := _clearest_score(dataset):
                blocks.append(_score_histogram(f"{run}: {name}", chosen, dataset))
            for score, result in dataset.scores.items():
                numbers = map(cell, (result.auroc, result.aupr, result.fpr95))
                rows.append((Cell(run), Cell(name), Cell(SCORE_INFO.get(score, score)), *numbers))
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


def corruptions(records: Sequence[RunRecord]) -> Section:
    """Accuracy and calibration error on corrupted inputs."""
    judged = [(name, evaluation) for name, evaluation in _evaluations(records) if evaluation.corruptions]
    charts = (("accuracy", "Accuracy by strength", "accuracy"), ("ece", "Calibration error by strength", "ECE"))
    blocks: list[Block] = [_strength_chart(judged, *chart) for chart in charts if judged]
    columns = ("corruption", "strength", "accuracy", "NLL", "ECE", "entropy", "mutual information")
    for run, evaluation in judged:
        rows = []
        for kind, point in ((kind, point) for kind, curve in evaluation.corruptions.items() for point in curve):
            values = (point.accuracy, point.nll, point.ece, point.entropy, point.mutual_information)
            numbers = (Cell(number(value), value) for value in values)
            rows.append((Cell(kind), Cell(str(point.strength), point.strength), *numbers))
        blocks.append(Table(f"{run}: every corruption", columns, tuple(rows)))
    about = (
        "Inputs get noisier, blurred or darker, from strength 1 to 5; lines are means over all corruptions. Accuracy "
        "falls for every network. Good: it falls late, and the calibration error stays low, for then the network knows "
        "that it sees less."
    )
    return Section("corruptions", "What if inputs get worse?", about, tuple(blocks))


def wrong_labels(records: Sequence[RunRecord]) -> Section:
    """Accuracy by share of wrong training labels, one line for the same network trained at several shares."""
    families: dict[tuple[str, ...], dict[float, Evaluation]] = {}
    for run in records:
        if run.evaluation is not None and run.evaluation.kind == "classification" and run.order:
            family = (run.method, str(run.order.get("model")), run.evaluation.data.fingerprint)
            strength = str(run.order.get("label_noise") or "none:0").partition(":")[2]
            families.setdefault(family, {})[float(strength)] = run.evaluation
    several = {family: evaluations for family, evaluations in families.items() if len(evaluations) > 1}
    lines = tuple(_accuracy_line(", ".join(family[:2]), evaluations) for family, evaluations in several.items())
    about = (
        "Networks of one kind that were trained with more and more wrong labels, judged on clean test data. Good: "
        "accuracy stays high although many labels lied."
    )
    title, axis = "Accuracy by share of wrong labels", "share of wrong labels"
    figure = LineChart(title, f"{ranges_of(lines)}.", axis, "accuracy", lines, y_range=(0.0, 1.0))
    return Section("labels", "What do wrong labels do?", about, (figure,) if lines else ())


def classes(records: Sequence[RunRecord]) -> Section:
    """Recall, precision and confusions of each class."""
    numbers = ("examples", "found (recall)", "right when named (precision)", "mean confidence", "NLL")
    columns = ("class", *numbers, "most often taken for")
    blocks = []
    for name, evaluation in _evaluations(records):
        rows = []
        for row in sorted(evaluation.classes, key=lambda row: (row.recall is None, row.recall)):
            size = Cell(str(row.num_examples), float(row.num_examples))
            parts = (Cell(percent(share), share) for share in (row.recall, row.precision, row.confidence))
            rows.append((Cell(row.name), size, *parts, Cell(number(row.nll), row.nll), Cell(row.taken_for or "-")))
        blocks += [Table(f"{name}: classes, those found least first", columns, tuple(rows))] if rows else []
    about = "How each class fares. A class that is rarely found, or often named wrongly, needs more or better examples."
    return Section("classes", "Which classes are mixed up?", about, tuple(blocks))


def metrics(records: Sequence[RunRecord]) -> Section:
    """All metrics, and whether the number of draws was enough."""
    evaluations = _evaluations(records)
    blocks: list[Block] = [
        Note(f"{name}: {line}") for name, evaluation in evaluations for line in _draws_and_decisions(evaluation)
    ]
    for kind in dict.fromkeys(evaluation.kind for _, evaluation in evaluations):
        values = {name: evaluation.metrics for name, evaluation in evaluations if evaluation.kind == kind}
        rows = tuple(
            (Cell(info.label), *(cell(run.get(metric)) for run in values.values()), Cell(info.meaning))
            for metric, info in METRICS.items()
            if any(metric in run for run in values.values())
        )
        blocks.append(Table(f"All numbers, {kind}", ("number", *values, "what it is"), rows))
    about = (
        "Every number of the evaluations, with its interval. A number from draws is itself random: what twice as many "
        "draws change is shown where it was measured."
    )
    return Section("numbers", "All numbers", about, tuple(blocks))


def notable(records: Sequence[RunRecord]) -> Section:
    """Examples that deserve a look."""
    blocks: list[Block] = []
    for name, evaluation in _evaluations(records):
        for group, examples in evaluation.notable.items():
            summary, title = NOTABLE.get(group, f"Examples: {group}."), f"{name}: {group}"
            cards = tuple(map(_card, examples))
            blocks.append(Gallery(title, summary, cards) if cards else Note(f"{title}: there are none."))
    about = (
        "Look at these first. The index is that of the example in the test data; doubt is its entropy in nats, and the "
        "second number the part in the network."
    )
    return Section("examples", "Which examples deserve a look?", about, tuple(blocks))


def has_spread(result: DetectionScore) -> bool:
    """Whether the values of a score differ by more than rounding; mutual information has no spread without noise."""
    filled = [any(counts) for counts in zip(*result.histogram.counts.values(), strict=True)]
    return sum(filled) > 1 and result.histogram.edges[-1] - result.histogram.edges[0] > ROUNDING


def shares(counts: Sequence[int]) -> tuple[float, ...]:
    """Counts as shares of their sum."""
    return tuple(count / (sum(counts) or 1) for count in counts)


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether inputs of a shape can be shown: three axes, and one or three channels."""
    return len(shape) == 3 and shape[0] in PNG_TYPES


def png(pixels: UInt8[Tensor, "channel height width"]) -> bytes:
    """The content of a PNG file: grey for one channel, RGB for three."""
    if not is_image(tuple(pixels.shape)):
        raise ValueError(f"pixels must have shape (1 or 3, height, width), got {tuple(pixels.shape)}")
    channels, height, width = pixels.shape
    rows = pixels.permute(1, 2, 0).reshape(height, width * channels)
    unfiltered = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows], dim=1)
    header = struct.pack(">IIBBBBB", width, height, 8, PNG_TYPES[channels], 0, 0, 0)
    compressed = zlib.compress(unfiltered.contiguous().numpy().tobytes(), 9)
    chunks = (
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in ((b"IHDR", header), (b"IDAT", compressed), (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def data_address(pixels: UInt8[Tensor, "channel height width"]) -> str:
    """An image as the address of an ``img``."""
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"


def from_thumbnail(image: Thumbnail) -> UInt8[Tensor, "channel height width"]:
    """The pixels of an image in an evaluation."""
    try:
        content = base64.b64decode(image.pixels, validate=True)
    except binascii.Error as error:
        raise ValueError(f"the pixels of an image must be base64, got {image.pixels[:20]!r}: {error}") from error
    if len(content) != math.prod(image.shape) or not is_image(image.shape):
        raise ValueError(f"an image of shape {image.shape} cannot have {len(content)} bytes")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(image.shape)


def _evaluations(records: Sequence[RunRecord]) -> list[tuple[str, Evaluation]]:
    """Names and evaluations of the runs that have one."""
    return [(run.name, run.evaluation) for run in records if run.evaluation is not None]


def _highest(lines: Sequence[Series]) -> float:
    return max((max(line.y) for line in lines), default=0.0)


def _training_curve(run: RunRecord, metric: str) -> list[Series]:
    """One metric by epoch, thinned but for its extremes; nothing where the history does not have it."""
    curve = [(float(line["epoch"]), float(line[metric])) for line in run.history if fits(float, line.get(metric))]
    if not curve:
        return []
    values = [value for _, value in curve]
    extremes = {values.index(min(values)), values.index(max(values))}
    return [line_of(run.name, [curve[place] for place in sorted({*thinned(len(curve)), *extremes})])]


def _training_chart(lines: list[Series], metric: str, title: str, label: str) -> LineChart:
    best_of, word = (max, "most") if metric == "val_accuracy" else (min, "least")
    parts = []
    for line in lines:
        best, last = best_of(line.y), number(line.y[-1])
        epoch = number(line.x[line.y.index(best)])
        parts.append(f"{line.name}: {word} {number(best)} in epoch {epoch}, {last} in the last")
    lowest = min(min(line.y) for line in lines)
    log_y = metric != "val_accuracy" and lowest > 0.0 and _highest(lines) > 20.0 * lowest
    return LineChart(title, f"{'; '.join(parts)}.", "epoch", label, tuple(lines), log_y=log_y)


def _pruning_summary(record: Pruning) -> str:
    parts = []
    if record.num_removed and record.num_weights:
        share = percent(record.num_removed / record.num_weights)
        removed = f"{record.num_removed:,} of {record.num_weights:,} weights removed"
        parts.append(f"{removed} ({share}), chosen by {record.by}")
    if record.bytes_after != record.bytes_before:
        parts.append(f"the file shrinks from {bytes_text(record.bytes_before)} to {bytes_text(record.bytes_after)}")
    if record.step_seconds_before is not None and record.step_seconds_after is not None:
        before, after = 1e3 * record.step_seconds_before, 1e3 * record.step_seconds_after
        parts.append(f"a pass takes {number(after)} ms, before {number(before)} ms")
    return f"{'; '.join(parts)}." if parts else ""


def _density_chart(name: str, density: SnrDensity) -> Bars:
    weights = shares(density.counts)
    noisy = sum(count for count, high in zip(density.counts, density.edges[1:], strict=True) if high <= 0.0)
    summary = f"{percent(noisy / (sum(density.counts) or 1))} of the weights have more noise than signal (below 0 dB)."
    if density.threshold_db is not None:
        summary += f" Weights below {number(density.threshold_db)} dB were removed."
    title, axis = f"{name}: signal and noise", "signal-to-noise ratio (dB)"
    return Bars(title, summary, axis, "share of weights", density.edges, {"weights": weights}, density.threshold_db)


def _pruning_chart(name: str, record: Pruning, metric: str, label: str) -> list[Block]:
    """A metric by the share removed, one line for each criterion."""
    measured: dict[str, list[tuple[float, float]]] = {}
    for point in record.curve:
        if (value := getattr(point, metric)) is not None:
            removed = point.fraction if point.removed is None else point.removed
            measured.setdefault(point.by, []).append((removed, value))
    if not measured:
        return []
    lines = [line_of(f"by {by}", sorted(pairs)) for by, pairs in measured.items()]
    parts = [
        f"{line.name}: {number(line.y[0])} with {1 - line.x[0]:.0%} of the {record.what}, "
        f"{number(line.y[-1])} with {1 - line.x[-1]:.0%}"
        for line in lines
    ]
    title = f"{name}: {'NLL' if metric == 'nll' else metric} by fraction removed"
    return [LineChart(title, f"{'; '.join(parts)}.", f"fraction of {record.what} removed", label, tuple(lines))]


def _reliability_summary(evaluation: Evaluation) -> str:
    ece, accuracy, mean = (evaluation.metrics.get(metric) for metric in ("ece", "accuracy", "confidence"))
    sentences = []
    if accuracy is not None and mean is not None:
        gap = mean.value - accuracy.value
        manner = "about as sure as it is right" if abs(gap) < 0.01 else "too sure" if gap > 0 else "too modest"
        sentences.append(f"Mean confidence {percent(mean.value)}, accuracy {percent(accuracy.value)}: {manner}.")
    if ece is not None:
        sentences.append(f"On average over bins the two lie {points(ece.value)} apart (ECE).")
    return " ".join(sentences) or "Accuracy by bin of confidence."


def _clearest_score(dataset: UnseenSet) -> str | None:
    """Mutual information if it has any spread, else entropy, else the first score."""
    names = ("mutual_information", "entropy", *dataset.scores)
    spread = (name for name in names if name in dataset.scores and has_spread(dataset.scores[name]))
    return next(spread, next(iter(dataset.scores), None))


def _score_histogram(title: str, score: str, dataset: UnseenSet) -> Bars:
    label, result = SCORE_INFO.get(score, score), dataset.scores[score]
    auroc = result.auroc
    interval = "" if auroc.low is None or auroc.high is None else f" ({auroc.low:.3f} to {auroc.high:.3f})"
    area = f"AUROC {auroc.value:.3f}{interval}"
    summary = f"{label.capitalize()} of {dataset.num_examples} unseen examples against known ones: {area}."
    groups = {name: shares(counts) for name, counts in result.histogram.counts.items()}
    axis = f"{label} (nats)" if score in IN_NATS else label
    return Bars(title, summary, axis, "share of the group", result.histogram.edges, groups)


def _strength_chart(judged: Sequence[tuple[str, Evaluation]], metric: str, title: str, label: str) -> LineChart:
    """A metric by strength, averaged over corruptions."""
    lines = []
    for run, evaluation in judged:
        values: dict[int, list[float]] = {}
        for point in (point for curve in evaluation.corruptions.values() for point in curve):
            values.setdefault(point.strength, []).append(getattr(point, metric))
        means = [(float(strength), sum(values[strength]) / len(values[strength])) for strength in sorted(values)]
        lines.append(line_of(run, means))
    top = 1.0 if metric == "accuracy" else _highest(lines) or 1.0
    return LineChart(title, f"{ranges_of(lines)}.", "strength", label, tuple(lines), y_range=(0.0, top))


def _accuracy_line(name: str, evaluations: dict[float, Evaluation]) -> Series:
    """Accuracy by share of wrong labels, with its interval if all evaluations have one."""
    curve = metric_curve(evaluations, "accuracy")
    line = line_of(name, [(point.x, point.estimate.value) for point in curve])
    low = tuple(point.estimate.low for point in curve if point.estimate.low is not None)
    high = tuple(point.estimate.high for point in curve if point.estimate.high is not None)
    return Series(name, line.x, line.y, *((low, high) if len(low) == len(high) == len(curve) else ((), ())))


def _draws_and_decisions(evaluation: Evaluation) -> list[str]:
    lines = [f"{what} applied: {value}." for what, value in evaluation.decided.items()]
    if draws := evaluation.draws:
        verdict = "are enough" if draws.enough else "are too few; judge it with more: dubio evaluate --samples"
        change = f"with twice as many, {draws.metric} moves most for its size, by {draws.change:+.4f}"
        lines.append(f"{evaluation.num_samples} draws {verdict} ({change}).")
    return lines


def _card(example: NotableExample) -> Card:
    others = [f"{label} ({share:.0%})" for label, share in example.probs.items() if label != example.label]
    labels = f"truth {example.target}, taken for {example.label}"
    lines = (
        f"test example {example.index}",
        labels,
        f"confidence {percent(example.confidence)}",
        f"doubt {number(example.entropy)}, in the network {number(example.mutual_information)}",
        *([f"or else {listed(others, 'and')}"] if others else []),
    )
    if example.image is None:
        return Card((), lines)
    summary = f"Test example {example.index}: {labels}"
    return Card((Picture(data_address(from_thumbnail(example.image)), summary),), lines)
