"""The command ``dubio reproduce``: what it takes, and what its help says.

Like ``dubio.cli.commands``, this module imports no torch: what the command needs is imported when it runs.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

from dubio.cli import Device, Quiet

__all__ = ["reproduce"]


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Which tables or figures; see --list.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List what can be reproduced, and leave.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="Only see that everything runs.")] = False,
    data: Annotated[
        Literal["digits"] | None,
        typer.Option(help="Small images that need no files, where an experiment can be run on them."),
    ] = None,
    cells: Annotated[str, typer.Option(metavar="PATTERN", help="Only cells of this name, such as 'rho*'.")] = "*",
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="Only this seed; may be given again.")] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="How many processes run cells at once, of all tables and figures together.")
    ] = 1,
    again: Annotated[bool, typer.Option("--again", help="Run also what has a record, as another attempt.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the records (default: lab/results if it exists, else results)."),
    ] = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Run published tables and figures again: every cell and seed, each kept as soon as it is there.

    What has a record with the same settings is not run again, so an interrupted
    run goes on where it stopped. A cell that fails keeps no other from being run;
    what failed is named at the end, and the exit code is 1.

    A cell is one setting of an experiment. Full runs take minutes to hours, and
    most want a GPU; --tiny takes seconds, and its numbers mean nothing.

    Example:  dubio reproduce --list

    Example:  dubio reproduce bbb-regression --tiny

    Example:  dubio reproduce bws-clean bws-transfer --workers 8
    """
    from dubio_lab.reproduce_command import reproduce_experiment

    reproduce_experiment(names, everything, listed, tiny, data, cells, seeds, workers, again, out, device, quiet)
