"""Bayes by Backprop: a factorised Gaussian posterior over every weight.

Reference: Blundell et al. 2015, Weight Uncertainty in Neural Networks.
"""

from dataclasses import dataclass
from typing import get_args

from torch import Tensor, nn

from dubio._engine import Estimator
from dubio.checks import check_choice, check_positive
from dubio.convert import Where, check_where, randomise
from dubio.methods.method import Method
from dubio.nn import GaussianPosterior
from dubio.objectives import ELBO
from dubio.priors import Normal, Prior


@dataclass(frozen=True)
class Bayes(Method):
    """Gaussian posterior over weights.

    Every chosen module that holds parameters becomes random; normalisation layers only with ``norms``.

    Args:
        prior: ``Normal``, ``ScaleMixture`` or ``CentredNormal``.
        estimator: how outputs are drawn: ``"local"`` (least gradient noise, the default), ``"weight"`` (one function
            per draw) or ``"flipout"``. ``dubio.predict`` uses ``"weight"`` by default.
        init_std: standard deviation that every weight starts with; the means start at the weights of the network.
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

    def __post_init__(self) -> None:
        if not isinstance(self.prior, Prior):
            raise TypeError(f"prior must be a Normal, ScaleMixture or CentredNormal, got {self.prior!r}")
        check_choice("estimator", self.estimator, get_args(Estimator))
        check_positive("init_std", self.init_std)
        check_where(self.where)
        self.objective()

    def _convert(self, net: nn.Module, strict: bool) -> nn.Module:
        def make(weight: nn.Parameter, fixed: Tensor | None) -> GaussianPosterior:
            return GaussianPosterior(weight, self.prior, self.init_std, fixed)

        biases, norms = self.bayesian_bias, self.norms
        return randomise(net, make, self.where, strict, estimator=self.estimator, biases=biases, norms=norms)

    def objective(self, num_data: int | None = None) -> ELBO:
        """The evidence lower bound."""
        return ELBO(num_data, beta=self.beta)
