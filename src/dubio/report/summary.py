"""The headline tables of a report, and the sentences that summarise them.

A run is *best* in a column if paired tests on the same examples find it better than every other run. If the tests find
no difference from the run with the best number, these runs are *tied* (``evaluation.comparison``). p-values are
corrected for the number of pairs (Holm), at 5 %. Numbers are compared within one set of data, one set of unseen data,
one attack and distance. Of several attacks on each run the table shows those that all runs have in common, and the
heading names their distance.

Invariants: a difference that is not significant makes no best (``tests/report/test_headline.py``); a sentence says no
more than the numbers of the tables (``tests/report/test_writing.py``).
"""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import starmap
from typing import Literal

from dubio.auditing import FEWEST_IMAGES
from dubio.checks import listed
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
    percent,
    percent_cell,
    plural,
    points,
)
from dubio.report.runs import RobustnessRecord, RunRecord
from dubio.report.sections import has_spread

SIGNIFICANT = 0.05
"""Corrected p-values below it are differences."""
MOST_NAMED = 4
"""A sentence about more runs names only the first and the last."""
DETECTORS = {"auroc_entropy": "entropy", "auroc": "mutual_information"}
"""By column, the score that detects unseen data."""
COMPARED = {
    "accuracy": ("is more accurate", "accuracy"),
    "rmse": ("has a smaller RMSE", "RMSE"),
    "auroc_entropy": ("detects unseen data better by entropy", "AUROC by entropy"),
    "auroc": ("detects unseen data better by mutual information", "AUROC by mutual information"),
}
"""By column, the predicate of the better run, and the name of what is compared."""


def _metric(name: str, title: str) -> Column:
    info = METRICS[name]
    return Column(name, title, info.meaning, "" if info.better == "neither" else info.better)


ABOUT_ENTROPY = "How well entropy separates unseen data from known; 0.5 is chance, 1 is perfect."
ABOUT_INFORMATION = "The same by mutual information, which a network without noise does not have."
SIZES = (
    Column("parameters", "Parameters", "Numbers that training moves, without those that were removed."),
    Column("bytes", "File", "Size of the network's file."),
)
COLUMNS: dict[Literal["classification", "regression"], tuple[Column, ...]] = {
    "classification": (
        *starmap(_metric, {"accuracy": "Accuracy", "nll": "NLL", "ece": "ECE"}.items()),
        Column("auroc_entropy", "AUROC (H)", ABOUT_ENTROPY, "more"),
        Column("auroc", "AUROC (MI)", ABOUT_INFORMATION, "more"),
        Column("r_pred", "R_pred", "Accuracy of the mean over draws under the strongest attack tried.", "more"),
        Column("audit", "Audit", "Whether the claimed robustness is real."),
        *SIZES,
    ),
    "regression": (
        *starmap(_metric, {"rmse": "RMSE", "mae": "MAE", "nll": "NLL", "crps": "CRPS", "std": "Spread"}.items()),
        *starmap(_metric, {"aleatoric_std": "of the data", "epistemic_std": "of the network"}.items()),
        *SIZES,
    ),
}


def headlines(records: Sequence[RunRecord]) -> tuple[HeadlineTable, ...]:
    """One table for runs that classify, and one for those that predict numbers."""
    records = with_shared_attacks(records)
    tables = []
    for kind, all_columns in COLUMNS.items():
        runs = [record for record in records if record.kind == kind]
        if not runs:
            continue
        dataset, distance = most_common_unseen(runs), shared_distance(runs)
        rows = [_row(run, all_columns, dataset, distance) for run in runs]
        attack = next((run.attack for run in runs if run.attack), None)
        where = f" at {attack.distance_text()}" if attack and distance is not None else ""
        columns = tuple(
            replace(column, title=f"{column.title}{where}") if column.name == "r_pred" else column
            for column in all_columns
            if any(row.cells[column.name].text != "-" for row in rows)
        )
        comparisons: list[Comparison] = []
        for column in columns:
            if column.better:
                paired = {run.name: values for run in runs if (values := _paired(run, column.name, dataset, distance))}
                rows = _marked(rows, column, paired, comparisons)
        shown = [replace(row, cells={column.name: row.cells[column.name] for column in columns}) for row in rows]
        tables.append(HeadlineTable(kind, columns, tuple(shown), tuple(comparisons), _unpaired(runs)))
    return tuple(tables)


