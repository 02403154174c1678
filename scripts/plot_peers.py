"""Draw the time of a training step over the number of draws, one panel for each network, from a record of peers.

    python scripts/plot_peers.py RECORD PICTURE [PRECISION]

``RECORD`` is what ``benchmarks/run.py peers --output RECORD`` wrote, ``PICTURE`` ends with ``.svg`` or ``.png``. Lines
are drawn for one precision: by default that in which most took part. Both axes are logarithmic. A picture keeps a
digest of what it was drawn from, by which ``scripts/figures.py`` sees whether it is that of a record.
"""

import hashlib
import json
import struct
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer_words import commits_in_words

from dubio_lab.markdown import commit_in_words

__all__ = ["curves", "draw_of", "is_drawn_from", "main"]

KEY = "Source"
SUFFIXES = (".png", ".svg")
OURS = {"dubio local": "#d62728", "dubio weight": "#1f4e9c"}
OTHERS = ("#7f7f7f", "#b07c4f", "#5f9e6e", "#8d6fb0", "#4aa3b5", "#c98bb1", "#a3a33c")
MARKERS = "osD^vP*Xhp"
STYLES = {"dubio": "-", "peer": "--", "reference": ":"}


def main(arguments: Sequence[str]) -> int:
    """Draw the picture and return the exit status."""
    try:
        _draw(arguments)
    except ValueError as error:
        print(f"plot_peers: {error}", file=sys.stderr)
        return 2
    return 0


def _draw(arguments: Sequence[str]) -> None:
    if len(arguments) not in (2, 3):
        raise ValueError(f"RECORD PICTURE [PRECISION] must be given, got {' '.join(arguments) or 'nothing'}")
    path, picture = Path(arguments[0]), Path(arguments[1])
    if picture.suffix not in SUFFIXES or not picture.resolve().parent.is_dir():
        raise ValueError(f"PICTURE must end with {' or '.join(SUFFIXES)}, in a folder that exists, got {picture}")
    draw_of(path, picture, *arguments[2:])


def draw_of(path: Path, picture: Path, precision: str | None = None) -> None:
    """Draw the picture of a stored record."""
    stored = _stored(path)
    draw(stored, precision or usual_precision(stored["records"]["peers"]), picture)


def is_drawn_from(picture: Path, path: Path) -> bool:
    """Whether a PNG shows a stored record in its usual precision, by the digest that it keeps."""
    stored = _stored(path)
    return digest_kept_in(picture) == digest(stored, usual_precision(stored["records"]["peers"]))


def _stored(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise ValueError(f"RECORD {path} is missing; benchmarks/run.py peers --output {path} writes it")
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not stored["records"]["peers"]["steps"]:
            raise KeyError("steps")
    except (ValueError, KeyError, TypeError) as error:
        message = f"RECORD must be what benchmarks/run.py peers has written, {path} is none: {error!r}"
        raise ValueError(message) from error
    return stored


def usual_precision(record: dict[str, Any]) -> str:
    """The precision that most steps were measured in."""
    counts = Counter(record["contestants"][row["contestant"]]["precision"] for row in record["steps"])
    return str(counts.most_common(1)[0][0])


def curves(record: dict[str, Any], net: str, precision: str) -> dict[str, tuple[list[int], list[float]]]:
    """Numbers of draws and milliseconds of everyone with at least two points, by name."""
    series: dict[str, tuple[list[int], list[float]]] = {}
    for row in sorted(record["steps"], key=lambda row: int(row["num_samples"])):
        who = record["contestants"][row["contestant"]]
        if row["net"] == net and who["precision"] == precision and "milliseconds" in row:
            numbers, times = series.setdefault(who["name"], ([], []))
            numbers.append(row["num_samples"])
            times.append(row["milliseconds"])
    return {name: points for name, points in series.items() if len(points[0]) > 1}


def title_of(stored: dict[str, Any], precision: str) -> str:
    """Where and by what it was measured."""
    record = stored["records"]["peers"]
    nets = [net for net in record["settings"]["nets"] if curves(record, net, precision)]
    commits = {record["settings"]["nets"][net].get("commit") for net in nets}
    commit = commit_in_words(commits.pop()) if len(commits) == 1 else commits_in_words(record, nets)
    return f"{stored['hardware']}, {precision}, torch {stored['versions']['torch']}\n{commit}"


def digest(stored: dict[str, Any], precision: str) -> str:
    """Of all that a picture is drawn from: its title, and every line of it."""
    record = stored["records"]["peers"]
    lines = {net: curves(record, net, precision) for net in record["settings"]["nets"]}
    drawn = json.dumps([title_of(stored, precision), lines])
    return hashlib.sha256(drawn.encode()).hexdigest()


def digest_kept_in(picture: Path) -> str | None:
    """The digest that a PNG keeps of what it was drawn from; None where it keeps none."""
    data = picture.read_bytes()
    place = 8  # after the signature
    while place + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[place : place + 8])
        key, _, text = data[place + 8 : place + 8 + length].partition(b"\0")
        if kind == b"tEXt" and key.decode("latin-1") == KEY:
            return text.decode("latin-1")
        place += 12 + length
    return None


def draw(stored: dict[str, Any], precision: str, path: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "peers"  # the same record gives the same file
    from matplotlib import pyplot

    record = stored["records"]["peers"]
    panels = {net: lines for net in record["settings"]["nets"] if (lines := curves(record, net, precision))}
    if not panels:
        precisions = sorted({one["precision"] for one in record["contestants"].values()})
        raise ValueError(f"PRECISION must be one of {', '.join(precisions)} with two numbers of draws, got {precision}")
    kinds = {one["name"]: one["kind"] for one in record["contestants"].values()}
    styles = _line_styles(kinds)
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(8.8, 3.3 * rows + 1.2), squeeze=False, sharey=True, layout="constrained"
    )
    for axis, (net, lines) in zip(axes.flat, panels.items(), strict=False):
        for name, (numbers, times) in lines.items():
            axis.loglog(numbers, times, label=name, **styles[name])
        axis.set(title=net, xlabel="draws S", xticks=record["settings"]["nets"][net]["draws"])
        axis.minorticks_off()
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis in axes[:, 0]:
        axis.set_ylabel("milliseconds for a step")
    legend = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()}
    figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(title_of(stored, precision), fontsize=11)
    figure.savefig(path, dpi=200, metadata={KEY: digest(stored, precision)} | _without_date(path))
    pyplot.close(figure)


def _line_styles(kinds: dict[str, str]) -> dict[str, dict[str, Any]]:
    """A colour, a marker and a line for every name, strong for dubio."""
    others = [name for name in kinds if name not in OURS]
    colours = {**{name: OTHERS[number % len(OTHERS)] for number, name in enumerate(others)}, **OURS}
    return {
        name: {
            "color": colours[name],
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 6 if kind == "dubio" else 5,
            "linestyle": STYLES[kind],
            "linewidth": 2.8 if kind == "dubio" else 1.3,
            "zorder": 3 if kind == "dubio" else 2,
        }
        for number, (name, kind) in enumerate(kinds.items())
    }


def _without_date(path: Path) -> dict[str, None]:
    """The same record gives the same file: an SVG would keep the day."""
    return {"Date": None} if path.suffix == ".svg" else {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
