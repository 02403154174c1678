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
import cpu_kernels
import families
import fitting
import glow
import kernels
import loading
import noise
import overhead
import peers
import recipes
import torch

import dubio
import engine
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
    "cpu_kernels": cpu_kernels.measure,
    "audits": audits.measure,
    "audits_mnist": audits.measure_mnist,
    "autoattack": audits.measure_autoattack,
    "overhead": overhead.measure,
    "recipes": recipes.measure,
    "peers": peers.measure,
}
NEED_GPU = ("fitting", "kernels")
ALONE = [part for part in PARTS if part not in (*NEED_GPU, "audits_mnist", "autoattack", "recipes", "peers")]
"""Those that need nothing beside what is installed: no data, no GPU, no other library."""
OTHERS = ("bayesian_torch", "torch_uncertainty", "torchbayesian", "blitz")
INSIDE = "DUBIO_INSIDE_PEERS"
TAKEN_BY = {"--nets": ("peers", "kernels"), "--draws": ("peers",), "--tiny": ("peers",), "--add": ("peers",)}
"""Options that only some parts take."""


def main() -> int:
    options = _parsed()
    absent = [other for other in OTHERS if not find_spec(other)]
    if "peers" in options.parts and absent and not os.environ.get(INSIDE):
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
    searched = partial(recipes.measure, kept=options.output and options.output.with_suffix(".jsonl"))
    parts = PARTS | {"peers": beside, "recipes": searched, "kernels": partial(kernels.measure, nets=options.nets)}
    write({part: parts[part](device) for part in options.parts or ALONE})
    if "peers" in options.parts and absent:
        print(f"measured without {', '.join(absent)}: not installed, and not on PYTHONPATH")
    return 0


def earlier_record(path: Path | None, about: dict[str, Any]) -> dict[str, Any] | None:
    """What peers measured before, to be added to; refused where it was of another machine or other versions.

    It may be of another commit: every network says its own.
    """
    stored = None if path is None else stored_record(path)
    if stored is None:
        return None
    for key in ("hardware", "versions"):
        if stored[key] != about[key]:
            raise SystemExit(
                f"--add needs a record of the same {key}: {path} has {stored[key]!r}, this is {about[key]!r}"
            )
    record: dict[str, Any] = stored["records"]["peers"]
    for own in record["settings"]["nets"].values():
        own.setdefault("commit", stored["commit"])
    return record


def stored_record(path: Path) -> dict[str, Any] | None:
    """What a run of peers has written; None where nothing is there, refused where it is something else."""
    if not path.is_file():
        return None
    try:
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        stored["hardware"], stored["versions"], stored["commit"], stored["records"]["peers"]["settings"]["nets"]
    except (ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"--add needs a record that a run of peers has written, {path} is none: {error!r}") from error
    return stored


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
    _check(parser, options)
    return options


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Refuse what cannot be done, before anything is measured."""
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"PART must be one of {', '.join(PARTS)}, got {unknown[0]}")
    known = peers.TINY if options.tiny else peers.NETS
    strange = [net for net in options.nets if net not in known]
    if strange:
        parser.error(f"--nets must be among {', '.join(known)}, got {strange[0]}")
    chosen = options.parts or ALONE
    for part in NEED_GPU:
        if part in chosen and not torch.cuda.is_available():
            parser.error(f"{part} needs a GPU, and there is none; nothing was measured")
    for option, takers in TAKEN_BY.items():
        if getattr(options, option.removeprefix("--")) and not set(takers) & set(chosen):
            parser.error(f"{option} is for {' and '.join(takers)}, got the parts {', '.join(chosen)}")
    if options.add and options.output is None:
        parser.error("--add needs --output: the record that is added to")
    if options.output is not None:
        _check_output(parser, options.output)
    if options.add:
        stored_record(options.output)


def _check_output(parser: argparse.ArgumentParser, output: Path) -> None:
    folder = output.resolve().parent
    if output.is_dir():
        parser.error(f"--output must be a file, got the folder {output}")
    if not folder.is_dir():
        parser.error(f"--output must be in a folder that exists, got {output}")
    if not os.access(output if output.exists() else folder, os.W_OK):
        parser.error(f"--output must be a file that can be written, got {output}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _numbers(text: str) -> tuple[int, ...]:
    numbers = text.split(",")
    if not all(number.strip().isdecimal() and int(number) >= 1 for number in numbers):
        raise argparse.ArgumentTypeError(f"must be whole numbers from 1 on, with commas between, got {text!r}")
    return tuple(int(number) for number in numbers)


if __name__ == "__main__":
    sys.exit(main())
