"""Draw the time of a training step over the number of draws, one panel for each network, from a record of peers.

    python scripts/plot_peers.py RECORD PICTURE [PRECISION]

``RECORD`` is what ``benchmarks/run.py peers --output RECORD`` wrote, ``PICTURE`` ends with ``.svg`` or ``.png``. Lines
are drawn for one precision: by default that in which most took part. Both axes are logarithmic.
"""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["curves", "draw", "main"]

STYLES = {"dubio": "-", "peer": "--", "reference": ":"}


def main(arguments: Sequence[str]) -> int:
    """Draw the picture and return the exit status."""
    if len(arguments) not in (2, 3):
        print(f"plot_peers: RECORD PICTURE [PRECISION] must be given, got {' '.join(arguments) or 'nothing'}")
        return 2
    path = Path(arguments[0])
    if not path.is_file():
        print(f"plot_peers: {path} is missing; benchmarks/run.py peers --output {path} writes it")
        return 2
    stored = json.loads(path.read_text(encoding="utf-8"))
    record = stored["records"]["peers"]
    precision = arguments[2] if len(arguments) == 3 else usual_precision(record)
    draw(record, precision, f"{stored['hardware']}, {precision}", Path(arguments[1]))
    return 0


def usual_precision(record: dict[str, Any]) -> str:
    """The precision that most steps were measured in."""
    counts = Counter(record["contestants"][row["contestant"]]["precision"] for row in record["steps"])
    return str(counts.most_common(1)[0][0])


def curves(record: dict[str, Any], net: str, precision: str) -> dict[str, tuple[list[int], list[float]]]:
    """Numbers of draws and milliseconds of everyone with at least two points, by name."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for row in sorted(record["steps"], key=lambda row: int(row["num_samples"])):
        who = record["contestants"][row["contestant"]]
        if row["net"] == net and who["precision"] == precision and "milliseconds" in row:
            numbers, times = found.setdefault(who["name"], ([], []))
            numbers.append(row["num_samples"])
            times.append(row["milliseconds"])
    return {name: points for name, points in found.items() if len(points[0]) > 1}


def draw(record: dict[str, Any], precision: str, title: str, path: Path) -> None:
    """Write the picture."""
    import matplotlib

    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "peers"  # the same record gives the same file
    from matplotlib import pyplot

    nets = [net for net in record["settings"]["nets"] if curves(record, net, precision)]
    names = list(dict.fromkeys(one["name"] for one in record["contestants"].values()))
    kinds = {one["name"]: one["kind"] for one in record["contestants"].values()}
    figure, axes = pyplot.subplots(
        1, len(nets), figsize=(4.2 * len(nets) + 2.2, 4.2), squeeze=False, layout="constrained"
    )
    for axis, net in zip(axes[0], nets, strict=True):
        for name, (numbers, times) in curves(record, net, precision).items():
            style = {"color": f"C{names.index(name) % 10}", "linestyle": STYLES[kinds[name]], "marker": "."}
            axis.loglog(numbers, times, label=name, linewidth=2.5 if kinds[name] == "dubio" else 1.2, **style)
        axis.set(title=net, xlabel="draws S", ylabel="milliseconds for a training step")
        axis.set_xticks(record["settings"]["nets"][net]["draws"])
        axis.minorticks_off()
        for side in (axis.xaxis, axis.yaxis):
            side.set_major_formatter("{x:g}")
        axis.grid(alpha=0.3)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", frameon=False)
    figure.suptitle(title)
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
