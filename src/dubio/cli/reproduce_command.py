"""``dubio reproduce``: run the published tables and figures again, and put the published numbers beside ours."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dubio.cli.arguments import Device, device_for
from dubio.experiments import Result, Spec, Variant, load_spec, reproduce, spec_names, tabulate
from dubio.training import Interrupted

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
    cells: Annotated[str, typer.Option(metavar="PATTERN", help="Only cells of this name, such as 'rho*'.")] = "*",
    seeds: Annotated[list[int] | None, typer.Option("--seed", help="Only this seed; may be given again.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="How many processes run cells at once.")] = 1,
    again: Annotated[bool, typer.Option("--again", help="Run also what has a record, as another attempt.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the records.")] = Path("results"),
    device: Device = None,
) -> None:
    """Run a published table or figure again: every cell and seed, each kept as soon as it is there.

    What has a record with the same settings is not run again, so an interrupted
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
    wish = _Wish(
        out, "tiny" if tiny else "full" if data is None else data, cells, seeds, workers, device_for(device), again
    )
    try:
        if everything:
            _run_all(wish)
        else:
            wish.run(load_spec(str(name)))
    except KeyboardInterrupt:
        raise Interrupted("finished cells are kept; give the same command again to go on") from None


@dataclass(frozen=True)
class _Wish:
    """What to run of a spec, and how."""

    out: Path
    variant: Variant
    cells: str
    seeds: list[int] | None
    workers: int
    device: str
    again: bool

    def run(self, spec: Spec) -> None:
        """Run it, and print its table."""
        results = reproduce(
            spec,
            self.out,
            variant=self.variant,
            cells=self.cells,
            seeds=self.seeds,
            workers=self.workers,
            device=self.device,
            again=self.again,
            tell=_tell,
        )
        Console().print(_table(spec, results))

    def applies_to(self, spec: Spec) -> bool:
        """Whether the spec has such cells and seeds, and can be run so."""
        return (
            (self.variant != "digits" or bool(spec.digits))
            and any(fnmatchcase(cell.name, self.cells) for cell in spec.cells)
            and {*(self.seeds or ())} <= {*spec.seeds}
        )


def _run_all(wish: _Wish) -> None:
    """Every spec, one after the other; what fails is told at the end, and keeps no other from being run."""
    failed = []
    for spec in map(load_spec, spec_names()):
        if not wish.applies_to(spec):
            _tell(f"{spec.name}: has no such cells or seeds, or cannot be run so; left out")
            continue
        try:
            wish.run(spec)
        except Exception as error:
            _tell(f"{spec.name}: {error}")
            failed.append(spec.name)
    if failed:
        _tell(f"failed: {', '.join(failed)}; all that finished is kept")
        raise typer.Exit(1)


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
        table.add_row(escape(row.cell), row.metric, row.reported, row.ours, row.difference, row.tries)
    return table
