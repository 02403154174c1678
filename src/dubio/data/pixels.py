"""Image files as arrays of bytes, read with Pillow."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dubio.codec import read_file
from dubio.data.errors import DataError

__all__ = ["Decoded", "decode_image", "read_image_file"]
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
