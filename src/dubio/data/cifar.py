"""CIFAR-10 and CIFAR-100: 32x32 colour images, from the Python pickles or the binary form, extracted or not.

Python pickles are read by ``parse_pickle``, which runs nothing. In the binary form a record is one label byte (two
for CIFAR-100: coarse, then fine) and 3072 bytes: red, green and blue planes. Labels of CIFAR-100 are the fine ones.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dubio.codec import read_file
from dubio.data.archives import LIMIT, read_tar
from dubio.data.checksums import check_md5
from dubio.data.errors import DataError
from dubio.data.examples import Examples
from dubio.data.pickles import parse_pickle
from dubio.data.stored import Part, Remote

__all__ = ["CIFAR10", "CIFAR100", "CifarSet", "Form", "parse_cifar_binary", "parse_cifar_pickle"]

PIXELS = 3 * 32 * 32
DOWNLOADED = 180_000_000
"""No archive is larger."""
Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


def parse_cifar_pickle(content: bytes, file: str, num_classes: int) -> tuple[Images, Labels]:
    """Images `(example, 3, 32, 32)` and fine labels of a batch as the Python version has it."""
    batch = parse_pickle(content, file)
    pixels = batch.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (PIXELS,):
        raise DataError(f"{file} must have an array 'data' of bytes, (examples, {PIXELS}), got {_described(pixels)}")
    labels = batch.get("fine_labels" if num_classes == 100 else "labels")
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "iu" and labels.ndim == 1:
        labels = labels.tolist()
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < num_classes for label in labels):
        raise DataError(f"{file} must have a list of labels from 0 to {num_classes - 1}; is it another CIFAR?")
    if len(labels) != len(pixels):
        raise DataError(f"{file} has {len(pixels)} images, but {len(labels)} labels; they must go together")
    return pixels.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


def parse_cifar_binary(content: bytes, file: str, num_classes: int) -> tuple[Images, Labels]:
    """Images `(example, 3, 32, 32)` and fine labels of a batch in the binary form."""
    num_labels = 2 if num_classes == 100 else 1
    size = num_labels + PIXELS
    if not content or len(content) % size:
        raise DataError(f"{file} must hold whole records of {size} bytes, got {len(content)} bytes; fetch it again")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
    labels = records[:, num_labels - 1].astype(np.int64)
    if labels.max() >= num_classes:
        raise DataError(
            f"{file} must hold labels from 0 to {num_classes - 1}, got {labels.max()}; is it another CIFAR?"
        )
    return records[:, num_labels:].reshape(-1, 3, 32, 32), labels


@dataclass(frozen=True)
class Form:
    """One of the two forms a CIFAR comes in: its folder, its archive, and their files with the md5 where known."""

    folder: str
    archive: str
    train: tuple[tuple[str, str], ...]
    test: tuple[tuple[str, str], ...]
    names: tuple[str, str | None]
    binary: bool

    def files(self, part: Part) -> tuple[str, ...]:
        """Batches of a part and the file with the names of the classes, last."""
        batches = self.train if part == "train" else self.test
        return *(f"{self.folder}/{name}" for name, _ in batches), f"{self.folder}/{self.names[0]}"

    def missing(self, folder: Path, part: Part) -> tuple[str, ...]:
        """Those of the files that are not there, nor the archive."""
        if (folder / self.archive).is_file():
            return ()
        return tuple(file for file in self.files(part) if not (folder / file).is_file())

    def contents(self, folder: Path, part: Part) -> list[tuple[str, bytes]]:
        """The files of a part in their order, from the folder or else from the archive: name and contents."""
        files = self.files(part)
        if all((folder / file).is_file() for file in files):
            return [(str(folder / file), read_file(folder / file, LIMIT, DataError)) for file in files]
        archive = folder / self.archive
        packed = read_tar(archive, files)
        return [(f"{archive}/{file}", packed[file]) for file in files]

    def md5(self, part: Part) -> tuple[str | None, ...]:
        """Checksums of the files of a part."""
        return *(md5 for _, md5 in (self.train if part == "train" else self.test)), self.names[1]


@dataclass(frozen=True)
class CifarSet:
    """CIFAR with 10 or 100 classes."""

    name: str
    what: str
    num_classes: int
    forms: tuple[Form, ...]
    archive_md5: str
    train_optional: bool = False

    @property
    def place(self) -> str:
        """Where its files are."""
        return self.forms[0].folder

    def files(self, part: Part) -> tuple[str, ...]:
        """The files of the Python version."""
        return self.forms[0].files(part)

    def missing(self, folder: Path, part: Part) -> tuple[str, ...]:
        """What is missing of the form that is most nearly there."""
        return self._form(folder, part).missing(folder, part)

    def read(self, folder: Path, part: Part) -> Examples:
        """The examples of a part."""
        form = self._form(folder, part)
        contents = form.contents(folder, part)
        *batches, (names_file, names) = contents
        parse = parse_cifar_binary if form.binary else parse_cifar_pickle
        parsed = [parse(content, file, self.num_classes) for file, content in batches]
        classes = _class_names(names, names_file, form, self.num_classes)
        for (file, content), md5 in zip(contents, form.md5(part), strict=True):
            check_md5(content, md5, file)
        images, labels = (torch.from_numpy(np.concatenate(arrays)) for arrays in zip(*parsed, strict=True))
        return Examples(images, labels, classes, self.name)

    def remotes(self, part: Part) -> tuple[Remote, ...]:
        """The archive of the Python version, which holds both parts."""
        archive = self.forms[0].archive
        return (Remote(archive, (f"https://www.cs.toronto.edu/~kriz/{archive}",), self.archive_md5, DOWNLOADED),)

    def _form(self, folder: Path, part: Part) -> Form:
        return min(self.forms, key=lambda form: len(form.missing(folder, part)))


def _class_names(content: bytes, file: str, form: Form, num_classes: int) -> tuple[str, ...]:
    if form.binary:
        names: Any = [line for line in content.split(b"\n") if line.strip()]
    else:
        names = parse_pickle(content, file).get("fine_label_names" if num_classes == 100 else "label_names")
    if not isinstance(names, list) or len(names) != num_classes or not all(isinstance(n, str | bytes) for n in names):
        raise DataError(f"{file} must hold the names of {num_classes} classes; is it another CIFAR?")
    return tuple(name if isinstance(name, str) else name.decode("latin1").strip() for name in names)


def _described(value: Any) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__


CIFAR10 = CifarSet(
    name="cifar10",
    what="60,000 photos, 32x32 RGB",
    num_classes=10,
    archive_md5="c58f30108f718f92721af3b95e74349a",
    forms=(
        Form(
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
            binary=False,
        ),
        Form(
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
    num_classes=100,
    archive_md5="eb9058c3a382ffc7106e4002c42a8d85",
    forms=(
        Form(
            folder="cifar-100-python",
            archive="cifar-100-python.tar.gz",
            train=(("train", "16019d7e3df5f24257cddd939b257f8d"),),
            test=(("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),),
            names=("meta", "7973b15100ade9c7d40fb424638fde48"),
            binary=False,
        ),
        Form(
            folder="cifar-100-binary",
            archive="cifar-100-binary.tar.gz",
            train=(("train.bin", "6172c7755cfe09b2fe270c85cebc1b15"),),
            test=(("test.bin", "4499cfba6c016c1be1438163640a0898"),),
            names=("fine_label_names.txt", None),
            binary=True,
        ),
    ),
)
