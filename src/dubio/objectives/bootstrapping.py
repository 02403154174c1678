"""Bootstrapping against wrong labels: the network's own prediction takes a part of the target's place.

``soft`` mixes the label with the predicted probabilities (E-68), ``hard`` with the predicted class (E-69). Reference:
Reed et al. 2015, Training Deep Neural Networks on Noisy Labels with Bootstrapping.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from dubio import functional
from dubio.likelihoods import Categorical, Likelihood
from dubio.objectives.delegation import Delegating
from dubio.objectives.elbo import Elbo

__all__ = ["BootstrapHard", "BootstrapSoft"]


class _Bootstrapped(Delegating):
    """What both share: everything but the loss is the inner objective's."""

    beta: float
    inner: Elbo

    def __post_init__(self) -> None:
        if not 0.0 <= self.beta <= 1.0:
            raise ValueError(f"beta, the share of the label, must be in [0, 1], got {self.beta}")
        if not isinstance(self.inner, Elbo):
            raise TypeError(f"inner must be an Elbo, got {self.inner!r}")

    @property
    def num_data(self) -> int | None:
        """How many training examples there are, as the inner objective knows it."""
        return self.inner.num_data

    @abstractmethod
    def bootstrapped(self, log_probs: Float[Tensor, "*batch class"], targets: Tensor) -> Float[Tensor, "*batch"]:
        """The loss of every draw and example."""

    def stand_in(self, num_samples: int) -> Elbo:
        """The inner objective with the bootstrapped loss."""
        return replace(self.inner, losses=self._losses)

    def _losses(self, likelihood: Likelihood, outputs: Tensor, targets: Tensor, scale: Tensor | None) -> Tensor:
        if not isinstance(likelihood, Categorical):
            raise TypeError(f"bootstrapping needs classes, a Categorical likelihood, got {likelihood!r}")
        if likelihood.class_weight is not None or likelihood.label_smoothing:
            raise ValueError(
                "class_weight and label_smoothing of the likelihood must be left out beside bootstrapping, which has "
                f"targets of its own, got {likelihood!r}"
            )
        log_probs = likelihood.log_probs(outputs)
        return self.bootstrapped(log_probs, targets.expand(log_probs.shape[:-1]))


@dataclass(frozen=True)
class BootstrapSoft(_Bootstrapped):
    """Targets mixed with predicted probabilities.

    Args:
        beta: share of the label.
        detach: whether the prediction is a constant; by default its entropy is penalised too.
        inner: what else is minimised.
    """

    beta: float = 0.95
    detach: bool = False
    inner: Elbo = Elbo()

    def with_num_data(self, num_data: int) -> "BootstrapSoft":
        """This objective for so many training examples."""
        return replace(self, inner=self.inner.with_num_data(num_data))

    def bootstrapped(self, log_probs: Float[Tensor, "*batch class"], targets: Tensor) -> Float[Tensor, "*batch"]:
        """The loss of every draw and example (E-68)."""
        return functional.variational.soft_bootstrap(log_probs, targets, self.beta, self.detach)


@dataclass(frozen=True)
class BootstrapHard(_Bootstrapped):
    """Targets mixed with the predicted class.

    Args:
        beta: share of the label.
        inner: what else is minimised.
    """

    beta: float = 0.8
    inner: Elbo = Elbo()

    def with_num_data(self, num_data: int) -> "BootstrapHard":
        """This objective for so many training examples."""
        return replace(self, inner=self.inner.with_num_data(num_data))

    def bootstrapped(self, log_probs: Float[Tensor, "*batch class"], targets: Tensor) -> Float[Tensor, "*batch"]:
        """The loss of every draw and example (E-69)."""
        return functional.variational.hard_bootstrap(log_probs, targets, self.beta)
