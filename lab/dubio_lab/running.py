"""The one runner of all experiments: cell by cell, seed by seed, each kept as soon as it is there.

A record that was made with the same settings is not made again, so a run that was interrupted goes on where it stopped.
One with other settings is replaced, and counted: ``attempts`` says how often a cell was run.

The cells of several specs share one pool of processes. With several workers, cells that are timed run after all others,
in this process, with nothing beside them.
"""

import multiprocessing
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NoReturn

import torch

from dubio.version import hardware_of, versions
from dubio_lab.protocols import PROTOCOLS, Trial
from dubio_lab.results import Findings, Result, commit_here
from dubio_lab.spec import Cell, ExperimentSpec, Variant

__all__ = ["Failure", "Reproduction", "default_folder", "load_results", "reproduce", "reproduce_many", "result_file"]

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Failure:
    """A cell and seed that failed; in words, since an exception would hold on to the tensors of its cell."""

    spec: str
    cell: str
    seed: int
    error: str
    """What went wrong, in a line."""
    traceback: str
    """Where it went wrong, in many."""

    def __str__(self) -> str:
        return f"{_place(self.spec, self.cell, self.seed)} failed: {self.error}"


@dataclass(frozen=True)
class Reproduction:
    """What came of a spec."""

    spec: ExperimentSpec
    results: tuple[Result, ...]
    """The records of all cells and seeds that were asked for and did not fail, in the order of the spec."""
    failures: tuple[Failure, ...] = ()
    """What failed, in the same order."""


def reproduce(
    spec: ExperimentSpec,
    out: str | Path | None = None,
    *,
    variant: Variant = "full",
    cells: str = "*",
    seeds: Sequence[int] | None = None,
    workers: int = 1,
    device: torch.device | str = "cpu",
    again: bool = False,
    tell: Tell | None = None,
) -> list[Result]:
    """Run every cell of a spec that has no record yet; all records, in the order of the spec.

    The first cell that fails ends the run, and its error is raised; what is done stays.

    Args:
        spec: what to run; see ``load_spec``.
        out: folder of all records, ``default_folder()`` unless said; a cell's is ``out/SPEC/CELL-SEED.json``, and of
            smaller runs ``out/VARIANT/SPEC/...``.
        variant: "full"; "digits" for scikit-learn's digits in place of larger images; "tiny" to see that it runs.
        cells: only cells whose name matches this pattern, as of files.
        seeds: only these of the spec's seeds; in tiny runs its first alone, unless said.
        workers: how many processes run cells at once; one where cells are timed.
        device: where to compute.
        again: run also what has a record, as another attempt: after an error in the code was mended.
        tell: is told a line before and after each cell; with several workers how far it is, while the lines of the
            cells go to stderr.
    """
    work = _work_of(spec, out, variant, cells, seeds, device, again)
    (reproduction,) = _run([work], workers, tell or _silent, _raise, _silent)
    return [*reproduction.results]


def reproduce_many(
    specs: Sequence[ExperimentSpec],
    out: str | Path | None = None,
    *,
    variant: Variant = "full",
    cells: str = "*",
    seeds: Sequence[int] | None = None,
    workers: int = 1,
    device: torch.device | str = "cpu",
    again: bool = False,
    tell: Tell | None = None,
    finished: Callable[[Reproduction], None] | None = None,
) -> list[Reproduction]:
    """Run every cell of several specs that has no record yet; what came of each spec, in their order.

    All cells share ``workers`` processes, but for those of specs that are timed: these run last, one at a time, in this
    process. One worker runs everything in the order given. What cannot be run as asked for is refused before anything
    runs; a cell that fails later is told, and keeps no other from being run. A process that dies, as for want of
    memory, fails what runs beside it, too; what waits goes on.

    Args:
        specs: what to run, each with a name of its own; see ``load_spec``.
        out: folder of all records, as for ``reproduce``.
        variant: which form of the experiments, as for ``reproduce``.
        cells: only cells whose name matches this pattern; every spec must have one.
        seeds: only these seeds, which every spec must have.
        workers: how many processes run cells at once.
        device: where to compute.
        again: run also what has a record, as another attempt.
        tell: is told a line before and after each cell, and what failed; with several workers how far it is, while the
            lines of the cells go to stderr.
        finished: is given what came of a spec as soon as it is all there, and that of the specs before it.
    """
    names = [spec.name for spec in specs]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ValueError(f"specs must have names of their own, got {twice[0]} {names.count(twice[0])} times")
    work = [_work_of(spec, out, variant, cells, seeds, device, again) for spec in specs]
    tell = tell or _silent

    def as_failure(one: _Work, error: Exception) -> Failure:
        failure = one.failure(error)
        tell(str(failure))
        return failure

    return _run(work, workers, tell, as_failure, finished or _silent)


