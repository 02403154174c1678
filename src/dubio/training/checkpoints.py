"""Checkpoints that are whole or not there: tensors in safetensors, the rest in JSON, never pickle.

A checkpoint is a folder, written under another name, flushed to disk and then renamed - which the file system does
all at once. Whatever ends the process, the newest complete checkpoint is found again. ``SHA256SUMS``, which
``sha256sum -c`` can check too, holds the hashes of its files, so that a file that was cut or changed later is noticed.
The checkpoint before the newest one is kept, to go on from when the newest is damaged. Checkpoints of older versions
have no hashes and are read without.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dubio.codec import UNFINISHED, flush, read_object

__all__ = [
    "CheckpointError",
    "checkpoints_in",
    "latest_checkpoint",
    "read_checkpoint",
    "remove_checkpoints",
    "write_checkpoint",
]

PREFIX = "step-"
TENSORS, STATE, SUMS = "tensors.safetensors", "state.json", "SHA256SUMS"


class CheckpointError(ValueError):
    """A checkpoint that is damaged, or does not fit the run; the message names it."""


def write_checkpoint(
    folder: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any], previous: Path | None = None
) -> None:
    """Write the checkpoint of a step, then remove all others but the ``previous`` one."""
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
    """The checkpoints under ``folder``, the newest first; whether they are whole is known when they are read."""
    return sorted((path for path in folder.glob(f"{PREFIX}*") if path.is_dir() and not path.is_symlink()), reverse=True)


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint under ``folder``."""
    return next(iter(checkpoints_in(folder)), None)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and state of a checkpoint; refuses one that lacks a file, or whose files do not match their hashes."""
    missing = [name for name in (TENSORS, STATE) if not (path / name).is_file()]
    if missing:
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
    """Remove checkpoints that are not needed any more."""
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)


def _write_parts(folder: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    (folder / STATE).write_text(json.dumps(state, indent=1) + "\n")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, folder / TENSORS)
    os.chmod(folder / TENSORS, (folder / STATE).stat().st_mode)  # safetensors lets nobody else read it
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
