"""Image files as arrays of bytes, read with Pillow."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dubio.data.errors import DataError

__all__ = ["decode_image"]

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
GREY, COLOUR = ("1", "L", "LA"), ("RGB", "P", "RGBA", "PA")
NOT_AN_IMAGE = "its content is that of no image format"


def decode_image(content: bytes, file: str, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """The pixels of an image file, `(channel, height, width)`: one channel if it is grey, three if it has colours.

    An image with transparency loses it: its colours are kept as the file has them. With ``size`` (height, width) it is
    resized, by averaging over the pixels that fall together.
    """
    image = _pillow()
    try:
        with image.open(io.BytesIO(content), formats=FORMATS) as opened:
            mode = opened.mode
            converted = opened.convert("L" if mode in GREY else "RGB")
            pixels = np.array(converted if size is None else converted.resize(size[::-1], image.Resampling.BILINEAR))
    except Exception as error:  # Pillow has a different one for every kind of damage
        reason = NOT_AN_IMAGE if type(error).__name__ == "UnidentifiedImageError" else str(error)
        raise DataError(f"{file} is not a readable image: {reason or type(error).__name__}") from None
    if mode not in GREY + COLOUR:
        raise DataError(f"{file} must be grey or in colour with 8 bits a channel, got mode {mode}; convert it first")
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("reading image files needs Pillow, which is missing: pip install 'dubio[images]'") from error
    return Image
