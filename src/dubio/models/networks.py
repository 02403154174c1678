"""Networks of the papers as functions, their names and sizes, and layers that normalise inputs.

**Dense networks**: FC-* of the papers, the DAD networks (methods, section 7.6) and the VIB network (section 10.2). They
flatten their inputs first, so they accept images.

**Convolutional networks**: LeNet and VGG16 as in NFI, and the CNN of DAD (section 7.6).

**Residual networks**: ResNet-18, ResNet-50, ResNeXt-101 32x8d, ResNet-18 with pre-activation, and ResNet-20. The stem
``cifar`` is a 3x3 convolution; ``imagenet`` is a 7x7 convolution of stride 2 and max-pooling, as in torchvision.
Parameters have the names and shapes of torchvision, so its weights load into the networks with the ImageNet stem. A
bottleneck that shrinks the image does so in its 3x3 convolution, as in torchvision. Convolutions start Kaiming-normal
by fan-out (He et al. 2016). Where the size changes, the shortcut is a strided 1x1 convolution with batch norm
("ResNet-18 V2" in IWE). The pre-activated network is V2 in the sense of He et al. 2016, Identity Mappings in Deep
Residual Networks: norm and ReLU before each convolution, shortcuts that are a 1x1 convolution alone, and a norm and
ReLU at the end. ResNet-20 is that of PNI, for CIFAR: three stages from 16 channels on, and shortcuts without
parameters, which leave pixels out and add channels of zeros; ``resnet20_v2`` has strided 1x1 convolutions there.

**Width**: residual networks and VGG16 have their channels in proportion to those of the first stage, ``width``, 64 as
published (16 for ResNet-20). ``resnet18:cifar:w16`` has a quarter of the channels of every layer.

**Normalisation** is the first layer of a network. Images stay in [0, 1]: ``Normalise`` has the constants of the papers
(methods, section 1.6). Tables stay in their own units: ``Standardise`` has the mean and standard deviation of every
feature of the training data as buffers. A saved, exported or pruned network therefore needs nothing else
(``tests/models/test_normalising.py``).

**Names**: a network of dubio has its name in the attribute ``dubio_architecture``. Conversion and copies keep it,
``dubio.save`` stores it, and ``build`` makes the same network from it. The last part of a name are its sizes,
``1x28x28-10`` or ``784-100-10``: the shape of one input first, the number of classes last.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Literal, TypeVar, cast, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from dubio.checks import check_choice, check_count, check_positive

Stem = Literal["cifar", "imagenet"]
Net = TypeVar("Net", bound=nn.Module)
WIDTH = 64
"""Channels of the first stage of VGG16 and of residual networks, as published."""
VGG16_STAGES = ((1, 1), (2, 2), (4, 4, 4), (8, 8, 8), (8, 8, 8))
"""Channels of the convolutions, as multiples of the width."""
NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),  # NFI
    "cifar10_pni": ((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    "cifar100": ((129.3 / 255, 124.1 / 255, 112.4 / 255), (68.2 / 255, 65.4 / 255, 70.4 / 255)),
    "signed": ((0.5,), (0.5,)),  # to [-1, 1]: NFI on FashionMNIST, VIB
    "double": ((0.0,), (0.5,)),  # to [0, 2]: BWS
    "over126": ((0.0,), (126 / 255,)),  # raw / 126: Weight Uncertainty
}
"""Means and standard deviations by name: one of each for every channel, or one for all."""
NUMBER = "[1-9][0-9]*"
WIDTHS = re.compile(rf"{NUMBER}(-{NUMBER})*")
SIZES = re.compile(rf"(?:(?P<inputs>{NUMBER}(?:x{NUMBER}x{NUMBER})?)-)?(?P<num_classes>{NUMBER})")


@dataclass(frozen=True)
class Sizes:
    """Shape of one input and number of outputs, each None if the name does not contain it."""

    inputs: tuple[int, ...] | None
    num_classes: int | None


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, inputs first, with ReLU between them."""
    _check_widths("mlp", widths)
    layers = [layer for inputs, outputs in pairwise(widths) for layer in (nn.Linear(inputs, outputs), nn.ReLU())]
    return named(nn.Sequential(nn.Flatten(), *layers[:-1]), f"mlp:{'-'.join(map(str, widths))}")


