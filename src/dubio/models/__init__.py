"""Networks by name and as functions: those of the papers, and any of torchvision or timm where installed.

They are imported when they are first asked for.
"""

from typing import TYPE_CHECKING

from dubio._lazy import import_later
from dubio.models.dense import init_truncated as init_truncated
from dubio.models.naming import Sizes, architecture_of, sizes_of

if TYPE_CHECKING:
    from dubio.models.building import build
    from dubio.models.convolutional import DadCnn, LeNet, Vgg16, dad_cnn, lenet, vgg16
    from dubio.models.dense import VibMlp, dad_mlp, fc, mlp, vib_mlp
    from dubio.models.normalising import NORMALISATIONS, Normalise, Standardise, normalised, standardised
    from dubio.models.residual import PreActResNet, ResNet, Stem, preresnet18, resnet18, resnet50, resnext101_32x8d

LATER = {
    "building": ("build",),
    "convolutional": ("DadCnn", "LeNet", "Vgg16", "dad_cnn", "lenet", "vgg16"),
    "dense": ("VibMlp", "dad_mlp", "fc", "mlp", "vib_mlp"),
    "external": (),
    "normalising": ("NORMALISATIONS", "Normalise", "Standardise", "normalised", "standardised"),
    "residual": ("PreActResNet", "ResNet", "Stem", "preresnet18", "resnet18", "resnet50", "resnext101_32x8d"),
}

__all__ = [
    "DadCnn",
    "LeNet",
    "NORMALISATIONS",
    "Normalise",
    "PreActResNet",
    "ResNet",
    "Sizes",
    "Standardise",
    "Stem",
    "Vgg16",
    "VibMlp",
    "architecture_of",
    "build",
    "dad_cnn",
    "dad_mlp",
    "fc",
    "lenet",
    "mlp",
    "normalised",
    "preresnet18",
    "resnet18",
    "resnet50",
    "resnext101_32x8d",
    "sizes_of",
    "standardised",
    "vgg16",
    "vib_mlp",
]

if not TYPE_CHECKING:  # which knows all names, and would take any other for one of them
    __getattr__ = import_later("dubio.models", LATER)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *LATER})
