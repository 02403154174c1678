"""What every method is: a frozen value that converts a network, names its objective and says how to train it."""

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from torch import nn

from dubio._engine import Inputs
from dubio.likelihoods import Likelihood
from dubio.objectives import Objective

__all__ = ["Method", "NoiseOff", "Recipe"]

NoiseOff = Literal["source", "own mean", "none"]
"""What a network of a method is with noise off: the network it was made from, a mean of its own, or nothing."""


@dataclass(frozen=True)
class Recipe:
    """How a method is trained by default: what works on small data without tuning."""

    epochs: int = 50
    lr: float = 2e-3
    num_samples: int = 1
    noise_ratio: float = 1.0
    """How many times faster the parameters of the noise learn."""


@runtime_checkable
class Method(Protocol):
    """A family of stochastic networks."""

    @property
    def recipe(self) -> Recipe:
        """How it is trained by default."""

    def objective(self, num_data: int | None = None) -> Objective:
        """What it minimises on ``num_data`` training examples; ``dubio.fit`` fills the number in."""

    def convert(
        self, net: nn.Module, likelihood: Likelihood = ..., *, strict: bool = True, example: Inputs | None = None
    ) -> nn.Module:
        """A stochastic copy of ``net``; ``net`` itself is untouched."""
