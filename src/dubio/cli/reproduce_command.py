"""``dubio reproduce``: run the published tables and figures again, and put the published numbers beside ours."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dubio.cli.arguments import Device, device_for
from dubio.experiments import Result, Spec, Variant, load_spec, reproduce, spec_names, tabulate

__all__ = ["reproduce_experiment"]


def reproduce_experiment(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Which table or figure; see --list.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, one after the other.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List what can be reproduced, and leave.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="Only see that everything runs.")] = False,
    data: Annotated[
        Literal["digits"] | None,
        typer.Option(help="Small images that need no files, where an experiment can be run on them."),
    ] = None,
    cells: Annotated[str, typer.Option(metavar="PATTERN", help="Only cells of this name, such as 'bnn*'.")] = "*",
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="Only this seed; may be given again.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="How many processes run cells at once.")] = 1,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the records.")] = Path("results"),
    device: Device = None,
) -> None:
    """Run a published table or figure again: every cell and seed, each kept as soon as it is there.

    What has a record under the same spec is not run again, so an interrupted
    run goes on where it stopped.

    Example:  dubio reproduce --list

    Example:  dubio reproduce bbb-regression --tiny
    """
    if listed:
        _list()
        return
    if (name is None) != everything:
        raise ValueError(f"name one of {', '.join(spec_names())}, or add --all, got {name or 'neither'}")
    if tiny and data is not None:
        raise ValueError("tiny runs are on digits already where they can be, got --tiny and --data")
    variant: Variant = "tiny" if tiny else "full" if data is None else data
    specs = [load_spec(each) for each in (spec_names() if everything else [str(name)])]
    for spec in specs:
        if variant == "digits" and everything and not spec.digits:
            _tell(f"{spec.name}: cannot be run on digits, left out")
            continue
        results = reproduce(
            spec,
            out,
            variant=variant,
            cells=cells,
            seeds=seeds,
            workers=workers,
            device=device_for(device),
            tell=_tell,
        )
        Console().print(_table(spec, results))


def _tell(text: str) -> None:
    typer.echo(text, err=True)


def _list() -> None:
    table = Table("name", "what", "source")
    for name in spec_names():
        spec = load_spec(name)
        table.add_row(name, escape(spec.title), escape(spec.source))
    Console().print(table)


def _table(spec: Spec, results: Sequence[Result]) -> Table:
    """Means over seeds with their standard errors, and what was published."""
    table = Table("cell", "metric", "published", "ours", "difference", "attempts", title=escape(spec.title))
    for row in tabulate(spec, results):
        table.add_row(escape(row.cell), row.metric, row.reported, row.ours, row.difference, str(row.attempts))
    return table
