"""Convolutional networks without shortcuts: LeNet and VGG16 as NFI has them, and the CNN of DAD (section 7.6)."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from dubio.models.dense import init_glorot
from dubio.models.naming import check_sizes, named, write_sizes

__all__ = ["DadCnn", "LeNet", "Vgg16", "dad_cnn", "lenet", "vgg16"]

VGG16_STAGES = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class LeNet(nn.Module):
    """Two convolutions and three linear layers; averaging to 4x4 makes the linear part the same for every size."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
            nn.Flatten(),
        )
        self.classifier = nn.Sequential(
            nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, num_classes)
        )

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        return self.classifier(self.features(images))  # type: ignore[no-any-return]


class DadCnn(nn.Module):
    """Two convolutions without padding, one hidden layer, dropout 0.5 before both linear layers and nowhere else."""

    def __init__(self, inputs: Sequence[int], num_classes: int) -> None:
        super().__init__()
        channels, height, width = inputs
        num_features = 32 * ((height - 4) // 2) * ((width - 4) // 2)
        self.features = nn.Sequential(
            nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.classifier = nn.Sequential(
            nn.Dropout(0.5), nn.Linear(num_features, 100), nn.ReLU(), nn.Dropout(0.5), nn.Linear(100, num_classes)
        )
        init_glorot(self)

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        return self.classifier(self.features(images))  # type: ignore[no-any-return]


class Vgg16(nn.Module):
    """Thirteen 3x3 convolutions with batch norm in five stages, each ending in max-pooling, and three linear layers.

    At 32x32 one position is left at the end; of larger images the rest is averaged.
    """

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for stage in VGG16_STAGES:
            for out_channels in stage:
                layers += [nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.BatchNorm2d(out_channels), nn.ReLU()]
                in_channels = out_channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Linear(512, 1024),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(1024, 512),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Linear(512, num_classes),
        )
        self._init_weights()

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        return self.classifier(self.pool(self.features(images)))  # type: ignore[no-any-return]

    def _init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
            if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)


def lenet(inputs: Sequence[int], num_classes: int) -> LeNet:
    """LeNet for images of this shape."""
    check_sizes("lenet", inputs, num_classes, 14)
    return named(LeNet(inputs[0], num_classes), f"lenet:{write_sizes(inputs, num_classes)}")


def dad_cnn(inputs: Sequence[int], num_classes: int) -> DadCnn:
    """The CNN of DAD for images of this shape."""
    check_sizes("dad_cnn", inputs, num_classes, 6)
    return named(DadCnn(inputs, num_classes), f"dad_cnn:{write_sizes(inputs, num_classes)}")


def vgg16(inputs: Sequence[int], num_classes: int) -> Vgg16:
    """VGG16 with batch norm for images of this shape."""
    check_sizes("vgg16", inputs, num_classes, 32)
    return named(Vgg16(inputs[0], num_classes), f"vgg16:{write_sizes(inputs, num_classes)}")
