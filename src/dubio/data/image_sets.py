"""The datasets of images in files: MNIST, FashionMNIST and KMNIST, CIFAR-10 and CIFAR-100, and Omniglot.

**MNIST and its relatives** are 28x28 grey images in idx files, raw or gzipped. An idx file begins with two zero bytes,
the type (only 8, unsigned bytes, is read), the number of axes, and the length of each axis as a big-endian 32-bit
number. Memory is allocated only for bytes that the file holds: the sizes in the header are compared with the contents
(``tests/data/test_idx.py``). Contents are checked against the md5 of the official files. For the training part of
KMNIST only the md5 of the gzipped files is published; it is checked after a download. Addresses and checksums are those
of torchvision.

**CIFAR** has 32x32 colour images in Python pickles or in binary files, extracted or in an archive. ``parse_pickle``
reads the pickles without running them. A binary record is one label byte (two for CIFAR-100: coarse, then fine) and
3072 bytes: the red, green and blue planes. The labels of CIFAR-100 are the fine ones.

**Omniglot** has letters of 50 alphabets, each drawn by 20 people. The files have 105x105 pixels with dark strokes on
white. They are inverted and resized to 28x28 by area averaging: each new pixel is the share of ink in the area that it
covers, so the mean intensity does not change (T-27). A label is a character of an alphabet. The 964 characters of the
background set (the training part) and the 659 of the evaluation set (the test part) are disjoint. The archives of the
authors are read without being extracted.
"""

import math
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubio import functional
from dubio.codec import read_file
from dubio.data.examples import Examples
from dubio.data.files import LIMIT, DataError, check_room, read_tar, read_zip
from dubio.data.image_files import decode_image, read_image_file
from dubio.data.pickles import parse_pickle
from dubio.data.stored import Part, Remote, StoredSet, check_md5

IDX_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
IDX_MAX_BYTES = 60_000 * 28 * 28
"""Size of the largest array in the idx files of these datasets."""
IDX_MAX_DOWNLOAD = 32_000_000
"""Bytes; every gzipped idx file is smaller."""
IDX_UNSIGNED_BYTES, IDX_MAX_AXES = b"\0\0\x08", 32
GZIP, GZIP_MAX_RATIO = b"\x1f\x8b", 1032
"""First bytes of a gzip file, and the number of bytes that one byte of a deflated stream can stand for at most."""
CIFAR_PIXELS = 3 * 32 * 32
CIFAR_MAX_DOWNLOAD = 180_000_000
"""Bytes; both archives are smaller."""
OMNIGLOT_FILE_SIZE, OMNIGLOT_SIZE = 105, 28
"""Height and width of the drawings in the files, and of the examples."""
OMNIGLOT_CHUNK = 200
"""Drawings that are resized together."""
OMNIGLOT_MAX_DOWNLOAD = 16_000_000
"""Bytes; both archives are smaller."""
OMNIGLOT_ADDRESS = "https://github.com/brendenlake/omniglot/raw/master/python/"

Bytes = NDArray[np.uint8]
Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class IdxSet(StoredSet):
    """A dataset of four idx files: images and labels for training, images and labels for testing.

    Args:
        classes: names of the classes in the order of their labels.
        mirrors: addresses of the folders that hold the gzipped files, in the order in which they are tried.
        md5: checksums of each file, raw (None if unknown) and gzipped.
    """

    classes: tuple[str, ...]
    mirrors: tuple[str, ...]
    md5: tuple[tuple[str | None, str], ...]

    def files(self, part: Part) -> tuple[str, ...]:
        """The raw files of images and labels."""
        return tuple(f"{self.place}/{name}" for name in IDX_FILES[part])

    def missing(self, folder: Path, part: Part) -> tuple[str, ...]:
        """The files that exist neither raw nor gzipped."""
        return tuple(file for file in self.files(part) if not _raw_or_gzipped(folder, file).is_file())

    def read(self, folder: Path, part: Part) -> Examples:
        """The examples of a part."""
        images, labels = (_raw_or_gzipped(folder, file) for file in self.files(part))
        md5 = [raw for raw, _ in self._checksums(part)]
        return read_labelled_images(images, labels, self.classes, self.name, md5, IDX_MAX_BYTES)

    def remotes(self, part: Part) -> tuple[Remote, ...]:
        """The gzipped files."""
        return tuple(
            Remote(f"{file}.gz", tuple(f"{mirror}{name}.gz" for mirror in self.mirrors), md5, IDX_MAX_DOWNLOAD)
            for file, name, (_, md5) in zip(self.files(part), IDX_FILES[part], self._checksums(part), strict=True)
        )

    def _checksums(self, part: Part) -> tuple[tuple[str | None, str], ...]:
        return self.md5[:2] if part == "train" else self.md5[2:]


