"""The ordinary network, trained by maximum likelihood: what every other method is compared with."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from dubio._engine import Inputs, attach
from dubio.checks import check_not_negative
from dubio.convert import finish, plain_copy
from dubio.likelihoods import Categorical, Likelihood
from dubio.methods.method import NoiseOff, Recipe
from dubio.objectives import Elbo

__all__ = ["Deterministic"]


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

    def objective(self, num_data: int | None = None) -> Elbo:
        """What this method minimises on ``num_data`` training examples; ``dubio.fit`` fills the number in."""
        return Elbo(num_data, l2=self.l2, l2_per="unit")

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
