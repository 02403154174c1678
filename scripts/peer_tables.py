"""Tables of dubio beside other libraries, from the records that ``benchmarks/run.py peers`` writes.

Every function takes a stored record and gives headings, rows and a sentence about them; ``figures.py`` sets them. What
failed stands in the table with its error, and what a record does not hold is told.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from markdown_tables import short_commit

__all__ = ["MAIN_NET", "PEER_TABLES", "PeerTable", "commits_in_words", "fastest_peer", "missing"]

Row = dict[str, Any]
MAIN_NET = "784-1200-1200-10"
GRADIENT_TOLERANCE = 1e-3
SAME, EITHER = "of the fastest peer in the same precision", "in any precision"
PUBLISHED = {
    "1-400-400-1": {"one after another": 0.070, "vmap": 0.010, "vmap, local": 0.007},
    "784-800-800-10": {"one after another": 8.8, "vmap": 4.1, "vmap, local": 0.8},
}
"""Seconds that a further draw adds to an epoch on an A100, from the project report that this work starts from."""


@dataclass(frozen=True)
class PeerTable:
    """What is shown of a record."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    about: str


def summary(record: Row, choice: str) -> PeerTable:
    """Step and prediction of the largest MLP, for a first page."""
    steps, predictions = _of(record["steps"], MAIN_NET), _of(record["predictions"], MAIN_NET)
    draws = [number for number in (1, 10, 100) if number in _draws(steps)]
    rows = []
    for label in _labels(record, [*steps, *predictions]):
        cells = (_cell(_find(steps, label, number), "milliseconds") for number in draws)
        rows.append((label, *cells, _cell(_find(predictions, label), "milliseconds")))
    one = predictions[0] if predictions else {"num_images": 0, "num_samples": 0}
    headings = ("milliseconds", *(f"step, S = {number}" for number in draws))
    headings = (*headings, f"predict {one['num_images']:,} with S = {one['num_samples']}")
    return PeerTable(headings, rows, f"{MAIN_NET}, batch of {_batch(record, MAIN_NET)}.")


def steps(record: Row, choice: str) -> PeerTable:
    """A training step of a network for every number of draws, and its speed beside that of the fastest peer."""
    own = _of(record["steps"], choice)
    draws, lines = _draws(own), {row["contestant"]: row for row in _of(record["slopes"], choice)}
    compared = 10 if 10 in draws else draws[-1]
    rows = []
    for label in _labels(record, own):
        cells = (_cell(_find(own, label, number), "milliseconds") for number in draws)
        slope = f"{lines[label]['slope']:.3g}" if label in lines else "-"
        rows.append((label, *cells, slope, *_ratios(record, own, _find(own, label, compared), compared)))
    headings = ("milliseconds", *(f"S = {number}" for number in draws), "for a further draw")
    headings = (*headings, f"speed at S = {compared} over that {SAME}", EITHER)
    return PeerTable(headings, rows, _about(record, choice))


def predictions(record: Row, choice: str) -> PeerTable:
    """Predictions of every network."""
    rows = []
    for net in record["settings"]["nets"]:
        own = _of(record["predictions"], net)
        for row in own:
            what = f"{net}, {row['num_images']:,} with S = {row['num_samples']}"
            rows.append((what, row["contestant"], _cell(row, "milliseconds"), *_ratios(record, own, row)))
    headings = ("prediction", "by", "milliseconds", f"speed over that {SAME}", EITHER)
    rows_at_a_time = record["settings"]["rows_at_a_time"]
    return PeerTable(headings, rows, f"Batches of {rows_at_a_time:,} at most; dubio sizes its own.")


def memory(record: Row, choice: str) -> PeerTable:
    """Peak memory of a training step of a network for every number of draws."""
    own = _of(record["steps"], choice)
    draws = _draws(own)
    rows = [
        (label, *(_cell(_find(own, label, number), "peak_mib") for number in draws))
        for label in _labels(record, own)
        if any((_find(own, label, number) or {}).get("peak_mib") is not None for number in draws)
    ]
    return PeerTable(
        ("MiB", *(f"S = {number}" for number in draws)), rows, f"{choice}, batch of {_batch(record, choice)}."
    )


def epochs(record: Row, choice: str) -> PeerTable:
    """What a further draw adds to an epoch, beside the published slopes."""
    rows = [
        (net, f"published, {way}", f"{seconds:g}", "-") for net in PUBLISHED for way, seconds in PUBLISHED[net].items()
    ]
    for net, sizes in record["settings"]["nets"].items():
        if net in PUBLISHED:
            num_steps = math.ceil(sizes["num_data"] / sizes["batch"])
            rows += [
                (net, row["contestant"], f"{row['slope'] * num_steps / 1e3:.3g}", f"{row['r2']:.4f}")
                for row in _of(record["slopes"], net)
            ]
    rows.sort(key=lambda row: list(PUBLISHED).index(row[0]))
    headings = ("network", "by", "seconds that a further draw adds to an epoch", "R^2")
    batch = ", ".join(f"{net}: {sizes['num_data']:,} examples" for net, sizes in record["settings"]["nets"].items())
    return PeerTable(headings, rows, f"Batches of 128; the published ones were measured on an A100. {batch}.")


