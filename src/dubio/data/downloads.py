"""Downloads that are whole or not there: under another name first, renamed only when the checksum fits.

A connection that is cut, a server that answers with something else and a process that is killed leave no file under the
name that readers look for. Where nothing can be fetched, the error says in one sentence which file to put where.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from dubio.data.checksums import md5_of
from dubio.data.stored import Remote

__all__ = ["DownloadError", "download"]

TIMEOUT = 30.0
CHUNK = 2**18
Advance = Callable[[int], None]


class DownloadError(OSError):
    """A file that none of its addresses gave; the message says which file to put where."""


def download(remote: Remote, folder: Path, *, timeout: float = TIMEOUT, progress: bool = True) -> Path:
    """Fetch a file into the folder of all data, unless it is there already, and return where it is.

    Args:
        remote: what to fetch, and the checksum it must have.
        folder: the folder of all data.
        timeout: how many seconds to wait for an answer.
        progress: whether to show a bar, on stderr and only on a terminal.

    Raises:
        DownloadError: no address gave the file, whole and with the right checksum.
    """
    path = folder / remote.path
    if path.is_file() and md5_of(path.read_bytes()) == remote.md5:
        return path
    import http.client  # slow, and seldom needed

    reasons = []
    for url in remote.urls:
        try:
            _fetch(url, path, remote.md5, timeout, progress)
            return path
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            reasons.append(f"{url}: {str(error) or type(error).__name__}")
    raise DownloadError(
        f"{path.name} could not be downloaded ({'; '.join(reasons)}): fetch {remote.urls[0]} on a machine that has a "
        f"network, and put it in {path.parent}"
    )


def _fetch(url: str, path: Path, md5: str, timeout: float, progress: bool) -> None:
    import urllib.request  # slow, and seldom needed

    request = urllib.request.Request(url, headers={"User-Agent": "dubio"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".unfinished-{os.getpid()}-{path.name}")
        try:
            with unfinished.open("wb") as file, _bar(path.name, response.length, progress) as advance:
                found = _copy(response, file, advance)
                file.flush()
                os.fsync(file.fileno())
            if response.length:  # what the server announced and did not send
                raise ConnectionError(f"the connection was cut, {response.length} bytes are missing")
            if found != md5:
                raise ConnectionError(f"its md5 must be {md5}, got {found}")
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)


def _copy(response: Any, file: BinaryIO, advance: Advance) -> str:
    """Copy all that comes, and return its md5."""
    digest = hashlib.md5(usedforsecurity=False)
    while chunk := response.read(CHUNK):
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
