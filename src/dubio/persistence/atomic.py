"""Files that are whole or not there: written under another name, flushed to disk, then renamed.

The other name holds the number of the process that writes, so that what a killed process left can be told from what
another process is writing now.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["UNFINISHED", "flush", "remove_unfinished", "unfinished_file", "write_atomically"]

UNFINISHED = ".unfinished-"


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file such that readers see the old one or the new one, never a part.

    What killed processes left half-written in the same folder is removed.
    """
    remove_unfinished(path.parent, recursive=False)
    unfinished = path.with_name(f"{UNFINISHED}{os.getpid()}-{path.name}")
    try:
        unfinished.write_bytes(content)
        flush(unfinished)
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    flush(path.parent)


@contextlib.contextmanager
def unfinished_file(path: Path) -> Iterator[BinaryIO]:
    """A new file beside ``path``, to be renamed to it; it is removed at the end unless it was."""
    unfinished = path.with_name(f"{UNFINISHED}{os.getpid()}-{secrets.token_hex(8)}")
    with unfinished.open("xb") as file:
        try:
            yield file
        finally:
            unfinished.unlink(missing_ok=True)


def remove_unfinished(folder: Path, recursive: bool = True) -> None:
    """Remove what killed processes left half-written, but not what a running process is writing."""
    for path in list((folder.rglob if recursive else folder.glob)(f"{UNFINISHED}*")):
        number = path.name.removeprefix(UNFINISHED).partition("-")[0]
        if number.isdigit() and _is_running(int(number)):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def flush(path: Path) -> None:
    """Make the system write a file or folder to disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_running(process: int) -> bool:
    if os.name != "posix":
        return False
    try:
        os.kill(process, 0)  # signal 0 only asks
    except ProcessLookupError:
        return False
    except OverflowError:  # larger than any number of a process
        return False
    except OSError:  # another user's process
        return True
    return True