@dataclass(frozen=True)
class CifarForm:
    """One of the two forms of a CIFAR dataset: its folder, its archive, and the files in them.

    Args:
        folder: name of the folder, also in the archive.
        archive: name of the archive.
        train: names of the training batches with their md5.
        test: names of the test batches with their md5.
        names: name of the file with the names of the classes, and its md5 if that is published.
        binary: whether the files are binary records rather than pickles.
    """

    folder: str
    archive: str
    train: tuple[tuple[str, str], ...]
    test: tuple[tuple[str, str], ...]
    names: tuple[str, str | None]
    binary: bool = False

    def md5(self, part: Part) -> dict[str, str | None]:
        """The checksums of the batches of a part and, last, of the file with the names of the classes."""
        batches = self.train if part == "train" else self.test
        return {f"{self.folder}/{name}": md5 for name, md5 in (*batches, self.names)}

    def missing(self, folder: Path, part: Part) -> tuple[str, ...]:
        """The files that do not exist; none if the archive does."""
        if (folder / self.archive).is_file():
            return ()
        return tuple(file for file in self.md5(part) if not (folder / file).is_file())

    def contents(self, folder: Path, part: Part) -> dict[str, bytes]:
        """The contents of the files of a part, by their full names, from the folder if it is complete, else from the
        archive."""
        files, archive = tuple(self.md5(part)), folder / self.archive
        if all((folder / file).is_file() for file in files):
            return {str(folder / file): read_file(folder / file, LIMIT, DataError) for file in files}
        packed = read_tar(archive, files)
        return {f"{archive}/{file}": packed[file] for file in files}


@dataclass(frozen=True, kw_only=True)
class CifarSet(StoredSet):
    """CIFAR with 10 or 100 classes.

    Args:
        num_classes: how many classes it has.
        forms: the forms of its files; the first one is downloaded.
        archive_md5: checksum of the archive of the first form.
    """

    num_classes: int
    forms: tuple[CifarForm, ...]
    archive_md5: str

    def files(self, part: Part) -> tuple[str, ...]:
        """The files of the Python version."""
        return tuple(self.forms[0].md5(part))

    def missing(self, folder: Path, part: Part) -> tuple[str, ...]:
        """The missing files of the form that is most nearly complete."""
        return self._form(folder, part).missing(folder, part)

    def read(self, folder: Path, part: Part) -> Examples:
        """The examples of a part."""
        form = self._form(folder, part)
        contents = form.contents(folder, part)
        *batches, (names_file, names) = contents.items()
        parse = parse_cifar_binary if form.binary else parse_cifar_pickle
        parsed = [parse(content, file, self.num_classes) for file, content in batches]
        classes = _class_names(names, names_file, form, self.num_classes)
        for (file, content), md5 in zip(contents.items(), form.md5(part).values(), strict=True):
            check_md5(content, md5, file)
        images, labels = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*parsed, strict=True))
        return Examples(images, labels, classes, self.name)

    def remotes(self, part: Part) -> tuple[Remote, ...]:
        """The archive of the Python version, which holds both parts."""
        archive = self.forms[0].archive
        address = f"https://www.cs.toronto.edu/~kriz/{archive}"
        return (Remote(archive, (address,), self.archive_md5, CIFAR_MAX_DOWNLOAD),)

    def _form(self, folder: Path, part: Part) -> CifarForm:
        return min(self.forms, key=lambda form: len(form.missing(folder, part)))


class _OmniglotPart(NamedTuple):
    """The official contents of one part of Omniglot."""

    folder: str
    md5: str
    num_drawings: int
    num_characters: int


OMNIGLOT_PARTS = {
    "train": _OmniglotPart("images_background", "68d2efa1b9178cc56df9314c21c6e718", 19280, 964),
    "test": _OmniglotPart("images_evaluation", "6b91aef0f799c5bb55b94e3f2daec811", 13180, 659),
}


