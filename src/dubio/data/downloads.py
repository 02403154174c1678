"""Downloads that are whole or not there: under another name first, renamed only when the checksum fits.

A connection that is cut, a server that answers with something else and a process that is killed leave no file under the
name that readers look for. Where nothing can be fetched, the error says in one sentence which file to put where.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from dubio.codec import unfinished_file
from dubio.data.checksums import md5_of
from dubio.data.stored import Remote

__all__ = ["DownloadError", "download"]

TIMEOUT = 30.0
TOTAL = 3600.0
"""Seconds that a file may take in all."""
CHUNK = 2**18
Advance = Callable[[int], None]


class DownloadError(OSError):
    """A file that none of its addresses gave; the message says which file to put where."""


def download(
    remote: Remote, folder: Path, *, timeout: float = TIMEOUT, total: float = TOTAL, progress: bool = True
) -> Path:
    """Fetch a file into the folder of all data, unless it is there already, and return where it is.

    Args:
        remote: what to fetch, and the checksum it must have.
        folder: the folder of all data.
        timeout: how many seconds to wait for an answer.
        total: how many seconds each address may take in all.
        progress: whether to show a bar, on stderr and only on a terminal.

    Raises:
        DownloadError: no address gave the file, whole and with the right checksum.
    """
    path = folder / remote.path
    if path.is_file() and path.stat().st_size <= remote.max_bytes and md5_of(path.read_bytes()) == remote.md5:
        return path
    import http.client  # slow, and seldom needed

    reasons = []
    for url in remote.urls:
        try:
            _fetch(url, path, remote, timeout, total, progress)
            return path
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            reasons.append(f"{url}: {str(error) or type(error).__name__}")
    raise DownloadError(
        f"{path.name} could not be downloaded ({'; '.join(reasons)}): fetch {remote.urls[0]} on a machine that has a "
        f"network, and put it in {path.parent}"
    )


def _fetch(url: str, path: Path, remote: Remote, timeout: float, total: float, progress: bool) -> None:
    import urllib.request  # slow, and seldom needed

    request = urllib.request.Request(url, headers={"User-Agent": "dubio"})
    deadline = time.monotonic() + total
    with urllib.request.urlopen(request, timeout=min(timeout, total)) as response:
        if (response.length or 0) > remote.max_bytes:
            raise ConnectionError(f"it must have at most {remote.max_bytes} bytes, got {response.length}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_file(path) as file:
            with _bar(path.name, response.length, progress) as advance:
                found = _copy(response, file, advance, remote.max_bytes, deadline)
            if response.length:  # what the server announced and did not send
                raise ConnectionError(f"the connection was cut, {response.length} bytes are missing")
            if found != remote.md5:
                raise ConnectionError(f"its md5 must be {remote.md5}, got {found}")
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(file.name, path)


def _copy(response: Any, file: BinaryIO, advance: Advance, max_bytes: int, deadline: float) -> str:
    """Copy all that comes, and return its md5; no more than a number of bytes, and not after the deadline."""
    digest, left = hashlib.md5(usedforsecurity=False), max_bytes
    while chunk := response.read1(CHUNK):  # what has come: waiting for a full chunk could take for ever
        left -= len(chunk)
        if left < 0:
            raise ConnectionError(f"it must have at most {max_bytes} bytes, and goes on")
        if time.monotonic() > deadline:
            raise TimeoutError("it took too long in all")
        file.write(chunk)
        digest.update(chunk)
        advance(len(chunk))
    return digest.hexdigest()


@contextlib.contextmanager
def _bar(name: str, total: int | None, wanted: bool) -> Iterator[Advance]:
    """A bar on stderr, where that is a terminal and rich is installed."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
    except ImportError:
        wanted = False
    if not wanted:
        yield lambda count: None
        return
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=total)
        yield lambda count: bar.advance(task, count)
