"""Numbers of records with an interval: what a published effect is compared with.

An effect is computed for each seed on its own, as a paper computes it for its one training, and then averaged:

- With several seeds, the interval is that of Student's t at 95 %.
- With one seed, it is the number less and plus the most by which training again has moved it, or any number that it is
  made of, in the cells of the table that come within a tenth of that number. ``results/earlier.json`` holds what
  earlier trainings with the same settings and the same seed came to. Where no cell of the table was trained twice, it
  is the width of another estimate that the claim names. This is not an interval at 95 %: it is a lower bound on the
  noise between seeds, since the first weights and the order of batches stay the same.
- With one seed and nothing to compare with, there is no interval, and nothing is decided.
- A slope is measured once, and its interval is that of the least-squares line.

Invariants: an estimate takes only records of the present spec, and only seeds for which all of its cells have one
(``lab/tests/test_estimates.py``).
"""

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from scipy.special import stdtrit  # type: ignore[import-untyped]

from dubio_lab.results import Result
from dubio_lab.running import default_folder, load_results
from dubio_lab.spec import ExperimentSpec, load_spec, spec_names

__all__ = [
    "EARLIER_FILE",
    "FIRST",
    "Earlier",
    "Estimate",
    "Formula",
    "Line",
    "NotRunError",
    "Records",
    "Value",
    "read_earlier",
]

EARLIER_FILE = "earlier.json"
FIRST = "first of "
NEAR = 0.1  # cells within this share of a number say how noisy it is; at 2 percent of the weights all is noisier
Value = Callable[[str, str, str], float]
"""The number of a spec, a cell and a metric, in one training."""
Formula = Callable[[Value], float]
"""An effect: what is made of several numbers of one training. It reads the same numbers whatever they are."""
Noise = Literal["seeds", "training", "line", "none"]
Read = tuple[str, str, str]


class NotRunError(Exception):
    """A record that a claim is read from does not exist."""


@dataclass(frozen=True)
class Estimate:
    """An effect and its interval."""

    value: float
    low: float | None = None
    high: float | None = None
    seeds: int = 1
    planned: int = 1
    """The seeds of the spec; fewer were run as long as an experiment is under way."""
    noise: Noise = "none"
    """What the interval is of: the mean over seeds, one training of several, or a line through points."""

    def __neg__(self) -> "Estimate":
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return replace(self, value=-self.value, low=low, high=high)

    def __str__(self) -> str:
        """As a level is written."""
        return self._written("")

    @property
    def signed(self) -> str:
        """As a difference is written."""
        return self._written("+")

    def _written(self, sign: str) -> str:
        if self.low is None or self.high is None:
            return f"{self.value:{sign}.3g}"
        half = (self.high - self.low) / 2.0
        size = max(abs(self.low), abs(self.high))
        most = 3 - math.floor(math.log10(size)) if size > 0.0 else 0  # four digits of the largest number
        decimals = max(min(1 - math.floor(math.log10(half / 3.0)), most) if half > 0.0 else most, 0)
        value, low, high = (f"{one:{sign}z.{decimals}f}" for one in (self.value, self.low, self.high))
        return f"{value} ({low} to {high})"


@dataclass(frozen=True)
class Line:
    """The slope of a least-squares line, with its standard error and degrees of freedom."""

    slope: float
    error: float
    freedom: int

    def interval(self) -> tuple[float, float]:
        """Of Student's t at 95 %."""
        width = student(self.freedom) * self.error
        return self.slope - width, self.slope + width

    def over(self, other: "Line") -> Estimate:
        """The ratio of two slopes with Fieller's interval; without one where the divisor may be 0."""
        size = student(min(self.freedom, other.freedom)) ** 2
        square = other.slope**2 - size * other.error**2
        if square <= 0.0:
            return Estimate(self.slope / other.slope if other.slope else math.inf, noise="line")
        product = self.slope * other.slope
        root = math.sqrt(max(product**2 - square * (self.slope**2 - size * self.error**2), 0.0))
        low, high = (product - root) / square, (product + root) / square
        return Estimate(self.slope / other.slope, low, high, noise="line")