def summarise(records: Sequence[RunRecord], headlines: Sequence[HeadlineTable]) -> tuple[str, ...]:
    """A few sentences about all runs."""
    methods = listed(list(dict.fromkeys(run.method for run in records)), "and")
    data = listed(list(dict.fromkeys(run.data for run in records)), "and")
    sentences = (
        f"{plural(len(records), 'network')}, trained by {methods} on {data}.",
        *failures_of(records),
        *(_ranking(records, headline, name) for name in ("accuracy", "rmse") for headline in headlines),
        _calibration(headlines),
        *(_detection_ranking(records, headline, name) for headline in headlines for name in DETECTORS),
        _robustness_summary(records),
        _audit_summary(records),
        *unpaired(headlines),
        *(f"{run.name}: {stale}." for run in records for stale in run.stale),
    )
    return tuple(sentence for sentence in sentences if sentence)


def failures_of(records: Sequence[RunRecord]) -> list[str]:
    """The failures of each run."""
    return [
        f"{run.name}: {sentence}"
        for run in records
        if run.evaluation is not None
        for sentence in failures(run.evaluation, run.name)
    ]


def unpaired(headlines: Sequence[HeadlineTable]) -> list[str]:
    """A sentence with the commands that are needed before runs without results of single examples can be compared."""
    commands = [command for headline in headlines for command in headline.unpaired]
    if not commands:
        return []
    shown = f"{'; '.join(commands[:MOST_NAMED])}{'; ...' if len(commands) > MOST_NAMED else ''}"
    return [f"Runs evaluated by an earlier version are not paired and not compared; evaluate again: {shown}"]


def most_common_unseen(records: Sequence[RunRecord]) -> str | None:
    """The set of unseen data that most runs were judged on; of several the first."""
    counts = Counter(name for run in records if run.evaluation for name in run.evaluation.unseen)
    return max(counts, key=lambda name: counts[name], default=None)


def shared_distance(records: Sequence[RunRecord]) -> float | None:
    """The largest distance, in one norm, at which every attacked run was attacked; None if there is none."""
    attacks = [run.attack for run in with_shared_attacks(records) if run.attack]
    if len({attack.norm for attack in attacks}) != 1:
        return None
    return max(set.intersection(*(set(attack.weakest()) for attack in attacks)), default=None)


