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


def commit_here() -> str | None:
    """The commit of this checkout, marked where files differ from it; None where dubio is not in a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=Path(__file__).parent, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