def contestants(record: Row, choice: str) -> PeerTable:
    """Who took part, by which path, and what each computes as its divergence."""
    seen: dict[str, Row] = {}
    for one in record["contestants"].values():
        seen.setdefault(one["name"], one)
    rows = [
        (
            name,
            f"{one['library']} {one['version'] or '(not there)'}",
            one["runs"],
            one["divergence"],
            _gradients(one.get("gradient_error")),
        )
        for name, one in seen.items()
    ]
    headings = ("name", "version", "what runs", "divergence", "gradient of two draws is the mean of theirs")
    return PeerTable(headings, rows, "All with the same fused Adam.")


PEER_TABLES: dict[str, Callable[[Row, str], PeerTable]] = {
    "peer-summary": summary,
    "peer-steps": steps,
    "peer-predictions": predictions,
    "peer-memory": memory,
    "peer-epochs": epochs,
    "peer-contestants": contestants,
}


def missing(record: Row | None, place: str, net: str) -> str:
    """What is not measured yet, in words; nothing where all is there."""
    how = f'`make bench ARGS="--output {place}"`'
    if record is None:
        return f"Not measured yet: `{place}` is missing; {how} writes it on such a machine."
    if net and net not in record["settings"]["nets"]:
        return f"Not measured yet: {net} is not in `{place}`; {how} on such a machine measures it."
    return ""


def commits_in_words(record: Row, net: str) -> str:
    """The commit at which a network was measured, or those of all where none is named."""
    nets: dict[str, list[str]] = {}
    for name, own in record["settings"]["nets"].items():
        if net in ("", name):
            nets.setdefault(short_commit(own["commit"]) if own.get("commit") else "not recorded", []).append(name)
    if len(nets) == 1:
        return f"commit {next(iter(nets))}"
    *others, last = (f"{commit} ({', '.join(own)})" for commit, own in nets.items())
    return f"commits {', '.join(others)} and {last}"


def fastest_peer(
    record: Row, rows: Iterable[Row], num_samples: int | None = None, precision: str | None = None
) -> float | None:
    """The least milliseconds among other libraries, in a precision or in any; None where none could do it."""
    who = record["contestants"]
    times = [
        row["milliseconds"]
        for row in rows
        if who[row["contestant"]]["kind"] == "peer"
        and num_samples in (None, row["num_samples"])
        and precision in (None, who[row["contestant"]]["precision"])
        and "milliseconds" in row
    ]
    return min(times, default=None)


def _ratios(record: Row, rows: Sequence[Row], row: Row | None, num_samples: int | None = None) -> tuple[str, str]:
    """How many times faster than the fastest peer in the same precision, and in any."""
    if row is None or "milliseconds" not in row:
        return "-", "-"
    precision = record["contestants"][row["contestant"]]["precision"]
    best = (fastest_peer(record, rows, num_samples, choice) for choice in (precision, None))
    same, either = ("-" if peer is None else f"{peer / row['milliseconds']:.2f}" for peer in best)
    return same, either


def _gradients(error: float | str | None) -> str:
    if error is None or isinstance(error, str):
        return error or "-"
    return "yes" if error < GRADIENT_TOLERANCE else f"no, it is off by {error:.0%}"


def _cell(row: Row | None, column: str) -> str:
    if row is None:
        return "-"
    if "error" in row:
        return str(row["error"])
    return "-" if row[column] is None else f"{row[column]:.3g}" if row[column] < 100 else f"{row[column]:,.0f}"


def _of(rows: Iterable[Row], net: str) -> list[Row]:
    return [row for row in rows if row["net"] == net]


def _find(rows: Iterable[Row], label: str, num_samples: int | None = None) -> Row | None:
    own = (row for row in rows if row["contestant"] == label and num_samples in (None, row.get("num_samples")))
    return next(own, None)


def _labels(record: Row, rows: Sequence[Row]) -> list[str]:
    return [label for label in record["contestants"] if any(row["contestant"] == label for row in rows)]


def _draws(rows: Sequence[Row]) -> list[int]:
    return sorted({row["num_samples"] for row in rows})


def _batch(record: Row, net: str) -> int:
    return int(record["settings"]["nets"][net]["batch"])


def _about(record: Row, net: str) -> str:
    settings = record["settings"]
    about = f"{net}, batch of {_batch(record, net)}, {settings['warm_ups']} warm-ups, medians of runs that take turns."
    load = settings["nets"][net].get("load_after")
    busy = settings.get("device") == "cpu" and load is not None
    return f"{about} The load average was {settings['load_before']:.1f} before and {load:.1f} after." if busy else about
