"""The one runner of all experiments: cell by cell, seed by seed, each kept as soon as it is there.

A record that was made under the same spec is not made again, so a run that was interrupted goes on where it stopped. A
record of another spec is replaced, and counted: ``attempts`` says how often a cell was run.
"""

import time
from collections.abc import Callable
from pathlib import Path

import torch

from dubio.experiments.protocols import PROTOCOLS, Trial
from dubio.experiments.results import Result
from dubio.experiments.spec import Cell, Spec
from dubio.version import commit_here, hardware_of, versions

__all__ = ["reproduce", "result_file"]

Tell = Callable[[str], None]


def reproduce(
    spec: Spec,
    out: str | Path = "results",
    *,
    tiny: bool = False,
    device: torch.device | str = "cpu",
    tell: Tell | None = None,
) -> list[Result]:
    """Run every cell of a spec that has no record yet; all records, in the order of the spec.

    Args:
        spec: what to run; see ``load_spec``.
        out: folder of all records; a cell's is ``out/SPEC/CELL-SEED.json``, and of tiny runs ``out/tiny/SPEC/...``.
        tiny: only see that everything runs.
        device: where to compute.
        tell: is told a line before and after each cell.
    """
    if spec.protocol not in PROTOCOLS:
        raise ValueError(f"protocol of {spec.name} must be one of {', '.join(PROTOCOLS)}, got {spec.protocol!r}")
    seeds = spec.seeds[:1] if tiny else spec.seeds
    work = [(cell, seed) for cell in spec.cells for seed in seeds]
    return [
        _result(spec, cell, seed, result_file(out, spec, cell, seed, tiny), tiny, torch.device(device), tell or _silent)
        for cell, seed in work
    ]


def result_file(out: str | Path, spec: Spec, cell: Cell, seed: int, tiny: bool = False) -> Path:
    """Where the record of a cell and seed is kept."""
    return Path(out, *(["tiny"] if tiny else []), spec.name, f"{cell.name}-{seed}.json")


def _result(spec: Spec, cell: Cell, seed: int, file: Path, tiny: bool, device: torch.device, tell: Tell) -> Result:
    known = Result.load(file) if file.is_file() else None
    place = f"{spec.name}, {cell.name}, seed {seed}"
    if known is not None and known.spec_digest == spec.digest:
        tell(f"{place}: there already")
        return known
    tell(f"{place} ...")
    settings = spec.settings_of(cell, tiny)
    commit, began = commit_here(), time.perf_counter()  # the commit before, not what it may be after
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        metrics = PROTOCOLS[spec.protocol](Trial(settings, seed, device))
    missing = [name for name in spec.metrics if name not in metrics]
    if missing:
        raise ValueError(f"protocol {spec.protocol} must measure {missing[0]}, which {spec.name} promises")
    result = Result(
        spec.name,
        spec.digest,
        cell.name,
        seed,
        tiny,
        settings,
        metrics,
        cell.published,
        spec.source,
        1 if known is None else known.attempts + 1,
        time.perf_counter() - began,
        commit,
        versions(),
        hardware_of(device),
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    result.save(file)
    shown = ", ".join(f"{name} {metrics[name].value:.4g}" for name in spec.metrics)
    tell(f"{place}: {shown} ({result.seconds:.0f} s)")
    return result


def _silent(text: str) -> None:
    """Say nothing."""
