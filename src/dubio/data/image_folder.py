"""A folder of images by class: ``root/train/cat/1.png`` and ``root/test/cat/2.png``, or ``root/cat/1.png``.

Without the folders ``train`` and ``test`` a quarter of the images is for testing, always the same ones. Classes are the
names of the folders, sorted. All images have one size and are all grey or all coloured: resizing and cropping change
data, so they are left to whoever knows them. Hidden files and those whose ending is not an image's are passed over.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dubio.data.errors import DataError
from dubio.data.examples import Examples, Splits
from dubio.data.pixels import decode_image
from dubio.data.splitting import TENTH, split_three_ways, with_validation

__all__ = ["read_image_folder"]

ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"})


def read_image_folder(root: Path, validation: int | float = TENTH) -> Splits:
    """The images of a folder, by class.

    Raises:
        DataError: an image cannot be read or differs from the others in size or kind, or there are none.
    """
    train, test = root / "train", root / "test"
    if not train.is_dir() and not test.is_dir():
        return split_three_ways(_Images(root, root.name).examples(root), validation)
    images = _Images(train if train.is_dir() else test, root.name)
    parts = [images.examples(folder) if folder.is_dir() else None for folder in (train, test)]
    return with_validation(parts[0], parts[1], validation)


class _Images:
    """Classes by the folders of the first part; size and kind by the first image that was read."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.classes = folder, name, _classes(folder)
        self.first: Path | None = None
        self.shape: tuple[int, ...] = ()

    def examples(self, folder: Path) -> Examples:
        """All images of a part."""
        unknown = [name for name in _classes(folder) if name not in self.classes]
        if unknown:
            raise DataError(f"{folder} must have no class that {self.folder} has not, got {', '.join(unknown)}")
        files = [(file, label) for label, name in enumerate(self.classes) for file in _files(folder / name)]
        pixels = np.stack([self.pixels(file) for file, _ in files])
        labels = torch.tensor([label for _, label in files])
        return Examples(torch.from_numpy(pixels), labels, self.classes, self.name)

    def pixels(self, file: Path) -> NDArray[np.uint8]:
        """One image, which must be like the first."""
        pixels = decode_image(file.read_bytes(), str(file))
        if self.first is None:
            self.first, self.shape = file, pixels.shape
        if pixels.shape != self.shape:
            raise DataError(
                f"{file} must be like {self.first}, {_described(self.shape)}, got {_described(pixels.shape)}; "
                "give all images one size and kind"
            )
        return pixels


def _classes(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and _files(entry)))
    if not names:
        raise DataError(f"{folder} must hold a folder of images for each class, such as {folder}/cat/1.png; got none")
    return names


def _files(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(file for file in found if file.suffix.lower() in ENDINGS and not file.name.startswith("."))


def _described(shape: tuple[int, ...]) -> str:
    return f"{'grey' if shape[0] == 1 else 'RGB'} {shape[2]}x{shape[1]}"
