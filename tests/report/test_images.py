"""Images inside a page: written by hand, read by others."""

import base64
import io

import numpy as np
import pytest
import torch

from dubio.evaluation.records import Thumbnail
from dubio.functional.corruption import small_image
from dubio.report.sections import data_address, from_thumbnail, png


@pytest.mark.parametrize("channels", [1, 3])
def test_another_reader_gives_the_pixels_back(channels: int) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = torch.randint(0, 256, (channels, 5, 7), dtype=torch.uint8)
    read = np.asarray(image.open(io.BytesIO(png(pixels))))
    assert read.shape == ((5, 7) if channels == 1 else (5, 7, 3))
    assert np.array_equal(read.reshape(5, 7, channels), pixels.permute(1, 2, 0).numpy())


def test_a_thumbnail_becomes_its_own_pixels() -> None:
    content = bytes(range(12))
    result = from_thumbnail(Thumbnail((3, 2, 2), base64.b64encode(content).decode()))
    assert result.flatten().tolist() == list(content)
    assert data_address(result).startswith("data:image/png;base64,iVBOR")


@pytest.mark.parametrize(
    ("thumbnail", "told"),
    [
        (Thumbnail((1, 2, 2), "AAAA"), r"an image of shape \(1, 2, 2\) cannot have 3 bytes"),
        (Thumbnail((2, 1, 1), "AAA="), r"an image of shape \(2, 1, 1\) cannot have 2 bytes"),
        (Thumbnail((1, 2, 2), "?"), "the pixels of an image must be base64, got '\\?'"),
    ],
)
def test_pixels_that_do_not_fit_are_refused(thumbnail: Thumbnail, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        from_thumbnail(thumbnail)


def test_two_channels_are_no_image() -> None:
    with pytest.raises(ValueError, match=r"pixels must have shape \(1 or 3, height, width\), got \(2, 4, 4\)"):
        png(torch.zeros(2, 4, 4, dtype=torch.uint8))


def test_large_images_shrink_and_keep_their_shape_and_mean() -> None:
    image = torch.rand(3, 256, 128, dtype=torch.float64)
    result = small_image(image)
    assert result.shape == (3, 64, 64 // 2)
    assert result.double().mean().item() / 255 == pytest.approx(image.mean().item(), abs=2e-3)
    assert torch.equal(
        small_image(torch.tensor([[[0.0, 0.5, 2.0]]])), torch.tensor([[[0, 128, 255]]], dtype=torch.uint8)
    )
