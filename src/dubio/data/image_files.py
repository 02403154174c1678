"""A folder of images by class: ``root/train/cat/1.png`` and ``root/test/cat/2.png``, or ``root/cat/1.png``.

Without the folders ``train`` and ``test`` a quarter of the images is for testing, always the same ones. Classes are the
names of the folders, sorted. All images have one size, or are resized to the one that is asked for. Where one has
colours, grey ones are converted; transparency is left out; a warning says of how many. Hidden files and those whose
ending is not an image's are passed over.

Image files as arrays of bytes, read with Pillow.
"""

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dubio.codec import read_file
from dubio.data.examples import VALIDATION_SHARE, Examples, Splits, split_examples, with_validation
from dubio.data.files import DataError, DataWarning, check_room

ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"})


LARGEST = 4096
"""Pixels of a side that images may be resized to."""


def read_image_folder(
    root: Path, validation: int | float = VALIDATION_SHARE, resize: int | tuple[int, int] | None = None
) -> Splits:
    """The images of a folder, by class.

    Args:
        root: the folder.
        validation: how many training examples to hold out, or a fraction of them.
        resize: the height and width that all images get, or one number for both; by default none is resized.

    Raises:
        DataError: an image cannot be read or has another size than the others, or there are none.
    """
    size = _size(resize)
    train, test = root / "train", root / "test"
    if not train.is_dir() and not test.is_dir():
        images = _Images(root, root.name, size)
        return split_examples(images.examples(images.read(root)), validation)
    images = _Images(train if train.is_dir() else test, root.name, size)
    files = [images.read(folder) if folder.is_dir() else None for folder in (train, test)]
    parts = [None if read is None else images.examples(read) for read in files]
    return with_validation(parts[0], parts[1], validation)


def image_files(folder: Path) -> list[Path]:
    """The images in a folder and the folders in it, sorted; hidden files are passed over."""
    files = (file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    return sorted(file for file in files if not any(p.startswith(".") for p in file.relative_to(folder).parts))


class _Images:
    """Classes by the folders of the first part; size by the first image that was read, or as it is given.

    All parts are read before any becomes examples: one image in colour makes all of them have three channels.
    """

    def __init__(self, folder: Path, name: str, size: tuple[int, int] | None) -> None:
        self.folder, self.name, self.classes, self.size = folder, name, _classes(folder), size
        self.first: Path | None = None
        self.shape: tuple[int, ...] = ()
        self.num_grey = self.num_coloured = self.num_transparent = 0

    def read(self, folder: Path) -> list[tuple[NDArray[np.uint8], int]]:
        """The pixels and the label of each image of a part."""
        unknown = [name for name in _classes(folder) if name not in self.classes]
        if unknown:
            raise DataError(f"{folder} must have no class that {self.folder} has not, got {', '.join(unknown)}")
        files = [(file, label) for label, name in enumerate(self.classes) for file in _files(folder / name)]
        (file, label), *others = files
        first = self.pixels(file)
        check_room(len(files) * first.nbytes, str(folder))
        return [(first, label), *((self.pixels(file), label) for file, label in others)]

    def examples(self, read: list[tuple[NDArray[np.uint8], int]]) -> Examples:
        """A part, with as many channels as all images together need."""
        self._warn()
        channels = 3 if self.num_coloured else 1
        pixels = np.stack([np.broadcast_to(image, (channels, *image.shape[1:])) for image, _ in read])
        labels = torch.tensor([label for _, label in read])
        return Examples(torch.from_numpy(pixels), labels, self.classes, self.name)

    def pixels(self, file: Path) -> NDArray[np.uint8]:
        """One image, which must have the size of the first."""
        decoded = decode_image(read_image_file(file), str(file), self.size)
        shape = decoded.pixels.shape
        self.num_transparent += decoded.lost_transparency
        self.num_grey += shape[0] == 1
        self.num_coloured += shape[0] == 3
        if self.first is None:
            self.first, self.shape = file, shape
        if shape[1:] != self.shape[1:]:
            raise DataError(
                f"{file} must be as large as {self.first}, {_described(self.shape)}, got {_described(shape)}; "
                "resize all images to one size: --resize HEIGHTxWIDTH, in Python resize=(height, width)"
            )
        return decoded.pixels

    def _warn(self) -> None:
        """Say once which images are not used as they are."""
        changed = []
        if self.num_grey and self.num_coloured:
            changed.append(f"{self.num_grey} grey {_plural(self.num_grey)} converted to RGB")
        if self.num_transparent:
            changed.append(f"{self.num_transparent} {_plural(self.num_transparent)} used without transparency")
        if changed:
            total = self.num_grey + self.num_coloured
            warnings.warn(f"{self.name}: of {total} images {' and '.join(changed)}", DataWarning, stacklevel=5)
        self.num_transparent = self.num_grey = 0


def _plural(count: int) -> str:
    return "is" if count == 1 else "are"


def _size(resize: int | tuple[int, int] | None) -> tuple[int, int] | None:
    size = (resize, resize) if isinstance(resize, int) else resize
    if size is not None and (len(size) != 2 or not all(1 <= side <= LARGEST for side in size)):
        raise ValueError(f"resize must be a height and a width from 1 to {LARGEST} pixels, got {resize!r}")
    return size


def _classes(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and _files(entry)))
    if not names:
        raise DataError(f"{folder} must hold a folder of images for each class, such as {folder}/cat/1.png; got none")
    return names


