"""Measure dubio on this machine.

``python benchmarks/run.py [PART ...] [--output FILE]`` prints tables and, with ``--output``, writes
the records as JSON. The part ``peers`` compares with other libraries: where they are not on the path, it runs in an
environment of their own (``scripts/peer_environment.py`` makes it).
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attacking
import audits
import engine
import families
import fitting
import glow
import kernels
import loading
import noise
import peers
import torch

import dubio
import methods
from dubio.version import commit_here, hardware_of, versions

PARTS: dict[str, Callable[[torch.device], Any]] = {
    "engine": engine.measure,
    "loading": loading.measure,
    "attacking": attacking.measure,
    "glow": glow.measure,
    "methods": methods.measure,
    "noise": noise.measure,
    "families": families.measure,
    "fitting": fitting.measure,
    "kernels": kernels.measure,
    "audits": audits.measure,
    "audits_mnist": audits.measure_mnist,
    "autoattack": audits.measure_autoattack,
    "peers": peers.measure,
}
ALONE = [part for part in PARTS if part not in ("fitting", "kernels", "audits_mnist", "autoattack", "peers")]
"""Those that need nothing beside what is installed: no data, no GPU, no other library."""
OTHERS = ("bayesian_torch", "torch_uncertainty", "torchbayesian", "blitz")
INSIDE = "DUBIO_INSIDE_PEERS"


def main() -> int:
    options = _parsed()
    if "peers" in options.parts and not os.environ.get(INSIDE) and not all(find_spec(other) for other in OTHERS):
        script = Path(__file__).resolve().parent.parent / "scripts" / "peer_environment.py"
        return subprocess.run([sys.executable, str(script), *sys.argv[1:]]).returncode
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    hardware = hardware_of(device)
    print(f"dubio {dubio.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {hardware}")
    about = {"commit": commit_here(), "hardware": hardware, "versions": versions()}  # before records are made

    def write(records: dict[str, Any]) -> None:
        if options.output:
            options.output.write_text(json.dumps({**about, "records": records}, indent=1) + "\n")

    beside = partial(
        peers.measure,
        commit=about["commit"],
        nets=options.nets,
        draws=options.draws,
        tiny=options.tiny,
        earlier=earlier_record(options.output, about) if options.add else None,
        keep=lambda record: write({"peers": record}),
    )
    parts = PARTS | {"peers": beside, "kernels": partial(kernels.measure, nets=options.nets)}
    write({part: parts[part](device) for part in options.parts or ALONE})
    return 0


def earlier_record(path: Path | None, about: dict[str, Any]) -> dict[str, Any] | None:
    """What peers measured before, to be added to; refused where it was of another machine or other versions.

    It may be of another commit: every network says its own.
    """
    if path is None or not path.is_file():
        return None
    stored = json.loads(path.read_text(encoding="utf-8"))
    for key in ("hardware", "versions"):
        if stored[key] != about[key]:
            raise SystemExit(
                f"--add needs a record of the same {key}: {path} has {stored[key]!r}, this is {about[key]!r}"
            )
    record: dict[str, Any] = stored["records"]["peers"]
    for own in record["settings"]["nets"].values():
        own.setdefault("commit", stored["commit"])
    return record


def _parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; by default {', '.join(ALONE)}"
    )
    parser.add_argument("--output", type=Path, help="write the records here as JSON")
    parser.add_argument("--nets", type=_names, default=(), help="of peers and kernels: networks, with commas between")
    parser.add_argument("--draws", type=_numbers, default=(), help="of peers: numbers of draws, with commas between")
    parser.add_argument("--tiny", action="store_true", help="of peers: small networks, only to see that all run")
    parser.add_argument("--add", action="store_true", help="of peers: keep other networks that the output has already")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"PART must be one of {', '.join(PARTS)}, got {unknown[0]}")
    known = peers.TINY if options.tiny else peers.NETS
    strange = [net for net in options.nets if net not in known]
    if strange:
        parser.error(f"--nets must be among {', '.join(known)}, got {strange[0]}")
    return options


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
