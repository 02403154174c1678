"""Sentences about dubio beside other libraries, with figures of the records that ``benchmarks/run.py peers`` writes."""

from collections.abc import Callable, Collection, Sequence

from peer_rows import Row, find, number, of, ratio
from peer_tables import DEFAULT, MAIN_NET, fastest_peer

from dubio_lab.markdown import short_commit

__all__ = ["PEER_SENTENCES", "commits_in_words", "machine_in_words", "missing"]


def one_draw(record: Row) -> str:
    """The fastest step of dubio with one draw beside the fastest peer, for every network."""
    parts, num_slower = [], 0
    for net in record["settings"]["nets"]:
        own = [row for row in of(record["steps"], net) if row["num_samples"] == 1 and "milliseconds" in row]
        peer, ours = fastest_peer(record, own), _fastest_of_ours(record, own)
        if peer is not None and ours is not None:
            num_slower += ours["milliseconds"] > peer["milliseconds"]
            parts.append(f"{net} takes {_time(ours)}, that of the fastest peer {_time(peer)}")
    if not parts:
        return "Steps with one draw are not measured."
    slower = f"slower than the fastest peer for {num_slower} of {len(parts)} networks" if num_slower else "never slower"
    return f"With one draw (S = 1) the fastest step of dubio is {slower}: a step of {'; of '.join(parts)}."


def building(record: Row) -> str:
    """What compiling a step takes, and what it gives."""
    compiled = [row for row in record["steps"] if row.get("how") == "compiled" and "milliseconds" in row]
    gains = []
    for row in compiled:
        eager = find(of(record["steps"], row["net"]), row["contestant"].replace(", compiled", ""), row["num_samples"])
        if eager is not None and eager.get("how") == "eager":
            gains.append(eager["milliseconds"] / row["milliseconds"])
    if not gains:
        return "Compiled steps are not measured."
    first, *others = (float(row["seconds_to_build"]) for row in compiled)
    later = f", and {_span(others, lambda seconds: f'{seconds:.2g}')} s for the others" if others else ""
    empty = record["settings"].get("compiler_cache") == "empty"
    cache = "with an empty cache on disk" if empty else "some of it perhaps from the compiler's cache on disk"
    return (
        f"Compiled steps took {first:.2g} s to build for the first one in a process{later}, {cache}; they were "
        f"{_span(gains, ratio)} times as fast as eager ones."
    )


def line(record: Row) -> str:
    """A step and a prediction of the largest MLP by default, beside the fastest peer."""
    parts = []
    for what, kind, count in (("with S = 1", "steps", 1), ("with S = 10", "steps", 10), ("", "predictions", None)):
        own = of(record[kind], MAIN_NET)
        ours, peer = find(own, DEFAULT, count), fastest_peer(record, own, count, "fp32")
        if ours is not None and peer is not None and "milliseconds" in ours:
            images = f"predicting {ours.get('num_images', 0):,} images with S = {ours['num_samples']}"
            parts.append(
                f"{f'a step {what}' if what else images} takes {_time(ours)}, by the fastest peer {_time(peer)}"
            )
    return f"{MAIN_NET}: {'; '.join(parts)}." if parts else f"{MAIN_NET} is not measured."


def mapped(record: Row) -> str:
    """Predictions by weights that are mapped by hand beside those of dubio in the same precision."""
    parts, num_faster, precision = [], 0, ""
    for net in record["settings"]["nets"]:
        own = of(record["predictions"], net)
        by_hand = next((row for row in own if row["contestant"].startswith("vmap") and "milliseconds" in row), None)
        if by_hand is not None:
            precision = record["contestants"][by_hand["contestant"]]["precision"]
            ours = find(own, f"dubio local, {precision}")
            if ours is not None and "milliseconds" in ours:
                num_faster += by_hand["milliseconds"] < ours["milliseconds"]
                times = (f"{number(row['milliseconds'])} ms" for row in (by_hand, ours))
                parts.append(f"{net} {' against '.join(times)}")
    if not parts:
        return "Weights mapped by hand are not measured."
    return (
        f"In {precision} a few lines with `vmap` predict faster than dubio for {num_faster} of {len(parts)} networks: "
        f"{', '.join(parts)}."
    )


PEER_SENTENCES: dict[str, Callable[[Row], str]] = {
    "peer-one-draw": one_draw,
    "peer-building": building,
    "peer-mapped": mapped,
    "peer-line": line,
}


def missing(record: Row | None, place: str, net: str) -> str:
    """What is not measured yet, in words; nothing where all is there."""
    how = f'`make bench ARGS="--output {place}"`'
    if record is None:
        return f"Not measured yet: `{place}` is missing; {how} writes it on such a machine."
    if net and net not in record["settings"]["nets"]:
        return f"Not measured yet: {net} is not in `{place}`; {how} on such a machine measures it."
    return ""


def commits_in_words(record: Row, shown: Collection[str]) -> str:
    """The commit at which some networks were measured, or all where none is named; several with their networks."""
    nets: dict[str, list[str]] = {}
    for name, own in record["settings"]["nets"].items():
        if not shown or name in shown:
            nets.setdefault(short_commit(own["commit"]) if own.get("commit") else "not recorded", []).append(name)
    if len(nets) == 1:
        return f"commit {next(iter(nets))}"
    *others, last = (f"{commit} ({', '.join(own)})" for commit, own in nets.items())
    return f"commits {', '.join(others)} and {last}"


def machine_in_words(hardware: str, record: Row, shown: Collection[str]) -> str:
    """What computed, its processor and threads, and how busy it was before and after some networks, or all of them."""
    settings = record["settings"]
    parts = []
    if settings.get("processor"):
        parts.append(f"{settings['processor']}, {settings['threads']} threads")
    nets = [own for name, own in settings["nets"].items() if (not shown or name in shown) and "load_after" in own]
    if nets:
        before = [own.get("load_before", settings.get("load_before")) for own in nets]
        spans = (_span(loads, lambda load: f"{load:.1f}") for loads in (before, [own["load_after"] for own in nets]))
        parts.append("load average {} before and {} after".format(*spans))
    machine = "CPU" if settings.get("device") == "cpu" and settings.get("processor") else hardware
    return f"{machine} ({', '.join(parts)})" if parts else machine


def _fastest_of_ours(record: Row, rows: Sequence[Row]) -> Row | None:
    own = [row for row in rows if record["contestants"][row["contestant"]]["kind"] == "dubio"]
    return min(own, key=lambda row: float(row["milliseconds"]), default=None)


def _time(row: Row) -> str:
    return f"{number(row['milliseconds'])} ms ({row['contestant']})"


def _span(values: Sequence[float], in_words: Callable[[float], str]) -> str:
    least, most = in_words(min(values)), in_words(max(values))
    return least if least == most else f"{least} to {most}"
