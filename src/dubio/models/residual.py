"""Residual networks: ResNet-18, ResNet-50, ResNeXt-101 32x8d, and ResNet-18 with pre-activation.

Two stems: ``cifar`` is one 3x3 convolution, ``imagenet`` a 7x7 convolution of stride 2 and max-pooling, as torchvision
has it. Parameters have torchvision's names and shapes, so its weights load into the networks with the ImageNet stem;
where a bottleneck shrinks the image, its 3x3 convolution does, as there. Convolutions start Kaiming-normal by fan-out
(He et al. 2016).

Where size changes, the shortcut is a strided 1x1 convolution with batch norm (ResNet-18 V2 in the words of IWE). The
pre-activated network is V2 in the sense of He et al. 2016, Identity Mappings in Deep Residual Networks: norm and ReLU
before each convolution, shortcuts of a bare 1x1 convolution, and a norm and ReLU at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor, nn

from dubio.models.naming import check_sizes, named, write_sizes

__all__ = [
    "PreActResNet",
    "ResNet",
    "Stem",
    "preresnet18",
    "resnet18",
    "resnet50",
    "resnext101_32x8d",
]

Stem = Literal["cifar", "imagenet"]
WIDTHS = (64, 128, 256, 512)


@dataclass(frozen=True)
class _Branch:
    """Sizes of one residual branch: channels that enter, the stage's width, stride, and how filters are split."""

    in_channels: int
    width: int
    stride: int
    groups: int
    width_per_group: int


