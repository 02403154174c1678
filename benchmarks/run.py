"""Measure dubio on this machine.

``python benchmarks/run.py [PART ...] [--output FILE]`` prints tables and, with ``--output``, writes
the records as JSON. The part ``peers`` compares with other libraries: where they are not on the path, it runs in an
environment of their own (``scripts/peers.py`` makes it).
"""

import argparse
import json
import platform
import subprocess
from pathlib import Path

import attacking
import audits
import engine
import families
import fitting
import glow
import loading
import noise
import torch

import dubio
import methods

PARTS = {
    "engine": engine.measure,
    "loading": loading.measure,
    "attacking": attacking.measure,
    "glow": glow.measure,
    "methods": methods.measure,
    "noise": noise.measure,
    "families": families.measure,
    "fitting": fitting.measure,
    "audits": audits.measure,
    "audits_mnist": audits.measure_mnist,
    "autoattack": audits.measure_autoattack,
}
ALONE = [part for part in PARTS if part not in ("fitting", "audits_mnist", "autoattack")]
"""Those that need nothing beside what is installed: no data, no GPU, no other library."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)}; all but the last two by default"
    )
    parser.add_argument("--output", type=Path, help="write the records here as JSON")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"PART must be one of {', '.join(PARTS)}, got {unknown[0]}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    hardware = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"dubio {dubio.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {hardware}")
    commit = current_commit()  # before the records are made, not after
    records = {part: PARTS[part](device) for part in options.parts or ALONE}
    if options.output:
        versions = {"dubio": dubio.__version__, "torch": torch.__version__, "python": platform.python_version()}
        record = {"commit": commit, "hardware": hardware, "versions": versions, "records": records}
        options.output.write_text(json.dumps(record, indent=1) + "\n")


def current_commit() -> str | None:
    """The commit that is measured, marked where files differ from it; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


if __name__ == "__main__":
    main()