def fc(*hidden: int, inputs: Sequence[int], num_classes: int) -> nn.Sequential:
    """FC-* of the papers: FC-100-100-10 is ``fc(100, 100, inputs=(1, 28, 28), num_classes=10)``.

    Without hidden layers it is softmax regression.
    """
    check_sizes("fc", inputs, num_classes, None)
    return mlp(math.prod(inputs), *hidden, num_classes)


def dad_mlp(*widths: int) -> nn.Sequential:
    """Like ``mlp``, with dropout 0.5 before every linear layer, the first included; Glorot weights, zero biases."""
    _check_widths("dad_mlp", widths)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Dropout(0.5), nn.Linear(inputs, outputs), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    init_glorot(net)
    return named(net, f"dad_mlp:{'-'.join(map(str, widths))}")


class VIBMLP(nn.Module):
    """The network of Deep VIB with its noise off.

    Two hidden layers of 1024, a bottleneck of 256 means, a linear decoder. Between bottleneck and decoder there is
    only the noise of the stochastic network.
    """

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(num_inputs, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()
        )
        self.bottleneck = nn.Linear(1024, 256)
        self.decoder = nn.Linear(256, num_classes)

    def forward(self, inputs: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        return self.decoder(self.bottleneck(self.encoder(inputs)))  # type: ignore[no-any-return]


def vib_mlp(inputs: Sequence[int], num_classes: int) -> VIBMLP:
    """The VIB network for these inputs; that of the paper has 784 pixels in [-1, 1], which ``signed`` normalises to."""
    check_sizes("vib_mlp", inputs, num_classes, None)
    num_inputs = math.prod(inputs)
    return named(VIBMLP(num_inputs, num_classes), f"vib_mlp:{num_inputs}-{num_classes}")


class LeNet(nn.Module):
    """Two convolutions and three linear layers; average pooling to 4x4 makes the sizes of the linear layers fixed."""

    def __init__(self, in_channels: int, num_classes: int) -> None:
        super().__init__()
        first = nn.Conv2d(in_channels, 6, 5), nn.ReLU(), nn.MaxPool2d(2)
        self.features = nn.Sequential(*first, nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, num_classes)
        )

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        return self.classifier(self.features(images))  # type: ignore[no-any-return]


class DADCNN(nn.Module):
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


class VGG16(nn.Module):
    """Thirteen 3x3 convolutions with batch norm in five stages, each ending in max-pooling, and three linear layers.

    Images of 32x32 have one position left at the end; the positions of larger images are averaged.
    """

    def __init__(self, in_channels: int, num_classes: int, width: int = WIDTH) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for stage in VGG16_STAGES:
            for out_channels in (width * factor for factor in stage):
                layers += [nn.Conv2d(in_channels, out_channels, 3, padding=1), nn.BatchNorm2d(out_channels), nn.ReLU()]
                in_channels = out_channels
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        layers = []
        for inputs, outputs in ((8 * width, 16 * width), (16 * width, 8 * width)):
            layers += [nn.Linear(inputs, outputs), nn.ReLU(), nn.Dropout(0.5)]
        self.classifier = nn.Sequential(*layers, nn.Linear(8 * width, num_classes))
        _init_convolutions(self)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.01)
            if isinstance(module, nn.Conv2d | nn.Linear):
                assert module.bias is not None
                nn.init.zeros_(module.bias)

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        return self.classifier(self.pool(self.features(images)))  # type: ignore[no-any-return]


def lenet(inputs: Sequence[int], num_classes: int) -> LeNet:
    """LeNet for images of this shape."""
    check_sizes("lenet", inputs, num_classes, 14)
    return named(LeNet(inputs[0], num_classes), f"lenet:{write_sizes(inputs, num_classes)}")


def dad_cnn(inputs: Sequence[int], num_classes: int) -> DADCNN:
    """The CNN of DAD for images of this shape."""
    check_sizes("dad_cnn", inputs, num_classes, 6)
    return named(DADCNN(inputs, num_classes), f"dad_cnn:{write_sizes(inputs, num_classes)}")


