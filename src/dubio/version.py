"""Which dubio this is, and what it runs on: what records say of where they come from."""

import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the root of the package reads VERSION, and must not import torch
    import torch

__all__ = ["VERSION", "commit_here", "hardware_of", "versions"]

VERSION = "0.1.0"


def versions() -> dict[str, str]:
    """The versions that a number depends on."""
    import torch

    return {"dubio": VERSION, "torch": str(torch.__version__), "python": platform.python_version()}


def hardware_of(device: "torch.device") -> str:
    """What computes, in words."""
    import torch

    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {torch.get_num_threads()} threads"


def commit_here(file: str | Path = __file__) -> str | None:
    """The commit of the checkout that a file belongs to, marked where files differ from it; None where it is in none.

    A repository that does not track the file says nothing about it: an environment often lies inside the repository of
    another project.
    """
    path = Path(file).resolve()
    tracked = ["git", "ls-files", "--error-unmatch", path.name]
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        subprocess.run(tracked, cwd=path.parent, check=True, capture_output=True)
        described = subprocess.run(command, cwd=path.parent, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return described.stdout.strip()
