"""A number and where it comes from: the record of one cell of an experiment, for one seed."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from dubio.persistence.records import Record

__all__ = ["Measured", "Result", "commit_here", "hardware_of"]


@dataclass(frozen=True)
class Measured:
    """A number, its standard error where it has one, and what it was taken over."""

    value: float
    standard_error: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class Result(Record):
    """What came of one cell with one seed."""

    format: ClassVar = "dubio-result-1"
    called: ClassVar = "the result of an experiment"

    spec: str
    spec_digest: str
    cell: str
    seed: int
    tiny: bool
    settings: dict[str, Any]
    metrics: dict[str, Measured]
    published: dict[str, float]
    source: str
    attempts: int
    """How often this cell was run with this seed, under this spec or one before it."""
    seconds: float
    commit: str | None
    versions: dict[str, str]
    hardware: str


def hardware_of(device: torch.device) -> str:
    """What computes, in words."""
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
