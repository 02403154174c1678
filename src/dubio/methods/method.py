"""The base of all methods: a frozen value that converts a network, names its objective and says how to train it.

``Method.convert`` is the same for all: it chooses the classifier for methods that convert only that layer, lets the
method change a copy of the network, and attaches the record. A method defines its fields, ``_convert`` and, where they
differ from the defaults, ``objective`` and ``recipe``.

``Deterministic`` is the ordinary network, trained by maximum likelihood: the baseline of every other method.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import nn

from dubio._engine import Inputs, attach
from dubio.checks import check_not_negative
from dubio.convert import classifier_of, finish, plain_copy
from dubio.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from dubio.objectives import ELBO, Objective

NoiseOff = Literal["source", "own mean", "none"]
"""What a network is with noise off: the network that was converted, another mean network, or nothing."""


@dataclass(frozen=True)
class Recipe:
    """How a method is trained by default: what works on small data without tuning."""

    epochs: int = 50
    lr: float = 2e-3
    num_samples: int = 1
    noise_ratio: float = 1.0
    """Learning rate of the noise's parameters, as a multiple of ``lr``."""


@dataclass(frozen=True)
class Method(ABC):
    """A family of stochastic networks. Subclasses are frozen dataclasses that implement ``_convert``."""

    noise_off: ClassVar[NoiseOff] = "source"
    on_classifier: ClassVar[bool] = False
    """Whether ``where`` defaults to the classifier rather than to all layers."""

    @property
    def recipe(self) -> Recipe:
        """How it is trained by default."""
        return Recipe()

    @property
    def replaces_classifier(self) -> bool:
        """Whether a new head replaces the classifier: then ``where`` names one layer, and targets must be classes."""
        return self.noise_off == "own mean"

    def objective(self, num_data: int | None = None) -> Objective:
        """The loss that this method minimises on ``num_data`` training examples; ``dubio.fit`` fills the number in."""
        return ELBO(num_data)

    def convert(
        self,
        net: nn.Module,
        likelihood: Likelihood = Categorical(),
        *,
        strict: bool = True,
        example: Inputs | None = None,
    ) -> nn.Module:
        """Return a stochastic copy of ``net`` with the same signature and weights; ``net`` itself is not changed.

        Args:
            net: the network to convert.
            likelihood: what its outputs mean: a ``Categorical``, ``Bernoulli`` or ``Gaussian``.
            strict: raise where a chosen module cannot be converted; with False it stays deterministic, and
                ``dubio.describe`` lists it.
            example: inputs on which the conversion is proved: with noise off the copy must equal ``net``, unless a new
                head replaces its classifier. Parameters that the network does not read, and dropout that it calls as a
                function, give a warning. Where ``where`` is None, the example also shows which layer is the classifier.
        """
        if self.replaces_classifier and isinstance(likelihood, Gaussian | Bernoulli):
            raise TypeError(f"likelihood must be a Categorical, since the head compares classes, got {likelihood!r}")
        method = self
        if self.on_classifier:
            method = replace(self, where=classifier_of(net, self.where, example))  # type: ignore[call-arg, attr-defined]
        model = method._convert(net, strict)
        return finish(model, None if self.replaces_classifier else net, method, likelihood, example)

    @abstractmethod
    def _convert(self, net: nn.Module, strict: bool) -> nn.Module:
        """A stochastic copy of ``net``, without its record."""


@dataclass(frozen=True)
class Deterministic(Method):
    """No noise at all; every draw is the same.

    Args:
        l2: weight of the squares of each layer's weights divided by its number of units (E-26).
    """

    l2: float = 0.0

    def __post_init__(self) -> None:
        check_not_negative("l2", self.l2)

    def objective(self, num_data: int | None = None) -> ELBO:
        """The negative log-likelihood, and the penalty of ``l2``."""
        return ELBO(num_data, l2=self.l2, l2_per="unit")

    def _convert(self, net: nn.Module, strict: bool) -> nn.Module:
        return attach(plain_copy(net))