def default_folder() -> Path:
    """Where records are kept unless said: ``lab/results`` where that folder is, as in a checkout, else ``results``."""
    folder = Path("lab", "results")
    return folder if folder.is_dir() else Path("results")


def result_file(out: str | Path, spec: ExperimentSpec, cell: Cell, seed: int, variant: Variant = "full") -> Path:
    """Where the record of a cell and seed is kept."""
    return Path(out, *([] if variant == "full" else [variant]), spec.name, f"{cell.name}-{seed}.json")


def load_results(spec: ExperimentSpec, out: str | Path | None = None, variant: Variant = "full") -> list[Result]:
    """The records of a spec that are there, under whichever version of it they were made, in its order."""
    out = default_folder() if out is None else out
    files = [result_file(out, spec, cell, seed, variant) for cell in spec.cells for seed in spec.seeds]
    return [Result.load(file) for file in files if file.is_file()]


@dataclass(frozen=True, eq=False)
class _Work:
    """One cell with one seed, to be run; each is itself alone, and a key to what came of it."""

    spec: ExperimentSpec
    cell: Cell
    seed: int
    out: Path
    variant: Variant
    device: torch.device
    again: bool

    @property
    def file(self) -> Path:
        """Where its record is kept."""
        return result_file(self.out, self.spec, self.cell, self.seed, self.variant)

    @property
    def place(self) -> str:
        """What messages call it."""
        return _place(self.spec.name, self.cell.name, self.seed)

    def done(self, tell: Tell) -> Result:
        """Its record, made now where there is none under this spec."""
        spec, cell = self.spec, self.cell
        settings, digest = spec.settings_of(cell, self.variant), spec.digest_of(cell, self.variant)
        stored = Result.load(self.file) if self.file.is_file() else None
        if stored is not None and stored.digest == digest and not self.again:
            tell(f"{self.place}: there already")
            return stored
        tell(f"{self.place} ...")
        commit, began = commit_here(), time.perf_counter()  # the commit before, not what it may be after
        trial = self._trial(settings, tell)
        findings = self._findings(trial)
        result = Result(
            spec.name,
            digest,
            cell.name,
            self.seed,
            self.variant,
            settings,
            findings.metrics,
            findings.curves,
            findings.notes,
            cell.published,
            spec.source,
            1 if stored is None else stored.attempts + 1,
            time.perf_counter() - began,
            commit,
            versions(),
            hardware_of(self.device),
            trial.origins,
        )
        self.file.parent.mkdir(parents=True, exist_ok=True)
        result.save(self.file)
        shown = ", ".join(f"{name} {findings.metrics[name].value:.4g}" for name in [*findings.metrics][:6])
        tell(f"{self.place}: {shown} ({result.seconds:.0f} s)")
        missing = {*spec.metrics, *spec.curves} - {*findings.metrics, *findings.curves}
        if missing and self.variant == "full":  # digits have no relatives to tell them from
            raise ValueError(f"protocol {spec.protocol} must measure {min(missing)}, which {spec.name} promises")
        return result

    def done_in_a_pool(self) -> Result:
        """The same in another process; an error that cannot be sent from there is sent in words."""
        try:
            return self.done(_shout)
        except Exception as error:
            if _can_be_sent(error):
                raise
            raise RuntimeError(f"{type(error).__name__}: {error}") from error

    def failure(self, error: Exception) -> Failure:
        """That it failed with this error."""
        line = " ".join(f"{type(error).__name__}: {error}".split())
        return Failure(self.spec.name, self.cell.name, self.seed, line, "".join(traceback.format_exception(error)))

    def _trial(self, settings: dict[str, Any], tell: Tell) -> Trial:
        shared, pictures = self.out / "shared", self.file.with_suffix("")
        return Trial(settings, self.seed, self.device, shared, pictures, lambda text: tell(f"{self.place}: {text}"))

    def _findings(self, trial: Trial) -> Findings:
        """What the protocol finds; torch's own generator is left as it was."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            return PROTOCOLS[self.spec.protocol](trial)


Failed = Callable[[_Work, Exception], Failure]
"""What to do about an error: raise it, or make a failure of it."""
Outcomes = Generator[tuple[_Work, Result | Failure], None, None]


def _work_of(
    spec: ExperimentSpec,
    out: str | Path | None,
    variant: Variant,
    cells: str,
    seeds: Sequence[int] | None,
    device: torch.device | str,
    again: bool,
) -> list[_Work]:
    """Every cell and seed of a spec that is asked for; what cannot be run so is refused."""
    if spec.protocol not in PROTOCOLS:
        raise ValueError(f"protocol of {spec.name} must be one of {', '.join(PROTOCOLS)}, got {spec.protocol!r}")
    chosen = [cell for cell in spec.cells if fnmatchcase(cell.name, cells)]
    if not chosen:
        raise ValueError(f"cells must match one of {', '.join(cell.name for cell in spec.cells)}, got {cells!r}")
    unknown = [seed for seed in seeds or () if seed not in spec.seeds]
    if unknown:
        raise ValueError(f"seeds must be some of {', '.join(map(str, spec.seeds))}, got {unknown[0]}")
    for cell in chosen:
        spec.settings_of(cell, variant)  # which refuses a variant that the spec does not have
    taken = tuple(dict.fromkeys(seeds)) if seeds else spec.seeds[:1] if variant == "tiny" else spec.seeds
    folder = default_folder() if out is None else Path(out)
    return [_Work(spec, cell, seed, folder, variant, torch.device(device), again) for cell in chosen for seed in taken]


def _run(
    work: Sequence[Sequence[_Work]], workers: int, tell: Tell, failed: Failed, finished: Callable[[Reproduction], None]
) -> list[Reproduction]:
    """What came of the work of each spec, in their order."""
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    for folder in {one.out for own in work for one in own}:
        folder.mkdir(parents=True, exist_ok=True)  # what cannot be written to is told before anything runs
    outcomes: dict[_Work, Result | Failure] = {}
    reproductions: list[Reproduction] = []
    with closing(_outcomes([one for own in work for one in own], workers, tell, failed)) as coming:
        for one, outcome in coming:
            outcomes[one] = outcome
            while len(reproductions) < len(work) and {*work[len(reproductions)]} <= outcomes.keys():
                reproductions.append(_reproduction(work[len(reproductions)], outcomes))
                finished(reproductions[-1])
    return reproductions


def _outcomes(work: Sequence[_Work], workers: int, tell: Tell, failed: Failed) -> Outcomes:
    """Each with what came of it, as soon as it is there."""
    # In the order given, and not one of each spec in turn: specs of one paper begin with the same networks, so that
    # workers would wait for one another's training (``Trial.kept``); neighbours in one spec often differ in their seed.
    pooled = [one for one in work if workers > 1 and not one.spec.alone]
    alone = [one for one in work if workers == 1 or one.spec.alone]
    if pooled:
        yield from _in_parallel(pooled, workers, tell, failed)
    for one in alone:  # the pool has ended: its processes would take time and memory from what is timed
        yield one, _outcome(one, partial(one.done, tell), failed)


def _in_parallel(work: Sequence[_Work], workers: int, tell: Tell, failed: Failed) -> Outcomes:
    """All of them, ``workers`` at a time; whoever stops asking ends the run as soon as what runs is done."""
    threads = max(1, (os.cpu_count() or 1) // min(workers, len(work)))
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    waiting, num_done = deque(work), 0
    running: dict[Future[Result], _Work] = {}
    while waiting:  # more than once only where a process died: its pool ends, and what ran there has failed
        with ProcessPoolExecutor(workers, context, torch.set_num_threads, (threads,)) as pool:
            _fill(pool, workers, running, waiting)
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    one = running.pop(future)
                    outcome = _outcome(one, future.result, failed)
                    _fill(pool, workers, running, waiting)
                    num_done += isinstance(outcome, Result)
                    tell(f"{num_done} of {len(work)} done")
                    yield one, outcome


def _fill(pool: Executor, workers: int, running: dict[Future[Result], _Work], waiting: deque[_Work]) -> None:
    """Let so many run and no more, since what a pool has in its queue runs even after an interruption."""
    with suppress(BrokenProcessPool):  # those that run tell of it
        while waiting and len(running) < workers:
            running[pool.submit(waiting[0].done_in_a_pool)] = waiting[0]
            waiting.popleft()


def _outcome(one: _Work, result: Callable[[], Result], failed: Failed) -> Result | Failure:
    try:
        return result()
    except Exception as error:
        return failed(one, error)


def _reproduction(work: Sequence[_Work], outcomes: Mapping[_Work, Result | Failure]) -> Reproduction:
    """What came of a spec's work, in its order."""
    own = [outcomes[one] for one in work]
    results = tuple(outcome for outcome in own if isinstance(outcome, Result))
    return Reproduction(work[0].spec, results, tuple(outcome for outcome in own if isinstance(outcome, Failure)))


def _raise(one: _Work, error: Exception) -> NoReturn:
    raise error


def _place(spec: str, cell: str, seed: int) -> str:
    """What messages call a cell with a seed."""
    return f"{spec}, {cell}, seed {seed}"


def _can_be_sent(error: Exception) -> bool:
    """Whether an error survives being pickled: one that does not would take its neighbours in the pool with it."""
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        return False
    return True


def _shout(text: str) -> None:
    """Say it from a worker."""
    sys.stderr.write(f"{text}\n")


def _silent(what: object) -> None:
    """Say nothing."""
