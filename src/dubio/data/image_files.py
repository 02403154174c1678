"""Image files, read with Pillow, and folders of images by class.

A folder is ``root/train/cat/1.png`` and ``root/test/cat/2.png``, or ``root/cat/1.png``. Without the folders ``train``
and ``test`` a quarter of the images is the test part, always the same. Classes are the names of the folders, sorted.
All images must have the same size, or are resized to ``resize``. If one image has colours, grey images are converted;
transparency is dropped; a warning counts these images. Hidden files and files without the ending of an image are
skipped (``tests/data/test_image_folder.py``).
"""

import io
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dubio.codec import read_file
from dubio.data.examples import VALIDATION_SHARE, Examples, Splits, split_examples, with_validation
from dubio.data.files import DataError, DataWarning, check_room

ENDINGS = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"})
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
GREY_MODES, COLOUR_MODES, TRANSPARENT_MODES = ("1", "L", "LA"), ("RGB", "P", "RGBA", "PA"), ("LA", "RGBA", "PA")
MAX_SIDE = 4096
"""Pixels of a side to which images can be resized."""
MAX_PIXELS, MAX_BYTES = 2**26, 2**28
"""Limits of an image and of its file."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """The pixels of an image file."""

    pixels: NDArray[np.uint8]
    """`(channel, height, width)`: one channel for a grey image, three for one with colours."""
    lost_transparency: bool
    """Whether the file has transparency, which is dropped; colours do not change."""


def read_image_folder(
    root: Path, validation: int | float = VALIDATION_SHARE, resize: int | tuple[int, int] | None = None
) -> Splits:
    """The images of a folder, by class.

    Args:
        root: the folder.
        validation: how many training examples to hold out, or a fraction of them.
        resize: height and width to which all images are resized, or one number for both; by default they are not.

    Raises:
        DataError: an image cannot be read or has another size than the others, or there are none.
    """
    size = (resize, resize) if isinstance(resize, int) else resize
    if size is not None and (len(size) != 2 or not all(1 <= side <= MAX_SIDE for side in size)):
        raise ValueError(f"resize must be a height and a width from 1 to {MAX_SIDE} pixels, got {resize!r}")
    train, test = root / "train", root / "test"
    if not train.is_dir() and not test.is_dir():
        images = _Images(root, root.name, size)
        return split_examples(images.examples(images.read(root)), validation)
    images = _Images(train if train.is_dir() else test, root.name, size)
    files = [images.read(folder) if folder.is_dir() else None for folder in (train, test)]
    parts = [None if read is None else images.examples(read) for read in files]
    return with_validation(parts[0], parts[1], validation)


def image_files(folder: Path) -> list[Path]:
    """The images in a folder and its subfolders, sorted; hidden files are skipped."""
    files = (file for file in folder.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    return sorted(file for file in files if not any(p.startswith(".") for p in file.relative_to(folder).parts))


def read_image_file(path: Path) -> bytes:
    """The bytes of an image file; raises ``DataError`` for a FIFO, a folder or a broken link."""
    try:
        return read_file(path, MAX_BYTES, DataError)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None


def decode_image(content: bytes, file: str, size: tuple[int, int] | None = None) -> Decoded:
    """Decode an image file and resize it to ``size`` (height, width), bilinearly with antialiasing."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading image files needs Pillow, which is missing: pip install 'dubio[images]'") from error
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
            mode = opened.mode
            if opened.width * opened.height > MAX_PIXELS:  # from the header, before decoding
                raise DataError(f"{file} must have at most {MAX_PIXELS} pixels, got {opened.width}x{opened.height}")
            converted = opened.convert("L" if mode in GREY_MODES else "RGB")
            pixels = np.array(converted if size is None else converted.resize(size[::-1], Image.Resampling.BILINEAR))
    except DataError:
        raise
    except Exception as error:  # Pillow raises many types of errors for damaged files
        is_unidentified = type(error).__name__ == "UnidentifiedImageError"  # its text has an object instead of the file
        reason = "its content is of no image format" if is_unidentified else str(error) or type(error).__name__
        raise DataError(f"{file} is not a readable image: {reason}") from None
    if mode not in GREY_MODES + COLOUR_MODES:
        raise DataError(f"{file} must be grey or in colour with 8 bits a channel, got mode {mode}; convert it first")
    first = pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
    return Decoded(first, mode in TRANSPARENT_MODES)


class _Images:
    """Reads the parts of a folder: the first part defines the classes, the first image the size.

    All parts are read before any becomes examples, because one image in colour gives all of them three channels.
    """

    def __init__(self, folder: Path, name: str, size: tuple[int, int] | None) -> None:
        self.folder, self.name, self.classes, self.size = folder, name, _classes(folder), size
        self.first: Path | None = None
        self.shape: tuple[int, ...] = ()
        self.num_grey = self.num_coloured = self.num_transparent = 0

    def read(self, folder: Path) -> list[tuple[NDArray[np.uint8], int]]:
        """The pixels and the label of each image of a part."""
        if extra := [name for name in _classes(folder) if name not in self.classes]:
            raise DataError(f"{folder} must have no class that {self.folder} has not, got {', '.join(extra)}")
        files = [(file, label) for label, name in enumerate(self.classes) for file in _files(folder / name)]
        (file, label), *others = files
        first = self.pixels(file)
        check_room(len(files) * first.nbytes, str(folder))
        return [(first, label), *((self.pixels(file), label) for file, label in others)]

    def examples(self, read: list[tuple[NDArray[np.uint8], int]]) -> Examples:
        """A part, with three channels if any image has colours."""
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
        """Warn once about images that were changed."""
        changed = []
        if self.num_grey and self.num_coloured:
            changed.append(f"{self.num_grey} grey {'is' if self.num_grey == 1 else 'are'} converted to RGB")
        if self.num_transparent:
            verb = "is" if self.num_transparent == 1 else "are"
            changed.append(f"{self.num_transparent} {verb} used without transparency")
        if changed:
            total = self.num_grey + self.num_coloured
            warnings.warn(f"{self.name}: of {total} images {' and '.join(changed)}", DataWarning, stacklevel=5)
        self.num_transparent = self.num_grey = 0


def _classes(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and _files(entry)))
    if not names:
        raise DataError(f"{folder} must hold a folder of images for each class, such as {folder}/cat/1.png; got none")
    return names


def _files(folder: Path) -> list[Path]:
    files = folder.iterdir() if folder.is_dir() else ()
    return sorted(file for file in files if file.suffix.lower() in ENDINGS and not file.name.startswith("."))


def _described(shape: tuple[int, ...]) -> str:
    return f"{shape[1]}x{shape[2]} (height x width)"
