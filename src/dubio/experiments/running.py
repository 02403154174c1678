"""The one runner of all experiments: cell by cell, seed by seed, each kept as soon as it is there.

A record that was made with the same settings is not made again, so a run that was interrupted goes on where it stopped.
One with other settings is replaced, and counted: ``attempts`` says how often a cell was run.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch

from dubio.experiments.protocols import PROTOCOLS, Trial
from dubio.experiments.results import Findings, Result
from dubio.experiments.spec import Cell, Spec, Variant
from dubio.version import commit_here, hardware_of, versions

__all__ = ["load_results", "reproduce", "result_file"]

Tell = Callable[[str], None]


def reproduce(
    spec: Spec,
    out: str | Path = "results",
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

    Args:
        spec: what to run; see ``load_spec``.
        out: folder of all records; a cell's is ``out/SPEC/CELL-SEED.json``, and of smaller runs
            ``out/VARIANT/SPEC/...``.
        variant: "full"; "digits" for scikit-learn's digits in place of larger images; "tiny" to see that it runs.
        cells: only cells whose name matches this pattern, as of files.
        seeds: only these of the spec's seeds; in tiny runs its first alone, unless said.
        workers: how many processes run cells at once; one where cells are timed.
        device: where to compute.
        again: run also what has a record, as another attempt: after an error in the code was mended.
        tell: is told a line before and after each cell, and how far it is; with several workers, after each.
    """
    if spec.protocol not in PROTOCOLS:
        raise ValueError(f"protocol of {spec.name} must be one of {', '.join(PROTOCOLS)}, got {spec.protocol!r}")
    if workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    chosen = [cell for cell in spec.cells if fnmatchcase(cell.name, cells)]
    if not chosen:
        raise ValueError(f"cells must match one of {', '.join(cell.name for cell in spec.cells)}, got {cells!r}")
    unknown = [seed for seed in seeds or () if seed not in spec.seeds]
    if unknown:
        raise ValueError(f"seeds must be some of {', '.join(map(str, spec.seeds))}, got {unknown[0]}")
    taken = tuple(seeds) if seeds else spec.seeds[:1] if variant == "tiny" else spec.seeds
    work = [
        _Work(spec, cell, seed, Path(out), variant, torch.device(device), again) for cell in chosen for seed in taken
    ]
    if workers == 1 or spec.alone:
        return [one.done(tell or _silent) for one in work]
    return _in_parallel(work, workers, tell or _silent)


def result_file(out: str | Path, spec: Spec, cell: Cell, seed: int, variant: Variant = "full") -> Path:
    """Where the record of a cell and seed is kept."""
    return Path(out, *([] if variant == "full" else [variant]), spec.name, f"{cell.name}-{seed}.json")


def load_results(spec: Spec, out: str | Path = "results", variant: Variant = "full") -> list[Result]:
    """The records of a spec that are there, under whichever version of it they were made, in its order."""
    files = [result_file(out, spec, cell, seed, variant) for cell in spec.cells for seed in spec.seeds]
    return [Result.load(file) for file in files if file.is_file()]


@dataclass(frozen=True)
class _Work:
    """One cell with one seed, to be run."""

    spec: Spec
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
        return f"{self.spec.name}, {self.cell.name}, seed {self.seed}"

    def done(self, tell: Tell) -> Result:
        """Its record, made now where there is none under this spec."""
        spec, cell = self.spec, self.cell
        settings, digest = spec.settings_of(cell, self.variant), spec.digest_of(cell, self.variant)
        known = Result.load(self.file) if self.file.is_file() else None
        if known is not None and known.digest == digest and not self.again:
            tell(f"{self.place}: there already")
            return known
        tell(f"{self.place} ...")
        commit, began = commit_here(), time.perf_counter()  # the commit before, not what it may be after
        trial = self._trial(settings, tell)
        found = self._found(trial)
        result = Result(
            spec.name,
            digest,
            cell.name,
            self.seed,
            self.variant,
            settings,
            found.metrics,
            found.curves,
            found.notes,
            cell.published,
            spec.source,
            1 if known is None else known.attempts + 1,
            time.perf_counter() - began,
            commit,
            versions(),
            hardware_of(self.device),
            trial.origins,
        )
        self.file.parent.mkdir(parents=True, exist_ok=True)
        result.save(self.file)
        shown = ", ".join(f"{name} {found.metrics[name].value:.4g}" for name in [*found.metrics][:6])
        tell(f"{self.place}: {shown} ({result.seconds:.0f} s)")
        missing = {*spec.metrics, *spec.curves} - {*found.metrics, *found.curves}
        if missing and self.variant == "full":  # digits have no relatives to tell them from
            raise ValueError(f"protocol {spec.protocol} must measure {min(missing)}, which {spec.name} promises")
        return result

    def _trial(self, settings: dict[str, Any], tell: Tell) -> Trial:
        shared, pictures = self.out / "shared", self.file.with_suffix("")
        return Trial(settings, self.seed, self.device, shared, pictures, lambda text: tell(f"{self.place}: {text}"))

    def _found(self, trial: Trial) -> Findings:
        """What the protocol finds; torch's own generator is left as it was."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            return PROTOCOLS[self.spec.protocol](trial)


def _in_parallel(work: Sequence[_Work], workers: int, tell: Tell) -> list[Result]:
    """All of them, ``workers`` at a time; the first failure ends the run, what is done stays."""
    threads = max(1, (os.cpu_count() or 1) // workers)
    context = multiprocessing.get_context("spawn")  # a forked process cannot use CUDA
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (threads,)) as pool:
        running = {pool.submit(one.done, _shout): number for number, one in enumerate(work)}
        results: dict[int, Result] = {}
        try:
            for future in as_completed(running):
                results[running[future]] = future.result()
                tell(f"{len(results)} of {len(work)} done")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [results[number] for number in range(len(work))]


def _shout(text: str) -> None:
    """Say it from a worker."""
    sys.stderr.write(f"{text}\n")


def _silent(text: str) -> None:
    """Say nothing."""
