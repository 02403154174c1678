"""Corrupted test images at strengths from 1 (mild) to 5 (severe), and noise on labels.

Strength 0 does not change the images:

    strength             0     1     2     3     4     5
    noise, std           0     0.08  0.12  0.18  0.26  0.38    of pixels in [0, 1]
    blur, std            0     0.015 0.03  0.045 0.06  0.075   of the shorter side, and 0.3 pixels more
    contrast, factor     1     0.75  0.5   0.4   0.3   0.15    around the mean of each image and channel
    rotation, degrees    0     15    30    45    60    75      counterclockwise, black outside
    inversion, amount    0     0.2   0.4   0.6   0.8   1       interpolates to the negative

The scales of noise and contrast are those of ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich 2019). Strength
orders how far images move from the originals; for inversion, 2 and 3 are nearly grey and 5 is a clear negative.

Each corruption takes ``Examples`` of images, bytes or numbers in [0, 1], and returns ``float32`` images in [0, 1].
Noise is drawn with the generator.

Label noise (methods, section 13.1) replaces labels at random. ``Flip(0.3)(labels, 10, generator)`` returns the noisy
labels and the transition matrix that they were drawn from. All randomness comes from the generator: a seed determines
the pattern and the labels. With p = 0 labels do not change (``tests/data/test_label_noise.py``). Apply it to training
labels only.
"""

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dubio import functional
from dubio.checks import check_choice, did_you_mean
from dubio.data.examples import Examples, scaled

Images = Float[Tensor, "example channel height width"]
MNIST_DESTINATIONS = (0, 1, 7, 8, 4, 6, 5, 1, 8, 9)
"""The class that each digit is confused with: 2 with 7, 3 with 8, 5 with 6, 6 with 5, 7 with 1."""
NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")


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
        """The value of the strength on the scale of this corruption."""
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
    """Gaussian blur with a width in proportion to the shorter side, and a little more so that it shows on 8x8."""

    name = "blur"
    scale = (0.0, 0.015, 0.03, 0.045, 0.06, 0.075)

    def apply(self, images: Images, generator: torch.Generator) -> Images:
        """Blurred images."""
        return functional.corruption.blurred(images, 0.3 + self.amount * min(images.shape[2:]))


class Contrast(Corruption):
    """Reduced contrast around the mean of each image and channel."""

    name = "contrast"
    scale = (1.0, 0.75, 0.5, 0.4, 0.3, 0.15)

    def apply(self, images: Images, generator: torch.Generator) -> Images:
        """Images with less contrast."""
        return functional.corruption.with_contrast(images, self.amount)


class Rotation(Corruption):
    """Rotation about the centre, counterclockwise."""

    name = "rotation"
    scale = (0.0, 15.0, 30.0, 45.0, 60.0, 75.0)

    def apply(self, images: Images, generator: torch.Generator) -> Images:
        """Rotated images."""
        return functional.corruption.rotated(images, self.amount)


class Inversion(Corruption):
    """Interpolation between the image and its negative."""

    name = "inversion"
    scale = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)

    def apply(self, images: Images, generator: torch.Generator) -> Images:
        """Images closer to their negatives."""
        return functional.corruption.inverted(images, self.amount)


CORRUPTIONS: dict[str, type[Corruption]] = {
    corruption.name: corruption for corruption in (GaussianNoise, Blur, Contrast, Rotation, Inversion)
}


@dataclass(frozen=True, eq=False)
class NoisyLabels:
    """Noisy labels and their distribution.

    Args:
        labels: the noisy labels, in the order of the true ones.
        transition: probability of a noisy class (column) for a true class (row), ``float64``.
    """

    labels: Int[Tensor, " example"]
    transition: Float[Tensor, "class class"]


