"""What stands out, in sentences: made from the headline by rules, so that they say no more than the numbers do."""

from collections.abc import Sequence

from dubio.reporting.headline import judged_distance
from dubio.reporting.reading import RunRecord
from dubio.reporting.values import Cell, Headline
from dubio.reporting.wording import listed, percent, plural, points

__all__ = ["summarise"]

MOST_NAMED = 4
"""Beyond as many runs a sentence names the first and the last."""


def summarise(records: Sequence[RunRecord], headlines: Sequence[Headline]) -> tuple[str, ...]:
    """A few sentences about all runs."""
    sentences = (
        _trained(records),
        *(_standing(headline, "accuracy", "is right most often", "Accuracies") for headline in headlines),
        *(_standing(headline, "rmse", "has the smallest error", "Errors (RMSE)") for headline in headlines),
        *_calibrated(headlines),
        *_noticed(headlines),
        *_attacked(records),
        *_audited(records),
        *(f"{record.name}: {told}." for record in records for told in record.stale),
    )
    return tuple(sentence for sentence in sentences if sentence)


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
    low, high = (percent(end) if share else f"{end:.3f}" for end in (cell.low, cell.high))
    return f"{cell.text}{f' {cell.note}' if cell.note else ''} ({low} to {high})"


def _standing(headline: Headline, name: str, is_best: str, plural_name: str) -> str:
    known = _known(headline, name)
    best = [run for run, cell in known.items() if cell.mark == "best"]
    tied = [run for run, cell in known.items() if cell.mark == "tied"]
    if len(best) == 1:
        return f"{best[0]} {is_best}: {_value(known[best[0]])}, and no interval of another reaches it."
    if tied:
        if len(tied) > MOST_NAMED:
            ordered = sorted(tied, key=lambda run: known[run].value or 0.0)
            ends = [f"{known[run].text} ({run})" for run in (ordered[0], ordered[-1])]
            whose = "all" if len(tied) == len(known) else f"the {len(tied)} leading"
            return f"{plural_name} of {whose} runs cannot be told apart on so many examples: {' to '.join(ends)}."
        values = listed([f"{run} {known[run].text}" for run in tied])
        return f"{plural_name} of these cannot be told apart on so many examples: {values}."
    title = next((column.title for column in headline.columns if column.name == name), name)
    return f"{title}: {listed([f'{run} {_value(cell)}' for run, cell in known.items()])}." if known else ""


def _calibrated(headlines: Sequence[Headline]) -> list[str]:
    known = {run: cell for headline in headlines for run, cell in _known(headline, "ece").items()}
    if not known:
        return []
    least = min(known, key=lambda run: known[run].value or 0.0)
    most = max(known, key=lambda run: known[run].value or 0.0)
    near, far = (points(known[run].value or 0.0) for run in (least, most))
    first = f"Confidence and accuracy of {least} lie {near} apart on average (ECE)"
    return [f"{first}." if least == most else f"{first}, of {most} {far}."]


def _noticed(headlines: Sequence[Headline]) -> list[str]:
    """Which network tells unseen data, where any does."""
    told = []
    for headline in headlines:
        known = _known(headline, "auroc")
        if known and all((cell.low or 0.0) <= 0.5 for cell in known.values()):
            told.append("By mutual information no network tells unseen data from known better than chance.")
        else:
            told.append(_standing(headline, "auroc", "tells unseen data best (AUROC)", "AUROCs on unseen data"))
    return told


def _attacked(records: Sequence[RunRecord]) -> list[str]:
    attacked = [record for record in records if record.attack and record.attack.rows]
    if not attacked:
        return []
    distance, parts, left = judged_distance(records), [], {}
    for record in attacked:
        assert record.attack is not None
        weakest = record.attack.weakest()
        row = weakest[max(weakest) if distance is None else distance]
        at = f" at epsilon {row.epsilon}" if distance is None else ""
        parts.append(f"{record.name} on {percent(row.predictive.value)}{at}")
        left[record.name] = row.predictive.value
    if distance is not None and len(left) > MOST_NAMED:
        most, least = max(left, key=left.__getitem__), min(left, key=left.__getitem__)
        return [
            f"Under attack at epsilon {row.epsilon} {most} keeps most, {percent(left[most])} of the images, and "
            f"{least} least, {percent(left[least])}; stronger attacks may leave less."
        ]
    where = "" if distance is None else f" at epsilon {row.epsilon}"
    return [f"Under attack{where} these are right: {listed(parts)} of the images; stronger attacks may leave less."]


def _audited(records: Sequence[RunRecord]) -> list[str]:
    told = [f"{record.name} {record.audit.status}" for record in records if record.audit]
    return [f"Audits say: {listed(told)}."] if told else []
