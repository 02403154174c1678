"""Small images inside a page: PNG written by hand, as ``data:`` addresses.

Invariants: any reader of PNG gives the pixels back (``tests/reporting/test_images.py``).
"""

import base64
import binascii
import math
import struct
import zlib

import torch
from jaxtyping import UInt8
from torch import Tensor

from dubio.evaluation import Thumbnail

__all__ = ["data_address", "from_thumbnail", "is_image", "png"]

GREY, COLOUR = 0, 2


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether inputs of a shape can be shown: one channel or three."""
    return len(shape) == 3 and shape[0] in (1, 3)


def png(pixels: UInt8[Tensor, "channel height width"]) -> bytes:
    """An image file: grey for one channel, colours for three."""
    if not is_image(tuple(pixels.shape)):
        raise ValueError(f"pixels must have shape (1 or 3, height, width), got {tuple(pixels.shape)}")
    channels, height, width = pixels.shape
    rows = pixels.permute(1, 2, 0).reshape(height, width * channels)
    unfiltered = torch.cat([torch.zeros(height, 1, dtype=torch.uint8), rows], dim=1)
    header = struct.pack(">IIBBBBB", width, height, 8, GREY if channels == 1 else COLOUR, 0, 0, 0)
    compressed = zlib.compress(unfiltered.contiguous().numpy().tobytes(), 9)
    parts = ((b"IHDR", header), (b"IDAT", compressed), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, content) for name, content in parts)


def data_address(pixels: UInt8[Tensor, "channel height width"]) -> str:
    """An image as the address of an ``img``."""
    return f"data:image/png;base64,{base64.b64encode(png(pixels)).decode()}"


def from_thumbnail(image: Thumbnail) -> UInt8[Tensor, "channel height width"]:
    """The pixels of an image that an evaluation kept."""
    try:
        content = base64.b64decode(image.pixels, validate=True)
    except binascii.Error as error:
        raise ValueError(f"the pixels of an image must be base64, got {image.pixels[:20]!r}: {error}") from error
    if len(content) != math.prod(image.shape) or not is_image(image.shape):
        raise ValueError(f"an image of shape {image.shape} cannot have {len(content)} bytes")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(image.shape)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
