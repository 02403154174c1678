"""What every method is: a frozen value that converts a network, names its objective and says how to train it.

The ordinary network, trained by maximum likelihood: what every other method is compared with.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

from torch import nn

from dubio._engine import Inputs, attach
from dubio.checks import check_not_negative
from dubio.convert import finish, plain_copy
from dubio.likelihoods import Categorical, Likelihood
from dubio.objectives import ELBO, Objective

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


@dataclass(frozen=True)
class Deterministic:
    """No noise at all; every draw is the same.

    Args:
        l2: weight of the squares of each layer's weights divided by its number of units (E-26).
    """

    noise_off: ClassVar[NoiseOff] = "source"

    l2: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative("l2", self.l2)

    @property
    def recipe(self) -> Recipe:
        """How it is trained by default."""
        return Recipe()

    def objective(self, num_data: int | None = None) -> ELBO:
        """What this method minimises on ``num_data`` training examples; ``dubio.fit`` fills the number in."""
        return ELBO(num_data, l2=self.l2, l2_per="unit")

    def convert(
        self,
        net: nn.Module,
        likelihood: Likelihood = Categorical(),
        *,
        strict: bool = True,
        example: Inputs | None = None,
    ) -> nn.Module:
        """A copy of ``net`` that carries a record of its method and likelihood; ``net`` itself is untouched."""
        return finish(attach(plain_copy(net)), net, self, likelihood, example)