class BasicBlock(nn.Module):
    """Two 3x3 convolutions around which the input goes."""

    expansion = 1

    def __init__(self, branch: _Branch) -> None:
        super().__init__()
        self.conv1 = _conv(branch.in_channels, branch.width, 3, branch.stride)
        self.bn1 = nn.BatchNorm2d(branch.width)
        self.conv2 = _conv(branch.width, branch.width, 3)
        self.bn2 = nn.BatchNorm2d(branch.width)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(branch, branch.width)

    def forward(self, x: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch out down across"]:
        """The input, or what its shortcut makes of it, plus the branch."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """A 1x1 convolution to fewer channels, a 3x3 convolution in groups, and a 1x1 convolution to four times as many."""

    expansion = 4

    def __init__(self, branch: _Branch) -> None:
        super().__init__()
        inner = branch.width * branch.width_per_group // 64 * branch.groups
        outer = branch.width * self.expansion
        self.conv1 = _conv(branch.in_channels, inner, 1)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = _conv(inner, inner, 3, branch.stride, branch.groups)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = _conv(inner, outer, 1)
        self.bn3 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(branch, outer)

    def forward(self, x: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch out down across"]:
        """The input, or what its shortcut makes of it, plus the branch."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))  # type: ignore[no-any-return]


class PreActBlock(nn.Module):
    """Two 3x3 convolutions, each after its norm and ReLU; nothing is done to the sum."""

    expansion = 1

    def __init__(self, branch: _Branch) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(branch.in_channels)
        self.conv1 = _conv(branch.in_channels, branch.width, 3, branch.stride)
        self.bn2 = nn.BatchNorm2d(branch.width)
        self.conv2 = _conv(branch.width, branch.width, 3)
        self.relu = nn.ReLU()
        resized = branch.stride != 1 or branch.in_channels != branch.width
        self.downsample = _conv(branch.in_channels, branch.width, 1, branch.stride) if resized else None

    def forward(self, x: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch out down across"]:
        """The input, or what its shortcut makes of the activated input, plus the branch."""
        active = self.relu(self.bn1(x))
        y = self.conv1(active)
        y = self.conv2(self.relu(self.bn2(y)))
        return y + (x if self.downsample is None else self.downsample(active))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """Stem, four stages of blocks, global average, one linear layer."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        in_channels: int,
        num_classes: int,
        stem: Stem,
        groups: int = 1,
        width_per_group: int = 64,
    ) -> None:
        super().__init__()
        self.conv1 = _stem_conv(in_channels, stem)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = _stem_pool(stem)
        self.layer1, self.layer2, self.layer3, self.layer4 = _stages(block, depths, groups, width_per_group)
        self.avgpool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(WIDTHS[-1] * block.expansion, num_classes)
        _init_convolutions(self)

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x))  # type: ignore[no-any-return]


class PreActResNet(nn.Module):
    """Stem without norm, four stages of pre-activated blocks, norm and ReLU, global average, one linear layer."""

    def __init__(self, depths: Sequence[int], in_channels: int, num_classes: int, stem: Stem) -> None:
        super().__init__()
        self.conv1 = _stem_conv(in_channels, stem)
        self.maxpool = _stem_pool(stem)
        self.layer1, self.layer2, self.layer3, self.layer4 = _stages(PreActBlock, depths, 1, 64)
        self.bn = nn.BatchNorm2d(WIDTHS[-1])
        self.relu = nn.ReLU()
        self.avgpool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(WIDTHS[-1], num_classes)
        _init_convolutions(self)

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        x = self.maxpool(self.conv1(images))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(self.relu(self.bn(x))))  # type: ignore[no-any-return]


def resnet18(inputs: Sequence[int], num_classes: int, stem: Stem = "cifar") -> ResNet:
    """ResNet-18 for images of this shape: 2-2-2-2 basic blocks."""
    name = _checked_name("resnet18", inputs, num_classes, stem)
    return named(ResNet(BasicBlock, (2, 2, 2, 2), inputs[0], num_classes, stem), name)


def resnet50(inputs: Sequence[int], num_classes: int, stem: Stem = "cifar") -> ResNet:
    """ResNet-50 for images of this shape: 3-4-6-3 bottlenecks."""
    name = _checked_name("resnet50", inputs, num_classes, stem)
    return named(ResNet(Bottleneck, (3, 4, 6, 3), inputs[0], num_classes, stem), name)


def resnext101_32x8d(inputs: Sequence[int], num_classes: int, stem: Stem = "cifar") -> ResNet:
    """ResNeXt-101 for images of this shape: 3-4-23-3 bottlenecks of 32 groups, 8 wide in the first stage."""
    name = _checked_name("resnext101_32x8d", inputs, num_classes, stem)
    net = ResNet(Bottleneck, (3, 4, 23, 3), inputs[0], num_classes, stem, groups=32, width_per_group=8)
    return named(net, name)


def preresnet18(inputs: Sequence[int], num_classes: int, stem: Stem = "cifar") -> PreActResNet:
    """ResNet-18 with pre-activation for images of this shape."""
    name = _checked_name("preresnet18", inputs, num_classes, stem)
    return named(PreActResNet((2, 2, 2, 2), inputs[0], num_classes, stem), name)


def _checked_name(kind: str, inputs: Sequence[int], num_classes: int, stem: Stem) -> str:
    if stem not in get_args(Stem):
        raise ValueError(f"stem of {kind} must be 'cifar' or 'imagenet', got {stem!r}")
    check_sizes(kind, inputs, num_classes, 1)
    return f"{kind}:{stem}:{write_sizes(inputs, num_classes)}"


def _conv(in_channels: int, out_channels: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, groups=groups, bias=False)


def _stem_conv(in_channels: int, stem: Stem) -> nn.Conv2d:
    return _conv(in_channels, 64, 7, stride=2) if stem == "imagenet" else _conv(in_channels, 64, 3)


def _stem_pool(stem: Stem) -> nn.Module:
    return nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()


def _shortcut(branch: _Branch, out_channels: int) -> nn.Sequential | None:
    if branch.stride == 1 and branch.in_channels == out_channels:
        return None
    return nn.Sequential(
        _conv(branch.in_channels, out_channels, 1, branch.stride),
        nn.BatchNorm2d(out_channels),
    )


def _stages(
    block: type[BasicBlock] | type[Bottleneck] | type[PreActBlock],
    depths: Sequence[int],
    groups: int,
    width_per_group: int,
) -> list[nn.Sequential]:
    """Blocks stage by stage; each stage but the first halves the image in its first block."""
    stages, channels = [], WIDTHS[0]
    for stage, (depth, width) in enumerate(zip(depths, WIDTHS, strict=True)):
        blocks = []
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            blocks.append(block(_Branch(channels, width, stride, groups, width_per_group)))
            channels = width * block.expansion
        stages.append(nn.Sequential(*blocks))
    return stages


def _init_convolutions(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
