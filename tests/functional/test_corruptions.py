"""Corruptions of images against SciPy, exact rotations and their neutral values."""

import pytest
import torch
from scipy import ndimage

from dubio import functional

IMAGES = torch.rand(2, 3, 9, 12, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("std", [0.2, 0.7, 1.5, 4.0])
def test_blur_is_scipys_gaussian_filter(std):
    expected = ndimage.gaussian_filter(IMAGES.double().numpy(), (0.0, 0.0, std, std), mode="nearest", truncate=4.0)
    torch.testing.assert_close(functional.corruption.blurred(IMAGES.double(), std), torch.from_numpy(expected))
    torch.testing.assert_close(functional.corruption.blurred(IMAGES, std), torch.from_numpy(expected).float())


def test_blur_leaves_a_constant_image_alone():
    even = torch.full((1, 2, 5, 7), 0.3)
    torch.testing.assert_close(functional.corruption.blurred(even, 2.0), even)


@pytest.mark.parametrize("quarters", [-1, 0, 1, 2, 3, 4])
def test_rotation_by_right_angles_is_exact(quarters):
    square = IMAGES[..., :9]
    expected = torch.rot90(square, quarters, dims=(2, 3))
    torch.testing.assert_close(functional.corruption.rotated(square, 90.0 * quarters), expected, atol=1e-5, rtol=0.0)


@pytest.mark.parametrize("degrees", [20.0, 45.0, -70.0])
def test_rotation_is_scipys_in_pixels_not_in_shares_of_the_sides(degrees):
    smooth = functional.corruption.blurred(IMAGES[:1, :1].double(), 1.0)
    # A frame of black, within which both interpolate alike; sides of different lengths show a skewed rotation.
    framed = torch.nn.functional.pad(smooth, (8, 8, 8, 8))
    expected = ndimage.rotate(framed[0, 0].numpy(), degrees, reshape=False, order=1, mode="constant")
    torch.testing.assert_close(
        functional.corruption.rotated(framed, degrees)[0, 0], torch.from_numpy(expected), atol=1e-6, rtol=0
    )


def test_rotating_there_and_back_restores_a_smooth_image():
    there = torch.nn.functional.pad(functional.corruption.blurred(IMAGES, 2.0), (12, 12, 12, 12))
    there = functional.corruption.blurred(there, 2.0)
    back = functional.corruption.rotated(functional.corruption.rotated(there, 33.0), -33.0)
    assert (back - there).abs().max() < 0.02


@pytest.mark.parametrize("factor", [0.0, 0.15, 0.75])
def test_contrast_keeps_the_mean_and_shrinks_the_deviations(factor):
    found = functional.corruption.with_contrast(IMAGES, factor)
    mean = IMAGES.mean(dim=(2, 3), keepdim=True)
    torch.testing.assert_close(found.mean(dim=(2, 3), keepdim=True), mean)
    torch.testing.assert_close(found - mean, factor * (IMAGES - mean))


def test_inversion_is_its_own_inverse_and_grey_half_way():
    torch.testing.assert_close(functional.corruption.inverted(functional.corruption.inverted(IMAGES, 1.0), 1.0), IMAGES)
    torch.testing.assert_close(functional.corruption.inverted(IMAGES, 1.0), 1.0 - IMAGES)
    torch.testing.assert_close(functional.corruption.inverted(IMAGES, 0.5), torch.full_like(IMAGES, 0.5))


def test_noise_is_added_and_cut():
    noise = torch.tensor([-3.0, 0.0, 1.0, 3.0]).reshape(1, 1, 2, 2)
    found = functional.corruption.with_noise(torch.full((1, 1, 2, 2), 0.5), noise, 0.25)
    assert found.flatten().tolist() == [0.0, 0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    "neutral",
    [
        lambda images: functional.corruption.with_noise(images, torch.randn_like(images), 0.0),
        lambda images: functional.corruption.blurred(images, 0.0),
        lambda images: functional.corruption.with_contrast(images, 1.0),
        lambda images: functional.corruption.rotated(images, 0.0),
        lambda images: functional.corruption.inverted(images, 0.0),
    ],
    ids=["noise", "blur", "contrast", "rotation", "inversion"],
)
def test_neutral_values_leave_images_as_they_are(neutral):
    torch.testing.assert_close(neutral(IMAGES), IMAGES)
