"""Checkpoints: the state of a run, written atomically; tensors in safetensors, the rest in JSON, never pickle.

A checkpoint is a folder, written under a temporary name, flushed to disk and then renamed, which the file system does
atomically: whenever the process ends, the newest complete checkpoint can be read. ``SHA256SUMS``, which
``sha256sum -c`` can check too, holds the hashes of its files, so that a truncated or changed file is noticed. The
checkpoint before the newest one is kept, in case the newest is damaged. Checkpoints of older versions have no hashes
and are read without.

``pack`` collects everything that a run needs to go on as if it had never stopped, and ``unpack`` restores it. A
checkpoint that is complete but does not fit the run, such as one without a slot of the optimizer, is refused when it is
read (``tests/training/test_resume.py``).
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio._engine import generator_state, set_generator_state
from dubio.codec import UNFINISHED, flush, read_object, read_value
from dubio.io import with_ties, without_ties
from dubio.training.optimizers import load_optimizer_state
from dubio.training.processes import Processes

CPU = torch.device("cpu")
PREFIX = "step-"
TENSORS, STATE, SUMS = "tensors.safetensors", "state.json", "SHA256SUMS"


class CheckpointError(ValueError):
    """A checkpoint is damaged or does not fit the run; the message names it."""


@dataclass
class TrainState:
    """Counters and sums of a run."""

    epoch: int = 0
    """Completed epochs."""
    batch: int = 0
    """Completed batches of the present epoch."""
    step: int = 0
    """Optimizer steps taken."""
    sums: dict[str, float] = field(default_factory=dict)
    """Sums over the examples of the present epoch."""
    best: float | None = None
    best_epoch: int = 0
    seconds: float = 0.0
    compiled: bool | None = None
    """Whether steps are compiled, once a trial on a CPU has decided it."""

    def __post_init__(self) -> None:
        for name in ("epoch", "batch", "step", "best_epoch"):
            if getattr(self, name) < 0:  # from a forged file: training would not end
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.best_epoch > self.epoch:
            raise ValueError(f"best_epoch must be at most epoch, {self.epoch}, got {self.best_epoch}")
        missing = [name for name in ("examples", "loss", "nll") if name not in self.sums]
        if self.sums and (missing or not self.sums["examples"] > 0.0):
            raise ValueError(f"sums must hold examples, at least 1, loss and nll, got {self.sums}")


def write_checkpoint(
    folder: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any], previous: Path | None = None
) -> None:
    """Write the checkpoint of a step, then remove all others except the ``previous`` one."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{UNFINISHED}{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        _write_parts(unfinished, tensors, state)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        kept = "the one before is kept" if checkpoints_in(folder) else "there is no other, so the run cannot be resumed"
        raise OSError(f"cannot write the checkpoint of step {step} to {folder}: {error}; {kept}") from error
    final = folder / f"{PREFIX}{step:010d}"
    while os.path.lexists(final):  # never removed before the new one is there
        final = final.with_name(f"{final.name}+")
    os.rename(unfinished, final)
    flush(folder)
    remove_checkpoints(other for other in checkpoints_in(folder) if other not in (final, previous))


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints under ``folder``, the newest first; they are checked when they are read."""
    return sorted((path for path in folder.glob(f"{PREFIX}*") if path.is_dir() and not path.is_symlink()), reverse=True)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint under ``folder``."""
    return next(iter(checkpoints_in(folder)), None)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and state; refuses a checkpoint that lacks a file, or whose files do not match their hashes."""
    if missing := [name for name in (TENSORS, STATE) if not (path / name).is_file()]:
        raise CheckpointError(f"{path} is damaged: it has no {' and no '.join(missing)}")
    try:
        if (path / SUMS).is_file():
            _check_sums(path)
        return load_file(path / TENSORS), read_object(path / STATE)
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged: {TENSORS} is not a whole safetensors file: {error}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error


def remove_checkpoints(paths: Iterable[Path]) -> None:
    """Remove checkpoints."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def _write_parts(folder: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    (folder / STATE).write_text(json.dumps(state, indent=1) + "\n")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, folder / TENSORS)
    os.chmod(folder / TENSORS, (folder / STATE).stat().st_mode)  # safetensors makes it readable by its owner alone
    (folder / SUMS).write_text("".join(f"{_sha256(folder / name)}  {name}\n" for name in (STATE, TENSORS)))
    for part in (*folder.iterdir(), folder):
        flush(part)