def _files(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(file for file in found if file.suffix.lower() in ENDINGS and not file.name.startswith("."))


def _described(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[2]} (height x width)"


FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")


GREY, COLOUR = ("1", "L", "LA"), ("RGB", "P", "RGBA", "PA")


TRANSPARENT = ("LA", "RGBA", "PA")


MAX_PIXELS, MAX_BYTES = 2**26, 2**28
"""Of an image, and of its file."""


def read_image_file(path: Path) -> bytes:
    """The bytes of an image file; ``DataError`` for what is no file, such as a FIFO, a folder or a link to nothing."""
    try:
        return read_file(path, MAX_BYTES, DataError)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


@dataclass(frozen=True, eq=False)
class Decoded:
    """The pixels of an image file."""

    pixels: NDArray[np.uint8]
    """`(channel, height, width)`: one channel if it is grey, three if it has colours."""
    lost_transparency: bool
    """Whether the file has transparency, which is left out: colours are kept as they are written."""


def decode_image(content: bytes, file: str, size: tuple[int, int] | None = None) -> Decoded:
    """An image file, resized to ``size`` (height, width) if one is given, bilinearly and with antialiasing."""
    image = _pillow()
    try:
        with image.open(io.BytesIO(content), formats=FORMATS) as opened:
            mode = opened.mode
            if opened.width * opened.height > MAX_PIXELS:  # what the header says: nothing was decoded yet
                raise DataError(f"{file} must have at most {MAX_PIXELS} pixels, got {opened.width}x{opened.height}")
            converted = opened.convert("L" if mode in GREY else "RGB")
            pixels = np.array(converted if size is None else converted.resize(size[::-1], image.Resampling.BILINEAR))
    except DataError:
        raise
    except Exception as error:  # Pillow has a different one for every kind of damage
        unknown = type(error).__name__ == "UnidentifiedImageError"  # whose text names an object in place of the file
        reason = "its content is of no image format" if unknown else str(error) or type(error).__name__
        raise DataError(f"{file} is not a readable image: {reason}") from None
    if mode not in GREY + COLOUR:
        raise DataError(f"{file} must be grey or in colour with 8 bits a channel, got mode {mode}; convert it first")
    first = pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
    return Decoded(first, mode in TRANSPARENT)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading image files needs Pillow, which is missing: pip install 'dubio[images]'") from error
    return Image
