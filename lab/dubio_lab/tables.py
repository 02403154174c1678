"""Published numbers beside ours: the rows of every table, on a screen or a page."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dubio_lab.results import Result
from dubio_lab.spec import Cell, ExperimentSpec

__all__ = ["EARLIER", "Row", "earlier_note", "ours_marked", "results_that_count", "tabulate"]

EARLIER = "made under an earlier spec"


@dataclass(frozen=True)
class Row:
    """One number of a cell: the mean over its seeds, and what was published."""

    cell: str
    metric: str
    mean: float
    standard_error: float | None
    """Of the mean over seeds; for a single seed, what the record says."""
    num_seeds: int
    published: float | None
    attempts: int
    """The most that any seed took."""
    earlier: bool = False
    """Whether its records were made before the spec was changed."""
    said: str | None = None
    """What was published in words."""
    searched_in: tuple[str, ...] = ()
    """Specs in which its settings were searched before."""

    @property
    def ours(self) -> str:
        """The mean and its standard error."""
        return f"{self.mean:.4g}" + ("" if self.standard_error is None else f" +- {self.standard_error:.2g}")

    @property
    def reported(self) -> str:
        """What was published."""
        return self.said or ("-" if self.published is None else f"{self.published:g}")

    @property
    def difference(self) -> str:
        """Ours less what was published."""
        return "-" if self.published is None else f"{self.mean - self.published:+.3g}"

    @property
    def tries(self) -> str:
        """How many attempts it took, and which searches went before."""
        return f"{self.attempts}, after {' and '.join(self.searched_in)}" if self.searched_in else str(self.attempts)


def tabulate(spec: ExperimentSpec, results: Sequence[Result]) -> list[Row]:
    """A row for every metric of every cell that has records of it, in the order of the spec."""
    rows = []
    for cell in spec.cells:
        counted = results_that_count(spec, cell, results)
        for metric in spec.metrics:
            own = [result for result in counted if metric in result.metrics]
            if own:
                rows.append(_row(spec, cell, metric, own))
    return rows


def results_that_count(spec: ExperimentSpec, cell: Cell, results: Sequence[Result]) -> list[Result]:
    """Those of a cell that were made under this spec; where there are none, those made under an earlier one."""
    own = [result for result in results if result.cell == cell.name]
    return [result for result in own if result.digest == spec.digest_of(cell, result.variant)] or own


def ours_marked(row: Row) -> str:
    """Our number, and whether it was made before the spec was changed."""
    return f"{row.ours} ({EARLIER})" if row.earlier else row.ours


def earlier_note(rows: Sequence[Row]) -> str:
    """Whether numbers were made under an earlier spec, in words; empty where none was."""
    marks = {row.earlier for row in rows}
    return EARLIER if marks == {True} else f"in part {EARLIER}" if True in marks else ""


def _row(spec: ExperimentSpec, cell: Cell, metric: str, results: Sequence[Result]) -> Row:
    values = [result.metrics[metric].value for result in results]
    several = len(values) > 1
    error = statistics.stdev(values) / len(values) ** 0.5 if several else results[0].metrics[metric].standard_error
    return Row(
        cell.name,
        metric,
        statistics.mean(values),
        error,
        len(values),
        cell.published.get(metric),
        attempts=max(result.attempts for result in results),
        earlier=any(result.digest != spec.digest_of(cell, result.variant) for result in results),
        said=cell.said.get(metric),
        searched_in=spec.searched_in,
    )
