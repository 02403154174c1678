"""Runs on disk: found by name, listed, and the model in each."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dubio.choices import did_you_mean
from dubio.persistence import load
from dubio.persistence.command_log import read_commands
from dubio.persistence.files import Identity, identity_of

__all__ = [
    "Summary",
    "check_name",
    "check_resumable",
    "class_names",
    "find_run",
    "folder_of",
    "list_runs",
    "load_model",
    "network_of",
    "num_processes_of",
    "unused_name",
]

CONFIG, METRICS, MODEL = "config.json", "metrics.jsonl", "model.safetensors"


@dataclass(frozen=True)
class Summary:
    """One run, as the list shows it."""

    name: str
    method: str
    epochs_done: int
    epochs: int
    best: dict[str, float]
    """Metrics of the epoch with the least validation NLL; empty before the first epoch is over."""


def load_model(named: str, runs: Path) -> nn.Module:
    """The network of a run's name, a run's folder or a ``.safetensors`` file."""
    path = Path(named)
    if path.suffix == ".safetensors":
        return load(path)
    folder = find_run(named, runs)
    file = folder / MODEL
    if not file.is_file():
        raise FileNotFoundError(f"run {named!r} has no {MODEL} yet; finish it with: dubio train {named} --resume")
    if (_config(folder / CONFIG) or {}).get("method") == str(None):
        raise ValueError(f"run {named!r} holds an ordinary network's weights; it has no draws to look at")
    return load(file)


def folder_of(named: str, runs: Path) -> Path:
    """Where the files of a run, or of a ``.safetensors`` file, belong."""
    return Path(named).parent if Path(named).suffix == ".safetensors" else find_run(named, runs)


def class_names(folder: Path) -> tuple[str, ...]:
    """Names of the classes that a run was trained on; empty where it does not keep them."""
    config = _config(folder / CONFIG) or {}
    data = config.get("data")
    train = data.get("train") if isinstance(data, dict) else None
    names = train.get("classes") if isinstance(train, dict) else None
    return tuple(map(str, names)) if isinstance(names, list) else ()


def network_of(named: str, runs: Path) -> Identity:
    """Which network a run, or a ``.safetensors`` file, holds now; records keep it."""
    path = Path(named)
    found = identity_of(path if path.suffix == ".safetensors" else find_run(named, runs) / MODEL)
    if found is None:
        raise FileNotFoundError(f"{named} holds no network that dubio saved")
    return found


def check_resumable(folder: Path) -> None:
    """Refuse to go on training a run that was pruned: training would build the whole network."""
    pruned = [command for command in read_commands(folder) if command.kind == "prune"]
    if pruned:
        raise ValueError(
            f"a pruned run cannot be resumed, got {folder}; train the whole one on and prune again (dubio train "
            f"{pruned[0].run} --resume), or go on in Python: dubio.fit(dubio.load({str(folder / MODEL)!r}), ...)"
        )


def find_run(named: str, runs: Path) -> Path:
    """The folder of a run, given by its name under ``runs`` or by its path."""
    for folder in (runs / named, Path(named)):
        if (folder / CONFIG).is_file():
            return folder
    known = _names(runs)
    if not known:
        raise FileNotFoundError(f"there is no run {named!r}, and none at all in {runs}; train one: dubio train {named}")
    hint = did_you_mean(named, known) or "; dubio runs lists those there are"
    raise FileNotFoundError(f"there is no run {named!r} in {runs}{hint}")


def list_runs(runs: Path) -> list[Summary]:
    """All runs of a folder, by name."""
    return [_summary(runs / name) for name in _names(runs)]


def num_processes_of(folder: Path) -> int | None:
    """How many processes train a run together; None where it has not begun."""
    config = _config(folder / CONFIG)
    return None if config is None else int(config.get("num_processes", 1))


def check_name(name: str) -> None:
    """Refuse names that would lead out of the folder of runs."""
    if not name or name.startswith((".", "-")) or any(sign in name for sign in "/\\\0"):
        raise ValueError(f"NAME must be a plain name such as first or mlp-2, got {name!r}; --runs names the folder")


def unused_name(name: str, runs: Path, ending: str = "") -> str:
    """The name, or with a number where there is a folder (or a file with this ending) of that name."""
    number, free = 1, name
    while (runs / f"{free}{ending}").exists():
        number += 1
        free = f"{name}-{number}"
    return free


def _names(runs: Path) -> list[str]:
    return sorted(file.parent.name for file in runs.glob(f"[!.]*/{CONFIG}") if _config(file) is not None)


def _config(file: Path) -> dict[str, Any] | None:
    """The configuration of a run; None where a file of that name is something else."""
    try:
        config = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) and {"method", "epochs"} <= config.keys() else None


def _history(file: Path) -> list[dict[str, float]]:
    """The metrics of a run so far; a line that is being written is left out."""
    lines = file.read_text().splitlines(keepends=True) if file.is_file() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def _summary(folder: Path) -> Summary:
    config = _config(folder / CONFIG)
    if config is None:
        raise ValueError(f"{folder / CONFIG} is not the configuration of a run")
    history = _history(folder / METRICS)
    best = min(history, key=lambda metrics: metrics.get("val_nll", metrics["nll"])) if history else {}
    method = str(config["method"]).partition("(")[0]
    return Summary(
        folder.name, "Deterministic" if method == "None" else method, len(history), int(config["epochs"]), best
    )