@dataclass(frozen=True)
class Earlier:
    """What an earlier training of a cell came to, with the settings and the seed of its present record."""

    spec: str
    cell: str
    seed: int
    attempt: int
    digest: str
    commit: str
    hardware: str
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class _Table:
    """The records of a spec, by cell, seed and commit."""

    spec: ExperimentSpec
    present: Mapping[tuple[str, int], Result]
    """Those of the present spec."""
    earlier: Mapping[tuple[str, int, str], Earlier]

    def number(self, cell: str, metric: str, seed: int) -> float | None:
        """A metric, or with ``FIRST`` before its name the first point of a curve; ``None`` where there is no record."""
        result = self.present.get((cell, seed))
        if result is None:
            return None
        if metric in result.metrics:
            return result.metrics[metric].value
        curve = result.curves.get(metric.removeprefix(FIRST))
        return curve.y[0] if metric.startswith(FIRST) and curve is not None else None

    def largest_move(self, cell: str, metric: str, seed: int) -> float | None:
        """The most by which training again, or with another seed, has moved a metric in cells near this one."""
        own = self.number(cell, metric, seed)
        if own is None:
            return None
        moves = []
        for other in self.spec.cells:
            numbers = [self.number(other.name, metric, one) for one in self.spec.seeds]
            present = [number for number in numbers if number is not None]
            if any(abs(number - own) <= NEAR * abs(own) for number in present):
                moves += [max(present) - min(present)] if len(present) > 1 else []
                moves += self._moves_of(other.name, metric)
        return max(moves, default=None)

    def _moves_of(self, cell: str, metric: str) -> list[float]:
        return [
            abs(one.metrics[metric] - number)
            for one in self.earlier.values()
            if one.cell == cell
            and metric in one.metrics
            and (number := self.number(cell, metric, one.seed)) is not None
        ]