class OmniglotSet(StoredSet):
    """Omniglot as its authors distribute it: the background set and the evaluation set."""

    def files(self, part: Part) -> tuple[str, ...]:
        """The folder of a part."""
        return (f"{self.place}/{OMNIGLOT_PARTS[part].folder}",)

    def missing(self, folder: Path, part: Part) -> tuple[str, ...]:
        """The folder of a part, if neither it nor its archive exists."""
        return tuple(file for file in self.files(part) if not _folder_or_archive(folder, file).exists())

    def read(self, folder: Path, part: Part) -> Examples:
        """The examples of a part."""
        path, official = _folder_or_archive(folder, self.files(part)[0]), OMNIGLOT_PARTS[part]
        examples = read_drawings(path, self.name, official.md5)
        if (len(examples), len(examples.classes)) != (official.num_drawings, official.num_characters):
            raise DataError(
                f"{path} must hold {official.num_drawings} drawings of {official.num_characters} characters, "
                f"got {len(examples)} of {len(examples.classes)}; extract the archive again"
            )
        return examples

    def remotes(self, part: Part) -> tuple[Remote, ...]:
        """The archive of a part."""
        archive, md5 = f"{OMNIGLOT_PARTS[part].folder}.zip", OMNIGLOT_PARTS[part].md5
        return (Remote(f"{self.place}/{archive}", (f"{OMNIGLOT_ADDRESS}{archive}",), md5, OMNIGLOT_MAX_DOWNLOAD),)


