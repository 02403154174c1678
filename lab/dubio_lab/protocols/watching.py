"""A look at a network after some epochs of its training, for learning curves; nothing is decided by it."""

import time
from collections.abc import Callable

import torch
from torch import Tensor

from dubio.objectives import Loss
from dubio.training import FitResult

__all__ = ["Watch"]


class Watch:
    """A callback of ``fit`` that keeps what a look finds, and counts the seconds that looking takes.

    Training is over when its last epoch is, so a look at that is no part of ``seconds``.
    """

    def __init__(self, look: Callable[[], dict[str, float]], every: int = 1, last: int | None = None) -> None:
        """Look after every so many epochs, and after epoch ``last`` in any case."""
        self.look, self.every, self.last = look, every, last
        self.seconds = 0.0
        self._latest = 0.0
        self._seen: list[dict[str, float]] = []

    @property
    def history(self) -> dict[str, Tensor]:
        """What was seen by name, look by look, ``epoch`` among it."""
        names = self._seen[0] if self._seen else {}
        return {name: torch.tensor([seen[name] for seen in self._seen], dtype=torch.float64) for name in names}

    def on_step(self, step: int, loss: Loss) -> None:
        """Steps are not looked at."""

    def on_epoch(self, metrics: dict[str, float]) -> None:
        """Look where it is time to."""
        epoch = metrics["epoch"]
        self.seconds, self._latest = self.seconds + self._latest, 0.0
        if epoch % self.every == 0 or epoch == self.last:
            began = time.perf_counter()
            self._seen.append({"epoch": float(epoch), **self.look()})
            self._latest = time.perf_counter() - began

    def on_end(self, run: FitResult) -> None:
        """Nothing is left to do."""
