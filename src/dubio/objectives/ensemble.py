"""The losses of an ensemble's members, added up: each is trained as if it were alone."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from dubio.objectives.elbo import Elbo

__all__ = ["EnsembleLoss"]


@dataclass(frozen=True, repr=False)
class EnsembleLoss(Elbo):
    """An ``Elbo`` that adds up draws instead of averaging them; arguments as for ``Elbo``."""

    def energy(self, nll_per_example: Float[Tensor, "sample batch"]) -> Float[Tensor, " batch"]:
        """The sum over draws."""
        return nll_per_example.sum(dim=0)
