"""A lock on a run folder, so that two processes never write the same run.

The lock is an ``flock`` on the file ``.lock`` in the folder. The operating system releases it when its process ends,
however it ends, so a stale lock file blocks nothing. The file holds the number of the process and its host, for the
message that another process gets. It is removed when the lock is released.

Where the system has no ``flock`` (Windows), nothing is locked; a file system without locks gives a warning.

Invariants: ``tests/persistence/test_lock.py``.
"""

import contextlib
import errno
import os
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

try:
    import fcntl
except ImportError:  # pragma: no cover - Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCK", "locked"]

LOCK = ".lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


@dataclass
class _Held:
    """A lock that a thread of this process holds."""

    descriptor: int
    thread: int
    depth: int = 1
    """How many blocks of the thread are inside it."""


_HELD: dict[Path, _Held] = {}
_GUARD = threading.Lock()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder; refuse a folder that another process or thread holds.

    A thread that holds the lock may take it again. The folder is created where it is missing, and removed again if it
    is still empty at the end.
    """
    if fcntl is None:  # pragma: no cover - Windows
        folder.mkdir(parents=True, exist_ok=True)
        yield
        return
    key = Path(os.path.realpath(folder))
    with _GUARD:
        held = _HELD.get(key)
        if held is not None and held.thread != threading.get_ident():
            raise BlockingIOError(f"{folder} is in use by another thread of this process; wait until it has finished")
        is_new = held is None and not folder.exists()
        if held is None:
            folder.mkdir(parents=True, exist_ok=True)
            _HELD[key] = _Held(_acquire(folder), threading.get_ident())
        else:
            held.depth += 1
    try:
        yield
    finally:
        with _GUARD:
            _leave(key)
        if is_new:
            with contextlib.suppress(OSError):  # it holds a run now
                folder.rmdir()


def _acquire(folder: Path) -> int:
    """The descriptor of the locked file."""
    file = folder / LOCK
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, file):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
                return descriptor
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise BlockingIOError(f"{folder} is in use by {holder}; wait until it has finished, or stop it") from None
        except OSError as error:
            if error.errno in NO_LOCKS:
                warnings.warn(f"{folder} is not locked, {error}: do not train this run twice at once", stacklevel=4)
                return descriptor
            os.close(descriptor)
            raise
        os.close(descriptor)  # the process that held it has removed the file meanwhile: lock the new one


def _leave(key: Path) -> None:
    held = _HELD.get(key)
    if held is None:  # a forked child, which has forgotten its parent's locks
        return
    held.depth -= 1
    if held.depth:
        return
    del _HELD[key]
    if _is_at(held.descriptor, key / LOCK):  # removed first: once it is unlocked, it may be another's
        with contextlib.suppress(OSError):
            (key / LOCK).unlink()
    os.close(held.descriptor)


def _is_at(descriptor: int, file: Path) -> bool:
    """Whether an open file is the one that stands under its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> str:
    """Who holds the lock, as the file says."""
    number, _, host = os.pread(descriptor, 200, 0).decode(errors="replace").strip().partition(" ")
    if not number.isdigit():
        return "another process"
    return f"process {number}" + (f" on {host}" if host and host != socket.gethostname() else "")


def _forget_locks() -> None:
    """Close a parent's locks in a forked child, such as the worker of a loader, which may outlive the parent."""
    global _GUARD
    _GUARD = threading.Lock()  # another thread may have held it
    for held in _HELD.values():
        os.close(held.descriptor)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_locks)
