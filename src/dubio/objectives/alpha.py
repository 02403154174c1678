"""Alpha-divergences as an objective, for any sampler: dropout masks, drawn weights, noise on inputs.

``total = mean_n -(1/alpha) log mean_k p(y_n | x_n, draw k)^alpha + beta * KL / N`` (E-30, E-35). Reference: Li and Gal
2017; Hernandez-Lobato et al. 2016 for the energy it approximates.
"""

import math
from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from dubio import functional
from dubio.functional.variational import KlWeighting
from dubio.objectives.delegation import Delegating
from dubio.objectives.elbo import Elbo

__all__ = ["Alpha"]


@dataclass(frozen=True)
class Alpha(Delegating):
    """An alpha-divergence between posterior and approximation, as a loss.

    Args:
        alpha: 0 is the ``Elbo``, 0.5 the Hellinger distance, 1 the likelihood of the mean prediction. Other than 0, it
            needs several draws: with one, every alpha is the same.
        num_data, beta, gamma, kl_weighting, warmup, l2: as for ``Elbo``.
    """

    alpha: float = 0.5
    num_data: int | None = None
    beta: float = 1.0
    gamma: float = 0.0
    kl_weighting: KlWeighting = "uniform"
    warmup: int = 0
    l2: float = 0.0

    def __post_init__(self) -> None:
        if isinstance(self.alpha, bool) or not isinstance(self.alpha, int | float) or not math.isfinite(self.alpha):
            raise ValueError(f"alpha must be a finite number, got {self.alpha!r}")
        if self.alpha < 0.0:
            raise ValueError(f"alpha must be at least 0, where it is the Elbo, got {self.alpha}")
        self.stand_in(2)

    def with_num_data(self, num_data: int) -> "Alpha":
        """This objective for so many training examples."""
        return replace(self, num_data=num_data)

    def stand_in(self, num_samples: int) -> "_AlphaElbo":
        """The ``Elbo`` whose draws count by alpha."""
        if self.alpha != 0.0 and num_samples == 1:
            raise ValueError(f"num_samples must be at least 2 for alpha = {self.alpha}: with one draw it has no effect")
        return _AlphaElbo(
            self.num_data, self.beta, self.gamma, self.kl_weighting, self.warmup, self.l2, alpha=self.alpha
        )


@dataclass(frozen=True, repr=False)
class _AlphaElbo(Elbo):
    """An ``Elbo`` whose draws count by alpha."""

    alpha: float = 0.5

    def energy(self, nll_per_example: Float[Tensor, "sample batch"]) -> Float[Tensor, " batch"]:
        """What the losses of all draws come to, per example (E-30)."""
        return functional.variational.alpha_energy(nll_per_example, self.alpha)
