"""Graded corruptions of examples: one battery over the table, and what is refused."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from dubio.data.corruptions import CORRUPTIONS, Blur, GaussianNoise, corrupt
from dubio.data.examples import Examples

NAMES = list(CORRUPTIONS)


def digits(rows: int = 200) -> Examples:
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images[:rows] / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return Examples(inputs, torch.tensor(labels[:rows]), tuple("0123456789"), "digits")


def photographs() -> Examples:
    """Coloured bytes in soft patches, wider than high."""
    patches = torch.rand(6, 3, 4, 5, generator=torch.Generator().manual_seed(1))
    images = F.interpolate(patches, scale_factor=4, mode="bilinear")
    return Examples((255 * images).to(torch.uint8), torch.arange(6), tuple("abcdef"), "photographs")


@pytest.mark.parametrize("make", [digits, photographs])
@pytest.mark.parametrize("name", NAMES)
def test_strength_zero_is_the_identity(name: str, make: Callable[[], Examples]) -> None:
    examples = make()
    assert torch.equal(corrupt(examples, name, strength=0).inputs, examples.tensors[0])


@pytest.mark.parametrize("make", [digits, photographs])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.feature("Corrupted data: noise, blur, contrast, rotation and inversion at five strengths")
def test_each_strength_moves_images_further_away(name: str, make: Callable[[], Examples]) -> None:
    examples = make()
    corrupted = [corrupt(examples, name, strength=strength).inputs for strength in range(6)]
    distances = [(images - corrupted[0]).square().mean().sqrt().item() for images in corrupted]
    assert min(after - before for before, after in pairwise(distances)) > 0.0005


@pytest.mark.parametrize("make", [digits, photographs])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("strength", [1, 5])
def test_corrupted_examples_are_numbers_in_the_unit_interval_with_their_own_labels(
    name: str, strength: int, make: Callable[[], Examples]
) -> None:
    examples = make()
    corrupted = corrupt(examples, name, strength=strength)
    assert corrupted.inputs.dtype == torch.float32
    assert corrupted.inputs.shape == examples.inputs.shape
    assert 0.0 <= corrupted.inputs.min() <= corrupted.inputs.max() <= 1.0
    assert torch.equal(corrupted.targets, examples.targets)
    assert corrupted.classes == examples.classes
    assert corrupted.name == f"{examples.name}, {name} {strength}"


@pytest.mark.parametrize("name", NAMES)
def test_examples_themselves_stay_as_they_were(name: str) -> None:
    examples = photographs()
    corrupt(examples, name, strength=3)
    assert examples.fingerprint == photographs().fingerprint


@pytest.mark.parametrize("name", NAMES)
def test_images_are_corrupted_one_by_one(name: str) -> None:
    examples = digits(6)
    whole = corrupt(examples, name, strength=3).inputs
    if name == "noise":  # the first rows meet the first numbers of the generator
        assert torch.equal(corrupt(examples[:1], name, strength=3).inputs[0, 0, 0], whole[0, 0, 0])
    else:
        torch.testing.assert_close(corrupt(examples[2:3], name, strength=3).inputs, whole[2:3])


def test_noise_follows_its_seed_and_its_strength() -> None:
    grey = Examples(torch.full((50, 1, 28, 28), 0.5), torch.zeros(50))
    first, again, other = (corrupt(grey, "noise", strength=1, seed=seed).inputs for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    # Eighty thousandths of a pixel's range, far from both ends, so that nothing is cut: 4 standard errors.
    assert abs(first.std().item() - 0.08) < 4.0 * 0.08 / (2 * first.numel()) ** 0.5
    assert abs(first.mean().item() - 0.5) < 4.0 * 0.08 / first.numel() ** 0.5


def test_blur_is_as_wide_on_large_images_as_on_small_ones() -> None:
    def width(side: int) -> float:
        """Standard deviation of a blurred line, as a share of the side."""
        image = torch.zeros(1, 1, side, side)
        image[..., side // 2] = 1.0
        profile = Blur(3)(Examples(image, torch.zeros(1)), torch.Generator()).inputs[0, 0, side // 2]
        offsets = torch.arange(side) - side // 2
        return float((profile * offsets.square()).sum().sqrt()) / side

    assert width(101) == pytest.approx(0.045 + 0.3 / 101, rel=1e-2)
    assert width(301) == pytest.approx(0.045 + 0.3 / 301, rel=1e-2)


def test_values_print_and_compare() -> None:
    assert Blur(3) == Blur(3) != Blur(2)
    assert Blur(3) != GaussianNoise(3)
    assert repr(Blur(3)) == "Blur(strength=3)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: corrupt(digits(2), "fog", strength=1),
            r"^corruption must be noise, blur, contrast, rotation or inversion, got 'fog'$",
        ),
        (lambda: Blur(6), r"^strength must be a whole number from 0 to 5, got 6$"),
        (lambda: Blur(-1), r"^strength must be a whole number from 0 to 5, got -1$"),
        (
            lambda: corrupt(Examples(torch.rand(3, 64), torch.zeros(3), name="table"), "blur", strength=1),
            r"^table must hold images \(example, channel, height, width\) to be corrupted, got inputs of shape \(3, 6",
        ),
        (
            lambda: corrupt(Examples(torch.rand(3, 1, 8, 8) - 1.0, torch.zeros(3)), "blur", strength=0),
            r"^data must hold images in \[0, 1\] to be corrupted, got values from -.* to -.*; corrupt them before they",
        ),
        (
            lambda: corrupt(Examples(torch.full((1, 1, 2, 2), float("nan")), torch.zeros(1)), "blur", strength=1),
            r"^data must hold images in \[0, 1\] to be corrupted, got values from nan to nan",
        ),
    ],
)
def test_what_cannot_be_corrupted_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
