"""What stands out, in sentences: made from the headline by rules, so that they say no more than the numbers do.

The numbers of runs side by side, and which of them are best.

A run is best where paired tests on the same examples find it better than every other; where they find no difference
from the run with the best number, these are tied (``evaluation.comparison``). p-values are corrected for the number of
pairs (Holm), at 5 %. Numbers are compared within one set of data, one set of unseen data, one attack and distance;
of several attacks on each run those are shown that all runs have in common, and the heading names their distance.

Invariants: a difference that is not significant makes no best (``tests/report/test_headline.py``).
"""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from dubio.auditing import FEWEST_IMAGES, Audit
from dubio.evaluation import (
    METRICS,
    SCORE_INFO,
    Comparison,
    PairedValues,
    compare_pairs,
    failures,
    paired_detection,
    paired_shares,
    paired_values,
)
from dubio.report.elements import (
    Cell,
    Column,
    HeadlineRow,
    HeadlineTable,
    Mark,
    bytes_text,
    cell,
    decimal,
    listed,
    percent,
    percent_cell,
    plural,
    points,
)
from dubio.report.runs import RobustnessRecord, RunRecord
from dubio.report.sections import has_spread

MOST_NAMED = 4
"""Beyond as many runs a sentence names the first and the last."""


STANDINGS = {
    "accuracy": ("is more accurate", "accuracy"),
    "rmse": ("has a smaller RMSE", "RMSE"),
    "auroc_entropy": ("detects unseen data better by entropy", "AUROC by entropy"),
    "auroc": ("detects unseen data better by mutual information", "AUROC by mutual information"),
}
"""By column, how a better run is described, and what is compared."""


def summarise(records: Sequence[RunRecord], headlines: Sequence[HeadlineTable]) -> tuple[str, ...]:
    """A few sentences about all runs."""
    sentences = (
        _trained(records),
        *failures_of(records),
        *(_standing(records, headline, name) for name in ("accuracy", "rmse") for headline in headlines),
        *_calibrated(headlines),
        *_noticed(records, headlines),
        *_attacked(records),
        *_audited(records),
        *unpaired(headlines),
        *(f"{record.name}: {told}." for record in records for told in record.stale),
    )
    return tuple(sentence for sentence in sentences if sentence)


def failures_of(records: Sequence[RunRecord]) -> list[str]:
    """What fails, run by run."""
    return [
        f"{record.name}: {sentence}"
        for record in records
        if record.evaluation is not None
        for sentence in failures(record.evaluation, record.name)
    ]


def _trained(records: Sequence[RunRecord]) -> str:
    methods = listed(list(dict.fromkeys(record.method for record in records)))
    data = listed(list(dict.fromkeys(record.data for record in records)))
    return f"{plural(len(records), 'network')}, trained by {methods} on {data}."


def _known(headline: HeadlineTable, name: str) -> dict[str, Cell]:
    return {
        row.run: row.cells[name] for row in headline.rows if name in row.cells and row.cells[name].value is not None
    }


def _value(cell: Cell) -> str:
    """The number, with its interval in the same form."""
    share = "%" in cell.text
    if cell.low is None or cell.high is None:
        return cell.text
    low, high = (percent(end) if share else decimal(end) for end in (cell.low, cell.high))
    return f"{cell.text}{f' {cell.note}' if cell.note else ''} ({low} to {high})"


def _standing(records: Sequence[RunRecord], headline: HeadlineTable, name: str) -> str:
    """Which run has the best number of a column, by the paired tests behind the marks."""
    known = _known(headline, name)
    best = [run for run, cell in known.items() if cell.mark == "best"]
    tied = [run for run, cell in known.items() if cell.mark == "tied"]
    better, noun = STANDINGS[name]
    compared = [pair for pair in headline.comparisons if pair.metric == name]
    if len(best) == 1:
        return f"{best[0]} {better} than {_others(best[0], known, compared)}."
    if tied:
        return _tied(records, known, tied, compared, noun, better)
    title = next((column.title for column in headline.columns if column.name == name), name)
    return f"{title}: {listed([f'{run} {_value(cell)}' for run, cell in known.items()])}." if known else ""


def _others(best: str, known: dict[str, Cell], compared: Sequence[Comparison]) -> str:
    """The runs that the best one was tested against, with the weakest evidence among them."""
    tested = [pair for pair in compared if best in (pair.first, pair.second)]
    others = [pair.second if pair.first == best else pair.first for pair in tested]
    weakest = max(tested, key=lambda pair: pair.p_value)
    if len(others) == 1:
        return f"{others[0]}: {known[best].text} against {known[others[0]].text} ({weakest})"
    return f"each of {plural(len(others), 'other run')}: {_value(known[best])} (largest {weakest})"


def _tied(
    records: Sequence[RunRecord],
    known: dict[str, Cell],
    tied: list[str],
    compared: Sequence[Comparison],
    noun: str,
    better: str,
) -> str:
    """What cannot be distinguished from the best, and the clearest difference that there is beside it."""
    ordered = sorted(tied, key=lambda run: known[run].value or 0.0)
    ends = [f"{known[run].text} ({run})" for run in (ordered[0], ordered[-1])]
    values = " to ".join(ends) if len(tied) > MOST_NAMED else listed([f"{run} {known[run].text}" for run in tied])
    significant = [pair for pair in compared if pair.p_value < SIGNIFICANT]
    if not significant:
        counts = {record.evaluation.data.num_examples for record in records if record.evaluation}
        examples = f"With {counts.pop()} test examples no" if len(counts) == 1 else "No"
        smallest = min(compared, key=lambda pair: pair.p_value)
        return f"{examples} difference in {noun} is significant (smallest {smallest}): {values}."
    clearest = min(significant, key=lambda pair: pair.p_value)
    won = clearest.first if _leads(known, clearest.first, clearest.second, better) else clearest.second
    lost = clearest.second if won == clearest.first else clearest.first
    more = f", the clearest of {len(significant)} significant differences" if len(significant) > 1 else ""
    whose = f"The {len(tied)} best runs" if len(tied) > MOST_NAMED else "The best runs"
    return f"{whose} do not differ significantly in {noun}: {values}. {won} {better} than {lost} ({clearest}){more}."


