"""The base of all datasets in files, their checksums, and downloads.

A download is complete or absent: it is written under another name and renamed only if its checksum is right. If the
connection is cut, the server sends something else, or the process is killed, no file exists under the name that readers
use (``tests/data/test_downloads.py``). If no address works, the error says which file to put where.
"""

import contextlib
import hashlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from dubio.codec import unfinished_file
from dubio.data.examples import Examples
from dubio.data.files import DataError

Part = Literal["train", "test"]
Advance = Callable[[int], None]
ANSWER_SECONDS = 30.0
TOTAL_SECONDS = 3600.0
"""Time limit for one file."""
CHUNK_BYTES = 2**18


@dataclass(frozen=True)
class Remote:
    """A file that can be downloaded.

    Args:
        path: its path, relative to the folder of all data.
        urls: its addresses, in the order in which they are tried.
        md5: the checksum that it must have.
        max_bytes: its maximum size. A download stops there, even if the server sends more.
    """

    path: str
    urls: tuple[str, ...]
    md5: str
    max_bytes: int = 256 * 2**20


@dataclass(frozen=True, kw_only=True)
class StoredSet(ABC):
    """A dataset in torchvision's layout under the folder of all data.

    Args:
        name: the name that users type.
        what: its contents in a few words.
        place: the folder of its files, relative to the folder of all data.
        train_optional: whether it can be loaded without the training part.
    """

    name: str
    what: str
    place: str
    train_optional: bool = False

    @abstractmethod
    def files(self, part: Part) -> tuple[str, ...]:
        """The files of a part, relative to the folder of all data."""

    @abstractmethod
    def missing(self, folder: Path, part: Part) -> tuple[str, ...]:
        """The files that a folder lacks; a packed file is not missing."""

    @abstractmethod
    def read(self, folder: Path, part: Part) -> Examples:
        """The examples of a part; raises ``DataError`` if a file is damaged or not the official one."""

    @abstractmethod
    def remotes(self, part: Part) -> tuple[Remote, ...]:
        """The files to download for a part."""


class DownloadError(OSError):
    """A file that could not be downloaded from any address; the message says which file to put where."""


def download(
    remote: Remote,
    folder: Path,
    *,
    timeout: float = ANSWER_SECONDS,
    total: float = TOTAL_SECONDS,
    progress: bool = True,
) -> Path:
    """Download a file into the folder of all data, unless it exists already, and return its path.

    Args:
        remote: the file and its checksum.
        folder: the folder of all data.
        timeout: seconds to wait for an answer.
        total: time limit in seconds for each address.
        progress: whether to show a progress bar, on stderr and only on a terminal.

    Raises:
        DownloadError: no address gave the complete file with the right checksum.
    """
    path = folder / remote.path
    if path.is_file() and path.stat().st_size <= remote.max_bytes and md5_of(path.read_bytes()) == remote.md5:
        return path
    import http.client  # slow to import, and rarely needed

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
    import urllib.request  # slow to import, and rarely needed

    request = urllib.request.Request(url, headers={"User-Agent": "dubio"})
    deadline = time.monotonic() + total
    with urllib.request.urlopen(request, timeout=min(timeout, total)) as response:
        if (response.length or 0) > remote.max_bytes:
            raise ConnectionError(f"it must have at most {remote.max_bytes} bytes, got {response.length}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_file(path) as file:
            with _bar(path.name, response.length, progress) as advance:
                md5 = _copy(response, file, advance, remote.max_bytes, deadline)
            if response.length:  # the bytes that the server announced and did not send
                raise ConnectionError(f"the connection was cut, {response.length} bytes are missing")
            if md5 != remote.md5:
                raise ConnectionError(f"its md5 must be {remote.md5}, got {md5}")
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(file.name, path)


def _copy(response: Any, file: BinaryIO, advance: Advance, max_bytes: int, deadline: float) -> str:
    """Copy a response of at most ``max_bytes`` before the deadline, and return its md5."""
    digest, left = hashlib.md5(usedforsecurity=False), max_bytes
    while chunk := response.read1(CHUNK_BYTES):  # only what has arrived: a full chunk may never come
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
def _bar(name: str, total: int | None, visible: bool) -> Iterator[Advance]:
    """A progress bar on stderr, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not (visible and console.is_terminal)) as bar:
        task = bar.add_task(name, total=total)
        yield lambda count: bar.advance(task, count)


def md5_of(content: bytes) -> str:
    """The md5 of bytes, in hexadecimal."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def check_md5(content: bytes, md5: str | None, file: str) -> None:
    """Refuse contents that are not those of the official file; ``md5`` is None if its checksum is not published."""
    if md5 is not None and (actual := md5_of(content)) != md5:
        raise DataError(f"{file} is not the official file: its md5 must be {md5}, got {actual}; fetch it again")
