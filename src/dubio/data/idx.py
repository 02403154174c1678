"""The idx format of MNIST and its kin: a small header, then bytes; raw or gzipped, told apart by what the file holds.

The header is two zero bytes, the type (8, unsigned bytes, is the only one read), the number of axes, and the length of
each axis as a big-endian 32-bit number. Nothing is allocated that the file does not fill: the sizes a header promises
are compared with what is there (``tests/data/test_idx.py``).
"""

import math
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dubio.codec import read_file
from dubio.data.archives import check_room
from dubio.data.checksums import check_md5
from dubio.data.errors import DataError

__all__ = ["parse_idx", "read_idx"]

GZIP, UNSIGNED_BYTES, MAX_AXES = b"\x1f\x8b", b"\0\0\x08", 32
MOST_INFLATED = 1032
"""Bytes that one byte of a deflated stream can stand for."""


def read_idx(
    path: Path, axes: int | None = None, md5: str | None = None, limit: int | None = None
) -> NDArray[np.uint8]:
    """The array in an idx file, raw or gzipped.

    Args:
        path: the file.
        axes: how many axes the array must have: 1 for labels, 3 for images; None for any.
        md5: checksum of the official file, not gzipped; None to read any file.
        limit: how many bytes the array may have; by default what fits into memory.

    Raises:
        DataError: the file is empty, truncated, wrongly gzipped, too long, foreign, or not the official one.
    """
    check_room(path.stat().st_size, str(path))
    content = read_file(path, None if limit is None else limit + 4 + 4 * MAX_AXES, DataError)
    return parse_idx(content, str(path), axes, md5, limit)


def parse_idx(
    content: bytes, file: str, axes: int | None = None, md5: str | None = None, limit: int | None = None
) -> NDArray[np.uint8]:
    """The array that the bytes of an idx file hold; ``file`` is what messages call it."""
    content = _inflated(content, file, limit) if content[:2] == GZIP else content
    shape = _shape(content, file)
    start, count = 4 + 4 * len(shape), math.prod(shape)
    if axes is not None and len(shape) != axes:
        hint = "; are images and labels swapped?" if {axes, len(shape)} == {1, 3} else ""
        raise DataError(f"{file} must hold {_kind(axes)}, got {_kind(len(shape))}{hint}")
    if len(content) < start + count:
        raise DataError(f"{file} is truncated: shape {shape} takes {count} bytes, got {len(content) - start}")
    if len(content) > start + count:
        raise DataError(f"{file} has trailing bytes: it goes on after an array of shape {shape}; fetch it again")
    check_md5(content, md5, file)
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _shape(content: bytes, file: str) -> tuple[int, ...]:
    if not content:
        raise DataError(f"{file} is empty; fetch it again")
    if len(content) < 4:
        raise DataError(f"{file} is truncated: an idx file begins with 4 bytes, got {len(content)}")
    if content[:3] != UNSIGNED_BYTES or not 1 <= content[3] <= MAX_AXES:
        raise DataError(
            f"{file} is not an idx file of unsigned bytes: it must begin with 00 00 08 and the number of axes, "
            f"got {content[:4].hex(' ')}"
        )
    num_axes = content[3]
    if len(content) < 4 + 4 * num_axes:
        raise DataError(f"{file} is truncated: its header takes {4 + 4 * num_axes} bytes, got {len(content)}")
    shape = struct.unpack_from(f">{num_axes}I", content, 4)
    if 0 in shape:
        raise DataError(f"{file} holds no data: its shape is {shape}")
    return shape


def _inflated(content: bytes, file: str, most: int | None) -> bytes:
    """What a gzip file holds, but no more than its header asks for and one byte, which shows that there is too much."""
    inflater = zlib.decompressobj(wbits=31)  # 31: with gzip's own header and checksum
    try:
        head = inflater.decompress(content, 4 + 4 * MAX_AXES)
        shape = _shape(head, file)
        wanted = 4 + 4 * len(shape) + math.prod(shape)
        if most is not None and math.prod(shape) > most:
            raise DataError(f"{file} must hold an array of at most {most} bytes, got shape {shape}")
        check_room(min(wanted, MOST_INFLATED * len(content)), file)
        limit = max(1, min(wanted + 1 - len(head), sys.maxsize))  # 0 would mean no limit
        raw = head + inflater.decompress(inflater.unconsumed_tail, limit)
    except zlib.error as error:
        raise DataError(f"{file} is wrongly gzipped: {error}; fetch it again") from None
    except MemoryError:  # a limit of the process, which ``check_room`` does not know
        raise DataError(f"{file} does not fit into memory; is it the file it should be?") from None
    if not inflater.eof and len(raw) <= wanted:
        raise DataError(f"{file} is truncated: its gzip stream ends too early; fetch it again")
    if inflater.unused_data:
        raise DataError(f"{file} has trailing bytes after its gzip stream; fetch it again")
    return raw


def _kind(axes: int) -> str:
    return {1: "labels", 3: "images"}.get(axes, f"an array of {axes} axes")
