"""Files that are whole or not there: written under another name, flushed to disk, then renamed."""

import os
import shutil
from pathlib import Path

__all__ = ["UNFINISHED", "flush", "remove_unfinished", "write_atomically"]

UNFINISHED = ".unfinished-"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file such that readers see the old one or the new one, never a part."""
    unfinished = path.with_name(f"{UNFINISHED}{os.getpid()}-{path.name}")
    try:
        unfinished.write_bytes(content)
        flush(unfinished)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    flush(path.parent)


def remove_unfinished(folder: Path) -> None:
    """Remove what a process that was killed left half-written."""
    for path in list(folder.rglob(f"{UNFINISHED}*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Make the system write a file or folder to disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
