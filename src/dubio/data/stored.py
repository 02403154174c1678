"""What datasets in files have in common: the files of each part, how to read them, and where they come from.

Downloads that are whole or not there: under another name first, renamed only when the checksum fits.

A connection that is cut, a server that answers with something else and a process that is killed leave no file under the
name that readers look for. Where nothing can be fetched, the error says in one sentence which file to put where.

Checksums of the official files: what is known to be wrong is never read as right.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, runtime_checkable

from dubio.codec import unfinished_file
from dubio.data.examples import Examples
from dubio.data.files import DataError

Part = Literal["train", "test"]


@dataclass(frozen=True)
class Remote:
    """A file that can be downloaded.

    Args:
        path: where it goes, relative to the folder of all data.
        urls: its addresses, to be tried in this order.
        md5: the checksum it must have.
        max_bytes: what it is no larger than: a download ends there, whatever the server goes on to send.
    """

    path: str
    urls: tuple[str, ...]
    md5: str
    max_bytes: int = 256 * 2**20


@runtime_checkable
class StoredSet(Protocol):
    """A dataset in torchvision's layout under the folder of all data."""

    @property
    def name(self) -> str:
        """What users type."""

    @property
    def what(self) -> str:
        """What it holds, in a few words."""

    @property
    def place(self) -> str:
        """Where its files are, relative to the folder of all data."""

    @property
    def train_optional(self) -> bool:
        """Whether the test part alone is enough to open it."""

    def files(self, part: Part) -> tuple[str, ...]:
        """The files of a part, relative to the folder of all data."""

    def missing(self, folder: Path, part: Part) -> tuple[str, ...]:
        """Those of the files that a folder lacks; packed forms count as there."""

    def read(self, folder: Path, part: Part) -> Examples:
        """The examples of a part; ``DataError`` where a file is damaged or not the official one."""

    def remotes(self, part: Part) -> tuple[Remote, ...]:
        """What to download for a part."""


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


def md5_of(content: bytes) -> str:
    """The md5 of some bytes, in hexadecimal."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def check_md5(content: bytes, md5: str | None, file: str) -> None:
    """Refuse contents that are not those of the official file; None where its checksum is not known."""
    found = md5 if md5 is None else md5_of(content)
    if found != md5:
        raise DataError(f"{file} is not the official file: its md5 must be {md5}, got {found}; fetch it again")