def _check_sums(path: Path) -> None:
    lines = (path / SUMS).read_text().splitlines()
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    if sums.keys() != {TENSORS, STATE}:
        raise ValueError(f"{SUMS} must name {STATE} and {TENSORS}, got {', '.join(sums) or 'nothing'}")
    for name, digest in sums.items():
        if _sha256(path / name) != digest:
            raise ValueError(f"{name} does not match its hash in {SUMS}")


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def own_state(model: nn.Module, processes: Processes) -> dict[str, Tensor]:
    """State of this process alone: its generators, and buffers that differ from those of the first process."""
    devices = [CPU, processes.device] if processes.device.type == "cuda" else [CPU]  # the GPU of this process alone
    random = {f"random/{device.type}": generator_state(device) for device in devices}
    return random | {f"buffers/{name}": buffer.cpu() for name, buffer in processes.own_buffers(model).items()}


def pack(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    best: dict[str, Tensor] | None,
    own_states: list[dict[str, Tensor]],
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and plain values of a run; ``own_states`` are those of its processes, in their order."""
    packed = optimizer.state_dict()
    weights, tied = without_ties(model.state_dict())
    tensors = {f"model/{name}": tensor for name, tensor in weights.items()}
    tensors |= {f"best/{name}": tensor for name, tensor in (best or {}).items()}
    for rank, own in enumerate(own_states):
        for name, tensor in own.items():
            kind, _, rest = name.partition("/")
            tensors[f"{kind}/rank{rank}/{rest}" if rank else name] = tensor
    plain: dict[str, dict[str, Any]] = {}
    for place, values in packed["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{place}/{name}"] = value
            else:
                plain.setdefault(str(place), {})[name] = value
    slots = {"state": plain, "param_groups": pytree.tree_map_only(Tensor, Tensor.item, packed["param_groups"])}
    return tensors, {"standing": asdict(state), "tied": tied, "optimizer": slots}


def unpack(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    tensors: dict[str, Tensor],
    state: dict[str, Any],
    processes: Processes,
) -> tuple[TrainState, dict[str, Tensor] | None]:
    """Restore the tensors and values of a run and the state of this process; return its counters and best weights.

    Raises a KeyError, TypeError, ValueError or RuntimeError where a part does not fit the run.
    """
    parts: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition("/")
        parts.setdefault(kind, {})[rest] = tensor
    train_state = read_value(TrainState, state["standing"], "state.json: standing")
    if (best := parts.get("best")) is not None:
        _check_best(best, model)
    model.load_state_dict(with_ties(parts["model"], state["tied"]))
    saved = state["optimizer"]
    slots: dict[int, dict[str, Any]] = {int(place): dict(values) for place, values in saved["state"].items()}
    for name, tensor in parts.get("optimizer", {}).items():
        place, _, key = name.partition("/")
        slots.setdefault(int(place), {})[key] = tensor
    load_optimizer_state(optimizer, {"state": slots, "param_groups": saved["param_groups"]})
    _restore_generators(_of_rank(parts["random"], processes), processes.device)
    for name, value in _of_rank(parts.get("buffers", {}), processes).items():
        model.get_buffer(name).copy_(value)
    return train_state, best


def _of_rank(tensors: dict[str, Tensor], processes: Processes) -> dict[str, Tensor]:
    """The tensors of this process; names of the first process have no rank as their prefix."""
    if processes.rank == 0:
        return {name: tensor for name, tensor in tensors.items() if not re.match(r"rank\d+/", name)}
    prefix = f"rank{processes.rank}/"
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _check_best(best: dict[str, Tensor], model: nn.Module) -> None:
    """Refuse weights that the network could not load at the end of the run."""
    shapes, expected = ({name: tuple(t.shape) for name, t in each.items()} for each in (best, model.state_dict()))
    for name in {**shapes, **expected}:
        if shapes.get(name) != expected.get(name):
            raise ValueError(f"best weights: {name} must have shape {expected.get(name)}, got {shapes.get(name)}")


def _restore_generators(random: dict[str, Tensor], device: torch.device) -> None:
    _restore_generator(CPU, random["cpu"])
    if device.type == "cuda":
        # Older checkpoints hold the generators of all GPUs by their numbers: that of this one, else of the first.
        number = torch.cuda.current_device() if device.index is None else device.index
        saved = next((random[name] for name in ("cuda", f"cuda{number}", "cuda0") if name in random), None)
        if saved is not None:
            _restore_generator(device, saved)


def _restore_generator(device: torch.device, saved: Tensor) -> None:
    present = generator_state(device)
    if saved.shape != present.shape or saved.dtype != present.dtype:
        raise ValueError(
            f"the state of a {device.type} generator must have shape {tuple(present.shape)} and type {present.dtype}, "
            f"got {tuple(saved.shape)} and {saved.dtype}"
        )
    set_generator_state(device, saved)
