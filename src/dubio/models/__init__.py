"""Networks by name and as functions: those of the papers, and any of torchvision or timm where installed.

``build`` is imported when it is first used.
"""

from typing import TYPE_CHECKING

from dubio._lazy import import_later
from dubio.models.networks import (
    DADCNN,
    NORMALISATIONS,
    VGG16,
    VIBMLP,
    LeNet,
    Normalise,
    PreActResNet,
    ResNet,
    Sizes,
    Standardise,
    Stem,
    architecture_of,
    dad_cnn,
    dad_mlp,
    fc,
    init_truncated as init_truncated,
    lenet,
    mlp,
    normalised,
    preresnet18,
    resnet18,
    resnet20,
    resnet20_v2,
    resnet50,
    resnext101_32x8d,
    sizes_of,
    standardised,
    vgg16,
    vib_mlp,
)

if TYPE_CHECKING:
    from dubio.models.by_name import build

__all__ = ["Sizes", "Stem", "architecture_of", "build", "sizes_of"]
__all__ += ["dad_cnn", "dad_mlp", "fc", "lenet", "mlp", "vgg16", "vib_mlp"]
__all__ += ["preresnet18", "resnet18", "resnet20", "resnet20_v2", "resnet50", "resnext101_32x8d"]
__all__ += ["DADCNN", "VGG16", "VIBMLP", "LeNet", "PreActResNet", "ResNet"]
__all__ += ["NORMALISATIONS", "Normalise", "Standardise", "normalised", "standardised"]

if not TYPE_CHECKING:  # a type checker would accept every other name too
    __getattr__ = import_later("dubio.models", {"by_name": ("build",)})


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
