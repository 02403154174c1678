"""What stands out, in sentences: made from the headline by rules, so that they say no more than the numbers do."""

from collections.abc import Sequence

from dubio.auditing import Audit
from dubio.evaluation import SCORE_WORDS, Comparison, failures
from dubio.reporting.headline import DETECTORS, SIGNIFICANT, judged_distance, with_shared_attacks
from dubio.reporting.reading import RunRecord
from dubio.reporting.values import Cell, Headline
from dubio.reporting.wording import decimal, listed, percent, plural, points

__all__ = ["failures_of", "summarise", "unpaired"]

MOST_NAMED = 4
"""Beyond as many runs a sentence names the first and the last."""
STANDINGS = {
    "accuracy": ("is more accurate", "accuracy"),
    "rmse": ("has a smaller RMSE", "RMSE"),
    "auroc_entropy": ("detects unseen data better by entropy", "AUROC by entropy"),
    "auroc": ("detects unseen data better by mutual information", "AUROC by mutual information"),
}
"""By column, how a better run is described, and what is compared."""


def summarise(records: Sequence[RunRecord], headlines: Sequence[Headline]) -> tuple[str, ...]:
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


def _known(headline: Headline, name: str) -> dict[str, Cell]:
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


def _standing(records: Sequence[RunRecord], headline: Headline, name: str) -> str:
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


def _calibrated(headlines: Sequence[Headline]) -> list[str]:
    known = {run: cell for headline in headlines for run, cell in _known(headline, "ece").items()}
    if not known:
        return []
    least = min(known, key=lambda run: known[run].value or 0.0)
    most = max(known, key=lambda run: known[run].value or 0.0)
    near, far = (points(known[run].value or 0.0) for run in (least, most))
    first = f"Confidence and accuracy of {least} lie {near} apart on average (ECE)"
    return [f"{first}." if least == most else f"{first}, of {most} {far}."]


def _noticed(records: Sequence[RunRecord], headlines: Sequence[Headline]) -> list[str]:
    """Which network detects unseen data, where any does, by each score."""
    sentences = []
    for headline in headlines:
        for name, score in DETECTORS.items():
            known = _known(headline, name)
            if known and all((cell.low or 0.0) <= 0.5 for cell in known.values()):
                label = SCORE_WORDS[score]
                sentences.append(f"By {label} no network tells unseen data from known better than chance.")
            else:
                sentences.append(_standing(records, headline, name))
    return sentences


def _reserved(audit: Audit) -> bool:
    return audit.status != "UPPER BOUND ONLY" and bool(audit.caveats)


def unpaired(headlines: Sequence[Headline]) -> list[str]:
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
