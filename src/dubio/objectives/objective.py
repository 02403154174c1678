"""What every objective offers, so that ``fit`` and one's own loop can use any of them."""

from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from dubio._engine import Inputs
from dubio.objectives.loss import Loss

__all__ = ["Objective"]


@runtime_checkable
class Objective(Protocol):
    """A value that is called with a network, inputs and targets, and gives a ``Loss``."""

    @property
    def num_data(self) -> int | None:
        """How many training examples there are, where that was said."""

    def with_num_data(self, num_data: int) -> "Objective":
        """The same objective for so many training examples."""

    def __call__(
        self,
        model: nn.Module,
        inputs: Inputs,
        targets: Tensor,
        num_samples: int = 1,
        *,
        sample_weight: Tensor | None = None,
        batch_index: int | None = None,
        num_batches: int | None = None,
        epoch: float | None = None,
    ) -> Loss:
        """The loss of one batch."""
