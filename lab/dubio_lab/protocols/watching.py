"""A look at a network after some epochs of its training, for learning curves; nothing is decided by it."""

import json
import time
from collections.abc import Callable, Collection
from pathlib import Path

import torch
from torch import Tensor

from dubio.codec import write_atomically
from dubio.objectives import Loss
from dubio.training import FitResult

__all__ = ["Watch"]


class Watch:
    """A callback of ``fit`` that keeps what a look finds, and counts the seconds that looking takes.

    Training is over when its last epoch is, so a look at that is no part of ``seconds``.

    With a file, looks survive an interruption of a run that is resumed from its checkpoints. They are taken at the last
    step of an epoch, which is before its checkpoint is written: a run that goes on from there has all looks before, and
    an epoch that is trained again is looked at again.
    """

    def __init__(
        self,
        look: Callable[[], dict[str, float]],
        every: int = 1,
        last: int | None = None,
        *,
        at: Collection[int] | None = None,
        file: Path | None = None,
        steps_per_epoch: int = 1,
    ) -> None:
        """Look after every so many epochs, and after epoch ``last`` in any case.

        Args:
            look: gives numbers by name, the same names at every look.
            every: epochs between two looks.
            last: an epoch after which to look, too.
            at: the epochs after which to look, in place of ``every`` and ``last``.
            file: where looks are kept while the run lasts.
            steps_per_epoch: optimizer steps in an epoch, needed with a file.
        """
        self.look, self.every, self.last, self.at = look, every, last, at
        self.file, self.steps_per_epoch = file, steps_per_epoch
        self.seconds = 0.0
        self._latest = 0.0
        self._seen: list[dict[str, float]] = []
        if file is not None and file.is_file():
            self._seen = json.loads(file.read_text())

    @property
    def history(self) -> dict[str, Tensor]:
        """What was seen by name, look by look, ``epoch`` among it."""
        names = self._seen[0] if self._seen else {}
        return {name: torch.tensor([seen[name] for seen in self._seen], dtype=torch.float64) for name in names}

    def on_step(self, step: int, loss: Loss) -> None:
        """With a file, look where an epoch ends here and it is time to."""
        if self.file is not None and step % self.steps_per_epoch == 0:
            self._look_after(step // self.steps_per_epoch)

    def on_epoch(self, metrics: dict[str, float]) -> None:
        """Without a file, look where it is time to."""
        if self.file is None:
            self._look_after(int(metrics["epoch"]))

    def on_end(self, run: FitResult) -> None:
        """Nothing is left to do."""

    def _look_after(self, epoch: int) -> None:
        self.seconds, self._latest = self.seconds + self._latest, 0.0
        due = epoch % self.every == 0 or epoch == self.last if self.at is None else epoch in self.at
        if not due:
            return
        began = time.perf_counter()
        before = [seen for seen in self._seen if seen["epoch"] < epoch]
        self._seen = [*before, {"epoch": float(epoch), **self.look()}]
        if self.file is not None:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.file, json.dumps(self._seen).encode())
        self._latest = time.perf_counter() - began
