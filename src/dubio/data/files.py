"""Files read out of a tar or zip archive, without writing any of them to disk.

What an archive claims to hold is compared with a limit before it is inflated, and what comes out while it is: neither a
size in a header nor the ratio of a compression is believed (``tests/data/test_archives.py``).

What the readers raise when a file does not hold what it should, and what they warn of.
"""

import gzip
import re
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dubio._engine import available_memory, memory_in_words
from dubio.codec import open_regular

LIMIT = 256 * 2**20
"""No archive of the datasets here holds more, and no file of them is larger; what claims to be is not inflated."""


METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The two ways of a zip archive that are inflated a part at a time."""


def read_tar(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The named files of a gzipped tar archive, in one pass over it."""
    found: dict[str, bytes] = {}
    with open_regular(path, DataError) as opened:
        try:
            limited: Any = _Limited(gzip.GzipFile(fileobj=opened), path)
            with tarfile.open(fileobj=limited, mode="r|") as archive:
                for member in archive:
                    if member.isreg() and member.name in names:
                        _check_size(member.size, f"{path}/{member.name}")
                        content = archive.extractfile(member)
                        found[member.name] = b"" if content is None else content.read()
                    if len(found) == len(names):
                        break
        except DataError:
            raise
        except Exception as error:  # tarfile has a different one for every kind of damage, RecursionError among them
            raise DataError(
                f"{path} is not a whole .tar.gz: {str(error) or type(error).__name__}; fetch it again"
            ) from None
    lacking = [name for name in names if name not in found]
    if lacking:
        raise DataError(f"{path} lacks {', '.join(lacking)}; fetch it again")
    return found


def read_zip(path: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Those files of a zip archive whose name is wanted, in the order of their names."""
    try:
        with open_regular(path, DataError) as opened, zipfile.ZipFile(opened) as archive:
            members = sorted(
                (info for info in archive.infolist() if wanted(info.filename)), key=lambda info: info.filename
            )
            _check_size(check_members(members, path), str(path))
            return {info.filename: _inflated(archive, info) for info in members}
    except (DataError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # zipfile has a different one for every kind of damage
        raise DataError(f"{path} is not a whole .zip: {str(error) or type(error).__name__}; fetch it again") from None


def check_members(members: Sequence[zipfile.ZipInfo], path: Path) -> int:
    """How many bytes members of a zip archive say they hold; refuses those that could not be inflated in parts."""
    for info in members:
        if info.compress_type not in METHODS:
            raise DataError(f"{path}/{info.filename} must be stored or deflated, got method {info.compress_type}")
    return sum(info.file_size for info in members)


def check_room(size: int, file: str) -> None:
    """Refuse data that do not fit into memory twice, as read and as tensors."""
    available = available_memory()
    if available is not None and 2 * size > available:
        raise DataError(
            f"{file} holds {memory_in_words(size)} when unpacked, which must fit into memory twice, and "
            f"{memory_in_words(available)} are available; is it the file it should be?"
        )


class _Limited:
    """A stream that gives no more than ``LIMIT`` bytes."""

    def __init__(self, stream: gzip.GzipFile, path: Path) -> None:
        self._stream, self._path, self._given = stream, path, 0

    def read(self, size: int) -> bytes:
        """The next bytes."""
        content = self._stream.read(size)
        self._given += len(content)
        _check_size(self._given, str(self._path))
        return content


def _inflated(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """A member, inflated no further than it says."""
    with archive.open(info) as member:
        content = member.read(info.file_size)
    if len(content) < info.file_size:
        raise DataError(f"{info.filename} is truncated: it says {info.file_size} bytes, got {len(content)}")
    return content


def _check_size(size: int, file: str) -> None:
    if size > LIMIT:
        raise DataError(f"{file} must hold at most {LIMIT} bytes, got {size} or more; this is not the official file")


OPTION = re.compile(r"\{(target|task|drop|delimiter)(?:=([^{}]*))?\}")


class DataError(ValueError):
    """A file that is damaged, foreign or not what its name says; the message names it and what is wrong.

    Args:
        problem: what is wrong.
        advice: what to do. An option is written ``{task=regression}`` or ``{target}``: the message has it as an
            argument, ``task='regression'``, and ``on_command_line`` as an option, ``--task regression``.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        texts = [OPTION.sub(spell, advice) for spell in (_as_argument, _as_option)]
        self.on_command_line = f"{problem}; {texts[1]}" if advice else problem
        super().__init__(f"{problem}; {texts[0]}" if advice else problem)


class DataWarning(UserWarning):
    """Data that were changed while they were read; the message says what and how."""


class TableWarning(UserWarning):
    """Rows of a table hold what the rows that its encoder was fitted on did not."""


def _as_argument(match: re.Match[str]) -> str:
    name, value = match.groups()
    if value is None:
        return name
    return f"{name}={[value]!r}" if name == "drop" else f"{name}={value!r}"


def _as_option(match: re.Match[str]) -> str:
    name, value = match.groups()
    return f"--{name}" if value is None else f"--{name} {value}"