@dataclass(frozen=True)
class LabelNoise(ABC):
    """Label noise with probability p, which ``noise(labels, num_classes, generator)`` applies."""

    p: float

    def __post_init__(self) -> None:
        if not isinstance(self.p, int | float):
            raise TypeError(f"p of {type(self).__name__} must be a number, got {self.p!r}")
        if not 0.0 <= self.p <= 1.0:
            raise ValueError(f"p of {type(self).__name__} must be in [0, 1], got {self.p}")

    def __call__(self, labels: Int[Tensor, " example"], num_classes: int, generator: torch.Generator) -> NoisyLabels:
        """Noisy labels, and the transition matrix that they were drawn from."""
        if num_classes < 2:
            raise ValueError(f"num_classes of {type(self).__name__} must be at least 2, got {num_classes}")
        if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise TypeError(
                f"labels must be whole numbers, one for each example, got {labels.dtype} of shape {tuple(labels.shape)}"
            )
        low, high = (int(labels.min()), int(labels.max())) if len(labels) else (0, 0)
        if not 0 <= low <= high < num_classes:
            raise ValueError(f"labels must be from 0 to {num_classes - 1}, got {low} to {high}")
        transition = self.transition(num_classes, generator).to(generator.device)
        uniforms = torch.rand(len(labels), dtype=torch.float64, generator=generator, device=generator.device)
        noisy = functional.corruption.redrawn_labels(labels.to(generator.device), transition, uniforms)
        return NoisyLabels(noisy.to(labels.device), transition.to(labels.device))

    @abstractmethod
    def transition(self, num_classes: int, generator: torch.Generator) -> Float[Tensor, "class class"]:
        """The transition matrix; a random pattern is drawn with the generator."""


class Flip(LabelNoise):
    """Each class is confused with one other class, which the generator draws; a label moves there with p."""

    def transition(self, num_classes: int, generator: torch.Generator) -> Float[Tensor, "class class"]:
        """The transition matrix of a random pattern."""
        offsets = torch.randint(num_classes - 1, (num_classes,), generator=generator, device=generator.device)
        destinations = functional.corruption.flip_destinations(offsets)
        return functional.corruption.patterned_transition(destinations, self.p)


class Symmetric(LabelNoise):
    """With p, a label becomes one of the other classes, each with the same probability."""

    def transition(self, num_classes: int, generator: torch.Generator) -> Float[Tensor, "class class"]:
        """The transition matrix."""
        return functional.corruption.symmetric_transition(num_classes, self.p)


class UniformMix(LabelNoise):
    """With p, a label is drawn from all classes, including its own."""

    def transition(self, num_classes: int, generator: torch.Generator) -> Float[Tensor, "class class"]:
        """The transition matrix."""
        return functional.corruption.uniform_transition(num_classes, self.p)


class MnistAsymmetric(LabelNoise):
    """With p, digits that look alike are confused: 7 for 1, 2 for 7, 5 and 6 for each other, 3 for 8."""

    def transition(self, num_classes: int, generator: torch.Generator) -> Float[Tensor, "class class"]:
        """The transition matrix."""
        if num_classes != len(MNIST_DESTINATIONS):
            raise ValueError(f"num_classes of MnistAsymmetric must be 10, got {num_classes}")
        return functional.corruption.patterned_transition(torch.tensor(MNIST_DESTINATIONS), self.p)


LABEL_NOISES: dict[str, type[LabelNoise]] = {
    "flip": Flip,
    "symmetric": Symmetric,
    "uniform-mix": UniformMix,
    "mnist-asymmetric": MnistAsymmetric,
}


def corrupt(examples: Examples, corruption: str, *, strength: int, seed: int = 0) -> Examples:
    """Examples corrupted by name, such as ``corrupt(test, "blur", strength=3)``."""
    check_choice("corruption", corruption, CORRUPTIONS)
    return CORRUPTIONS[corruption](strength)(examples, torch.Generator().manual_seed(seed))


def parse_label_noise(text: str) -> LabelNoise:
    """Label noise from text such as ``flip:0.3``."""
    kind, _, number = text.partition(":")
    if kind not in LABEL_NOISES or not NUMBER.fullmatch(number) or not 0.0 <= float(number) <= 1.0:
        forms = ", ".join(f"{name}:P" for name in LABEL_NOISES)
        hint = "" if kind in LABEL_NOISES else did_you_mean(kind, LABEL_NOISES)
        raise ValueError(f"label noise must be one of {forms} with P in [0, 1], such as flip:0.3, got {text!r}{hint}")
    return LABEL_NOISES[kind](float(number))


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
