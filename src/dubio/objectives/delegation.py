"""Objectives that are an ``Elbo`` but for one step: they say which, and it is called in their place."""

from abc import ABC, abstractmethod

from jaxtyping import Float, Shaped
from torch import Tensor, nn

from dubio._engine import Executor, Inputs
from dubio.objectives.elbo import Elbo
from dubio.objectives.loss import Loss

__all__ = ["Delegating"]


class Delegating(ABC):
    """An objective whose loss is that of another."""

    @abstractmethod
    def stand_in(self, num_samples: int) -> Elbo:
        """The objective that is called, for so many draws."""

    def __call__(
        self,
        model: nn.Module,
        inputs: Inputs,
        targets: Shaped[Tensor, "batch ..."],
        num_samples: int = 1,
        *,
        sample_weight: Float[Tensor, "batch ..."] | None = None,
        batch_index: int | Tensor | None = None,
        num_batches: int | None = None,
        epoch: float | Tensor | None = None,
        num_parts: int = 1,
        seed: int | Tensor | None = None,
        executor: Executor = "auto",
    ) -> Loss:
        """The loss of one batch; arguments as for ``Elbo``."""
        return self.stand_in(num_samples)(
            model,
            inputs,
            targets,
            num_samples,
            sample_weight=sample_weight,
            batch_index=batch_index,
            num_batches=num_batches,
            epoch=epoch,
            num_parts=num_parts,
            seed=seed,
            executor=executor,
        )