def _leads(known: dict[str, Cell], one: str, other: str, better: str) -> bool:
    difference = (known[one].value or 0.0) - (known[other].value or 0.0)
    return difference < 0.0 if better == STANDINGS["rmse"][0] else difference > 0.0


def _calibrated(headlines: Sequence[HeadlineTable]) -> list[str]:
    known = {run: cell for headline in headlines for run, cell in _known(headline, "ece").items()}
    if not known:
        return []
    least = min(known, key=lambda run: known[run].value or 0.0)
    most = max(known, key=lambda run: known[run].value or 0.0)
    near, far = (points(known[run].value or 0.0) for run in (least, most))
    first = f"Confidence and accuracy of {least} lie {near} apart on average (ECE)"
    return [f"{first}." if least == most else f"{first}, of {most} {far}."]


def _noticed(records: Sequence[RunRecord], headlines: Sequence[HeadlineTable]) -> list[str]:
    """Which network detects unseen data, where any does, by each score."""
    sentences = []
    for headline in headlines:
        for name, score in DETECTORS.items():
            known = _known(headline, name)
            if known and all((cell.low or 0.0) <= 0.5 for cell in known.values()):
                label = SCORE_INFO[score]
                sentences.append(f"By {label} no network tells unseen data from known better than chance.")
            else:
                sentences.append(_standing(records, headline, name))
    return sentences


def _reserved(audit: Audit) -> bool:
    return audit.status != "UPPER BOUND ONLY" and bool(audit.caveats)


def unpaired(headlines: Sequence[HeadlineTable]) -> list[str]:
    """What has to be done before runs can be compared, where their files hold no results of single examples."""
    commands = [command for headline in headlines for command in headline.unpaired]
    if not commands:
        return []
    shown = f"{'; '.join(commands[:MOST_NAMED])}{'; ...' if len(commands) > MOST_NAMED else ''}"
    return [f"Runs evaluated by an earlier version are not paired and not compared; evaluate again: {shown}"]


def _attacked(records: Sequence[RunRecord]) -> list[str]:
    attacked = [record for record in with_shared_attacks(records) if record.attack]
    if not attacked:
        return []
    distance, parts, left = judged_distance(records), [], {}
    for record in attacked:
        assert record.attack is not None
        weakest = record.attack.weakest()
        row = weakest[max(weakest) if distance is None else distance]
        told = record.attack.distance_text()
        at = f" at epsilon {told}" if distance is None else ""
        parts.append(f"{record.name} on {percent(row.predictive.value)}{at}")
        left[record.name] = row.predictive.value
    if distance is not None and len(left) > MOST_NAMED:
        most, least = max(left, key=left.__getitem__), min(left, key=left.__getitem__)
        return [
            f"Under attack at epsilon {told} {most} keeps most, {percent(left[most])} of the images, and "
            f"{least} least, {percent(left[least])}; stronger attacks may leave less."
        ]
    where = "" if distance is None else f" at epsilon {told}"
    return [f"Under attack{where} these are right: {listed(parts)} of the images; stronger attacks may leave less."]


def _audited(records: Sequence[RunRecord]) -> list[str]:
    told = [
        f"{record.name} {record.audit.status}{' with reservations' if _reserved(record.audit) else ''}"
        for record in records
        if record.audit
    ]
    return [f"Audits say: {listed(told)}."] if told else []


SIGNIFICANT = 0.05
"""Corrected p-values below it are differences."""


DETECTORS = {"auroc_entropy": "entropy", "auroc": "mutual_information"}
"""By column, the score that detects unseen data."""


def _metric(name: str, title: str) -> Column:
    summary = METRICS[name]
    return Column(name, title, summary.meaning, "" if summary.better == "neither" else summary.better)


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
        "auroc", "AUROC (MI)", "The same by mutual information, which a network without noise does not have.", "more"
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


def headlines(records: Sequence[RunRecord]) -> tuple[HeadlineTable, ...]:
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
        found += [HeadlineTable(kind, used, tuple(kept), tuple(comparisons), _unpaired(chosen))] if chosen else []
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
    for key in (RobustnessRecord.setting, _norm_and_distance):
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


def _tried(record: RunRecord) -> list[RobustnessRecord]:
    """Attacks on the network that the run holds now, one for each distance; on an earlier one where there are none."""
    now = None if record.identity is None else record.identity.tensors
    current = [attack for attack in record.attacks if None in (now, attack.network) or attack.network == now]
    return [attack.at(distance) for attack in current or record.attacks for distance in attack.weakest()]


def _distance(attack: RobustnessRecord) -> float:
    return attack.rows[0].distance


def _norm_and_distance(attack: RobustnessRecord) -> tuple[str, float]:
    return attack.norm, _distance(attack)


def _left(attack: RobustnessRecord) -> float:
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
    if score == "mutual_information" and not has_spread(unseen.scores[score]):
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
