"""The networks that are compared, and what they learn: a curve, digits, or images of 32x32.

Inputs and targets are random numbers: times do not depend on them. A draw costs its mean negative log-likelihood, by
classes or, for the curve, by a Gaussian of standard deviation 0.1.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dubio

OUTPUT_STD = 0.1


@dataclass(frozen=True)
class Net:
    """A network by its name, shapes, and sizes of data; one output means regression."""

    name: str
    architecture: str
    inputs: tuple[int, ...]
    outputs: int
    batch: int
    num_data: int
    num_images: dict[str, int]
    """How many inputs are predicted, by device."""

    @property
    def regression(self) -> bool:
        """Whether it learns a curve and not classes."""
        return self.outputs == 1

    def plain(self) -> nn.Module:
        """The network itself, without noise."""
        return dubio.models.build(self.architecture)

    def likelihood(self) -> dubio.Categorical | dubio.Gaussian:
        """What its outputs mean, for dubio."""
        return dubio.Gaussian(std=OUTPUT_STD) if self.regression else dubio.Categorical()

    def batch_of_data(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Inputs and targets of one training batch."""
        generator = torch.Generator().manual_seed(0)
        inputs = torch.rand(self.batch, *self.inputs, generator=generator)
        if self.regression:
            return inputs.to(device), torch.rand(self.batch, 1, generator=generator).to(device)
        return inputs.to(device), torch.randint(self.outputs, (self.batch,), generator=generator).to(device)

    def images(self, device: torch.device) -> Tensor:
        """Inputs to predict for."""
        count = self.num_images[device.type]
        return torch.rand(count, *self.inputs, generator=torch.Generator().manual_seed(1)).to(device)

    def criterion(self) -> nn.Module:
        """Mean negative log-likelihood of outputs, as libraries take it."""
        return _CurveLoss() if self.regression else nn.CrossEntropyLoss()

    def predicted(self, outputs: Tensor) -> Tensor:
        """What is averaged over draws: class probabilities, or the outputs of a curve."""
        return outputs if self.regression else outputs.float().softmax(dim=-1)


def _mlp(widths: str, num_data: int) -> Net:
    first, *_, last = (int(width) for width in widths.split("-"))
    return Net(widths, f"mlp:{widths}", (first,), last, 128, num_data, {"cuda": 10_000, "cpu": 2_000})


NETS = {
    net.name: net
    for net in (
        _mlp("1-400-400-1", 1_000),
        _mlp("784-800-800-10", 60_000),
        _mlp("784-1200-1200-10", 60_000),
        Net("resnet18", "resnet18:cifar:3x32x32-10", (3, 32, 32), 10, 64, 50_000, {"cuda": 1_000, "cpu": 64}),
    )
}
TINY = {
    "8-16-1": Net("8-16-1", "mlp:8-16-1", (8,), 1, 4, 100, {"cuda": 6, "cpu": 6}),
    "8-16-3": Net("8-16-3", "mlp:8-16-3", (8,), 3, 4, 100, {"cuda": 6, "cpu": 6}),
}


def with_layers(
    net: nn.Module, linear: Callable[[nn.Linear], nn.Module], convolution: Callable[[nn.Conv2d], nn.Module]
) -> nn.Module:
    """The network with a library's layers in place of the plain ones, where the library leaves that to its user."""
    for name, child in list(net.named_children()):
        if isinstance(child, nn.Linear):
            setattr(net, name, linear(child))
        elif isinstance(child, nn.Conv2d):
            setattr(net, name, convolution(child))
        else:
            with_layers(child, linear, convolution)
    return net


class _CurveLoss(nn.Module):
    """The part of a Gaussian's negative log-likelihood that depends on the outputs."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs, targets) / (2.0 * OUTPUT_STD**2)
