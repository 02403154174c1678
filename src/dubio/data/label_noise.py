"""Label noise: frozen values that turn labels into noisy ones (methods, section 13.1).

``Flip(0.3)(labels, 10, generator)`` gives the noisy labels and the transition matrix they were drawn from. All
randomness comes from the generator: a seed is a pattern and its labels. With p = 0 labels stay as they are; test labels
should never go through here.
"""

import re
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dubio import functional
from dubio.checks import did_you_mean

__all__ = ["Flip", "LabelNoise", "MnistAsymmetric", "NoisyLabels", "Symmetric", "UniformMix", "parse_label_noise"]

MNIST_DESTINATIONS = (0, 1, 7, 8, 4, 6, 5, 1, 8, 9)
"""Digits that are taken for each other: 2 for 7, 3 for 8, 5 for 6, 6 for 5, 7 for 1."""


@dataclass(frozen=True, eq=False)
class NoisyLabels:
    """What became of labels.

    Args:
        labels: the noisy labels, in the order of the true ones.
        transition: probability of a noisy class (column) for a true class (row), ``float64``.
    """

    labels: Int[Tensor, " example"]
    transition: Float[Tensor, "class class"]


@dataclass(frozen=True)
class Flip:
    """Each class has one other class that it is taken for, drawn with the generator; each label goes there with p."""

    p: float

    def __post_init__(self) -> None:
        _check_probability("Flip", self.p)

    def __call__(self, labels: Int[Tensor, " example"], num_classes: int, generator: torch.Generator) -> NoisyLabels:
        """Noisy labels, and the transition matrix of the pattern drawn."""
        _check_labels("Flip", labels, num_classes)
        offsets = torch.randint(num_classes - 1, (num_classes,), generator=generator, device=generator.device)
        destinations = functional.corruption.flip_destinations(offsets)
        return _redraw(labels, functional.corruption.patterned_transition(destinations, self.p), generator)


@dataclass(frozen=True)
class Symmetric:
    """With p, a label becomes one of the other classes, each as often."""

    p: float

    def __post_init__(self) -> None:
        _check_probability("Symmetric", self.p)

    def __call__(self, labels: Int[Tensor, " example"], num_classes: int, generator: torch.Generator) -> NoisyLabels:
        """Noisy labels, and the transition matrix."""
        _check_labels("Symmetric", labels, num_classes)
        return _redraw(labels, functional.corruption.symmetric_transition(num_classes, self.p), generator)


@dataclass(frozen=True)
class UniformMix:
    """With p, a label is drawn from all classes, its own included."""

    p: float

    def __post_init__(self) -> None:
        _check_probability("UniformMix", self.p)

    def __call__(self, labels: Int[Tensor, " example"], num_classes: int, generator: torch.Generator) -> NoisyLabels:
        """Noisy labels, and the transition matrix."""
        _check_labels("UniformMix", labels, num_classes)
        return _redraw(labels, functional.corruption.uniform_transition(num_classes, self.p), generator)


@dataclass(frozen=True)
class MnistAsymmetric:
    """With p, digits that look alike are confused: 7 for 1, 2 for 7, 5 and 6 for each other, 3 for 8."""

    p: float

    def __post_init__(self) -> None:
        _check_probability("MnistAsymmetric", self.p)

    def __call__(self, labels: Int[Tensor, " example"], num_classes: int, generator: torch.Generator) -> NoisyLabels:
        """Noisy labels, and the transition matrix."""
        if num_classes != len(MNIST_DESTINATIONS):
            raise ValueError(f"num_classes of MnistAsymmetric must be 10, got {num_classes}")
        _check_labels("MnistAsymmetric", labels, num_classes)
        return _redraw(
            labels, functional.corruption.patterned_transition(torch.tensor(MNIST_DESTINATIONS), self.p), generator
        )


LabelNoise = Flip | Symmetric | UniformMix | MnistAsymmetric

NOISES: dict[str, type[LabelNoise]] = {
    "flip": Flip,
    "symmetric": Symmetric,
    "uniform-mix": UniformMix,
    "mnist-asymmetric": MnistAsymmetric,
}
NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")


def parse_label_noise(text: str) -> LabelNoise:
    """Label noise from text such as ``flip:0.3``."""
    kind, _, number = text.partition(":")
    if kind not in NOISES or not NUMBER.fullmatch(number) or not 0.0 <= float(number) <= 1.0:
        known = ", ".join(f"{name}:P" for name in NOISES)
        hint = "" if kind in NOISES else did_you_mean(kind, NOISES)
        raise ValueError(f"label noise must be one of {known} with P in [0, 1], such as flip:0.3, got {text!r}{hint}")
    return NOISES[kind](float(number))


def _redraw(labels: Tensor, transition: Tensor, generator: torch.Generator) -> NoisyLabels:
    """Labels drawn from their rows, where the generator is, and put back where the labels are."""
    uniforms = torch.rand(len(labels), dtype=torch.float64, generator=generator, device=generator.device)
    transition = transition.to(generator.device)
    redrawn = functional.corruption.redrawn_labels(labels.to(generator.device), transition, uniforms)
    return NoisyLabels(redrawn.to(labels.device), transition.to(labels.device))


def _check_probability(kind: str, p: float) -> None:
    if not isinstance(p, int | float):
        raise TypeError(f"p of {kind} must be a number, got {p!r}")
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p of {kind} must be in [0, 1], got {p}")


def _check_labels(kind: str, labels: Tensor, num_classes: int) -> None:
    if num_classes < 2:
        raise ValueError(f"num_classes of {kind} must be at least 2, got {num_classes}")
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise TypeError(
            f"labels must be whole numbers, one for each example, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < num_classes:
        raise ValueError(f"labels must be from 0 to {num_classes - 1}, got {int(labels.min())} to {int(labels.max())}")
