"""MNIST, FashionMNIST and KMNIST: 28x28 grey images in idx files, raw or gzipped, under ``MNIST/raw`` and so on.

Contents are checked against the md5 of the official files; for the training part of KMNIST only the md5 of the gzipped
files is known, and checked when they are downloaded. Addresses and checksums are those that torchvision uses.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from dubio.data.errors import DataError
from dubio.data.examples import Examples
from dubio.data.idx import read_idx
from dubio.data.stored import Part, Remote

__all__ = ["FASHIONMNIST", "KMNIST", "MNIST", "IdxSet", "read_labelled_images"]

OFFICIAL = 60_000 * 28 * 28
"""Bytes of the largest array of these datasets."""
DOWNLOADED = 32_000_000
"""No gzipped file of them is larger."""
NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


def read_labelled_images(
    images: Path,
    labels: Path,
    classes: tuple[str, ...],
    name: str,
    md5: tuple[str | None, str | None] = (None, None),
    limit: int | None = None,
) -> Examples:
    """Images of one idx file with the labels of another; ``limit`` is the most bytes that images may take."""
    pixels = read_idx(images, axes=3, md5=md5[0], limit=limit)
    targets = read_idx(labels, axes=1, md5=md5[1], limit=limit)
    if len(pixels) != len(targets):
        raise DataError(
            f"{images} holds {len(pixels)} images, but {labels} {len(targets)} labels; they must go together"
        )
    if targets.max() >= len(classes):
        raise DataError(f"{labels} must hold labels from 0 to {len(classes) - 1}, got {targets.max()}")
    return Examples(torch.tensor(pixels).unsqueeze(1), torch.tensor(targets).long(), classes, name)


@dataclass(frozen=True)
class IdxSet:
    """A dataset of four idx files; ``md5`` and ``packed_md5`` in the order of ``NAMES``, raw and gzipped."""

    name: str
    what: str
    folder: str
    classes: tuple[str, ...]
    mirrors: tuple[str, ...]
    md5: tuple[str | None, str | None, str | None, str | None]
    packed_md5: tuple[str, str, str, str]
    train_optional: bool = False

    @property
    def place(self) -> str:
        """Where its files are."""
        return f"{self.folder}/raw"

    def files(self, part: Part) -> tuple[str, ...]:
        """Images and labels."""
        return tuple(f"{self.place}/{name}" for name in NAMES[part])

    def missing(self, folder: Path, part: Part) -> tuple[str, ...]:
        """Those of the files that are there neither raw nor gzipped."""
        return tuple(file for file in self.files(part) if not _found(folder, file).is_file())

    def read(self, folder: Path, part: Part) -> Examples:
        """The examples of a part."""
        images, labels = (_found(folder, file) for file in self.files(part))
        md5 = self.md5[:2] if part == "train" else self.md5[2:]
        return read_labelled_images(images, labels, self.classes, self.name, md5, OFFICIAL)

    def remotes(self, part: Part) -> tuple[Remote, ...]:
        """The gzipped files."""
        sums = self.packed_md5[:2] if part == "train" else self.packed_md5[2:]
        return tuple(
            Remote(f"{self.place}/{name}.gz", tuple(f"{mirror}{name}.gz" for mirror in self.mirrors), md5, DOWNLOADED)
            for name, md5 in zip(NAMES[part], sums, strict=True)
        )


def _found(folder: Path, file: str) -> Path:
    """The raw file, or the gzipped one where there is no raw one."""
    raw, packed = folder / file, folder / f"{file}.gz"
    return packed if packed.is_file() and not raw.is_file() else raw


MNIST = IdxSet(
    name="mnist",
    what="70,000 digits, 28x28 grey",
    folder="MNIST",
    classes=tuple("0123456789"),
    mirrors=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
    md5=(
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    packed_md5=(
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)

FASHIONMNIST = IdxSet(
    name="fashionmnist",
    what="70,000 clothes, 28x28 grey",
    folder="FashionMNIST",
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    mirrors=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    md5=(
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
    packed_md5=(
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)

KMNIST = IdxSet(
    name="kmnist",
    what="70,000 kana, 28x28 grey",
    folder="KMNIST",
    classes=("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    mirrors=("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
    md5=(None, None, "bf305b8cd328700fbc17f5acbc2856d2", "9f55f451c0988b028eccdf7d5cc265ab"),
    packed_md5=(
        "bdb82020997e1d708af4cf47b453dcf7",
        "e144d726b3acfaa3e44228e80efcd344",
        "5c965bf0a639b31b8f53240b1b52f4d7",
        "7320c461ea6c1c855c0b718fb2a4b134",
    ),
    train_optional=True,
)
