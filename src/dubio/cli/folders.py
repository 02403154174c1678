"""Runs on disk: found by name, listed, and the model in each."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dubio.checks import did_you_mean
from dubio.codec import RecordError, check_fields, printable, read_commands, read_history, read_object
from dubio.io import Identity, identity_of, load as load_network

__all__ = [
    "Summary",
    "Unreadable",
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


@dataclass(frozen=True)
class Unreadable:
    """A run whose files cannot be read, and why."""

    name: str
    reason: str


def load_model(named: str, runs: Path) -> nn.Module:
    """The network of a run's name, a run's folder or a ``.safetensors`` file."""
    path = Path(named)
    if path.suffix == ".safetensors":
        return load_network(path)
    folder = find_run(named, runs)
    file = folder / MODEL
    if not file.is_file():
        raise FileNotFoundError(f"run {named!r} has no {MODEL} yet; finish it with: dubio train {named} --resume")
    if _config(folder / CONFIG).get("method") == str(None):
        raise ValueError(f"run {named!r} holds an ordinary network's weights; it has no draws to look at")
    return load_network(file)


def folder_of(named: str, runs: Path) -> Path:
    """Where the files of a run, or of a ``.safetensors`` file, belong."""
    return Path(named).parent if Path(named).suffix == ".safetensors" else find_run(named, runs)


def class_names(folder: Path) -> tuple[str, ...]:
    """Names of the classes that a run was trained on; empty where it does not keep them."""
    names = _training_data(folder).get("classes")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def input_shape(folder: Path) -> tuple[int, ...]:
    """The shape of one input that a run was trained on; empty where it does not keep it."""
    shape = _training_data(folder).get("shape")
    return tuple(shape) if isinstance(shape, list) and all(type(size) is int for size in shape) else ()


def _training_data(folder: Path) -> dict[str, Any]:
    """What a run keeps of its training data."""
    data = (_config(folder / CONFIG) or {}).get("data")
    train = data.get("train") if isinstance(data, dict) else None
    return train if isinstance(train, dict) else {}


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


def list_runs(runs: Path) -> list[Summary | Unreadable]:
    """All runs of a folder, by name; one that cannot be read keeps no other from being listed."""
    listed: list[Summary | Unreadable] = []
    for name in _names(runs):
        try:
            listed.append(_summary(runs / name))
        except (ValueError, OSError) as error:
            listed.append(Unreadable(name, str(error)))
    return listed


def num_processes_of(folder: Path) -> int | None:
    """How many processes train a run together; None where it has not begun."""
    return int(_config(folder / CONFIG).get("num_processes", 1)) if (folder / CONFIG).exists() else None


def check_name(name: str) -> None:
    """Refuse names that would lead out of the folder of runs, and those that a terminal would not show as they are."""
    if not name or name.startswith((".", "-")) or any(sign in name for sign in "/\\\t\n") or printable(name) != name:
        raise ValueError(f"NAME must be a plain name such as first or mlp-2, got {name!r}; --runs names the folder")


def unused_name(name: str, runs: Path, ending: str = "") -> str:
    """The name, or with a number where there is a folder (or a file with this ending) of that name."""
    number, free = 1, name
    while (runs / f"{free}{ending}").exists():
        number += 1
        free = f"{name}-{number}"
    return free


def _names(runs: Path) -> list[str]:
    return sorted(file.parent.name for file in runs.glob(f"[!.]*/{CONFIG}") if _is_of_a_run(file))


def _is_of_a_run(file: Path) -> bool:
    """Whether a file may be the configuration of a run; only what is read without an error and is none is not."""
    try:
        config = read_object(file)
    except (OSError, ValueError):
        return True
    return {"method", "epochs"} <= config.keys()


def _config(file: Path) -> dict[str, Any]:
    """The configuration of a run."""
    config = read_object(file)
    if not {"method", "epochs"} <= config.keys():
        raise RecordError(f"{file} is not the configuration of a run: it names no method or no epochs")
    check_fields(config, {"method": str, "epochs": int, "num_processes": int}, str(file))
    return config


def _summary(folder: Path) -> Summary:
    config = _config(folder / CONFIG)
    history = read_history(folder / METRICS)
    best = min(history, key=_judged_by) if history else {}
    method = config["method"].partition("(")[0]
    return Summary(folder.name, "Deterministic" if method == "None" else method, len(history), config["epochs"], best)


def _judged_by(metrics: dict[str, Any]) -> float:
    """The NLL by which epochs are compared; the largest number where an epoch has none."""
    value = metrics.get("val_nll", metrics.get("nll"))
    return math.inf if value is None else float(value)
