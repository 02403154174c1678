"""Errors and warnings about files, and the files in tar and zip archives, which are never extracted to disk.

The size that an archive announces is compared with a limit before it is inflated, and the number of bytes that come out
while it is inflated: sizes in headers are not trusted (``tests/data/test_archives.py``).
"""

import gzip
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dubio._engine import available_memory, memory_in_words
from dubio.codec import open_regular

LIMIT = 256 * 2**20
"""Bytes; the archives of the datasets and the files in them are smaller, and larger ones are not inflated."""
ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""Compression methods of zip archives that can be inflated in parts."""
OPTION = re.compile(r"\{(target|task|drop|delimiter)(?:=([^{}]*))?\}")


class DataError(ValueError):
    """A file is damaged, or does not have the format or contents that its name says.

    Args:
        problem: the file and what is wrong with it.
        advice: what the user can do. Options are written ``{task=regression}`` or ``{target}``; the message contains
            them as arguments, ``task='regression'``, and ``on_command_line`` as options, ``--task regression``.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        texts = [OPTION.sub(spell, advice) for spell in (_as_argument, _as_option)]
        self.on_command_line = f"{problem}; {texts[1]}" if advice else problem
        super().__init__(f"{problem}; {texts[0]}" if advice else problem)


class DataWarning(UserWarning):
    """Data were changed while they were read; the message says how."""


class TableWarning(UserWarning):
    """Rows of a table have values or columns that the rows of the fitted encoder did not have."""


def read_tar(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The named files of a gzipped tar archive, in one pass over it."""
    contents: dict[str, bytes] = {}
    with open_regular(path, DataError) as opened, damage_as_data_error(path, "a whole .tar.gz", "; fetch it again"):
        limited: Any = _Limited(gzip.GzipFile(fileobj=opened), path)
        with tarfile.open(fileobj=limited, mode="r|") as archive:
            for member in archive:
                if member.isreg() and member.name in names:
                    _check_size(member.size, f"{path}/{member.name}")
                    content = archive.extractfile(member)
                    contents[member.name] = b"" if content is None else content.read()
                if len(contents) == len(names):
                    break
    if lacking := [name for name in names if name not in contents]:
        raise DataError(f"{path} lacks {', '.join(lacking)}; fetch it again")
    return contents


def read_zip(path: Path, select: Callable[[str], bool]) -> dict[str, bytes]:
    """The files of a zip archive whose names ``select`` accepts, sorted by name."""
    damage = damage_as_data_error(path, "a whole .zip", "; fetch it again")
    with damage, open_regular(path, DataError) as opened, zipfile.ZipFile(opened) as archive:
        selected = [info for info in archive.infolist() if select(info.filename)]
        members = sorted(selected, key=lambda info: info.filename)
        _check_size(check_members(members, path), str(path))
        return {info.filename: _inflated(archive, info) for info in members}


@contextmanager
def damage_as_data_error(path: Path, kind: str, advice: str = "") -> Iterator[None]:
    """Raise ``DataError`` for all errors of a library that reads a file; damaged files raise many types of errors."""
    try:
        yield
    except (DataError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:
        raise DataError(f"{path} is not {kind}: {str(error) or type(error).__name__}{advice}") from None


def check_members(members: Sequence[zipfile.ZipInfo], path: Path) -> int:
    """The announced size of members of a zip archive; refuses compression methods that cannot be inflated in parts."""
    for info in members:
        if info.compress_type not in ZIP_METHODS:
            raise DataError(f"{path}/{info.filename} must be stored or deflated, got method {info.compress_type}")
    return sum(info.file_size for info in members)


def check_room(size: int, file: str) -> None:
    """Refuse data that do not fit into memory twice, as bytes and as tensors."""
    available = available_memory()
    if available is not None and 2 * size > available:
        raise DataError(
            f"{file} holds {memory_in_words(size)} when unpacked, which must fit into memory twice, and "
            f"{memory_in_words(available)} are available; is it the file it should be?"
        )


class _Limited:
    """A stream that raises ``DataError`` after ``LIMIT`` bytes."""

    def __init__(self, stream: gzip.GzipFile, path: Path) -> None:
        self._stream, self._path, self._count = stream, path, 0

    def read(self, size: int) -> bytes:
        """The next bytes."""
        content = self._stream.read(size)
        self._count += len(content)
        _check_size(self._count, str(self._path))
        return content


def _inflated(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A member, inflated up to its announced size."""
    with archive.open(info) as member:
        content = member.read(info.file_size)
    if len(content) < info.file_size:
        raise DataError(f"{info.filename} is truncated: it says {info.file_size} bytes, got {len(content)}")
    return content


def _check_size(size: int, file: str) -> None:
    if size > LIMIT:
        raise DataError(f"{file} must hold at most {LIMIT} bytes, got {size} or more; this is not the official file")


def _as_argument(match: re.Match[str]) -> str:
    name, value = match.groups()
    given = [value] if name == "drop" else value
    return name if value is None else f"{name}={given!r}"


def _as_option(match: re.Match[str]) -> str:
    name, value = match.groups()
    return f"--{name}" if value is None else f"--{name} {value}"
