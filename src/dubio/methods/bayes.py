"""Bayes by Backprop: a factorised Gaussian posterior over every weight.

Reference: Blundell et al. 2015, Weight Uncertainty in Neural Networks.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, get_args

from torch import nn

from dubio._engine import Estimator, Inputs
from dubio.convert import Where, check_where, finish, randomise
from dubio.likelihoods import Categorical, Likelihood
from dubio.methods.method import NoiseOff, Recipe
from dubio.nn import GaussianPosterior
from dubio.objectives import ELBO
from dubio.priors import Normal, Prior


@dataclass(frozen=True)
class Bayes:
    """Gaussian posterior over weights.

    Args:
        prior: ``Normal``, ``ScaleMixture`` or ``CentredNormal``.
        estimator: how outputs are drawn: ``"local"`` (least gradient noise, the default), ``"weight"`` (one function
            per draw) or ``"flipout"``. ``dubio.predict`` uses ``"weight"`` unless told otherwise.
        init_std: standard deviation that every weight starts with; the means start at the network's own weights.
        bayesian_bias: whether biases are random too.
        norms: whether scales and shifts of normalisation layers are random too.
        beta: weight of the divergence from the prior. 1 is Bayes' rule; the default tempers the posterior, since with 1
            few data are fitted worse than by the plain network (``docs/methods/bayes.md``).
        where: which layers; see ``dubio.Where``. All by default.
    """

    prior: Prior = Normal(0.0, 1.0)
    estimator: Estimator = "local"
    init_std: float = 0.005
    bayesian_bias: bool = True
    norms: bool = False
    beta: float = 0.03
    where: Where = None
    noise_off: ClassVar[NoiseOff] = "source"

    def __post_init__(self) -> None:
        if not isinstance(self.prior, Prior):
            raise TypeError(f"prior must be a Normal, ScaleMixture or CentredNormal, got {self.prior!r}")
        if self.estimator not in get_args(Estimator):
            raise ValueError(f"estimator must be 'weight', 'local' or 'flipout', got {self.estimator!r}")
        if not isinstance(self.init_std, int | float):
            raise TypeError(f"init_std must be a number, got {self.init_std!r}")
        if not (math.isfinite(self.init_std) and self.init_std > 0.0):
            raise ValueError(f"init_std must be positive and finite, got {self.init_std!r}")
        check_where(self.where)
        self.objective()

    @property
    def recipe(self) -> Recipe:
        """How it is trained by default."""
        return Recipe()

    def objective(self, num_data: int | None = None) -> ELBO:
        """What this method minimises on ``num_data`` training examples; ``dubio.fit`` fills the number in."""
        return ELBO(num_data, beta=self.beta)

    def convert(
        self,
        net: nn.Module,
        likelihood: Likelihood = Categorical(),
        *,
        strict: bool = True,
        example: Inputs | None = None,
    ) -> nn.Module:
        """A stochastic copy of ``net``: same signature, its weights as posterior means; ``net`` itself is untouched.

        Every chosen module that holds parameters becomes random, normalisation layers only if asked for. A module whose
        parameters cannot be drawn is an error or, with ``strict=False``, stays deterministic; ``describe`` lists it.
        With ``example`` inputs the conversion is proved on them: noise off must equal ``net``, and parameters that the
        network does not read, or dropout called as a function, are warned of.
        """
        model = randomise(
            net,
            lambda weight, fixed: GaussianPosterior(weight, self.prior, self.init_std, fixed),
            estimator=self.estimator,
            bayesian_bias=self.bayesian_bias,
            norms=self.norms,
            where=self.where,
            strict=strict,
        )
        return finish(model, net, self, likelihood, example)
