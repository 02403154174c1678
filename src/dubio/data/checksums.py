"""Checksums of the official files: what is known to be wrong is never read as right."""

import hashlib

from dubio.data.errors import DataError

__all__ = ["check_md5", "md5_of"]


def md5_of(content: bytes) -> str:
    """The md5 of some bytes, in hexadecimal."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def check_md5(content: bytes, md5: str | None, file: str) -> None:
    """Refuse contents that are not those of the official file; None where its checksum is not known."""
    found = md5 if md5 is None else md5_of(content)
    if found != md5:
        raise DataError(f"{file} is not the official file: its md5 must be {md5}, got {found}; fetch it again")
