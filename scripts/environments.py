"""Make an environment that holds a few packages of its own and borrows all else, torch above all, from this one.

What libraries declare as dependencies is not installed: ``packages`` names what is truly imported. Versions are those
of ``constraints.txt``.
"""

import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

__all__ = ["CONSTRAINTS", "ROOT", "make_environment", "reason"]

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
SECONDS = 300


def make_environment(folder: Path, packages: Sequence[str], imports: str) -> Path:
    """The interpreter of the environment, made where it is missing or was made for other versions.

    Args:
        folder: where it is or goes.
        packages: what is installed in it, without their dependencies.
        imports: modules that must be importable in it, as after ``import``.

    Raises:
        OSError, subprocess.SubprocessError: it could not be made; ``reason`` says why.
    """
    python, stamp = folder / "bin" / "python", folder / "installed"
    borrowed = sysconfig.get_path("purelib")
    contents = "\n".join([sys.version, borrowed, *packages, CONSTRAINTS.read_text(encoding="utf-8")])
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == contents:
        return python
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(folder))
    install = ("install", "--quiet", "--no-deps", "--constraint", str(CONSTRAINTS), *packages)
    _run(sys.executable, "-m", "pip", "--python", str(python), *install)
    own = next((folder / "lib").glob("python*/site-packages"))
    (own / "borrowed.pth").write_text(f"{borrowed}\n", encoding="utf-8")
    _run(str(python), "-c", f"import {imports}")
    stamp.write_text(contents, encoding="utf-8")
    return python


def reason(error: Exception) -> str:
    """Why an environment could not be made, in one line: the first that is called an error, else the last."""
    lines = str(getattr(error, "stdout", None) or error).strip().splitlines() or [type(error).__name__]
    return next((line for line in lines if line.startswith("ERROR")), lines[-1])


def _run(*command: str) -> None:
    subprocess.run(
        command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
