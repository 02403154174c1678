"""Files read out of a tar or zip archive, without writing any of them to disk."""

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from dubio.data.errors import DataError

__all__ = ["read_tar", "read_zip"]

LIMIT = 256 * 2**20
"""No file of the datasets here is larger; what claims to be is not inflated."""


def read_tar(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The named files of a gzipped tar archive, in one pass over it."""
    found: dict[str, bytes] = {}
    with path.open("rb") as opened:
        try:
            with tarfile.open(fileobj=opened, mode="r|gz") as archive:
                for member in archive:
                    if member.isreg() and member.name in names:
                        _check_size(member.size, f"{path}/{member.name}")
                        content = archive.extractfile(member)
                        found[member.name] = b"" if content is None else content.read()
                    if len(found) == len(names):
                        break
        except DataError:
            raise
        except (tarfile.TarError, EOFError, zlib.error, OSError, ValueError) as error:
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
        with zipfile.ZipFile(path) as archive:
            members = sorted(
                (info for info in archive.infolist() if wanted(info.filename)), key=lambda info: info.filename
            )
            for info in members:
                _check_size(info.file_size, f"{path}/{info.filename}")
            return {info.filename: archive.read(info) for info in members}
    except (DataError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # zipfile has a different one for every kind of damage
        raise DataError(f"{path} is not a whole .zip: {str(error) or type(error).__name__}; fetch it again") from None


def _check_size(size: int, file: str) -> None:
    if size > LIMIT:
        raise DataError(f"{file} must have at most {LIMIT} bytes, got {size}; this is not the official file")
