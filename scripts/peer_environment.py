"""Run ``benchmarks/run.py`` beside the libraries that it compares with, or fetch them for a machine without a network.

    python scripts/peer_environment.py peers --output FILE     make .venv-peers and measure in it
    python scripts/peer_environment.py --unpack FOLDER         put their wheels, unpacked, into a folder for PYTHONPATH

``.venv-peers`` borrows torch from the environment that runs this script, and sees what is on ``PYTHONPATH``. Where it
cannot be made, dubio is measured beside what is there, and the record says of every other library that it was not.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from environments import CONSTRAINTS, ROOT, make_environment, reason

ENVIRONMENT = ROOT / ".venv-peers"
PACKAGES = ("bayesian-torch", "torch-uncertainty", "torchbayesian", "blitz-bayesian-pytorch")
IMPORTS = "torch, bayesian_torch.models.dnn_to_bnn, torchbayesian.bnn, blitz.modules, blitz.utils"
INSIDE = "DUBIO_INSIDE_PEERS"
ELSEWHERE = (
    "where no index of packages can be reached, fetch them elsewhere by `scripts/peer_environment.py --unpack FOLDER` "
    "and put the folder on PYTHONPATH; libraries that are not there now are left out, and the record says so"
)


def main(arguments: Sequence[str]) -> int:
    """Measure, or unpack, and return the exit status."""
    if "--unpack" in arguments:
        if len(arguments) != 2 or arguments[0] != "--unpack":
            print(f"peers: --unpack must be followed by one folder and nothing else, got {' '.join(arguments)}")
            return 2
        return unpack(Path(arguments[1]))
    try:
        python = str(make_environment(ENVIRONMENT, PACKAGES, IMPORTS))
    except (OSError, subprocess.SubprocessError) as error:
        print(f"peers: the others' environment could not be made: {reason(error)}")
        print(f"peers: {ELSEWHERE}")
        python = sys.executable
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = os.environ | {INSIDE: "1", "PYTHONPATH": path}
    return subprocess.run([python, str(ROOT / "benchmarks" / "run.py"), *arguments], env=settings).returncode


def unpack(folder: Path) -> int:
    """Download the wheels and unpack those of pure Python into the folder; 1 where one is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as wheels:
        download = ("download", "--quiet", "--no-deps", "--constraint", str(CONSTRAINTS), "--dest", wheels, *PACKAGES)
        fetched = subprocess.run([sys.executable, "-m", "pip", *download])
        files = sorted(Path(wheels).glob("*-none-any.whl"))
        for wheel in files:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            print(f"peers: unpacked {wheel.name}")
    print(f"peers: {len(files)} of {len(PACKAGES)} libraries are in {folder}; put it on PYTHONPATH")
    return 1 if fetched.returncode or len(files) < len(PACKAGES) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
