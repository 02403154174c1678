"""Normalisation as the first layer of a network, so that inputs stay as they are for everything else.

Images stay in [0, 1]: ``Normalise`` has the constants that the papers use (methods, section 1.6). Tables stay in their
own units: ``Standardise`` has the mean and standard deviation of every feature of the training data, as buffers, so
that a saved, exported or pruned network needs nothing else.
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dubio.models.naming import architecture_of, named, sizes_of

__all__ = ["NORMALISATIONS", "Normalise", "Standardise", "normalised", "standardised"]

NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),  # NFI
    "cifar10_pni": ((125.3 / 255, 123.0 / 255, 113.9 / 255), (63.0 / 255, 62.1 / 255, 66.7 / 255)),
    "cifar100": ((129.3 / 255, 124.1 / 255, 112.4 / 255), (68.2 / 255, 65.4 / 255, 70.4 / 255)),
    "signed": ((0.5,), (0.5,)),  # to [-1, 1]: NFI on FashionMNIST, VIB
    "double": ((0.0,), (0.5,)),  # to [0, 2]: BWS
    "over126": ((0.0,), (126 / 255,)),  # raw / 126: Weight Uncertainty
}
"""Means and standard deviations by name: one of each for every channel, or one for all."""


class Normalise(nn.Module):
    """Subtracts a mean and divides by a standard deviation, channel by channel.

    Args:
        mean: one for every channel, or a single one for all inputs of whatever shape.
        std: as many, each positive.
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
            raise TypeError(f"inputs must be numbers in [0, 1], got {inputs.dtype}; dubio.data.scaled makes them so")
        if self.mean.dim() and (inputs.dim() < 3 or inputs.shape[-3] != len(self.mean)):
            raise ValueError(
                f"inputs must be images of {len(self.mean)} channels, as the constants are, "
                f"got shape {tuple(inputs.shape)}"
            )
        return (inputs - self.mean) / self.std


class Standardise(nn.Module):
    """Subtracts the mean of each feature and divides by its standard deviation.

    It begins with means of 0 and standard deviations of 1; ``measure`` sets them.

    Args:
        num_features: size of the last axis of the inputs.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, num_features: int) -> None:
        super().__init__()
        if num_features < 1:
            raise ValueError(f"num_features must be at least 1, got {num_features}")
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("std", torch.ones(num_features))

    @torch.no_grad()
    def measure(self, inputs: Float[Tensor, "*rows feature"]) -> None:
        """Take mean and standard deviation from inputs; a feature that is constant keeps a standard deviation of 1."""
        if inputs.shape[-1] != len(self.mean) or inputs.numel() == 0:
            raise ValueError(f"inputs must have {len(self.mean)} features, got shape {tuple(inputs.shape)}")
        rows = inputs.detach().reshape(-1, inputs.shape[-1]).double().cpu()  # 1e30 squared is past float32
        std, mean = torch.std_mean(rows, dim=0, correction=0)
        limits = torch.finfo(torch.float32)
        if not (std.isfinite() & (rows.abs().amax(dim=0) < limits.max / 4)).all():
            feature = int((~std.isfinite() | (rows.abs().amax(dim=0) >= limits.max / 4)).nonzero()[0])
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
    """The network behind a layer that standardises its inputs, feature by feature.

    Args:
        net: a network that reads standardised inputs; it becomes a part of the new one.
        inputs: the training inputs, rows first and features last, from which mean and standard deviation are taken.
    """
    behind = standardising(net, inputs.shape[-1])
    first = behind[0]
    assert isinstance(first, Standardise)
    first.measure(inputs)
    return behind


def standardising(net: nn.Module, num_features: int) -> nn.Sequential:
    """The network behind a layer that standardises and has not been given means and standard deviations yet."""
    name, sizes = architecture_of(net), sizes_of(net)
    if name is not None and (sizes is None or sizes.inputs != (num_features,) or "," in name):
        raise ValueError(f"standardised inputs are for networks of {num_features} features, got {name!r}")
    behind = nn.Sequential(OrderedDict(standardise=Standardise(num_features), net=net))
    return behind if name is None else named(behind, f"{name},standardise=features")


def normalised(net: nn.Module, constants: str) -> nn.Sequential:
    """The network behind a normalisation by name, see ``NORMALISATIONS``."""
    if constants not in NORMALISATIONS:
        raise ValueError(f"normalise must be one of {', '.join(NORMALISATIONS)}, got {constants!r}")
    behind = nn.Sequential(OrderedDict(normalise=Normalise(*NORMALISATIONS[constants]), net=net))
    name = architecture_of(net)
    return behind if name is None else named(behind, f"{name},normalise={constants}")
