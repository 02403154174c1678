"""The idx format: what is read back is what was written, and every kind of damage has its message."""

import gzip
import math
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from dubio.data.files import DataError
from dubio.data.image_sets import parse_idx, read_idx, read_labelled_images
from dubio.data.stored import md5_of

CLASSES = tuple("0123456789")
IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
LABELS = np.array([7, 0], dtype=np.uint8)


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@given(arrays.arrays(np.uint8, arrays.array_shapes(min_dims=1, max_dims=5)), st.booleans())
def test_an_array_of_any_shape_comes_back_raw_or_gzipped(array: np.ndarray, packed: bool) -> None:
    content = gzip.compress(idx(array)) if packed else idx(array)
    np.testing.assert_array_equal(parse_idx(content, "file"), array)


def test_whether_a_file_is_gzipped_is_seen_in_it_and_not_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "raw.gz").write_bytes(idx(IMAGES))
    (tmp_path / "packed").write_bytes(gzip.compress(idx(IMAGES)))
    for name in ("raw.gz", "packed"):
        np.testing.assert_array_equal(read_idx(tmp_path / name, axes=3, md5=md5_of(idx(IMAGES))), IMAGES)


WHOLE = idx(IMAGES)
DAMAGED = {
    "empty": (b"", "is empty"),
    "short": (WHOLE[:3], "truncated: an idx file begins with 4 bytes, got 3"),
    "short header": (WHOLE[:11], "truncated: its header takes 16 bytes, got 11"),
    "truncated": (WHOLE[:-1], r"truncated: shape \(2, 3, 4\) takes 24 bytes, got 23"),
    "trailing": (WHOLE + b"\0", r"trailing bytes: it goes on after an array of shape \(2, 3, 4\)"),
    "foreign": (b"\x89PNG\r\n\x1a\n" * 9, "not an idx file of unsigned bytes: .* got 89 50 4e 47"),
    "of floats": (b"\0\0\x0d\x01\0\0\0\x01\0\0\0\0", "not an idx file of unsigned bytes"),
    "of no axes": (b"\0\0\x08\0\0", "not an idx file of unsigned bytes"),
    "without rows": (b"\0\0\x08\x03" + struct.pack(">III", 0, 28, 28), r"holds no data: its shape is \(0, 28, 28\)"),
    "boastful": (b"\0\0\x08\x03" + b"\xff" * 12, "is truncated: shape"),
    "wrongly gzipped": (b"\x1f\x8b" + WHOLE, "wrongly gzipped: .*unknown compression"),
    "gzipped twice": (gzip.compress(gzip.compress(WHOLE)), "not an idx file of unsigned bytes: .* got 1f 8b"),
    "gzipped with damage": (gzip.compress(WHOLE)[:-8] + bytes(8), "wrongly gzipped: .*check"),
    "gzipped and truncated": (gzip.compress(WHOLE)[:-9], "truncated: its gzip stream ends too early"),
    "gzipped nothing": (gzip.compress(b""), "is empty"),
    "gzipped and short": (gzip.compress(WHOLE[:-3]), r"truncated: shape \(2, 3, 4\) takes 24 bytes, got 21"),
    "gzipped and trailing": (gzip.compress(WHOLE + bytes(999)), "trailing bytes"),
    "gzipped, then trailing": (gzip.compress(WHOLE) + b"more", "trailing bytes after its gzip stream"),
    "gzipped and boastful": (gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12), "is truncated: shape"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_named_with_what_is_wrong(kind: str, tmp_path: Path) -> None:
    content, message = DAMAGED[kind]
    path = tmp_path / "damaged-idx3-ubyte"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as refused:
        read_idx(path, axes=3)
    assert str(refused.value).startswith(str(path))


def test_a_gzip_bomb_is_not_inflated() -> None:
    bomb = gzip.compress(idx(LABELS) + bytes(10**8))
    tracemalloc.start()
    with pytest.raises(DataError, match="trailing bytes"):
        parse_idx(bomb, "bomb")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**6


def test_an_array_of_another_kind_is_refused() -> None:
    with pytest.raises(DataError, match=r"^file must hold images, got an array of 2 axes$"):
        parse_idx(idx(IMAGES[0]), "file", axes=3)


def test_images_and_labels_that_are_swapped_are_told_apart(tmp_path: Path) -> None:
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(idx(LABELS))
    labels.write_bytes(idx(IMAGES))
    with pytest.raises(DataError, match="images must hold images, got labels; are images and labels swapped"):
        read_labelled_images(images, labels, CLASSES, "swapped")
    images.write_bytes(idx(IMAGES))
    with pytest.raises(DataError, match="labels must hold labels, got images"):
        read_labelled_images(images, labels, CLASSES, "swapped")


def test_images_and_labels_must_go_together(tmp_path: Path) -> None:
    images, labels = tmp_path / "images", tmp_path / "labels"
    images.write_bytes(idx(IMAGES))
    labels.write_bytes(idx(np.array([1, 2, 3], dtype=np.uint8)))
    with pytest.raises(DataError, match=r"holds 2 images, but .*labels 3 labels"):
        read_labelled_images(images, labels, CLASSES, "uneven")
    labels.write_bytes(idx(np.array([1, 10], dtype=np.uint8)))
    with pytest.raises(DataError, match="must hold labels from 0 to 9, got 10"):
        read_labelled_images(images, labels, CLASSES, "eleven")


def test_a_file_that_is_not_the_official_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_bytes(idx(LABELS))
    with pytest.raises(DataError, match=r"labels is not the official file: its md5 must be 0000, got [0-9a-f]{32}"):
        read_idx(path, md5="0000")


headers = st.builds(
    lambda type, axes, rest: b"\0\0" + bytes([type, axes]) + rest, st.just(8), st.integers(0, 4), st.binary()
)


@given(
    st.one_of(st.binary(), headers, headers.map(gzip.compress), st.binary().map(lambda rest: b"\x1f\x8b\x08\0" + rest))
)
def test_any_bytes_are_an_array_or_a_data_error(content: bytes) -> None:
    try:
        array = parse_idx(content, "file")
    except DataError:
        return
    assert array.dtype == np.uint8
    assert array.size == math.prod(array.shape) > 0


def test_a_file_that_inflates_beyond_a_limit_of_the_process_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Inflater:
        unconsumed_tail = b""

        def decompress(self, content: bytes, most: int) -> bytes:
            if most > 1000:
                raise MemoryError
            return bytes([0, 0, 8, 1, 0x40, 0, 0, 0])

    monkeypatch.setattr("dubio.data.image_sets.zlib.decompressobj", lambda wbits: Inflater())
    (tmp_path / "a").write_bytes(b"\x1f\x8b")
    with pytest.raises(DataError, match="a does not fit into memory"):
        read_idx(tmp_path / "a")
