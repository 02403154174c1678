"""Arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["DataDir", "Named", "RunNamed", "Runs"]

Runs = Annotated[Path, typer.Option("--runs", metavar="DIR", help="Folder that holds the runs.")]
DataDir = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of all data (default: $DUBIO_DATA, else data).")
]
Named = Annotated[str, typer.Argument(metavar="RUN_OR_FILE", help="A run's name or folder, or a .safetensors file.")]
RunNamed = Annotated[str, typer.Argument(metavar="RUN", help="A run's name or folder.")]
