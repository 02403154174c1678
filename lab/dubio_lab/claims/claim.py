"""What a published claim is, and how records decide it.

A claim is decided by means over seeds and their standard errors, and only when every cell that it is read from has a
record of the present spec for every seed; until then it was not run. The rule for noise is the same for all:

- more than a bar: the mean is beyond the bar by more than twice its standard error;
- no less than a bar, nothing lost: the mean is not beyond the bar by more than twice that;
- within a tolerance: the mean is, whatever its standard error.

The standard error is that over seeds. Where there is one seed, both rules are the plain comparison. A difference
between cells of one spec is taken seed by seed, on the same data, before it is averaged.

Invariants: a claim names the specs that it is read from, all of them and no other, and is not decided without them
(``lab/tests/test_claims.py``).
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dubio_lab.results import Result
from dubio_lab.running import default_folder, load_results
from dubio_lab.spec import ExperimentSpec, load_spec
from dubio_lab.tables import Row, results_that_count, tabulate

__all__ = ["Claim", "Number", "NotRunError", "Outcome", "Records"]

NOT_RUN = "not run yet"


class NotRunError(Exception):
    """A record that a claim is read from is not there."""


@dataclass(frozen=True)
class Number:
    """A mean and its standard error over seeds; 0 where there is one seed."""

    value: float
    error: float = 0.0

    def __sub__(self, other: "Number | float") -> "Number":
        """The difference, as of two that know nothing of each other."""
        if isinstance(other, Number):
            return Number(self.value - other.value, math.hypot(self.error, other.error))
        return Number(self.value - other, self.error)

    def __str__(self) -> str:
        return f"{self.value:.4g}" + (f" +- {self.error:.2g}" if self.error else "")

    @property
    def signed(self) -> str:
        """As a difference is written."""
        return f"{self.value:+.3g}" + (f" +- {self.error:.2g}" if self.error else "")

    def above(self, bar: float) -> bool:
        """Whether it is above the bar beyond noise."""
        return self.value - 2 * self.error > bar

    def below(self, bar: float) -> bool:
        """Whether it is below the bar beyond noise."""
        return self.value + 2 * self.error < bar

    def within(self, low: float, high: float) -> bool:
        """Whether the mean is, whatever its noise."""
        return low <= self.value <= high


@dataclass(frozen=True)
class Outcome:
    """What records say of a claim."""

    value: str
    """Ours, in numbers of the records."""
    held: bool | None
    """Whether it held; ``None`` where it was not run yet."""

    @property
    def word(self) -> str:
        """Yes, no, or not yet."""
        return NOT_RUN if self.held is None else "yes" if self.held else "no"


class Records:
    """The records under a folder, as numbers that claims are made of; what is not there raises ``NotRunError``."""

    def __init__(self, folder: str | Path | None = None) -> None:
        self._folder = default_folder() if folder is None else Path(folder)
        self._cache: dict[str, tuple[ExperimentSpec, list[Result], dict[tuple[str, str], Row]]] = {}

    def number(self, spec: str, cell: str, metric: str) -> Number:
        """The mean over seeds of a metric of a cell."""
        loaded, _, rows = self._read(spec)
        row = rows.get((cell, metric))
        if row is None or row.earlier or row.num_seeds < len(loaded.seeds):
            raise NotRunError(f"{spec}, {cell}: {metric}")
        return Number(row.mean, (row.standard_error or 0.0) if row.num_seeds > 1 else 0.0)

    def difference(self, spec: str, cell: str, other: str, metric: str) -> Number:
        """By how much a cell is above another of its spec, seed by seed."""
        for name in (cell, other):
            self.number(spec, name, metric)  # which is refused where a seed is missing
        own, others = (self._by_seed(spec, name, metric) for name in (cell, other))
        differences = [own[seed] - others[seed] for seed in own]
        several = len(differences) > 1
        error = statistics.stdev(differences) / math.sqrt(len(differences)) if several else 0.0
        return Number(statistics.mean(differences), error)

    def differences(self, spec: str, cell: str, others: Sequence[str], metric: str) -> list[Number]:
        """By how much a cell is above each of several others."""
        return [self.difference(spec, cell, other, metric) for other in others]

    def best(self, spec: str, cells: Sequence[str], metric: str) -> tuple[str, Number]:
        """The cell with the highest mean, and that mean."""
        numbers = {cell: self.number(spec, cell, metric) for cell in cells}
        cell = max(numbers, key=lambda name: numbers[name].value)
        return cell, numbers[cell]

    def _by_seed(self, spec: str, cell: str, metric: str) -> dict[int, float]:
        loaded, results, _ = self._read(spec)
        place = next(one for one in loaded.cells if one.name == cell)
        return {one.seed: one.metrics[metric].value for one in results_that_count(loaded, place, results)}

    def _read(self, name: str) -> tuple[ExperimentSpec, list[Result], dict[tuple[str, str], Row]]:
        if name not in self._cache:
            spec = load_spec(name)
            results = load_results(spec, self._folder)
            self._cache[name] = spec, results, {(row.cell, row.metric): row for row in tabulate(spec, results)}
        return self._cache[name]


@dataclass(frozen=True)
class Claim:
    """Something that a paper says or suggests, and how records decide it."""

    name: str
    words: str
    """What is claimed, with the bar where the paper gives none."""
    source: str
    specs: tuple[str, ...]
    """What it is read from."""
    published: str | None
    """What the paper says came out; ``None`` where the question is ours."""
    check: Callable[[Records], Outcome]
    in_our_way: bool = False
    """Whether it is asked in a way of ours, beside that of the paper."""

    @property
    def is_counted(self) -> bool:
        """Whether it is the paper's, asked in the paper's way."""
        return self.published is not None and not self.in_our_way

    def outcome(self, records: Records) -> Outcome:
        """What the records say of it."""
        try:
            return self.check(records)
        except NotRunError:
            return Outcome(NOT_RUN, None)
