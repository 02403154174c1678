"""Normalisation as the first layer of a network, so that inputs stay in [0, 1] for everybody else.

The constants are those that the papers use (methods, section 1.6).
"""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dubio.models.naming import architecture_of, named

__all__ = ["NORMALISATIONS", "Normalise", "normalised"]

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


def normalised(net: nn.Module, constants: str) -> nn.Sequential:
    """The network behind a normalisation by name, see ``NORMALISATIONS``."""
    if constants not in NORMALISATIONS:
        raise ValueError(f"normalise must be one of {', '.join(NORMALISATIONS)}, got {constants!r}")
    behind = nn.Sequential(OrderedDict(normalise=Normalise(*NORMALISATIONS[constants]), net=net))
    name = architecture_of(net)
    return behind if name is None else named(behind, f"{name},normalise={constants}")