def with_shared_attacks(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs, each with the one attack by which it is compared with the others.

    That is the attack that all attacked runs have in common, with its settings, images and draws, at the largest
    distance. If they share none, it is the attack with the lowest accuracy at the largest distance that they share,
    else at the largest distance of each run.
    """
    attacks = [_current_attacks(run) for run in records]
    for key in (RobustnessRecord.setting, lambda attack: (attack.norm, _distance(attack))):
        by_key = [
            {key(attack): attack for attack in sorted(own, key=lambda attack: attack.least, reverse=True)}
            for own in attacks
        ]
        attacked = [own for own in by_key if own]
        shared = set.intersection(*map(set, attacked)) if attacked else set()
        if shared:
            best = max(
                shared,
                key=lambda setting: (_distance(attacked[0][setting]), -sum(own[setting].least for own in attacked)),
            )
            return [replace(run, attacks=(own[best],) if own else ()) for run, own in zip(records, by_key, strict=True)]
    strongest = [sorted(own, key=lambda attack: (-_distance(attack), attack.least))[:1] for own in attacks]
    return [replace(run, attacks=tuple(own)) for run, own in zip(records, strongest, strict=True)]


def _current_attacks(run: RunRecord) -> list[RobustnessRecord]:
    """Attacks on the network that the run holds now, one for each distance; if there are none, all attacks."""
    now = None if run.identity is None else run.identity.tensors
    current = [attack for attack in run.attacks if None in (now, attack.network) or attack.network == now]
    return [attack.at(distance) for attack in current or run.attacks for distance in attack.weakest()]


def _distance(attack: RobustnessRecord) -> float:
    return attack.rows[0].distance


def _row(run: RunRecord, columns: tuple[Column, ...], dataset: str | None, distance: float | None) -> HeadlineRow:
    metrics = run.evaluation.metrics if run.evaluation else {}
    fingerprint = run.evaluation.data.fingerprint if run.evaluation else ""
    count, size = run.num_parameters, run.num_bytes
    special = {
        **{name: _detection(run, dataset, score) for name, score in DETECTORS.items()},
        "r_pred": _robustness(run, distance),
        "audit": _audit(run),
        "parameters": Cell("-") if count is None else Cell(f"{count:,}", float(count)),
        "bytes": Cell("-") if size is None else Cell(bytes_text(size), float(size)),
        "accuracy": percent_cell(metrics.get("accuracy"), fingerprint),
    }
    names = [column.name for column in columns]
    cells = {name: special.get(name) or cell(metrics.get(name), fingerprint) for name in names}
    return HeadlineRow(run.name, run.method, run.data, cells, run.stale)


def _detection(run: RunRecord, name: str | None, score: str) -> Cell:
    dataset = run.evaluation.unseen.get(name) if run.evaluation and name else None
    if dataset is None or run.evaluation is None or score not in dataset.scores:
        return Cell("-")
    if score == "mutual_information" and not has_spread(dataset.scores[score]):
        return Cell("-", note="draws agree")
    like = f"{run.evaluation.data.fingerprint} {dataset.fingerprint}"
    return replace(cell(dataset.scores[score].auroc, like), note=f"on {name}")


def _audit(run: RunRecord) -> Cell:
    """The status of the audit, with the number of images if they are few."""
    if run.audit is None:
        return Cell("-")
    count = run.audit.headline.num_images
    return Cell(run.audit.status, note=f"n={count}" if count < FEWEST_IMAGES else "")


def _robustness(run: RunRecord, distance: float | None) -> Cell:
    attack = run.attack
    if attack is None:
        return Cell("-")
    weakest = attack.weakest()
    row = weakest[max(weakest) if distance is None else distance]
    names = "+".join(sorted({other.attack for other in attack.rows if other.epsilon == row.epsilon}))
    like = f"{attack.fingerprint} {attack.norm} {row.distance} {names}"
    note = "" if distance is not None else f"at {attack.distance_text()}"
    return replace(percent_cell(row.predictive, like), note=note)


def _paired(run: RunRecord, column: str, dataset: str | None, distance: float | None) -> PairedValues | None:
    """Results of single examples that a run has for a column."""
    evaluation, attack = run.evaluation, run.attack
    if column == "r_pred":
        right = attack.weakest()[distance].predictive_per_example if attack and distance is not None else ()
        if attack is None or not right:
            return None
        return paired_shares(right, f"{_robustness(run, distance).like} {attack.indices}")
    if evaluation is None:
        return None
    if column not in DETECTORS:
        return paired_values(evaluation, column)
    if dataset is None or dataset not in evaluation.unseen:
        return None
    return paired_detection(evaluation, dataset, DETECTORS[column])


def _unpaired(records: Sequence[RunRecord]) -> tuple[str, ...]:
    """Commands that make runs comparable that were judged on the same data, but without results of single examples."""
    judged = [(run, run.evaluation) for run in records if run.evaluation is not None]
    data = Counter(evaluation.data.fingerprint for _, evaluation in judged)
    return tuple(
        f"dubio evaluate {shlex.quote(run.folder.resolve().name)}"
        for run, evaluation in judged
        if not evaluation.per_example and data[evaluation.data.fingerprint] > 1
    )


def _marked(
    rows: list[HeadlineRow], column: Column, paired: Mapping[str, PairedValues], comparisons: list[Comparison]
) -> list[HeadlineRow]:
    """The rows with the best of a column marked among those of the same examples; the tests are added to a list."""
    marks: dict[str, Mark] = {}
    cells = {row.run: row.cells[column.name] for row in rows}
    measured = {run: values for run, values in paired.items() if cells[run].value is not None}
    for examples in dict.fromkeys(values.examples for values in measured.values()):
        group = {run: values for run, values in measured.items() if values.examples == examples}
        compared = compare_pairs(column.name, group)
        marks |= _marks({run: cells[run] for run in group}, column, compared)
        comparisons += compared
    return [
        replace(row, cells=row.cells | {column.name: replace(cells[row.run], mark=marks.get(row.run, ""))})
        for row in rows
    ]


def _marks(cells: dict[str, Cell], column: Column, compared: Sequence[Comparison]) -> dict[str, Mark]:
    """``best`` for the best number if all others differ significantly; else ``tied`` for all that do not differ."""
    if len(cells) < 2:
        return {}
    sign = 1.0 if column.better == "more" else -1.0
    best = max(cells, key=lambda run: sign * (cells[run].value or 0.0))
    worse = {run for run in cells if any(pair.between(run, best) and pair.p_value < SIGNIFICANT for pair in compared)}
    near = [run for run in cells if run not in worse]
    return dict.fromkeys(near, "tied") if len(near) > 1 else {best: "best"}


def _measured(headline: HeadlineTable, name: str) -> dict[str, Cell]:
    """Cells of a column that have a number, by run."""
    cells = {row.run: row.cells[name] for row in headline.rows if name in row.cells}
    return {run: cell for run, cell in cells.items() if cell.value is not None}


def _with_interval(cell: Cell) -> str:
    """The number, with its interval in the same form."""
    if cell.low is None or cell.high is None:
        return cell.text
    low, high = (percent(end) if "%" in cell.text else decimal(end) for end in (cell.low, cell.high))
    return f"{cell.text}{f' {cell.note}' if cell.note else ''} ({low} to {high})"


def _ranking(records: Sequence[RunRecord], headline: HeadlineTable, name: str) -> str:
    """The run with the best number of a column, by the paired tests behind the marks."""
    cells = _measured(headline, name)
    best = [run for run, cell in cells.items() if cell.mark == "best"]
    compared = [pair for pair in headline.comparisons if pair.metric == name]
    if len(best) == 1:
        return f"{best[0]} {COMPARED[name][0]} than {_others(best[0], cells, compared)}."
    if any(cell.mark == "tied" for cell in cells.values()):
        return _tie(records, cells, compared, name)
    title = next((column.title for column in headline.columns if column.name == name), name)
    return (
        f"{title}: {listed([f'{run} {_with_interval(cell)}' for run, cell in cells.items()], 'and')}." if cells else ""
    )


def _others(best: str, cells: dict[str, Cell], compared: Sequence[Comparison]) -> str:
    """The runs that the best one was tested against, with the weakest evidence among them."""
    tested = [pair for pair in compared if best in (pair.first, pair.second)]
    others = [pair.second if pair.first == best else pair.first for pair in tested]
    weakest = max(tested, key=lambda pair: pair.p_value)
    if len(others) == 1:
        return f"{others[0]}: {cells[best].text} against {cells[others[0]].text} ({weakest})"
    return f"each of {plural(len(others), 'other run')}: {_with_interval(cells[best])} (largest {weakest})"


def _tie(records: Sequence[RunRecord], cells: dict[str, Cell], compared: Sequence[Comparison], name: str) -> str:
    """Runs that do not differ significantly from the best, and the clearest difference between any two runs."""
    better, noun = COMPARED[name]
    tied = [run for run, cell in cells.items() if cell.mark == "tied"]
    numbers = {run: cell.value or 0.0 for run, cell in cells.items()}
    is_many = len(tied) > MOST_NAMED
    ordered = sorted(tied, key=numbers.__getitem__)
    ends = [f"{cells[run].text} ({run})" for run in (ordered[0], ordered[-1])]
    values = " to ".join(ends) if is_many else listed([f"{run} {cells[run].text}" for run in tied], "and")
    significant = [pair for pair in compared if pair.p_value < SIGNIFICANT]
    if not significant:
        counts = {run.evaluation.data.num_examples for run in records if run.evaluation}
        examples = f"With {counts.pop()} test examples no" if len(counts) == 1 else "No"
        smallest = min(compared, key=lambda pair: pair.p_value)
        return f"{examples} difference in {noun} is significant (smallest {smallest}): {values}."
    clearest = min(significant, key=lambda pair: pair.p_value)
    sign = -1.0 if name == "rmse" else 1.0
    lost, won = sorted((clearest.first, clearest.second), key=lambda run: sign * numbers[run])
    more = f", the clearest of {len(significant)} significant differences" if len(significant) > 1 else ""
    runs = f"The {len(tied)} best runs" if is_many else "The best runs"
    return f"{runs} do not differ significantly in {noun}: {values}. {won} {better} than {lost} ({clearest}){more}."


def _calibration(headlines: Sequence[HeadlineTable]) -> str:
    errors = {run: cell.value or 0.0 for headline in headlines for run, cell in _measured(headline, "ece").items()}
    if not errors:
        return ""
    least, most = min(errors, key=errors.__getitem__), max(errors, key=errors.__getitem__)
    first = f"Confidence and accuracy of {least} lie {points(errors[least])} apart on average (ECE)"
    return f"{first}." if least == most else f"{first}, of {most} {points(errors[most])}."


def _detection_ranking(records: Sequence[RunRecord], headline: HeadlineTable, name: str) -> str:
    """The network that detects unseen data best by a score, if any detects them."""
    cells = _measured(headline, name)
    if cells and all((cell.low or 0.0) <= 0.5 for cell in cells.values()):
        return f"By {SCORE_INFO[DETECTORS[name]]} no network tells unseen data from known better than chance."
    return _ranking(records, headline, name)


def _robustness_summary(records: Sequence[RunRecord]) -> str:
    attacks = {run.name: run.attack for run in with_shared_attacks(records) if run.attack}
    if not attacks:
        return ""
    distance = shared_distance(records)
    left = {
        run: attack.weakest()[max(attack.weakest()) if distance is None else distance].predictive.value
        for run, attack in attacks.items()
    }
    where = "" if distance is None else f" at epsilon {list(attacks.values())[-1].distance_text()}"
    if distance is not None and len(left) > MOST_NAMED:
        most, least = max(left, key=left.__getitem__), min(left, key=left.__getitem__)
        return (
            f"Under attack{where} {most} keeps most, {percent(left[most])} of the images, and "
            f"{least} least, {percent(left[least])}; stronger attacks may leave less."
        )
    parts = [
        f"{run} on {percent(left[run])}{f' at epsilon {attack.distance_text()}' if distance is None else ''}"
        for run, attack in attacks.items()
    ]
    return (
        f"Under attack{where} these are right: {listed(parts, 'and')} of the images; stronger attacks may leave less."
    )


def _audit_summary(records: Sequence[RunRecord]) -> str:
    parts = []
    for run in records:
        if run.audit:
            reserved = run.audit.status != "UPPER BOUND ONLY" and run.audit.caveats
            parts.append(f"{run.name} {run.audit.status}{' with reservations' if reserved else ''}")
    return f"Audits say: {listed(parts, 'and')}." if parts else ""