@dataclass
class Records:
    """The records under a folder, as effects with intervals; what does not exist raises ``NotRunError``."""

    folder: Path = field(default_factory=default_folder)
    _tables: dict[str, _Table] = field(default_factory=dict, repr=False)
    _earlier: list[Earlier] | None = field(default=None, repr=False)

    def estimate(self, formula: Formula, like: Estimate | None = None) -> Estimate:
        """An effect over all seeds for which each of its cells has a record.

        Args:
            formula: the effect in one training.
            like: an estimate of the same effect elsewhere, whose half width is taken where there is one seed and none
                of the cells was trained again.
        """
        reads = self.reads(formula)
        tables = {spec: self._table(spec) for spec, _, _ in reads}
        seeds = self._common_seeds(reads, tables)
        if not seeds:
            raise NotRunError(", ".join(sorted({f"{spec}, {cell}: {metric}" for spec, cell, metric in reads})))
        values = [formula(_view(tables, seed)) for seed in seeds]
        planned = max(len(table.spec.seeds) for table in tables.values())
        value = statistics.mean(values)
        if len(values) > 1:
            width = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
            return Estimate(value, value - width, value + width, len(values), planned, "seeds")
        moved = self._moved(formula, reads, tables, seeds[0], value)
        if moved is None and like is not None and like.low is not None and like.high is not None:
            moved = (like.high - like.low) / 2.0
        if moved is None:
            return Estimate(value, planned=planned)
        return Estimate(value, value - moved, value + moved, 1, planned, "training")

    def reads(self, formula: Formula) -> list[Read]:
        """The numbers that a formula reads."""
        reads: dict[Read, None] = {}

        def value(spec: str, cell: str, metric: str) -> float:
            reads[spec, cell, metric] = None
            return 1.0

        formula(value)
        return [*reads]

    def number(self, spec: str, cell: str, metric: str) -> Estimate:
        """A metric of a cell."""
        return self.estimate(lambda value: value(spec, cell, metric))

    def gap(self, spec: str, cell: str, other: str, metric: str) -> Estimate:
        """By how much a cell is above another of its spec."""
        return self.estimate(lambda value: value(spec, cell, metric) - value(spec, other, metric))

    def recorded(self, spec: str, cell: str, seeds: int) -> Estimate:
        """A difference whose interval over so many seeds stands in one record, as those of ``flow-paired`` do."""
        value, low, high = (self.number(spec, cell, metric).value for metric in ("difference", "low", "high"))
        return Estimate(value, low, high, seeds, seeds, "seeds")

    def line(self, spec: str, cell: str, curve: str) -> Line:
        """The least-squares line through a curve of a cell with one seed."""
        table = self._table(spec)
        result = next((one for (name, _), one in table.present.items() if name == cell), None)
        if result is None or curve not in result.curves:
            raise NotRunError(f"{spec}, {cell}: {curve}")
        x, y = result.curves[curve].x, result.curves[curve].y
        if len(x) < 3:
            raise NotRunError(f"{spec}, {cell}: {curve} has fewer than three points")
        slope, start = statistics.linear_regression(x, y)
        rest = sum((height - start - slope * place) ** 2 for place, height in zip(x, y, strict=True))
        spread = sum((place - statistics.mean(x)) ** 2 for place in x)
        return Line(slope, math.sqrt(rest / (len(x) - 2) / spread), len(x) - 2)

    def _common_seeds(self, reads: Iterable[Read], tables: Mapping[str, _Table]) -> list[int]:
        seeds = dict.fromkeys(seed for table in tables.values() for seed in table.spec.seeds)
        return [
            seed
            for seed in seeds
            if all(tables[spec].number(cell, metric, seed) is not None for spec, cell, metric in reads)
        ]

    def _moved(
        self, formula: Formula, reads: Iterable[Read], tables: Mapping[str, _Table], seed: int, value: float
    ) -> float | None:
        """The most by which training again has moved an effect, or the numbers that it is made of."""
        commits = {
            commit
            for spec, cell, metric in reads
            for (name, own, commit), one in tables[spec].earlier.items()
            if (name, own) == (cell, seed) and metric in one.metrics
        }
        moves = [abs(formula(_view(tables, seed, commit)) - value) for commit in commits]
        numbers = (tables[spec].largest_move(cell, metric, seed) for spec, cell, metric in reads)
        return max([*moves, *(move for move in numbers if move is not None)], default=None)

    def _table(self, name: str) -> _Table:
        if name not in self._tables:
            if name not in spec_names():
                raise NotRunError(f"{name} has no spec")
            spec = load_spec(name)
            digests = {cell.name: spec.digest_of(cell) for cell in spec.cells}
            results = load_results(spec, self.folder)
            present = {(one.cell, one.seed): one for one in results if one.digest == digests[one.cell]}
            if self._earlier is None:
                self._earlier = read_earlier(self.folder)
            earlier = {
                (one.cell, one.seed, one.commit): one
                for one in self._earlier
                if one.spec == name and one.digest == digests.get(one.cell)
            }
            self._tables[name] = _Table(spec, present, earlier)
        return self._tables[name]


def read_earlier(folder: Path) -> list[Earlier]:
    """The earlier trainings that are stored under a folder of records."""
    file = folder / EARLIER_FILE
    if not file.is_file():
        return []
    return [Earlier(**one) for one in json.loads(file.read_text(encoding="utf-8"))["records"]]


@lru_cache
def student(freedom: int) -> float:
    """The size that Student's t stays below in 95 % of cases."""
    return float(stdtrit(freedom, 0.975))


def _view(tables: Mapping[str, _Table], seed: int, commit: str | None = None) -> Value:
    """The numbers of one training: the present one, or that of an earlier commit where a cell has it."""

    def value(spec: str, cell: str, metric: str) -> float:
        table = tables[spec]
        earlier = None if commit is None else table.earlier.get((cell, seed, commit))
        if earlier is not None and metric in earlier.metrics:
            return earlier.metrics[metric]
        number = table.number(cell, metric, seed)
        assert number is not None
        return number

    return value
