"""Dropout as inference: masks that stay on, trained with an alpha-divergence.

References: Gal and Ghahramani 2016, Dropout as a Bayesian Approximation; Li and Gal 2017, Dropout Inference in Bayesian
Neural Networks with Alpha-divergences.
"""

from dataclasses import dataclass

from torch import nn

from dubio.checks import check_not_negative, check_number
from dubio.convert import Where, check_where, randomise_dropout
from dubio.methods.method import Method, Recipe
from dubio.objectives import Alpha

INSERTED_RATE = 0.05
"""Rate of masks that are inserted into a network without dropout, where ``p`` is None."""


@dataclass(frozen=True)
class Dropout(Method):
    """Bernoulli masks on activations, in evaluation too; independent for every example and draw.

    Args:
        p: rate of every mask, in [0, 1). None leaves each dropout module its own, and is 0.05 for masks put in.
        alpha: 0 is variational inference, 0.5 the Hellinger distance, 1 the likelihood of the mean prediction.
        l2: weight of the squares of all weight matrices, which stand for the prior (E-33).
        where: dropout modules to turn on, and linear layers or convolutions to put a mask before; see ``dubio.Where``.
            By default the network's dropout modules or, where it has none, a mask before every linear layer.
    """

    p: float | None = None
    alpha: float = 0.0
    l2: float = 1e-6
    where: Where = None

    def __post_init__(self) -> None:
        if self.p is not None and not 0.0 <= check_number("p", self.p) < 1.0:
            raise ValueError(f"p must be in [0, 1), got {self.p}; it is the share that is dropped")
        check_not_negative("l2", self.l2)
        check_where(self.where)
        self.objective()

    def _convert(self, net: nn.Module, strict: bool) -> nn.Module:
        return randomise_dropout(net, self.p, INSERTED_RATE, self.where, strict)

    def objective(self, num_data: int | None = None) -> Alpha:
        """The alpha-divergence, and the penalty of ``l2``."""
        return Alpha(self.alpha, num_data, l2=self.l2)

    @property
    def recipe(self) -> Recipe:
        """Several draws in every step where ``alpha`` is not 0."""
        return Recipe(num_samples=10 if self.alpha else 1)
