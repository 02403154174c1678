"""Arguments that several commands share."""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from dubio.checks import did_you_mean

__all__ = [
    "CORRUPTION_NAMES",
    "BudgetName",
    "DataDir",
    "DecisionSamples",
    "DecisionSeed",
    "Device",
    "InPrecision",
    "Named",
    "Precision",
    "Quiet",
    "RunName",
    "Runs",
    "SeveralRuns",
    "device_for",
]

DEVICES = "cpu, cuda, cuda:1 ... or mps"


def _check_device(name: str | None) -> str | None:
    if name is not None and not re.fullmatch(r"(cpu|cuda|mps)(:\d+)?", name):
        raise ValueError(f"--device must be {DEVICES}, got {name!r}{did_you_mean(name, ('cpu', 'cuda', 'mps'))}")
    return name


def _complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """For the shell: the names of the runs that are there."""
    runs = Path(context.params.get("runs") or "runs")
    return sorted(file.parent.name for file in runs.glob("*/config.json") if file.parent.name.startswith(incomplete))


# These three stand in packages that import torch too; test_start_up.py holds that they are the same.
Precision = Literal["fp32", "tf32", "bf16"]
BudgetName = Literal["tiny", "quick", "full"]
CORRUPTION_NAMES = ("noise", "blur", "contrast", "rotation", "inversion")

Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder that holds the runs.")]
DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of all data (default: $DUBIO_DATA, else data).")
]
Named = Annotated[
    str,
    typer.Argument(
        metavar="RUN_OR_FILE", autocompletion=_complete_run, help="A run's name or folder, or a .safetensors file."
    ),
]
RunName = Annotated[str, typer.Argument(metavar="RUN", autocompletion=_complete_run, help="A run's name or folder.")]
DecisionSamples = Annotated[int, typer.Option("--samples", help="Draws; predict with as many.")]
DecisionSeed = Annotated[int, typer.Option("--seed", help="Which draws.")]
Device = Annotated[
    str | None,
    typer.Option(callback=_check_device, help=f"{DEVICES} (default: cuda where there is one, else cpu)."),
]
InPrecision = Annotated[
    Precision,
    typer.Option(
        "--precision", help="fp32: all digits; bf16: two or three digits, much faster on a GPU; tf32: between."
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print results and warnings alone: no progress and no remarks.")
]
SeveralRuns = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", autocompletion=_complete_run, help="Names or folders of one or more runs."),
]


def device_for(name: str | None) -> str:
    """The device to compute on: the one given, else a GPU where there is one."""
    import torch

    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {name} is not there; cpu is")
    return name
