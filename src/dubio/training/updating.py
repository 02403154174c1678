"""Gradients of one step, from none to the update: dropped, summed over batches and processes, clipped, taken."""

import torch
from torch import nn

from dubio.training.health import Health
from dubio.training.processes import Processes

__all__ = ["Update"]


class Update:
    """What is done with gradients, by everyone in the same way.

    Args:
        model: the network that learns.
        optimizer: what updates it, and parameters that an objective may have beside it.
        clip_norm: largest norm of the gradient of what is updated.
        processes: those that share every step.
        health: what tells the optimiser that a loss was not finite.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        clip_norm: float | None,
        processes: Processes,
        health: Health,
    ) -> None:
        self._model, self._optimizer, self._clip_norm = model, optimizer, clip_norm
        self._processes, self._health = processes, health
        self.is_under_way = False
        """Whether parameters are being changed: there is no way back then."""

    def begin(self) -> None:
        """Drop all gradients: those of what is not updated would go on adding up."""
        for parameter in self._learning():
            parameter.grad = None

    def divide_and_take(self, num_rows: int) -> None:
        """Divide what was summed over rows by their number, in all processes, and update."""
        learning = self._learning()
        rows = self._processes.sum_gradients(learning, num_rows)
        for parameter in learning:
            if parameter.grad is not None:
                parameter.grad /= rows
        self.take()

    def take(self) -> None:
        """Clip the gradients that there are, and update."""
        self.is_under_way = True
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._updated(), self._clip_norm)
        self._health.tell(self._optimizer)
        self._optimizer.step()

    def _learning(self) -> list[nn.Parameter]:
        """All that gets gradients, each once."""
        return list(dict.fromkeys((*self._model.parameters(), *self._updated())))

    def _updated(self) -> list[nn.Parameter]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
