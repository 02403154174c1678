"""Checkpoints that are whole or not there: tensors in safetensors, the rest in JSON, never pickle.

A checkpoint is a folder, written under another name, flushed to disk and then renamed - which the file system does
all at once. Whatever ends the process, the newest complete checkpoint is found again.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dubio.persistence.atomic import UNFINISHED, flush

__all__ = ["latest_checkpoint", "read_checkpoint", "write_checkpoint"]

PREFIX = "step-"


def write_checkpoint(folder: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write the checkpoint of a step, then remove older ones."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{UNFINISHED}{os.getpid()}"
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        _write_parts(unfinished, tensors, state)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise OSError(
            f"cannot write the checkpoint of step {step} to {folder}: {error}; the one before is kept"
        ) from error
    final = folder / f"{PREFIX}{step:010d}"
    while final.exists():  # never removed before the new one is there
        final = final.with_name(f"{final.name}+")
    os.rename(unfinished, final)
    flush(folder)
    for other in _checkpoints(folder):
        if other != final:
            shutil.rmtree(other, ignore_errors=True)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint under ``folder``."""
    found = _checkpoints(folder)
    return found[-1] if found else None


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state of a checkpoint."""
    return load_file(path / "tensors.safetensors"), json.loads((path / "state.json").read_text())


def _write_parts(folder: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, folder / "tensors.safetensors"
    )
    (folder / "state.json").write_text(json.dumps(state, indent=1) + "\n")
    for part in folder.iterdir():
        flush(part)


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{PREFIX}*") if path.is_dir())
