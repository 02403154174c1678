"""``dubio reproduce``: run the published tables and figures again, and put the published numbers beside ours."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from rich.console import Console

from dubio.cli import PartlyFailedError, PlainTable, device_for, say
from dubio.training import Interrupted
from dubio_lab import (
    ExperimentSpec,
    Failure,
    Reproduction,
    Result,
    Variant,
    default_folder,
    load_spec,
    reproduce_many,
    spec_names,
    tabulate,
)

__all__ = ["reproduce_experiment"]


def reproduce_experiment(
    names: list[str] | None,
    everything: bool,
    listed: bool,
    tiny: bool,
    data: Literal["digits"] | None,
    cells: str,
    seeds: list[int] | None,
    workers: int,
    again: bool,
    out: Path | None,
    device: str | None,
    quiet: bool,
) -> None:
    """Run published tables and figures, and print ours beside them."""
    if listed:
        _list()
        return
    if bool(names) == everything:
        got = "both" if everything else "neither"
        raise ValueError(f"name one or more of {', '.join(spec_names())}, or add --all, got {got}")
    if tiny and data is not None:
        raise ValueError("tiny runs are on digits already where they can be, got --tiny and --data")
    request = _RunRequest(
        default_folder() if out is None else out,
        "tiny" if tiny else "full" if data is None else data,
        cells,
        seeds,
        workers,
        device_for(device),
        again,
        quiet,
    )
    specs = [load_spec(name) for name in names or spec_names()]
    if everything or len(specs) > 1:
        specs = _those_that_apply(request, specs)
    try:
        reproductions = request.run(specs)
    except KeyboardInterrupt:
        raise Interrupted("finished cells are kept; give the same command again to go on") from None
    failures = [failure for one in reproductions for failure in one.failures]
    if failures:
        _tell_failures(failures)
        raise PartlyFailedError("\n".join(failure.traceback for failure in failures))


@dataclass(frozen=True)
class _RunRequest:
    """What to run of specs, and how."""

    out: Path
    variant: Variant
    cells: str
    seeds: list[int] | None
    workers: int
    device: str
    again: bool
    quiet: bool

    def tell(self, text: str) -> None:
        """Say what goes on, unless it is to be quiet."""
        if not self.quiet:
            _tell(text)

    def run(self, specs: Sequence[ExperimentSpec]) -> list[Reproduction]:
        """Run them, and print their tables."""
        return reproduce_many(
            specs,
            self.out,
            variant=self.variant,
            cells=self.cells,
            seeds=self.seeds,
            workers=self.workers,
            device=self.device,
            again=self.again,
            tell=self.tell,
            finished=_show,
        )

    def applies_to(self, spec: ExperimentSpec) -> bool:
        """Whether the spec has such cells and seeds, and can be run so."""
        return (
            (self.variant != "digits" or bool(spec.digits))
            and any(fnmatchcase(cell.name, self.cells) for cell in spec.cells)
            and {*(self.seeds or ())} <= {*spec.seeds}
        )


def _those_that_apply(request: _RunRequest, specs: Sequence[ExperimentSpec]) -> list[ExperimentSpec]:
    """Of several specs those to which a request applies; the others are listed."""
    left = [spec for spec in specs if request.applies_to(spec)]
    if not left:
        names = ", ".join(spec.name for spec in specs)
        raise ValueError(f"some spec must have such cells and seeds, and a run on such data, got none of {names}")
    for spec in specs:
        if spec not in left:
            request.tell(f"{spec.name}: has no such cells or seeds, or cannot be run so; left out")
    return left


def _show(reproduction: Reproduction) -> None:
    """Print the table of a spec, unless all of it failed."""
    if reproduction.results:
        Console().print(_table(reproduction.spec, reproduction.results))


def _tell_failures(failures: Sequence[Failure]) -> None:
    """Name again at the end what failed, which may have been told hours ago: each error once."""
    for error in dict.fromkeys(failure.error for failure in failures):
        first, *others = (failure for failure in failures if failure.error == error)
        _tell(f"{first}" + (f" (and so did {len(others)} more)" if others else ""))
    _tell(f"{len(failures)} failed; all that finished is kept, and the same command tries the rest again")


def _tell(text: str) -> None:
    say(text, err=True)


def _list() -> None:
    table = PlainTable("name", "what", "source")
    for name in spec_names():
        spec = load_spec(name)
        table.add_row(name, spec.title, spec.source)
    Console().print(table)


def _table(spec: ExperimentSpec, results: Sequence[Result]) -> PlainTable:
    """Means over seeds with their standard errors, and what was published."""
    table = PlainTable("cell", "metric", "published", "ours", "difference", "attempts", title=spec.title)
    for row in tabulate(spec, results):
        table.add_row(row.cell, row.metric, row.reported, row.ours, row.difference, row.tries)
    return table
