"""Arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from dubio.sampling import Precision

__all__ = [
    "DataDir",
    "DecisionSamples",
    "DecisionSeed",
    "Device",
    "InPrecision",
    "Named",
    "RunName",
    "Runs",
    "SeveralRuns",
    "device_for",
]

Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder that holds the runs.")]
DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of all data (default: $DUBIO_DATA, else data).")
]
Named = Annotated[str, typer.Argument(metavar="RUN_OR_FILE", help="A run's name or folder, or a .safetensors file.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's name or folder.")]
DecisionSamples = Annotated[int, typer.Option("--samples", help="Draws; predict with as many.")]
DecisionSeed = Annotated[int, typer.Option("--seed", help="Which draws.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda (default: cuda where there is one).")]
InPrecision = Annotated[
    Precision,
    typer.Option(
        "--precision", help="fp32: all digits; bf16: two or three digits, much faster on a GPU; tf32: between."
    ),
]
SeveralRuns = Annotated[list[str], typer.Argument(metavar="RUN...", help="Names or folders of one or more runs.")]


def device_for(name: str | None) -> str:
    """Where to compute: what was asked for, else a GPU where there is one."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] not in ("cpu", "cuda", "mps"):
        raise ValueError(f"--device must be cpu, cuda, cuda:1 ... or mps, got {name!r}")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {name} is not there; cpu is")
    return name
