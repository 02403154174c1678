"""Files that claim more than they hold, or hold more than they claim: nothing is inflated beyond a limit."""

import gzip
import io
import os
import pickle
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dubio.data.files import DataError, read_tar, read_zip
from dubio.data.image_files import decode_image, read_image_folder
from dubio.data.image_sets import IDX_MAX_BYTES, parse_idx, read_idx
from dubio.data.pickles import parse_pickle
from dubio.data.tables import read_table

MEBIBYTE = 2**20


@pytest.fixture(autouse=True)
def _small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dubio.data.files.LIMIT", MEBIBYTE)


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    """A gzipped archive; sizes are those of the headers, which are written as they are."""
    content = b"".join(info.tobuf() + data + bytes(-len(data) % 512) for info, data in members)
    path.write_bytes(gzip.compress(content + bytes(1024), 1))
    return path


def member(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info


@pytest.mark.feature("Archives and images are bounded before they are inflated")
@pytest.mark.parametrize("kind", [tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.REGTYPE])
def test_a_tar_that_inflates_beyond_the_limit_is_refused(kind: bytes, tmp_path: Path) -> None:
    size = 3 * MEBIBYTE
    path = tar(tmp_path / "x.tar.gz", (member("other", size, kind), bytes(size)), (member("a", 1), b"a"))
    with pytest.raises(DataError, match=rf"x\.tar\.gz must hold at most {MEBIBYTE} bytes"):
        read_tar(path, ["a"])


def test_a_tar_of_nothing_but_long_names_is_refused(tmp_path: Path) -> None:
    names = [(member("x", 1, tarfile.GNUTYPE_LONGNAME), b"a")] * 900
    with pytest.raises(DataError, match="is not a whole"):
        read_tar(tar(tmp_path / "x.tar.gz", *names), ["a"])


def zipped(path: Path, entries: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def test_a_member_that_inflates_beyond_what_it_says_is_refused(tmp_path: Path) -> None:
    size = 64 * MEBIBYTE
    path = zipped(tmp_path / "x.zip", {"a": bytes(size)})
    path.write_bytes(path.read_bytes().replace(struct.pack("<I", size), struct.pack("<I", 1000)))
    with pytest.raises(DataError, match=r"is not a whole \.zip"):
        read_zip(path, lambda name: True)


def test_members_that_are_large_together_are_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", {str(number): bytes(MEBIBYTE // 2) for number in range(3)})
    with pytest.raises(DataError, match=rf"x\.zip must hold at most {MEBIBYTE} bytes"):
        read_zip(path, lambda name: True)
    assert len(read_zip(path, lambda name: name < "2")) == 2


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_members_that_cannot_be_inflated_in_parts_are_refused(method: int, tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", {"a": bytes(1000)}, method)
    with pytest.raises(DataError, match="must be stored or deflated"):
        read_zip(path, lambda name: True)


def test_an_idx_file_larger_than_its_dataset_is_refused_before_it_is_inflated(tmp_path: Path) -> None:
    boastful = gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 3 * 2**20, 32, 32) + bytes(MEBIBYTE))
    (tmp_path / "images").write_bytes(boastful)
    with pytest.raises(DataError, match=rf"must hold an array of at most {IDX_MAX_BYTES} bytes, got shape"):
        read_idx(tmp_path / "images", 3, limit=IDX_MAX_BYTES)


def test_an_idx_file_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    content = gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 8 * MEBIBYTE) + bytes(8 * MEBIBYTE))
    assert len(parse_idx(content, "f")) == 8 * MEBIBYTE
    monkeypatch.setattr("dubio.data.files.available_memory", lambda: MEBIBYTE)
    with pytest.raises(DataError, match=r"f holds 8\.0 MiB when unpacked, which must fit into memory twice, and 1\.0"):
        parse_idx(content, "f")


def test_an_npz_that_does_not_fit_into_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "zeros.npz", x=np.zeros((1000, 4000), np.uint8), y=np.arange(1000) % 2)
    assert (tmp_path / "zeros.npz").stat().st_size < MEBIBYTE
    monkeypatch.setattr("dubio.data.files.available_memory", lambda: MEBIBYTE)
    with pytest.raises(DataError, match=r"zeros\.npz holds 3\.8 MiB when unpacked, which must fit into memory twice"):
        read_table(tmp_path / "zeros.npz")


def test_an_npz_whose_members_are_no_arrays_is_refused(tmp_path: Path) -> None:
    zipped(tmp_path / "raw.npz", {"x.npy": b"hello", "y.npy": b"hello"})
    with pytest.raises(DataError, match=r"raw\.npz must hold arrays as numpy writes them, got other contents in x"):
        read_table(tmp_path / "raw.npz")


def test_a_pickle_of_many_small_objects_is_refused() -> None:
    with pytest.raises(DataError, match="has more than 2097152 instructions"):
        parse_pickle(b"\x80\x02" + b"]" * (2**21 + 10) + b".", "f")
    assert parse_pickle(pickle.dumps({"labels": list(range(1000))}, 2), "f")["labels"][-1] == 999


def png(width: int, height: int) -> bytes:
    image = pytest.importorskip("PIL.Image")
    content = io.BytesIO()
    image.new("1", (width, height)).save(content, "PNG")
    return content.getvalue()


def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded() -> None:
    content = png(13_300, 13_300)
    assert len(content) < 2**18
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's own warning of a bomb comes first
        with pytest.raises(DataError, match="must have at most 67108864 pixels, got 13300x13300"):
            decode_image(content, "f")


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: os.mkfifo(path), "must be a regular file, got a FIFO"),
        (lambda path: path.symlink_to("/dev/zero"), "must be a regular file, got a device"),
        (lambda path: path.mkdir(), "must be a regular file, got a folder"),
        (lambda path: path.symlink_to("nowhere"), "cannot be read: No such file or directory"),
    ],
    ids=["fifo", "device", "folder", "dangling"],
)
def test_what_is_no_file_in_a_folder_of_images_is_refused(
    make: Callable[[Path], None], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.png").write_bytes(png(4, 4))
    make(tmp_path / "cat" / "zz.png")
    with pytest.raises(DataError, match=rf"zz\.png {reason}"):
        read_image_folder(tmp_path)
