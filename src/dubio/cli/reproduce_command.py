"""``dubio reproduce``: run the published tables and figures again, and put the published numbers beside ours."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dubio.cli.arguments import Device, device_for
from dubio.experiments import Result, Spec, load_spec, reproduce, spec_names

__all__ = ["reproduce_experiment"]


def reproduce_experiment(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Which table or figure; see --list.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All of them, one after the other.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="List what can be reproduced, and leave.")] = False,
    tiny: Annotated[bool, typer.Option("--tiny", help="Only see that everything runs.")] = False,
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
    for each in spec_names() if everything else [str(name)]:
        spec = load_spec(each)
        results = reproduce(spec, out, tiny=tiny, device=device_for(device), tell=_tell)
        Console().print(_tabulate(spec, results))


def _tell(text: str) -> None:
    typer.echo(text, err=True)


def _list() -> None:
    table = Table("name", "what", "source")
    for name in spec_names():
        spec = load_spec(name)
        table.add_row(name, escape(spec.title), escape(spec.source))
    Console().print(table)


def _tabulate(spec: Spec, results: Sequence[Result]) -> Table:
    """Means over seeds with their standard errors, and what was published."""
    table = Table("cell", "metric", "published", "ours", "difference", "attempts", title=escape(spec.title))
    for cell in spec.cells:
        own = [result for result in results if result.cell == cell.name]
        for metric in spec.metrics:
            values = [result.metrics[metric].value for result in own]
            mean, published = statistics.mean(values), cell.published.get(metric)
            error = f" +- {statistics.stdev(values) / len(values) ** 0.5:.2g}" if len(values) > 1 else ""
            known, apart = ("-", "-") if published is None else (f"{published:g}", f"{mean - published:+.3g}")
            attempts = str(max(result.attempts for result in own))
            table.add_row(escape(cell.name), metric, known, f"{mean:.4g}{error}", apart, attempts)
    return table
