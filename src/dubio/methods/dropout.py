"""Dropout as inference: masks that stay on, trained with an alpha-divergence.

References: Gal and Ghahramani 2016, Dropout as a Bayesian Approximation; Li and Gal 2017, Dropout Inference in Bayesian
Neural Networks with Alpha-divergences.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from dubio._engine import Inputs
from dubio.checks import check_not_negative
from dubio.convert import Where, check_where, finish, randomise_dropout
from dubio.likelihoods import Categorical, Likelihood
from dubio.methods.method import NoiseOff, Recipe
from dubio.objectives import Alpha

INSERTED_RATE = 0.05
"""Rate of masks that are put into a network that has none, where the user names no rate."""


@dataclass(frozen=True)
class Dropout:
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
    noise_off: ClassVar[NoiseOff] = "source"

    def __post_init__(self) -> None:
        if self.p is not None and (isinstance(self.p, bool) or not isinstance(self.p, int | float)):
            raise TypeError(f"p must be a number, got {self.p!r}")
        if self.p is not None and not 0.0 <= self.p < 1.0:
            raise ValueError(f"p must be in [0, 1), got {self.p}; it is the share that is dropped")
        check_not_negative("l2", self.l2)
        check_where(self.where)
        self.objective()

    @property
    def recipe(self) -> Recipe:
        """How it is trained by default."""
        return Recipe(num_samples=10 if self.alpha else 1)

    def objective(self, num_data: int | None = None) -> Alpha:
        """What this method minimises on ``num_data`` training examples; ``dubio.fit`` fills the number in."""
        return Alpha(self.alpha, num_data, l2=self.l2)

    def convert(
        self,
        net: nn.Module,
        likelihood: Likelihood = Categorical(),
        *,
        strict: bool = True,
        example: Inputs | None = None,
    ) -> nn.Module:
        """A stochastic copy of ``net``: same signature and weights; ``net`` itself is untouched.

        A chosen module with parameters before which no mask can go is an error or, with ``strict=False``, stays as it
        is. With ``example`` inputs the conversion is proved on them: noise off must equal ``net``.
        """
        model = randomise_dropout(net, self.p, INSERTED_RATE, self.where, strict)
        return finish(model, net, self, likelihood, example)