MNIST = IdxSet(
    name="mnist",
    what="70,000 digits, 28x28 grey",
    place="MNIST/raw",
    classes=tuple("0123456789"),
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    md5=(
        ("6bbc9ace898e44ae57da46a324031adb", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("a25bea736e30d166cdddb491f175f624", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("2646ac647ad5339dbf082846283269ea", "9fb629c4189551a2d022fa330f9573f3"),
        ("27ae3e4e09519cfbb04c329615203637", "ec29112dd5afa0611ce80d1b7f02629c"),
    ),
)
FASHIONMNIST = IdxSet(
    name="fashionmnist",
    what="70,000 clothes, 28x28 grey",
    place="FashionMNIST/raw",
    classes=("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    md5=(
        ("f4a8712d7a061bf5bd6d2ca38dc4d50a", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        ("9018921c3c673c538a1fc5bad174d6f9", "25c81989df183df01b3e8a0aad5dffbe"),
        ("8181f5470baa50b63fa0f6fddb340f0a", "bef4ecab320f06d8554ea6380940ec79"),
        ("15d484375f8d13e6eb1aabb0c3f46965", "bb300cfdad3c16e7a12a480ee83cd310"),
    ),
)
KMNIST = IdxSet(
    name="kmnist",
    what="70,000 kana, 28x28 grey",
    place="KMNIST/raw",
    classes=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    mirrors=("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
    md5=(
        (None, "bdb82020997e1d708af4cf47b453dcf7"),
        (None, "e144d726b3acfaa3e44228e80efcd344"),
        ("bf305b8cd328700fbc17f5acbc2856d2", "5c965bf0a639b31b8f53240b1b52f4d7"),
        ("9f55f451c0988b028eccdf7d5cc265ab", "7320c461ea6c1c855c0b718fb2a4b134"),
    ),
    train_optional=True,
)
CIFAR10 = CifarSet(
    name="cifar10",
    what="60,000 photos, 32x32 RGB",
    place="cifar-10-batches-py",
    num_classes=10,
    archive_md5="c58f30108f718f92721af3b95e74349a",
    forms=(
        CifarForm(
            folder="cifar-10-batches-py",
            archive="cifar-10-python.tar.gz",
            train=(
                ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
                ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
                ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
                ("data_batch_4", "634d18415352ddfa80567beed471001a"),
                ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
            ),
            test=(("test_batch", "40351d587109b95175f43aff81a1287e"),),
            names=("batches.meta", "5ff9c542aee3614f3951f8cda6e48888"),
        ),
        CifarForm(
            folder="cifar-10-batches-bin",
            archive="cifar-10-binary.tar.gz",
            train=(
                ("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
                ("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"),
                ("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"),
                ("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"),
                ("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"),
            ),
            test=(("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),),
            names=("batches.meta.txt", None),
            binary=True,
        ),
    ),
)
CIFAR100 = CifarSet(
    name="cifar100",
    what="60,000 photos, 32x32 RGB",
    place="cifar-100-python",
    num_classes=100,
    archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
    forms=(
        CifarForm(
            folder="cifar-100-python",
            archive="cifar-100-python.tar.gz",
            train=(("train", "16019d7e3df5f24257cddd939b257f8d"),),
            test=(("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
            names=("meta", "7973b15100ade9c7d40fb424638fde48"),
        ),
        CifarForm(
            folder="cifar-100-binary",
            archive="cifar-100-binary.tar.gz",
            train=(("train.bin", "6172c7755cfe09b2fe270c85cebc1b15"),),
            test=(("test.bin", "4499cfba6c016c1be1438163640a0898"),),
            names=("fine_label_names.txt", None),
            binary=True,
        ),
    ),
)
OMNIGLOT = OmniglotSet(name="omniglot", what="32,460 letters, 28x28 grey", place="omniglot-py", train_optional=True)


def read_labelled_images(
    images: Path,
    labels: Path,
    classes: tuple[str, ...],
    name: str,
    md5: Sequence[str | None] = (None, None),
    limit: int | None = None,
) -> Examples:
    """Images of one idx file with the labels of another; the array of images may have at most ``limit`` bytes."""
    pixels = read_idx(images, axes=3, md5=md5[0], limit=limit)
    targets = read_idx(labels, axes=1, md5=md5[1], limit=limit)
    if len(pixels) != len(targets):
        raise DataError(
            f"{images} holds {len(pixels)} images, but {labels} {len(targets)} labels; they must belong together"
        )
    if targets.max() >= len(classes):
        raise DataError(f"{labels} must hold labels from 0 to {len(classes) - 1}, got {targets.max()}")
    return Examples(torch.tensor(pixels).unsqueeze(1), torch.tensor(targets).long(), classes, name)


def read_idx(path: Path, axes: int | None = None, md5: str | None = None, limit: int | None = None) -> Bytes:
    """The array in an idx file, raw or gzipped.

    Args:
        path: the file.
        axes: number of axes that the array must have: 1 for labels, 3 for images; None for any.
        md5: checksum of the official file, not gzipped; None to accept any file.
        limit: how many bytes the array may have at most; by default as many as fit into memory.

    Raises:
        DataError: the file is empty, truncated, wrongly gzipped, too long, foreign, or not the official one.
    """
    check_room(path.stat().st_size, str(path))
    content = read_file(path, None if limit is None else limit + 4 + 4 * IDX_MAX_AXES, DataError)
    return parse_idx(content, str(path), axes, md5, limit)


def parse_idx(
    content: bytes, file: str, axes: int | None = None, md5: str | None = None, limit: int | None = None
) -> Bytes:
    """The array in the bytes of an idx file; error messages name it ``file``."""
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


def parse_cifar_pickle(content: bytes, file: str, num_classes: int) -> tuple[Bytes, Labels]:
    """Images `(example, 3, 32, 32)` and fine labels of a batch of the Python version."""
    batch = parse_pickle(content, file)
    pixels = batch.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (CIFAR_PIXELS,):
        got = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
        raise DataError(f"{file} must have an array 'data' of bytes, (examples, {CIFAR_PIXELS}), got {got}")
    labels = batch.get("fine_labels" if num_classes == 100 else "labels")
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "iu" and labels.ndim == 1:
        labels = labels.tolist()
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < num_classes for label in labels):
        raise DataError(f"{file} must have a list of labels from 0 to {num_classes - 1}; is it another CIFAR?")
    if len(labels) != len(pixels):
        raise DataError(f"{file} has {len(pixels)} images, but {len(labels)} labels; they must belong together")
    return pixels.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


def parse_cifar_binary(content: bytes, file: str, num_classes: int) -> tuple[Bytes, Labels]:
    """Images `(example, 3, 32, 32)` and fine labels of a batch in the binary form."""
    num_labels = 2 if num_classes == 100 else 1
    size = num_labels + CIFAR_PIXELS
    if not content or len(content) % size:
        raise DataError(f"{file} must hold whole records of {size} bytes, got {len(content)} bytes; fetch it again")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
    labels = records[:, num_labels - 1].astype(np.int64)
    if labels.max() >= num_classes:
        raise DataError(
            f"{file} must hold labels from 0 to {num_classes - 1}, got {labels.max()}; is it another CIFAR?"
        )
    return records[:, num_labels:].reshape(-1, 3, 32, 32), labels


def read_drawings(path: Path, name: str = "omniglot", md5: str | None = None) -> Examples:
    """The drawings of a folder ``alphabet/character/*.png``, or of a zip archive of such a folder.

    Args:
        path: the folder or the archive.
        name: name of the examples.
        md5: checksum of the official archive; None to accept any.
    """
    files = _files_of_folder(path) if path.is_dir() else _files_of_archive(path, md5)
    characters: list[str] = []
    chunks: list[Tensor] = []
    while chunk := list(islice(files, OMNIGLOT_CHUNK)):
        characters += (character for character, _, _ in chunk)
        pixels = torch.from_numpy(np.concatenate([_drawing(content, file) for _, file, content in chunk])).float()
        paper = functional.corruption.area_resized(pixels, (OMNIGLOT_SIZE, OMNIGLOT_SIZE))
        chunks.append((255.0 - paper).round().to(torch.uint8))
    if not chunks:
        raise DataError(f"{path} must hold drawings as alphabet/character/*.png, got none")
    classes = sorted(set(characters))
    number = {character: label for label, character in enumerate(classes)}
    targets = torch.tensor([number[character] for character in characters])
    return Examples(torch.cat(chunks).unsqueeze(1), targets, tuple(classes), name)


def _raw_or_gzipped(folder: Path, file: str) -> Path:
    """The raw file, or the gzipped file if there is no raw one."""
    raw, packed = folder / file, folder / f"{file}.gz"
    return packed if packed.is_file() and not raw.is_file() else raw


def _shape(content: bytes, file: str) -> tuple[int, ...]:
    if not content:
        raise DataError(f"{file} is empty; fetch it again")
    if len(content) < 4:
        raise DataError(f"{file} is truncated: an idx file begins with 4 bytes, got {len(content)}")
    if content[:3] != IDX_UNSIGNED_BYTES or not 1 <= content[3] <= IDX_MAX_AXES:
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
    """The contents of a gzip file, up to one byte more than its idx header announces: that byte shows trailing data."""
    inflater = zlib.decompressobj(wbits=31)  # 31: with gzip's own header and checksum
    try:
        head = inflater.decompress(content, 4 + 4 * IDX_MAX_AXES)
        shape = _shape(head, file)
        size = 4 + 4 * len(shape) + math.prod(shape)
        if most is not None and math.prod(shape) > most:
            raise DataError(f"{file} must hold an array of at most {most} bytes, got shape {shape}")
        check_room(min(size, GZIP_MAX_RATIO * len(content)), file)
        limit = max(1, min(size + 1 - len(head), sys.maxsize))  # 0 would mean no limit
        raw = head + inflater.decompress(inflater.unconsumed_tail, limit)
    except zlib.error as error:
        raise DataError(f"{file} is wrongly gzipped: {error}; fetch it again") from None
    except MemoryError:  # ``check_room`` does not see limits of the process
        raise DataError(f"{file} does not fit into memory; is it the file it should be?") from None
    if not inflater.eof and len(raw) <= size:
        raise DataError(f"{file} is truncated: its gzip stream ends too early; fetch it again")
    if inflater.unused_data:
        raise DataError(f"{file} has trailing bytes after its gzip stream; fetch it again")
    return raw


def _kind(axes: int) -> str:
    return {1: "labels", 3: "images"}.get(axes, f"an array of {axes} axes")


def _class_names(content: bytes, file: str, form: CifarForm, num_classes: int) -> tuple[str, ...]:
    if form.binary:
        names: Any = [line for line in content.split(b"\n") if line.strip()]
    else:
        names = parse_pickle(content, file).get("fine_label_names" if num_classes == 100 else "label_names")
    if not isinstance(names, list) or len(names) != num_classes or not all(isinstance(n, str | bytes) for n in names):
        raise DataError(f"{file} must hold the names of {num_classes} classes; is it another CIFAR?")
    return tuple(name if isinstance(name, str) else name.decode("latin1").strip() for name in names)


def _folder_or_archive(folder: Path, file: str) -> Path:
    """The folder, or the archive if there is no folder."""
    extracted, packed = folder / file, folder / f"{file}.zip"
    return packed if packed.is_file() and not extracted.is_dir() else extracted


def _drawing(content: bytes, file: str) -> Bytes:
    pixels = decode_image(content, file).pixels
    if pixels.shape != (1, OMNIGLOT_FILE_SIZE, OMNIGLOT_FILE_SIZE):
        raise DataError(
            f"{file} must be grey with {OMNIGLOT_FILE_SIZE}x{OMNIGLOT_FILE_SIZE} pixels, got shape {pixels.shape}"
        )
    return pixels


def _files_of_folder(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """Character, name and contents of each file, sorted by name."""
    for file in sorted(path.glob("*/*/*.png")):
        yield f"{file.parent.parent.name}/{file.parent.name}", str(file), read_image_file(file)


def _files_of_archive(path: Path, md5: str | None) -> Iterator[tuple[str, str, bytes]]:
    """As ``_files_of_folder``, from a zip archive with the files ``images_.../alphabet/character/*.png``."""
    check_md5(read_file(path, LIMIT, DataError), md5, str(path))
    for name, content in read_zip(path, _is_drawing).items():
        _, alphabet, character, _ = name.split("/")
        yield f"{alphabet}/{character}", f"{path}/{name}", content


def _is_drawing(name: str) -> bool:
    return name.startswith("images_") and name.endswith(".png") and name.count("/") == 3
