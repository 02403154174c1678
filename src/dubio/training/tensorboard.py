"""A callback that writes a run for TensorBoard.

Curves ``step/...`` have a point for every optimiser step, ``epoch/...`` one for every epoch; both are drawn over the
number of optimiser steps. Every step is on disk before the next one begins. A run that is resumed goes on with its step
numbers, and steps that are taken a second time replace those of the first (``tests/training/test_tensorboard.py``).
"""

from pathlib import Path
from typing import Any

from dubio.objectives import Loss
from dubio.training.values import Run

__all__ = ["TensorBoard"]

COUNTERS = ("epoch", "step")


class TensorBoard:
    """Writes the loss and its parts at every step, and all metrics at every epoch: ``callbacks=[TensorBoard(folder)]``.

    Where batches are accumulated, a step shows the last of them. Look at it with ``tensorboard --logdir folder``.

    Args:
        folder: where the events go; a resumed run belongs into the folder it began in, another run into its own.
    """

    def __init__(self, folder: str | Path) -> None:
        _summary_writer()  # what is missing is said before training begins, and so is a folder that cannot be made
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._writer: Any = None

    def on_step(self, step: int, loss: Loss) -> None:
        """Write the loss of a step."""
        values = {"loss": loss.total, "nll": loss.nll, **loss.terms}
        self._write("step", {name: value.item() for name, value in values.items()}, step, first=step)

    def on_epoch(self, metrics: dict[str, float]) -> None:
        """Write the metrics of an epoch."""
        step = int(metrics["step"])
        values = {name: value for name, value in metrics.items() if name not in COUNTERS}
        # A run that was interrupted at the end of an epoch begins with this: the step itself is written already.
        self._write("epoch", values, step, first=step + 1)

    def on_end(self, run: Run) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, group: str, values: dict[str, float], step: int, first: int) -> None:
        """Write values of a step; what the folder holds from step ``first`` on belongs to an attempt that is void."""
        if self._writer is None:
            self._writer = _summary_writer()(str(self.folder), purge_step=first)
        for name, value in values.items():
            self._writer.add_scalar(f"{group}/{name}", value, step)
        self._writer.flush()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("dubio.TensorBoard needs tensorboard, which is missing: pip install tensorboard") from error
    return SummaryWriter
