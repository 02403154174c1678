"""Published numbers beside ours: the rows of every table, on a screen or a page."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dubio.experiments.results import Result
from dubio.experiments.spec import Spec

__all__ = ["Row", "tabulate"]


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

    @property
    def ours(self) -> str:
        """The mean and its standard error."""
        return f"{self.mean:.4g}" + ("" if self.standard_error is None else f" +- {self.standard_error:.2g}")

    @property
    def difference(self) -> str:
        """Ours less what was published."""
        return "-" if self.published is None else f"{self.mean - self.published:+.3g}"


def tabulate(spec: Spec, results: Sequence[Result]) -> list[Row]:
    """A row for every metric of every cell that has records, in the order of the spec."""
    rows = []
    for cell in spec.cells:
        own = [result for result in results if result.cell == cell.name]
        for metric in spec.metrics:
            if not own or metric not in own[0].metrics:
                continue
            values = [result.metrics[metric].value for result in own]
            several = len(values) > 1
            error = statistics.stdev(values) / len(values) ** 0.5 if several else own[0].metrics[metric].standard_error
            attempts = max(result.attempts for result in own)
            published = cell.published.get(metric)
            rows.append(Row(cell.name, metric, statistics.mean(values), error, len(values), published, attempts))
    return rows
