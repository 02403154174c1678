"""Corrupted test data at graded strengths, from 1 (mild) to 5 (severe); 0 leaves images as they are.

    strength             0     1     2     3     4     5
    noise, std           0     0.08  0.12  0.18  0.26  0.38    of pixels in [0, 1]
    blur, std            0     0.015 0.03  0.045 0.06  0.075   of the shorter side, and 0.3 pixels more
    contrast, factor     1     0.75  0.5   0.4   0.3   0.15    around the mean of each image and channel
    rotation, degrees    0     15    30    45    60    75      counterclockwise, black outside
    inversion, amount    0     0.2   0.4   0.6   0.8   1       of the way to the negative

The scales of noise and contrast are those of ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich 2019). Strength
orders how far images move from the originals; for inversion, 2 and 3 are nearly grey and 5 is a clear negative.

Each corruption takes ``Examples`` of images, bytes or numbers in [0, 1], and gives ``float32`` ones in [0, 1]. Noise
comes from the generator.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from dubio import functional
from dubio.checks import did_you_mean
from dubio.data.examples import Examples, scaled

__all__ = ["Blur", "CORRUPTIONS", "Contrast", "Corruption", "GaussianNoise", "Inversion", "Rotation", "corrupt"]

Images = Float[Tensor, "example channel height width"]


@dataclass(frozen=True)
class Corruption(ABC):
    """A kind of corruption at a strength from 0 to 5."""

    strength: int
    name: ClassVar[str]
    scale: ClassVar[tuple[float, ...]]

    def __post_init__(self) -> None:
        if not isinstance(self.strength, int) or not 0 <= self.strength < len(self.scale):
            raise ValueError(f"strength must be a whole number from 0 to {len(self.scale) - 1}, got {self.strength!r}")

    def __call__(self, examples: Examples, generator: torch.Generator) -> Examples:
        """The examples with corrupted images, as ``float32`` in [0, 1]."""
        images = _images(examples)
        if self.strength > 0:
            images = self.apply(images, generator)
        return replace(examples, inputs=images, name=f"{examples.name}, {self.name} {self.strength}")

    @property
    def amount(self) -> float:
        """What the strength means on the scale of this corruption."""
        return self.scale[self.strength]

    @abstractmethod
    def apply(self, images: Images, generator: torch.Generator) -> Images:
        """Corrupted images."""


class GaussianNoise(Corruption):
    """Independent Gaussian noise on every pixel."""

    name = "noise"
    scale = (0.0, 0.08, 0.12, 0.18, 0.26, 0.38)

    def apply(self, images: Images, generator: torch.Generator) -> Images:
        """Images with noise."""
        noise = torch.randn(images.shape, generator=generator, device=generator.device)
        return functional.corruption.with_noise(images, noise.to(images.device), self.amount)


class Blur(Corruption):
    """Gaussian blur, as wide as a share of the image's shorter side and a little more, so that it shows on 8x8."""

    name = "blur"
    scale = (0.0, 0.015, 0.03, 0.045, 0.06, 0.075)

    def apply(self, images: Images, generator: torch.Generator) -> Images:
        """Blurred images."""
        return functional.corruption.blurred(images, 0.3 + self.amount * min(images.shape[2:]))


class Contrast(Corruption):
    """Less contrast around the mean of each image and channel."""

    name = "contrast"
    scale = (1.0, 0.75, 0.5, 0.4, 0.3, 0.15)

    def apply(self, images: Images, generator: torch.Generator) -> Images:
        """Paler images."""
        return functional.corruption.with_contrast(images, self.amount)


class Rotation(Corruption):
    """Rotation about the centre, counterclockwise."""

    name = "rotation"
    scale = (0.0, 15.0, 30.0, 45.0, 60.0, 75.0)

    def apply(self, images: Images, generator: torch.Generator) -> Images:
        """Rotated images."""
        return functional.corruption.rotated(images, self.amount)


class Inversion(Corruption):
    """Part of the way, or all of it, to the negative."""

    name = "inversion"
    scale = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

    def apply(self, images: Images, generator: torch.Generator) -> Images:
        """Images nearer to their negatives."""
        return functional.corruption.inverted(images, self.amount)


CORRUPTIONS: dict[str, type[Corruption]] = {
    corruption.name: corruption for corruption in (GaussianNoise, Blur, Contrast, Rotation, Inversion)
}


def corrupt(examples: Examples, corruption: str, *, strength: int, seed: int = 0) -> Examples:
    """Examples corrupted by name, such as ``corrupt(test, "blur", strength=3)``."""
    if corruption not in CORRUPTIONS:
        hint = did_you_mean(corruption, CORRUPTIONS)
        raise ValueError(f"corruption must be one of {', '.join(CORRUPTIONS)}, got {corruption!r}{hint}")
    return CORRUPTIONS[corruption](strength)(examples, torch.Generator().manual_seed(seed))


def _images(examples: Examples) -> Images:
    images = scaled(examples.inputs)
    if images.dim() != 4:
        raise ValueError(
            f"{examples.name} must hold images (example, channel, height, width) to be corrupted, "
            f"got inputs of shape {tuple(images.shape)}"
        )
    low, high = images.min().item(), images.max().item()
    if not (low >= 0.0 and high <= 1.0):
        raise ValueError(
            f"{examples.name} must hold images in [0, 1] to be corrupted, got values from {low:.4g} to {high:.4g}; "
            "corrupt them before they are normalised"
        )
    return images
