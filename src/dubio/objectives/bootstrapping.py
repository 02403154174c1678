"""Bootstrapping against wrong labels: the network's own prediction takes a part of the target's place.

``soft`` mixes the label with the predicted probabilities (E-68), ``hard`` with the predicted class (E-69). Reference:
Reed et al. 2015, Training Deep Neural Networks on Noisy Labels with Bootstrapping.
"""

from abc import abstractmethod
from dataclasses import dataclass, fields, replace

from jaxtyping import Float, Int
from torch import Tensor

from dubio import functional
from dubio.likelihoods import Categorical, Likelihood
from dubio.objectives.delegation import Delegating
from dubio.objectives.elbo import Elbo

__all__ = ["BootstrapHard", "BootstrapSoft"]


def _check_beta(beta: float) -> None:
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta, the share of the label, must be in [0, 1], got {beta}")


class _Bootstrapped(Delegating):
    """What both share: everything but the loss is the inner objective's."""

    inner: Elbo

    @abstractmethod
    def losses(
        self, log_probs: Float[Tensor, "sample batch class"], targets: Int[Tensor, "sample batch"]
    ) -> Float[Tensor, "sample batch"]:
        """The loss of every draw and example."""

    @property
    def num_data(self) -> int | None:
        """How many training examples there are, as the inner objective knows it."""
        return self.inner.num_data

    def stand_in(self, num_samples: int) -> Elbo:
        """The inner objective with the bootstrapped loss."""
        values = {field.name: getattr(self.inner, field.name) for field in fields(self.inner)}
        return _BootstrapElbo(**values, bootstrap=self)


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

    def __post_init__(self) -> None:
        _check_beta(self.beta)

    def with_num_data(self, num_data: int) -> "BootstrapSoft":
        """This objective for so many training examples."""
        return replace(self, inner=self.inner.with_num_data(num_data))

    def losses(
        self, log_probs: Float[Tensor, "sample batch class"], targets: Int[Tensor, "sample batch"]
    ) -> Float[Tensor, "sample batch"]:
        """The loss of every draw and example (E-68)."""
        return functional.soft_bootstrap(log_probs, targets, self.beta, self.detach)


@dataclass(frozen=True)
class BootstrapHard(_Bootstrapped):
    """Targets mixed with the predicted class.

    Args:
        beta: share of the label.
        inner: what else is minimised.
    """

    beta: float = 0.8
    inner: Elbo = Elbo()

    def __post_init__(self) -> None:
        _check_beta(self.beta)

    def with_num_data(self, num_data: int) -> "BootstrapHard":
        """This objective for so many training examples."""
        return replace(self, inner=self.inner.with_num_data(num_data))

    def losses(
        self, log_probs: Float[Tensor, "sample batch class"], targets: Int[Tensor, "sample batch"]
    ) -> Float[Tensor, "sample batch"]:
        """The loss of every draw and example (E-69)."""
        return functional.hard_bootstrap(log_probs, targets, self.beta)


@dataclass(frozen=True)
class _BootstrapElbo(Elbo):
    """An ``Elbo`` with another loss."""

    bootstrap: _Bootstrapped = BootstrapHard()

    def losses(
        self, likelihood: Likelihood, outputs: Tensor, targets: Tensor, scale: Tensor | None
    ) -> Float[Tensor, "sample batch"]:
        """The bootstrapped loss of every draw and example."""
        if not isinstance(likelihood, Categorical):
            raise TypeError(f"bootstrapping needs classes, a Categorical likelihood, got {likelihood!r}")
        log_probs = likelihood.log_probs(outputs)
        return self.bootstrap.losses(log_probs, targets.expand(log_probs.shape[:-1]))
