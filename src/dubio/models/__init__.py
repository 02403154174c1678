"""Networks by name and as functions: those of the papers, and any of torchvision or timm where installed.

They are imported when they are first asked for.
"""

from typing import TYPE_CHECKING

from dubio._lazy import import_later
from dubio.models.networks import Sizes, architecture_of, init_truncated as init_truncated, sizes_of

if TYPE_CHECKING:
    from dubio.models.by_name import build
    from dubio.models.networks import (
        DADCNN,
        NORMALISATIONS,
        VGG16,
        VIBMLP,
        LeNet,
        Normalise,
        PreActResNet,
        ResNet,
        Standardise,
        Stem,
        dad_cnn,
        dad_mlp,
        fc,
        lenet,
        mlp,
        normalised,
        preresnet18,
        resnet18,
        resnet50,
        resnext101_32x8d,
        standardised,
        vgg16,
        vib_mlp,
    )

LATER = {
    "by_name": ("build",),
    "networks": (
        "DADCNN",
        "LeNet",
        "NORMALISATIONS",
        "Normalise",
        "PreActResNet",
        "ResNet",
        "Standardise",
        "Stem",
        "VGG16",
        "VIBMLP",
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
        "standardised",
        "vgg16",
        "vib_mlp",
    ),
}

__all__ = [
    "DADCNN",
    "LeNet",
    "NORMALISATIONS",
    "Normalise",
    "PreActResNet",
    "ResNet",
    "Sizes",
    "Standardise",
    "Stem",
    "VGG16",
    "VIBMLP",
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
