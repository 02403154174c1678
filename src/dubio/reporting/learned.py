"""Sections on how a network was trained, and on what can be taken away from it."""

from collections.abc import Sequence
from typing import Any

from dubio.reporting.reading import RunRecord
from dubio.reporting.records import PruningRecord
from dubio.reporting.values import Bars, Block, Lines, Note, Section, Series
from dubio.reporting.wording import bytes_text, number, percent, thinned

__all__ = ["pruning", "training"]

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


def _curve(records: Sequence[RunRecord], metric: str, title: str, label: str) -> list[Lines]:
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
    return [Lines(title, f"{'; '.join(parts)}.", "epoch", label, tuple(lines), log_y=less and wide)]


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
    words = f"{percent(below)} of the weights have more noise than signal (below 0 dB)."
    if limit is not None:
        words += f" Weights below {number(limit)} dB were removed."
    groups = {"weights": tuple(count / total for count in counts)}
    return Bars(
        f"{name}: signal and noise", words, "signal-to-noise ratio (dB)", "share of weights", edges, groups, limit
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
    return [Lines(title, f"{'; '.join(parts)}.", f"fraction of {what} removed", label, tuple(lines))]
