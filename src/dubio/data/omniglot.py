"""Omniglot: letters of 50 alphabets, each drawn by 20 people; resized to 28x28, light strokes on dark like MNIST.

The files are 105x105 pixels with dark strokes on white. They are inverted, and made smaller by area averaging: each new
pixel is the share of ink in the area it covers, so that the mean intensity stays what it was (T-27). A label is a
character of an alphabet; the 964 of the background set, which is the training part, and the 659 of the evaluation
set, the test part, have nothing in common. The archives of the authors are read without being extracted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubio import functional
from dubio.codec import read_file
from dubio.data.archives import LIMIT, read_zip
from dubio.data.checksums import check_md5
from dubio.data.errors import DataError
from dubio.data.examples import Examples
from dubio.data.pixels import decode_image, read_image_file
from dubio.data.stored import Part, Remote

__all__ = ["OMNIGLOT", "OmniglotSet", "read_drawings"]

OLD_SIZE, NEW_SIZE, CHUNK = 105, 28, 200
DOWNLOADED = 16_000_000
"""No archive is larger."""


def read_drawings(path: Path, name: str = "omniglot", md5: str | None = None) -> Examples:
    """The drawings of a folder ``alphabet/character/*.png``, or of a zip archive of such a folder.

    Args:
        path: the folder or the archive.
        name: what the examples are called.
        md5: checksum of the official archive; None to read any.
    """
    files = _files_of_folder(path) if path.is_dir() else _files_of_archive(path, md5)
    characters: list[str] = []
    chunks: list[Tensor] = []
    while chunk := list(islice(files, CHUNK)):
        characters += (character for character, _, _ in chunk)
        chunks.append(_small(np.concatenate([_drawing(content, file) for _, file, content in chunk])))
    if not chunks:
        raise DataError(f"{path} must hold drawings as alphabet/character/*.png, got none")
    classes = sorted(set(characters))
    number = {character: label for label, character in enumerate(classes)}
    targets = torch.tensor([number[character] for character in characters])
    return Examples(torch.cat(chunks).unsqueeze(1), targets, tuple(classes), name)


def _small(pixels: NDArray[np.uint8]) -> Tensor:
    """Light strokes on dark, 28x28."""
    paper = functional.corruption.area_resized(torch.from_numpy(pixels).float(), (NEW_SIZE, NEW_SIZE))
    return (255.0 - paper).round().to(torch.uint8)


def _drawing(content: bytes, file: str) -> NDArray[np.uint8]:
    pixels = decode_image(content, file).pixels
    if pixels.shape != (1, OLD_SIZE, OLD_SIZE):
        raise DataError(f"{file} must be grey with {OLD_SIZE}x{OLD_SIZE} pixels, got shape {pixels.shape}")
    return pixels


def _files_of_folder(path: Path) -> Iterator[tuple[str, str, bytes]]:
    """Character, name of the file and its contents, in the order of names."""
    for file in sorted(path.glob("*/*/*.png")):
        yield f"{file.parent.parent.name}/{file.parent.name}", str(file), read_image_file(file)


def _files_of_archive(path: Path, md5: str | None) -> Iterator[tuple[str, str, bytes]]:
    """The same out of a zip archive, whose files are ``images_.../alphabet/character/*.png``."""
    check_md5(read_file(path, LIMIT, DataError), md5, str(path))
    for name, content in read_zip(path, _is_drawing).items():
        _, alphabet, character, _ = name.split("/")
        yield f"{alphabet}/{character}", f"{path}/{name}", content


def _is_drawing(name: str) -> bool:
    return name.startswith("images_") and name.endswith(".png") and name.count("/") == 3


@dataclass(frozen=True)
class OmniglotSet:
    """Omniglot as its authors give it: the background set and the evaluation set."""

    name: str = "omniglot"
    what: str = "32,460 letters, 28x28 grey"
    place: str = "omniglot-py"
    train_optional: bool = True

    def files(self, part: Part) -> tuple[str, ...]:
        """The folder of a part."""
        return (f"{self.place}/{PARTS[part].folder}",)

    def missing(self, folder: Path, part: Part) -> tuple[str, ...]:
        """The folder of a part, where neither it nor its archive is there."""
        return tuple(file for file in self.files(part) if not _found(folder, file).exists())

    def read(self, folder: Path, part: Part) -> Examples:
        """The examples of a part."""
        path = _found(folder, self.files(part)[0])
        examples, wanted = read_drawings(path, self.name, PARTS[part].md5), PARTS[part]
        if (len(examples), len(examples.classes)) != (wanted.num_drawings, wanted.num_characters):
            raise DataError(
                f"{path} must hold {wanted.num_drawings} drawings of {wanted.num_characters} characters, "
                f"got {len(examples)} of {len(examples.classes)}; extract the archive again"
            )
        return examples

    def remotes(self, part: Part) -> tuple[Remote, ...]:
        """The archive of a part."""
        archive = f"{PARTS[part].folder}.zip"
        return (Remote(f"{self.place}/{archive}", (f"{ADDRESS}{archive}",), PARTS[part].md5, DOWNLOADED),)


@dataclass(frozen=True)
class _PartOfOmniglot:
    folder: str
    md5: str
    num_drawings: int
    num_characters: int


def _found(folder: Path, file: str) -> Path:
    """The folder, or the archive where there is no folder."""
    extracted, packed = folder / file, folder / f"{file}.zip"
    return packed if packed.is_file() and not extracted.is_dir() else extracted


ADDRESS = "https://github.com/brendenlake/omniglot/raw/master/python/"
PARTS = {
    "train": _PartOfOmniglot("images_background", "68d2efa1b9178cc56df9314c21c6e718", 19280, 964),
    "test": _PartOfOmniglot("images_evaluation", "6b91aef0f799c5bb55b94e3f2daec811", 13180, 659),
}
OMNIGLOT = OmniglotSet()
