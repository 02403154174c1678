"""The numbers of runs side by side, and which of them are best.

A run is best where paired tests on the same examples find it better than every other; where they find no difference
from the run with the best number, these are tied (``evaluation.comparison``). p-values are corrected for the number of
pairs (Holm), at 5 %. Numbers are compared within one set of data, one set of unseen data, one attack and distance;
of several attacks on each run those are shown that all runs have in common, and the heading names their distance.

Invariants: a difference that is not significant makes no best (``tests/reporting/test_headline.py``).
"""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from dubio.auditing import FEWEST_IMAGES
from dubio.evaluation import (
    METRICS,
    Comparison,
    PairedValues,
    compare_pairs,
    paired_detection,
    paired_shares,
    paired_values,
)
from dubio.reporting.reading import RunRecord
from dubio.reporting.records import AttackRecord
from dubio.reporting.strange import tells
from dubio.reporting.values import Cell, Column, Headline, HeadlineRow, Mark
from dubio.reporting.wording import bytes_text, cell, percent_cell

__all__ = ["DETECTORS", "SIGNIFICANT", "headlines", "judged_distance", "judged_unseen", "with_shared_attacks"]

SIGNIFICANT = 0.05
"""Corrected p-values below it are differences."""
DETECTORS = {"auroc_entropy": "entropy", "auroc": "mutual_information"}
"""By column, the score that detects unseen data."""


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
        "auroc_entropy",
        "AUROC (H)",
        "How well entropy separates unseen data from known; 0.5 is chance, 1 is perfect.",
        "more",
    ),
    Column(
        "auroc",
        "AUROC (MI)",
        "The same by mutual information, which a network without noise does not have.",
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
    records = with_shared_attacks(records)
    kinds: tuple[tuple[Literal["classification", "regression"], tuple[Column, ...]], ...] = (
        ("classification", CLASSES),
        ("regression", REALS),
    )
    found = []
    for kind, columns in kinds:
        chosen = [record for record in records if record.kind == kind]
        rows = [_row(record, columns, chosen) for record in chosen]
        titled = (_with_distance(column, chosen) if column.name == "r_pred" else column for column in columns)
        used = tuple(column for column in titled if any(row.cells[column.name].text != "-" for row in rows))
        comparisons: list[Comparison] = []
        for column in used:
            rows, compared = _marked(rows, column, _paired(chosen, column))
            comparisons += compared
        kept = [replace(row, cells={column.name: row.cells[column.name] for column in used}) for row in rows]
        found += [Headline(kind, used, tuple(kept), tuple(comparisons), _unpaired(chosen))] if chosen else []
    return tuple(found)


def judged_unseen(records: Sequence[RunRecord]) -> str | None:
    """The set of unseen data that most runs were judged on; of several the first."""
    counts = Counter(name for record in records if record.evaluation for name in record.evaluation.unseen)
    return max(counts, key=lambda name: counts[name]) if counts else None


def judged_distance(records: Sequence[RunRecord]) -> float | None:
    """The largest distance, in one norm, at which every attacked run was attacked; None where there is none."""
    attacks = [record.attack for record in with_shared_attacks(records) if record.attack]
    if len({attack.norm for attack in attacks}) != 1:
        return None
    shared = set.intersection(*(set(attack.weakest()) for attack in attacks))
    return max(shared, default=None)


def with_shared_attacks(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs, each with the one attack by which it is compared with the others.

    That is the attack, with its settings, images and draws, that all attacked runs have in common, at the largest
    distance; where they share none, what leaves least at the largest distance that they share; else at their own.
    """
    tried = [_tried(record) for record in records]
    for key in (AttackRecord.setting, _norm_and_distance):
        least = [{key(attack): attack for attack in sorted(own, key=_left, reverse=True)} for own in tried]
        shared = set.intersection(*(set(own) for own in least if own)) if any(least) else set()
        if shared:
            strength = {setting: [own[setting] for own in least if own] for setting in shared}
            chosen = max(
                shared, key=lambda setting: (_distance(strength[setting][0]), -sum(map(_left, strength[setting])))
            )
            return [
                replace(record, attacks=(own[chosen],) if own else ())
                for record, own in zip(records, least, strict=True)
            ]
    strongest = [max(own, key=lambda attack: (_distance(attack), -_left(attack)), default=None) for own in tried]
    return [
        replace(record, attacks=() if attack is None else (attack,))
        for record, attack in zip(records, strongest, strict=True)
    ]


def _tried(record: RunRecord) -> list[AttackRecord]:
    """Attacks on the network that the run holds now, one for each distance; on an earlier one where there are none."""
    now = None if record.identity is None else record.identity.tensors
    current = [attack for attack in record.attacks if None in (now, attack.network) or attack.network == now]
    return [attack.at(distance) for attack in current or record.attacks for distance in attack.weakest()]


def _distance(attack: AttackRecord) -> float:
    return attack.rows[0].distance


def _norm_and_distance(attack: AttackRecord) -> tuple[str, float]:
    return attack.norm, _distance(attack)


def _left(attack: AttackRecord) -> float:
    return min(row.predictive.value for row in attack.rows)


def _with_distance(column: Column, records: Sequence[RunRecord]) -> Column:
    """The column with the distance in its title, where all attacked runs were attacked at one."""
    if judged_distance(records) is None:
        return column
    distance = next(record.attack.distance_text() for record in records if record.attack)
    return replace(column, title=f"{column.title} at {distance}")


def _row(record: RunRecord, columns: tuple[Column, ...], all_records: Sequence[RunRecord]) -> HeadlineRow:
    metrics = record.evaluation.metrics if record.evaluation else {}
    on = record.evaluation.data.fingerprint if record.evaluation else ""
    cells = {
        column.name: (percent_cell if column.name == "accuracy" else cell)(metrics.get(column.name), on)
        for column in columns
    }
    special = {
        **{name: _detection(record, judged_unseen(all_records), score) for name, score in DETECTORS.items()},
        "r_pred": _robustness(record, judged_distance(all_records)),
        "audit": _verdict(record),
        "parameters": _count(record.num_parameters),
        "bytes": replace(_count(record.num_bytes), text=bytes_text(record.num_bytes)),
    }
    cells |= {name: special[name] for name in cells if name in special}
    return HeadlineRow(record.name, record.method, record.data, cells, record.stale)


def _count(value: int | None) -> Cell:
    return Cell("-" if value is None else f"{value:,}", None if value is None else float(value))


def _detection(record: RunRecord, name: str | None, score: str) -> Cell:
    unseen = record.evaluation.unseen.get(name) if record.evaluation and name else None
    if unseen is None or record.evaluation is None or score not in unseen.scores:
        return Cell("-")
    if score == "mutual_information" and not tells(unseen.scores[score]):
        return Cell("-", note="draws agree")
    found = unseen.scores[score].auroc
    shown = cell(found, f"{record.evaluation.data.fingerprint} {unseen.fingerprint}")
    return replace(shown, note=f"on {name}")


def _verdict(record: RunRecord) -> Cell:
    """The audit's status, with the number of images where they are few."""
    if record.audit is None:
        return Cell("-")
    count = record.audit.headline.num_images
    return Cell(record.audit.status, note=f"n={count}" if count < FEWEST_IMAGES else "")


def _robustness(record: RunRecord, distance: float | None) -> Cell:
    if record.attack is None or not record.attack.rows:
        return Cell("-")
    weakest = record.attack.weakest()
    row = weakest[max(weakest) if distance is None else distance]
    names = "+".join(sorted({other.attack for other in record.attack.rows if other.epsilon == row.epsilon}))
    like = f"{record.attack.fingerprint} {record.attack.norm} {row.distance} {names}"
    note = "" if distance is not None else f"at {record.attack.distance_text()}"
    return replace(percent_cell(row.predictive, like), note=note)


def _paired(records: Sequence[RunRecord], column: Column) -> dict[str, PairedValues]:
    """By run, what its files hold of single examples for a column."""
    unseen, distance = judged_unseen(records), judged_distance(records)
    paired: dict[str, PairedValues | None] = {}
    for record in records:
        evaluation, attack = record.evaluation, record.attack
        if column.name in DETECTORS:
            if evaluation is not None and unseen in evaluation.unseen and unseen is not None:
                paired[record.name] = paired_detection(evaluation, unseen, DETECTORS[column.name])
        elif column.name == "r_pred":
            if attack is not None and attack.rows and distance is not None:
                right = attack.weakest()[distance].predictive_per_example
                examples = f"{_robustness(record, distance).like} {attack.indices}"
                paired[record.name] = paired_shares(right, examples) if right else None
        elif evaluation is not None:
            paired[record.name] = paired_values(evaluation, column.name)
    return {run: values for run, values in paired.items() if values is not None}


def _unpaired(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Commands that would let runs be compared, where several were judged on the same data without single examples."""
    judged = [record for record in records if record.evaluation is not None]
    data = Counter(record.evaluation.data.fingerprint for record in judged if record.evaluation)
    return tuple(
        f"dubio evaluate {shlex.quote(record.folder.resolve().name)}"
        for record in judged
        if record.evaluation and not record.evaluation.per_example and data[record.evaluation.data.fingerprint] > 1
    )


def _marked(
    rows: list[HeadlineRow], column: Column, paired: Mapping[str, PairedValues]
) -> tuple[list[HeadlineRow], list[Comparison]]:
    """The rows with the best of a column marked, among those of the same examples, and the tests behind it."""
    if not column.better:
        return rows, []
    marks: dict[str, Mark] = {}
    comparisons: list[Comparison] = []
    cells = {row.run: row.cells[column.name] for row in rows}
    for examples in dict.fromkeys(values.examples for values in paired.values()):
        group = {
            run: values
            for run, values in paired.items()
            if values.examples == examples and cells[run].value is not None
        }
        compared = compare_pairs(column.name, group)
        marks |= _marks({run: cells[run] for run in group}, column, compared)
        comparisons += compared
    marked = [
        replace(row, cells=row.cells | {column.name: replace(row.cells[column.name], mark=marks.get(row.run, ""))})
        for row in rows
    ]
    return marked, comparisons


def _marks(cells: dict[str, Cell], column: Column, compared: Sequence[Comparison]) -> dict[str, Mark]:
    """``best`` for the best number where all others differ from it significantly; else all that do not are tied."""
    if len(cells) < 2:
        return {}
    sign = 1.0 if column.better == "more" else -1.0
    best = max(cells, key=lambda run: sign * (cells[run].value or 0.0))
    worse = {run for run in cells if any(pair.between(run, best) and pair.p_value < SIGNIFICANT for pair in compared)}
    near = [run for run in cells if run not in worse]
    return dict.fromkeys(near, "tied") if len(near) > 1 else {best: "best"}
