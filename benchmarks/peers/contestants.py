"""What takes part: one small interface, and a library behind it.

Every contestant trains with the same optimiser and learning rate and sees the same data. A step is the forward passes
of S draws, the loss with its divergence, the backward pass and the update; a prediction is the mean over S draws.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

import dubio
from dubio._engine.precision import Precision, computing_in, rounding_products
from peers.nets import Net

LEARNING_RATE = 1e-3

Kind = Literal["dubio", "peer", "reference"]


class Contestant(Protocol):
    """Who takes part, and the two pieces of work that are timed."""

    kind: Kind
    name: str
    library: str
    precision: Precision
    runs: str
    """What a step and a prediction run, in words."""
    divergence: str
    """What is computed as the KL term."""
    sizes_batches: bool
    """Whether a prediction decides itself how many rows it takes at a time."""

    def training_step(self, net: Net, num_samples: int, device: torch.device) -> Callable[[], object]:
        """A step that is ready to be run again and again."""

    def prediction(self, net: Net, num_samples: int, images: Tensor, rows: int | None = None) -> Callable[[], Tensor]:
        """A prediction that is ready to be run again and again, of some rows at a time, or of all."""


@dataclass(frozen=True)
class Parts:
    """A network of a library: the loss of S draws on a batch, and the outputs of S draws, one at a time or stacked."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor, int], Tensor]
    outputs: Callable[[Tensor, int], Tensor]
    """Outputs ``(sample, batch, ...)``."""


@dataclass(frozen=True)
class Peer:
    """A library as its documentation says to use it, eagerly."""

    name: str
    library: str
    runs: str
    divergence: str
    make: Callable[[Net], Parts]
    precision: Precision = "fp32"
    kind: Kind = "peer"
    sizes_batches: bool = False

    def training_step(self, net: Net, num_samples: int, device: torch.device) -> Callable[[], object]:
        """A step with its documented loss, the forward part under autocast where the precision is bf16."""
        parts = self._parts(net, device)
        optimizer = adam(parts.model, device)
        inputs, targets = net.batch_of_data(device)

        def step() -> None:
            with rounding_products(self.precision):
                optimizer.zero_grad(set_to_none=True)
                with computing_in(self.precision, device):
                    loss = parts.loss(inputs, targets, num_samples)
                loss.backward()
                optimizer.step()

        return step

    def prediction(self, net: Net, num_samples: int, images: Tensor, rows: int | None = None) -> Callable[[], Tensor]:
        """The mean over draws of what the network predicts, without gradients, in eval mode."""
        parts = self._parts(net, images.device)
        parts.model.eval()
        batches = images.split(rows or len(images))

        def predict() -> Tensor:
            with torch.no_grad(), computing_in(self.precision, images.device):
                return torch.cat([net.predicted(parts.outputs(batch, num_samples)).mean(dim=0) for batch in batches])

        return predict

    def _parts(self, net: Net, device: torch.device) -> Parts:
        torch.manual_seed(0)
        parts = self.make(net)
        parts.model.to(device)
        return parts


def adam(model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """The same for everyone: fused, which is the fastest that torch has."""
    on_gpu = device.type == "cuda"
    return torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True, capturable=on_gpu)


def version_of(library: str) -> str | None:
    """The version of a library that is installed or on the path; None where there is none. dubio tells its own."""
    if library == "dubio":
        return dubio.__version__
    try:
        return version(library)
    except PackageNotFoundError:
        return None
