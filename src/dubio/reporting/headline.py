"""The numbers of runs side by side, and which of them are best.

A run is marked best only where its interval lies apart from all others; where intervals overlap with that of the best,
all of these are tied. Numbers are compared within one set of data, one set of unseen data, one attack and distance.

Invariants: a difference within the intervals makes no best (``tests/reporting/test_headline.py``).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from dubio.evaluation import Estimate
from dubio.evaluation.words import METRICS
from dubio.reporting.reading import RunRecord
from dubio.reporting.strange import tells
from dubio.reporting.values import Cell, Column, Headline, HeadlineRow, Mark
from dubio.reporting.wording import bytes_text, cell, percent_cell

__all__ = ["headlines", "judged_distance", "judged_unseen"]

DETECTOR = "mutual_information"


def _metric(name: str, title: str) -> Column:
    words = METRICS[name]
    return Column(name, title, words.meaning, "" if words.better == "neither" else words.better)


SIZES = (
    Column("parameters", "Parameters", "Numbers that training moves, without those that were removed."),
    Column("bytes", "File", "Size of the network's file."),
)
CLASSES = (
    _metric("accuracy", "Accuracy"),
    _metric("nll", "NLL"),
    _metric("ece", "ECE"),
    Column(
        "auroc",
        "AUROC",
        "How well mutual information tells data never seen from known; 0.5 is chance, 1 is perfect.",
        "more",
    ),
    Column("r_pred", "R_pred", "Accuracy of the mean over draws under the strongest attack tried.", "more"),
    Column("audit", "Audit", "Whether the claimed robustness is real."),
    *SIZES,
)
REALS = (
    _metric("rmse", "RMSE"),
    _metric("mae", "MAE"),
    _metric("nll", "NLL"),
    _metric("crps", "CRPS"),
    _metric("std", "Spread"),
    _metric("aleatoric_std", "of the data"),
    _metric("epistemic_std", "of the network"),
    *SIZES,
)


def headlines(records: Sequence[RunRecord]) -> tuple[Headline, ...]:
    """One table for runs that classify, and one for those that predict numbers."""
    kinds: tuple[tuple[Literal["classification", "regression"], tuple[Column, ...]], ...] = (
        ("classification", CLASSES),
        ("regression", REALS),
    )
    found = []
    for kind, columns in kinds:
        chosen = [record for record in records if record.kind == kind]
        rows = [_row(record, columns, chosen) for record in chosen]
        used = tuple(column for column in columns if any(row.cells[column.name].text != "-" for row in rows))
        for column in used:
            rows = _marked(rows, column)
        kept = [replace(row, cells={column.name: row.cells[column.name] for column in used}) for row in rows]
        found += [Headline(kind, used, tuple(kept))] if chosen else []
    return tuple(found)


def judged_unseen(records: Sequence[RunRecord]) -> str | None:
    """The set of unseen data that most runs were judged on; of several the first."""
    counts = Counter(name for record in records if record.evaluation for name in record.evaluation.unseen)
    return max(counts, key=lambda name: counts[name]) if counts else None


def judged_distance(records: Sequence[RunRecord]) -> float | None:
    """The largest distance at which every attacked run was attacked; None where they have none in common."""
    found = [set(record.attack.weakest()) for record in records if record.attack]
    shared = set.intersection(*found) if found else set()
    return max(shared, default=None)


def _row(record: RunRecord, columns: tuple[Column, ...], all_records: Sequence[RunRecord]) -> HeadlineRow:
    metrics = record.evaluation.metrics if record.evaluation else {}
    on = record.evaluation.data.fingerprint if record.evaluation else ""
    cells = {
        column.name: (percent_cell if column.name == "accuracy" else cell)(metrics.get(column.name), on)
        for column in columns
    }
    special = {
        "auroc": _detection(record, judged_unseen(all_records)),
        "r_pred": _robustness(record, judged_distance(all_records)),
        "audit": Cell(record.audit.status if record.audit else "-"),
        "parameters": _count(record.num_parameters),
        "bytes": replace(_count(record.num_bytes), text=bytes_text(record.num_bytes)),
    }
    cells |= {name: special[name] for name in cells if name in special}
    return HeadlineRow(record.name, record.method, record.data, cells, record.stale)


def _count(value: int | None) -> Cell:
    return Cell("-" if value is None else f"{value:,}", None if value is None else float(value))


def _detection(record: RunRecord, name: str | None) -> Cell:
    unseen = record.evaluation.unseen.get(name) if record.evaluation and name else None
    if unseen is None or record.evaluation is None or DETECTOR not in unseen.scores:
        return Cell("-")
    if not tells(unseen.scores[DETECTOR]):
        return Cell("-", note="draws agree")
    found = unseen.scores[DETECTOR].auroc
    shown = cell(found, f"{record.evaluation.data.fingerprint} {unseen.fingerprint}")
    return replace(shown, note=f"on {name}")


def _robustness(record: RunRecord, distance: float | None) -> Cell:
    if record.attack is None or not record.attack.rows:
        return Cell("-")
    weakest = record.attack.weakest()
    row = weakest[max(weakest) if distance is None else distance]
    names = "+".join(sorted({other.attack for other in record.attack.rows if other.epsilon == row.epsilon}))
    like = f"{record.attack.fingerprint} {record.attack.norm} {row.distance} {names}"
    return replace(percent_cell(row.predictive, like), note=f"at {row.epsilon}")


def _marked(rows: list[HeadlineRow], column: Column) -> list[HeadlineRow]:
    """The rows with the best of a column marked, among those that may be compared."""
    if not column.better:
        return rows
    marks: dict[str, Mark] = {}
    for like in {row.cells[column.name].like for row in rows} - {""}:
        marks |= _marks(
            {row.run: row.cells[column.name] for row in rows if row.cells[column.name].like == like}, column
        )
    return [
        replace(row, cells=row.cells | {column.name: replace(row.cells[column.name], mark=marks.get(row.run, ""))})
        for row in rows
    ]


def _marks(cells: dict[str, Cell], column: Column) -> dict[str, Mark]:
    known = {
        run: Estimate(found.value, found.low, found.high)
        for run, found in cells.items()
        if found.value is not None and found.low is not None and found.high is not None
    }
    if len(known) < 2:
        return {}
    sign = 1.0 if column.better == "more" else -1.0
    best = max(known, key=lambda run: sign * known[run].value)
    near = [run for run in known if _overlap(known[run], known[best])]
    return dict.fromkeys(near, "tied") if len(near) > 1 else {best: "best"}


def _overlap(one: Estimate, other: Estimate) -> bool:
    assert one.low is not None
    assert one.high is not None
    assert other.low is not None
    assert other.high is not None
    return one.low <= other.high and other.low <= one.high
