"""The provenance of records: the version and commit of dubio, the versions of torch and Python, and the hardware."""

import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the root of the package reads VERSION, and must not import torch
    import torch

__all__ = ["VERSION", "commit_here", "hardware_of", "versions"]

VERSION = "0.1.0"


def versions() -> dict[str, str]:
    """The versions of dubio, torch and Python, on which numbers depend."""
    import torch

    return {"dubio": VERSION, "torch": str(torch.__version__), "python": platform.python_version()}


def hardware_of(device: "torch.device") -> str:
    """The name of the GPU, or the number of CPU threads."""
    import torch

    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"CPU, {torch.get_num_threads()} threads"


def commit_here(file: str | Path = __file__) -> str | None:
    """The commit of the checkout of a file, marked as dirty where files differ from it; None outside of a checkout.

    A repository that does not track the file does not count: an environment often lies inside the repository of another
    project.
    """
    path = Path(file).resolve()
    is_tracked = ["git", "ls-files", "--error-unmatch", path.name]
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        for command in (is_tracked, describe):
            done = subprocess.run(command, cwd=path.parent, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
