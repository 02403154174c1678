"""Sections from evaluations: is confidence worth its word, and where does doubt lie?"""

from collections.abc import Sequence

from dubio.evaluation import Bins, Doubt, Evaluation, Histogram as Counts
from dubio.reporting.reading import RunRecord
from dubio.reporting.values import Bars, Block, Lines, Note, Reliability, Section, Series, Stacks
from dubio.reporting.wording import number, percent, points, thinned

__all__ = ["confidence", "doubt", "intervals", "judged_runs", "reliability", "risk_coverage", "shares"]


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


def _reliability(name: str, bins: Bins, found: Evaluation) -> Reliability:
    ece, accuracy, sure = (found.metrics.get(metric) for metric in ("ece", "accuracy", "confidence"))
    words = ""
    if accuracy is not None and sure is not None:
        gap = sure.value - accuracy.value
        manner = "about as sure as it is right" if abs(gap) < 0.01 else "too sure" if gap > 0 else "too modest"
        words = f"Mean confidence {percent(sure.value)}, accuracy {percent(accuracy.value)}: {manner}. "
    if ece is not None:
        words += f"On average over bins the two lie {points(ece.value)} apart (ECE)."
    words = words or "Accuracy by bin of confidence."
    return Reliability(name, words.strip(), bins.share, bins.confidence, bins.accuracy)


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
    figure = Lines(
        "Error by share answered",
        f"{'; '.join(parts)}.",
        "share of examples answered",
        "share of answers wrong",
        tuple(lines),
        (0.0, 1.0),
        (0.0, highest),
    )
    return Section("risk-coverage", "What if it may decline to answer?", about, (figure,) if lines else ())


def doubt(records: Sequence[RunRecord]) -> Section:
    """How much doubt is in the data, and how much in the network?"""
    blocks: list[Block] = []
    for name, found in judged_runs(records):
        if not found.doubt:
            continue
        groups = found.doubt
        if not all(_adds_up(part) for part in groups.values()):
            blocks.append(Note(PARTS_OF_OTHERS.format(name=name), "warn"))
            continue
        words = "; ".join(
            f"{group}: entropy {number(part.entropy)}, of it {number(part.mutual_information)} in the network"
            for group, part in groups.items()
        )
        parts = {
            "in the data": tuple(part.expected_entropy for part in groups.values()),
            "in the network": tuple(part.mutual_information for part in groups.values()),
        }
        blocks.append(Stacks(name, f"{words}.", "mean entropy (nats)", tuple(groups), parts))
    about = (
        "The length of a bar is the mean entropy of predictions: all doubt, in nats; 0 is certain. The filled part is "
        "doubt in the data (expected entropy): every draw of the network has it, and more training data do not take it "
        "away. The outlined part is doubt in the network (mutual information): draws disagree. Good: short on what it "
        "gets right, long on what it gets wrong, and on unseen data long in the network's part. A network without "
        "noise has no such part."
    )
    return Section("doubt", "Where does the doubt come from?", about, tuple(blocks))


def _adds_up(part: Doubt) -> bool:
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
    covered = Lines(
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
    width = Lines("Width by level", told, "level", "mean width", tuple(widths), y_range=(0.0, highest))
    return Section("intervals", "Do its intervals hold what they say?", about, (covered, width) if lines else ())
