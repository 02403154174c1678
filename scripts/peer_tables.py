"""Tables of dubio beside other libraries, from the records that ``benchmarks/run.py peers`` writes.

Every function takes a stored record and gives headings, rows and a sentence about them; ``figures.py`` sets them. What
failed stands in the table with its error, and what a record does not hold is told. A speed is the time of the fastest
peer over that of a row, by medians; beside it stands the same by the fastest run of each, which a busy machine moves
less.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from peer_rows import Row, draws_of, find, number, of, ratio

__all__ = ["DEFAULT", "MAIN_NET", "PEER_TABLES", "SHOWN", "PeerTable", "fastest_peer"]

MAIN_NET = "784-1200-1200-10"
GRADIENT_TOLERANCE = 1e-3
SAME, FASTEST, EITHER = "of the fastest peer in the same precision", "by the fastest runs", "in any precision"
DEFAULT = "dubio local, fp32"
"""What ``fit`` gives to a converted network unless it is told otherwise."""
PUBLISHED = {
    "1-400-400-1": {"one after another": 0.070, "vmap": 0.010, "vmap, local": 0.007},
    "784-800-800-10": {"one after another": 8.8, "vmap": 4.1, "vmap, local": 0.8},
}
"""Seconds that a further draw adds to an epoch on an A100, from the project report that this work starts from."""
SHOWN = {"peer-summary": (MAIN_NET,), "peer-line": (MAIN_NET,), "peer-epochs": tuple(PUBLISHED)}
"""The networks that a table is of, where neither its reader names one nor it is of all."""


@dataclass(frozen=True)
class PeerTable:
    """What is shown of a record."""

    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    about: str


def summary(record: Row, choice: str) -> PeerTable:
    """Step and prediction of the largest MLP, for a first page: those fastest in some column, and dubio."""
    steps, predictions = of(record["steps"], MAIN_NET), of(record["predictions"], MAIN_NET)
    draws = [number for number in (1, 10, 100) if number in draws_of(steps)]
    columns = [*((steps, count) for count in draws), (predictions, None)]
    best = [fastest_peer(record, rows, count) for rows, count in columns]
    fastest = {row["contestant"] for row in best if row is not None}
    shown = [
        label
        for label in _labels(record, [*steps, *predictions])
        if label in fastest or record["contestants"][label]["kind"] == "dubio" or label.startswith("vmap")
    ]
    rows = [(label, *(_cell(find(own, label, count), "milliseconds") for own, count in columns)) for label in shown]
    one = predictions[0] if predictions else {"num_images": 0, "num_samples": 0}
    headings = ("milliseconds", *(f"step, S = {count}" for count in draws))
    headings = (*headings, f"predict {one['num_images']:,} with S = {one['num_samples']}")
    about = (
        f"{MAIN_NET}, batch of {_batch(record, MAIN_NET)}; of other libraries those that are fastest in some column."
    )
    return PeerTable(headings, rows, about)


def steps(record: Row, choice: str) -> PeerTable:
    """A training step of a network for every number of draws, and its speed beside that of the fastest peer."""
    own = of(record["steps"], choice)
    draws, lines = draws_of(own), {row["contestant"]: row for row in of(record["slopes"], choice)}
    compared = _compared(draws)
    rows = []
    for label in _labels(record, own):
        cells = (_cell(find(own, label, count), "milliseconds") for count in draws)
        slope = f"{lines[label]['slope']:.3g}" if label in lines else "-"
        at_one = () if compared == 1 else _ratios(record, own, find(own, label, 1), 1)[:1]
        row = find(own, label, compared)
        rows.append((label, *cells, slope, _seconds_to_build(row), *at_one, *_ratios(record, own, row, compared)))
    headings = ("milliseconds", *(f"S = {count}" for count in draws), "for a further draw", "seconds to build")
    headings = (*headings, *([] if compared == 1 else [f"speed at S = 1 over that {SAME}"]))
    headings = (*headings, f"speed at S = {compared} over that {SAME}", FASTEST, EITHER)
    return PeerTable(headings, rows, f"{_about(record, choice)} {_default_in_words(record, own)}")


def predictions(record: Row, choice: str) -> PeerTable:
    """Predictions of every network."""
    settings = record["settings"]
    each_its_own = "rows_tried" in settings
    rows = []
    for net in settings["nets"]:
        own = of(record["predictions"], net)
        for row in own:
            what = f"{net}, {row['num_images']:,} with S = {row['num_samples']}"
            taken = [_rows_at_a_time(row)] if each_its_own else []
            cells = (_cell(row, "milliseconds"), *_ratios(record, own, row))
            rows.append((what, row["contestant"], *taken, *cells))
    headings = ("prediction", "by", *(["rows at a time"] if each_its_own else []), "milliseconds")
    headings = (*headings, f"speed over that {SAME}", FASTEST, EITHER)
    if each_its_own:
        about = f"All but dubio, which sizes its own batches, took the {settings['rows_tried']}, found in this run."
    else:
        about = f"Batches of {settings['rows_at_a_time']:,} at most; dubio sizes its own."
    return PeerTable(headings, rows, about)


def memory(record: Row, choice: str) -> PeerTable:
    """Peak memory of a training step of a network for every number of draws, and what building took beside."""
    own = of(record["steps"], choice)
    draws = draws_of(own)
    compared = _compared(draws)
    is_separate = any(row.get("peak_mib_to_build") is not None for row in own)
    rows = []
    for label in _labels(record, own):
        peaks = [find(own, label, count) for count in draws]
        if any(row is not None and row.get("peak_mib") is not None for row in peaks):
            built = [_cell(find(own, label, compared), "peak_mib_to_build")] if is_separate else []
            rows.append((label, *(_cell(row, "peak_mib") for row in peaks), *built))
    headings = ("MiB", *(f"S = {count}" for count in draws))
    headings = (*headings, *([f"to build, S = {compared}"] if is_separate else []))
    about = f"{choice}, batch of {_batch(record, choice)}.{_memory_in_words(record, own, compared)}"
    if record["settings"].get("device") == "cuda" and not is_separate:
        about += (
            " What building takes is in these peaks, and what cuBLAS keeps for a stream is in that of the first to use "
            "it: they do not rise evenly with draws."
        )
    return PeerTable(headings, rows, about)


def epochs(record: Row, choice: str) -> PeerTable:
    """What a further draw adds to an epoch, beside the published slopes."""
    rows = [
        (net, f"published, {variant}", f"{seconds:g}", "-")
        for net in PUBLISHED
        for variant, seconds in PUBLISHED[net].items()
    ]
    shown = {net: sizes for net, sizes in record["settings"]["nets"].items() if net in PUBLISHED}
    for net, sizes in shown.items():
        num_steps = math.ceil(sizes["num_data"] / sizes["batch"])
        rows += [
            (net, row["contestant"], f"{row['slope'] * num_steps / 1e3:.3g}", f"{row['r2']:.4f}")
            for row in of(record["slopes"], net)
        ]
    rows.sort(key=lambda row: list(PUBLISHED).index(row[0]))
    headings = ("network", "by", "seconds that a further draw adds to an epoch", "R^2")
    sizes = "".join(f" {net}: {own['num_data']:,} examples in batches of {own['batch']}." for net, own in shown.items())
    return PeerTable(headings, rows, f"The published ones were measured on an A100.{sizes}")


def contestants(record: Row, choice: str) -> PeerTable:
    """Who took part, by which path, and what each computes as its divergence."""
    seen: dict[str, Row] = {}
    for one in record["contestants"].values():
        seen.setdefault(one["name"], one)
    rows = [
        (
            name,
            f"{one['library']} {one['version'] or ('' if one['kind'] == 'dubio' else '(not there)')}".strip(),
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


def fastest_peer(
    record: Row,
    rows: Iterable[Row],
    num_samples: int | None = None,
    precision: str | None = None,
    column: str = "milliseconds",
) -> Row | None:
    """The one with the least in a column among other libraries, in a precision or in any; None where none did it."""
    who = record["contestants"]
    times = [
        row
        for row in rows
        if who[row["contestant"]]["kind"] == "peer"
        and num_samples in (None, row["num_samples"])
        and precision in (None, who[row["contestant"]]["precision"])
        and row.get(column) is not None
    ]
    return min(times, key=lambda row: float(row[column]), default=None)


def _compared(draws: Sequence[int]) -> int:
    """The number of draws at which speeds and memory are compared."""
    return 10 if 10 in draws else draws[-1]


def _ratios(record: Row, rows: Sequence[Row], row: Row | None, num_samples: int | None = None) -> tuple[str, str, str]:
    """How many times faster than the fastest peer in the same precision, the same by fastest runs, and in any."""
    if row is None or "milliseconds" not in row:
        return "-", "-", "-"
    precision = record["contestants"][row["contestant"]]["precision"]

    def over(column: str, choice: str | None) -> str:
        peer = fastest_peer(record, rows, num_samples, choice, column)
        return "-" if peer is None or column not in row else ratio(peer[column] / row[column])

    return over("milliseconds", precision), over("fastest", precision), over("milliseconds", None)


def _seconds_to_build(row: Row | None) -> str:
    """Of steps that are compiled or captured."""
    if row is None or row.get("how", "eager").startswith("eager") or row.get("seconds_to_build") is None:
        return "-"
    return f"{row['seconds_to_build']:.2g}"


def _default_in_words(record: Row, rows: Sequence[Row]) -> str:
    """Which row ``fit`` gives without being asked."""
    measured = any(row["contestant"] == DEFAULT for row in rows)
    which = f"is `{DEFAULT}`" if measured else "would be in fp32, which is not measured here"
    return f"What `fit` gives by default {which}."


def _memory_in_words(record: Row, rows: Sequence[Row], num_samples: int) -> str:
    """How many times the memory of the thriftiest peer in the same precision dubio takes."""
    ratios = []
    for row in rows:
        who = record["contestants"][row["contestant"]]
        peer = fastest_peer(record, rows, num_samples, who["precision"], "peak_mib")
        if who["kind"] == "dubio" and row["num_samples"] == num_samples and row.get("peak_mib") and peer is not None:
            ratios.append((f"`{row['contestant']}`", f"{ratio(row['peak_mib'] / peer['peak_mib'])} times"))
    if not ratios:
        return ""
    (first, times), *others = ratios
    rest = "".join(f", {one} {its}" for one, its in others)
    thriftiest = "the memory that the thriftiest peer takes in the same precision"
    return f" With S = {num_samples} {first} takes {times} {thriftiest}{rest}."


def _rows_at_a_time(row: Row) -> str:
    return f"{row['rows_at_a_time']:,}" if row.get("rows_at_a_time") else "-"


def _gradients(error: float | str | None) -> str:
    if error is None or isinstance(error, str):
        return error or "-"
    return "yes" if error < GRADIENT_TOLERANCE else f"no, it is off by {error:.0%}"


def _cell(row: Row | None, column: str) -> str:
    if row is None:
        return "-"
    if "error" in row:
        return str(row["error"])
    return "-" if row.get(column) is None else number(row[column])


def _labels(record: Row, rows: Sequence[Row]) -> list[str]:
    return [label for label in record["contestants"] if any(row["contestant"] == label for row in rows)]


def _batch(record: Row, net: str) -> int:
    return int(record["settings"]["nets"][net]["batch"])


def _about(record: Row, net: str) -> str:
    warm_ups = record["settings"]["warm_ups"]
    return f"{net}, batch of {_batch(record, net)}, {warm_ups} warm-ups, medians of runs that take turns."