def vgg16(inputs: Sequence[int], num_classes: int, width: int = WIDTH) -> VGG16:
    """VGG16 with batch norm for images of this shape."""
    check_sizes("vgg16", inputs, num_classes, 32)
    name = f"{_with_width('vgg16', width)}:{write_sizes(inputs, num_classes)}"
    return named(VGG16(inputs[0], num_classes, width), name)


class ZeroPadded(nn.Module):
    """A shortcut without parameters: every second pixel or so, and channels of zeros behind the others."""

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.num_added, self.stride = out_channels - in_channels, stride

    def forward(self, x: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch out down across"]:
        """The pixels that are kept, in more channels."""
        return F.pad(x[..., :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.num_added))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut around them, which is ``ZeroPadded`` or a 1x1 convolution."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int, padded: bool = False) -> None:
        super().__init__()
        self.conv1, self.bn1 = _conv(in_channels, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _conv(width, width, 3), nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(in_channels, width, stride, padded)

    def forward(self, x: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch out down across"]:
        """The input, or its shortcut, plus the branch."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))  # type: ignore[no-any-return]


class Bottleneck(nn.Module):
    """A 1x1 convolution to fewer channels, a 3x3 convolution in groups, and a 1x1 convolution to four times as many."""

    expansion = 4

    def __init__(self, in_channels: int, width: int, stride: int, groups: int = 1, width_per_group: int = 64) -> None:
        super().__init__()
        inner = width * width_per_group // 64 * groups
        outer = width * self.expansion
        self.conv1, self.bn1 = _conv(in_channels, inner, 1), nn.BatchNorm2d(inner)
        self.conv2, self.bn2 = _conv(inner, inner, 3, stride, groups), nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = _conv(inner, outer, 1), nn.BatchNorm2d(outer)
        self.relu = nn.ReLU()
        self.downsample = _shortcut(in_channels, outer, stride)

    def forward(self, x: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch out down across"]:
        """The input, or its shortcut, plus the branch."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))  # type: ignore[no-any-return]


class PreActBlock(nn.Module):
    """Two 3x3 convolutions, each after a norm and ReLU; the sum is the output."""

    expansion = 1

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(in_channels), _conv(in_channels, width, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), _conv(width, width, 3)
        self.relu = nn.ReLU()
        resized = stride != 1 or in_channels != width
        self.downsample = _conv(in_channels, width, 1, stride) if resized else None

    def forward(self, x: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch out down across"]:
        """The input, or the shortcut of the activated input, plus the branch."""
        active = self.relu(self.bn1(x))
        y = self.conv2(self.relu(self.bn2(self.conv1(active))))
        return y + (x if self.downsample is None else self.downsample(active))  # type: ignore[no-any-return]


Block = Callable[[int, int, int], BasicBlock | Bottleneck | PreActBlock]


class ResNet(nn.Module):
    """Stem, up to four stages of blocks, global average, one linear layer."""

    def __init__(
        self, block: Block, depths: Sequence[int], in_channels: int, num_classes: int, stem: Stem, width: int = WIDTH
    ) -> None:
        super().__init__()
        self.conv1 = _stem_conv(in_channels, stem, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = _stem_pool(stem)
        (self.layer1, self.layer2, self.layer3, self.layer4), num_features = _stages(block, depths, width)
        self.avgpool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(num_features, num_classes)
        _init_convolutions(self)

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x))  # type: ignore[no-any-return]


class PreActResNet(nn.Module):
    """Stem without norm, four stages of pre-activated blocks, norm and ReLU, global average, one linear layer."""

    def __init__(
        self, depths: Sequence[int], in_channels: int, num_classes: int, stem: Stem, width: int = WIDTH
    ) -> None:
        super().__init__()
        self.conv1 = _stem_conv(in_channels, stem, width)
        self.maxpool = _stem_pool(stem)
        (self.layer1, self.layer2, self.layer3, self.layer4), num_features = _stages(PreActBlock, depths, width)
        self.bn = nn.BatchNorm2d(num_features)
        self.relu = nn.ReLU()
        self.avgpool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(num_features, num_classes)
        _init_convolutions(self)

    def forward(self, images: Float[Tensor, "batch channel height width"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        x = self.maxpool(self.conv1(images))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(self.relu(self.bn(x))))  # type: ignore[no-any-return]


def resnet18(inputs: Sequence[int], num_classes: int, stem: Stem = "cifar", width: int = WIDTH) -> ResNet:
    """ResNet-18 for images of this shape: 2-2-2-2 basic blocks."""
    name = _checked_name("resnet18", inputs, num_classes, stem, width)
    return named(ResNet(BasicBlock, (2, 2, 2, 2), inputs[0], num_classes, stem, width), name)


def resnet50(inputs: Sequence[int], num_classes: int, stem: Stem = "cifar", width: int = WIDTH) -> ResNet:
    """ResNet-50 for images of this shape: 3-4-6-3 bottlenecks."""
    name = _checked_name("resnet50", inputs, num_classes, stem, width)
    return named(ResNet(Bottleneck, (3, 4, 6, 3), inputs[0], num_classes, stem, width), name)


def resnext101_32x8d(inputs: Sequence[int], num_classes: int, stem: Stem = "cifar", width: int = WIDTH) -> ResNet:
    """ResNeXt-101 for images of this shape: 3-4-23-3 bottlenecks of 32 groups, 8 wide in the first stage."""
    name = _checked_name("resnext101_32x8d", inputs, num_classes, stem, width)
    block = partial(Bottleneck, groups=32, width_per_group=8)
    return named(ResNet(block, (3, 4, 23, 3), inputs[0], num_classes, stem, width), name)


def preresnet18(inputs: Sequence[int], num_classes: int, stem: Stem = "cifar", width: int = WIDTH) -> PreActResNet:
    """ResNet-18 with pre-activation for images of this shape."""
    name = _checked_name("preresnet18", inputs, num_classes, stem, width)
    return named(PreActResNet((2, 2, 2, 2), inputs[0], num_classes, stem, width), name)


def resnet20(inputs: Sequence[int], num_classes: int, stem: Stem = "cifar", width: int = 16) -> ResNet:
    """ResNet-20 for images of this shape: 3-3-3 basic blocks, shortcuts without parameters (PNI)."""
    name = _checked_name("resnet20", inputs, num_classes, stem, width, 16)
    return named(ResNet(partial(BasicBlock, padded=True), (3, 3, 3), inputs[0], num_classes, stem, width), name)


def resnet20_v2(inputs: Sequence[int], num_classes: int, stem: Stem = "cifar", width: int = 16) -> ResNet:
    """ResNet-20 whose shortcuts are strided 1x1 convolutions."""
    name = _checked_name("resnet20_v2", inputs, num_classes, stem, width, 16)
    return named(ResNet(BasicBlock, (3, 3, 3), inputs[0], num_classes, stem, width), name)


class Normalise(nn.Module):
    """Subtracts a mean and divides by a standard deviation, channel by channel.

    Args:
        mean: one for every channel, or a single one for inputs of any shape.
        std: one for each mean, positive.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if not mean or len(mean) != len(std):
            raise ValueError(f"std must hold one number for each of mean, got {len(mean)} means and {len(std)} stds")
        if not all(0.0 < value < float("inf") for value in std):
            raise ValueError(f"std must be positive and finite, got {tuple(std)}")
        shape = (len(mean), 1, 1) if len(mean) > 1 else ()
        self.register_buffer("mean", torch.tensor(tuple(mean)).reshape(shape))
        self.register_buffer("std", torch.tensor(tuple(std)).reshape(shape))

    def forward(self, inputs: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The inputs, normalised."""
        if not inputs.dtype.is_floating_point:
            raise TypeError(f"inputs must be numbers in [0, 1], got {inputs.dtype}; dubio.data.scaled converts them")
        if self.mean.dim() and (inputs.dim() < 3 or inputs.shape[-3] != len(self.mean)):
            raise ValueError(
                f"inputs must be images of {len(self.mean)} channels, as the constants are, "
                f"got shape {tuple(inputs.shape)}"
            )
        return (inputs - self.mean) / self.std


class Standardise(nn.Module):
    """Subtracts the mean of each feature and divides by its standard deviation.

    Initially the means are 0 and the standard deviations are 1; ``measure`` sets them.

    Args:
        num_features: size of the last axis of the inputs.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        check_count("num_features", num_features)
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("std", torch.ones(num_features))

    @torch.no_grad()
    def measure(self, inputs: Float[Tensor, "*rows feature"]) -> None:
        """Set mean and standard deviation from inputs; the standard deviation of a constant feature is 1."""
        if inputs.shape[-1] != len(self.mean) or inputs.numel() == 0:
            raise ValueError(f"inputs must have {len(self.mean)} features, got shape {tuple(inputs.shape)}")
        rows = inputs.detach().reshape(-1, inputs.shape[-1]).double().cpu()  # 1e30 squared is past float32
        std, mean = torch.std_mean(rows, dim=0, correction=0)
        limits = torch.finfo(torch.float32)
        is_valid = std.isfinite() & (rows.abs().amax(dim=0) < limits.max / 4)
        if not is_valid.all():
            feature = int((~is_valid).nonzero()[0])
            raise ValueError(
                f"inputs must be finite and smaller than {limits.max / 4:.0e} to be standardised, got "
                f"{rows[:, feature].abs().max():g} in feature {feature}; scale it, or take its logarithm"
            )
        constant = (std <= limits.eps * mean.abs()) | (std < limits.tiny)
        self.mean.copy_(mean)
        self.std.copy_(torch.where(constant, 1.0, std))

    def forward(self, inputs: Float[Tensor, "*rows feature"]) -> Float[Tensor, "*rows feature"]:
        """The inputs, standardised."""
        if inputs.shape[-1] != len(self.mean):
            raise ValueError(f"inputs must have {len(self.mean)} features, got shape {tuple(inputs.shape)}")
        return (inputs - self.mean) / self.std


def standardised(net: nn.Module, inputs: Float[Tensor, "row *rows feature"]) -> nn.Sequential:
    """The network after a layer that standardises its inputs, feature by feature.

    Args:
        net: a network for standardised inputs; it becomes a part of the new one.
        inputs: the training inputs, rows first and features last, from which mean and standard deviation are taken.
    """
    whole = with_standardise(net, inputs.shape[-1])
    cast(Standardise, whole[0]).measure(inputs)
    return whole


def with_standardise(net: nn.Module, num_features: int) -> nn.Sequential:
    """The network after a ``Standardise`` layer without means and standard deviations."""
    name, sizes = architecture_of(net), sizes_of(net)
    if name is not None and (sizes is None or sizes.inputs != (num_features,) or "," in name):
        raise ValueError(f"standardised inputs are for networks of {num_features} features, got {name!r}")
    whole = nn.Sequential(OrderedDict(standardise=Standardise(num_features), net=net))
    return whole if name is None else named(whole, f"{name},standardise=features")


def normalised(net: nn.Module, constants: str) -> nn.Sequential:
    """The network after a normalisation by name, see ``NORMALISATIONS``."""
    check_choice("normalise", constants, NORMALISATIONS)
    whole = nn.Sequential(OrderedDict(normalise=Normalise(*NORMALISATIONS[constants]), net=net))
    name = architecture_of(net)
    return whole if name is None else named(whole, f"{name},normalise={constants}")


def init_glorot(net: nn.Module) -> None:
    """Glorot-uniform weights and zero biases in every layer (DAD)."""
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)
            assert module.bias is not None
            nn.init.zeros_(module.bias)


def init_truncated(net: nn.Module, std: float) -> None:
    """Weights and biases of every layer from N(0, std^2), truncated at two standard deviations, not rescaled (BWS)."""
    check_positive("std", std)
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            for parameter in module.parameters(recurse=False):
                nn.init.trunc_normal_(parameter, std=std, a=-2.0 * std, b=2.0 * std)


def named(net: Net, name: str) -> Net:
    """The network, with its name as an attribute."""
    net.dubio_architecture = name  # type: ignore[assignment]
    return net


def architecture_of(net: nn.Module) -> str | None:
    """The name of a network; None for a network that dubio did not build."""
    name = getattr(net, "dubio_architecture", None)
    return name if isinstance(name, str) else None


def sizes_of(net: nn.Module) -> Sizes | None:
    """The sizes in a network's name; None for a network that dubio did not build."""
    name = architecture_of(net)
    if name is None:
        return None
    text = name.partition(",")[0].rpartition(":")[2]
    if not WIDTHS.fullmatch(text):
        return read_sizes(text) or Sizes(None, None)
    *widths, num_classes = read_widths(text) or ()
    return Sizes(tuple(widths[:1]) or None, num_classes)


def read_widths(text: str) -> tuple[int, ...] | None:
    """Whole numbers of at least 1 from ``784-100-10``; None for any other text."""
    return tuple(map(int, text.split("-"))) if WIDTHS.fullmatch(text) else None


def read_sizes(text: str) -> Sizes | None:
    """Sizes from ``1x28x28-10``, ``784-10`` or ``10``; None for any other text."""
    match = SIZES.fullmatch(text)
    if match is None:
        return None
    inputs = match["inputs"]
    return Sizes(None if inputs is None else tuple(map(int, inputs.split("x"))), int(match["num_classes"]))


def write_sizes(inputs: Sequence[int], num_classes: int) -> str:
    """``1x28x28-10`` of the inputs (1, 28, 28) and 10 classes."""
    return f"{'x'.join(map(str, inputs))}-{num_classes}"


def check_sizes(kind: str, inputs: Sequence[int], num_classes: int, smallest_side: int | None) -> None:
    """Refuse sizes that a network does not accept; without a smallest side, inputs may have any shape."""
    if num_classes < 1:
        raise ValueError(f"num_classes of {kind} must be at least 1, got {num_classes}")
    if smallest_side is None:
        if not inputs or min(inputs) < 1:
            raise ValueError(f"inputs of {kind} must be sizes of at least 1, got {tuple(inputs)}")
    elif len(inputs) != 3 or inputs[0] < 1 or min(inputs[1:]) < smallest_side:
        raise ValueError(
            f"inputs of {kind} must be (channels, height, width) with sides of at least {smallest_side}, "
            f"got {tuple(inputs)}"
        )


def _check_widths(kind: str, widths: Sequence[int]) -> None:
    if len(widths) < 2 or any(width < 1 for width in widths):
        article = "an" if kind == "mlp" else "a"
        raise ValueError(f"{article} {kind} needs at least two widths of at least 1, inputs and outputs, got {widths}")


def _checked_name(
    kind: str, inputs: Sequence[int], num_classes: int, stem: Stem, width: int, default: int = WIDTH
) -> str:
    check_choice(f"stem of {kind}", stem, get_args(Stem))
    check_sizes(kind, inputs, num_classes, 1)
    return f"{_with_width(f'{kind}:{stem}', width, default)}:{write_sizes(inputs, num_classes)}"


def _with_width(name: str, width: int, default: int = WIDTH) -> str:
    """The beginning of a name, with the width unless it is the published one."""
    check_count(f"width of {name.partition(':')[0]}", width)
    return name if width == default else f"{name}:w{width}"


def _conv(in_channels: int, out_channels: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, groups=groups, bias=False)


def _stem_conv(in_channels: int, stem: Stem, width: int) -> nn.Conv2d:
    return _conv(in_channels, width, 7, stride=2) if stem == "imagenet" else _conv(in_channels, width, 3)


def _stem_pool(stem: Stem) -> nn.Module:
    return nn.MaxPool2d(3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()


def _shortcut(in_channels: int, out_channels: int, stride: int, padded: bool = False) -> nn.Module | None:
    if stride == 1 and in_channels == out_channels:
        return None
    if padded:
        return ZeroPadded(in_channels, out_channels, stride)
    return nn.Sequential(_conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))


def _stages(block: Block, depths: Sequence[int], width: int) -> tuple[list[nn.Module], int]:
    """Four stages and their output channels; each after the first halves the image and doubles the channels.

    Where there are fewer depths than four, the last stages do nothing.
    """
    stages: list[nn.Module] = [nn.Identity() for _ in range(4)]
    channels = width
    for stage, depth in enumerate(depths):
        blocks = []
        for index in range(depth):
            blocks.append(block(channels, width * 2**stage, 2 if stage > 0 and index == 0 else 1))
            channels = width * 2**stage * blocks[-1].expansion
        stages[stage] = nn.Sequential(*blocks)
    return stages, channels


def _init_convolutions(net: nn.Module) -> None:
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
