"""Image files as arrays of bytes, read with Pillow."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dubio.data.errors import DataError

__all__ = ["decode_image"]

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
GREY, COLOUR = ("1", "L"), ("RGB", "P")


def decode_image(content: bytes, file: str) -> NDArray[np.uint8]:
    """The pixels of an image file, `(channel, height, width)`: one channel if it is grey, three if it has colours."""
    image = _pillow()
    try:
        with image.open(io.BytesIO(content), formats=FORMATS) as opened:
            mode = opened.mode
            pixels = np.array(opened.convert("L" if mode in GREY else "RGB"))
    except Exception as error:  # Pillow has a different one for every kind of damage
        raise DataError(f"{file} is not a readable image: {str(error) or type(error).__name__}") from None
    if mode not in GREY + COLOUR:
        raise DataError(f"{file} must be grey or RGB with 8 bits a channel, got mode {mode}; convert it first")
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading image files needs Pillow, which is missing: pip install 'dubio[images]'") from error
    return Image
