"""The plain values of a run: what was asked for, what came of it, and what is called as it goes.

How training goes: a bar on a terminal, else lines, about twenty for a run.

A callback that writes a run for TensorBoard.

Curves ``step/...`` have a point for every optimiser step, ``epoch/...`` one for every epoch; both are drawn over the
number of optimiser steps. Every step is on disk before the next one begins. A run that is resumed goes on with its step
numbers, and steps that are taken a second time replace those of the first (``tests/training/test_tensorboard.py``).
"""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dubio._engine import check_precision
from dubio.objectives import Loss


class Interrupted(KeyboardInterrupt):
    """Training was interrupted; where it had a folder, its state is saved there."""


@runtime_checkable
class Callback(Protocol):
    """What ``fit`` calls as it goes; each returns nothing."""

    def on_step(self, step: int, loss: Loss) -> None:
        """After every optimiser step, whose tensors the next one may overwrite: copy what is kept."""

    def on_epoch(self, metrics: dict[str, float]) -> None:
        """After every epoch."""

    def on_end(self, run: "FitResult") -> None:
        """When training is over."""


@dataclass(frozen=True)
class FitResult:
    """What training did."""

    history: tuple[dict[str, float], ...]
    """Metrics of every epoch."""
    best_epoch: int
    """The epoch whose weights the network now has (the last one where nothing was validated)."""
    stopped_early: bool
    seconds: float
    folder: Path | None
    how: str = "eager"
    """How steps ran: ``captured``, ``compiled`` or ``eager``, and why where something stood in the way."""
    capture_seconds: float = 0.0
    """What compiling and recording the step took of the time."""

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the best epoch."""
        return self.history[self.best_epoch - 1]


@dataclass(frozen=True)
class FitConfig:
    """The plain values of a run, on which a resumed one must agree."""

    epochs: int
    batch_size: int
    lr: float
    noise_lr: float
    num_samples: int
    weight_decay: float
    clip_norm: float | None
    accumulate: int
    patience: int | None
    monitor: str
    seed: int
    precision: str

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "num_samples", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not (math.isfinite(self.lr) and self.lr > 0.0):
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if not (math.isfinite(self.noise_lr) and self.noise_lr > 0.0):
            raise ValueError(f"noise_lr must be positive and finite, got {self.noise_lr}")
        if self.weight_decay < 0.0:
            raise ValueError(f"weight_decay must be at least 0, got {self.weight_decay}")
        if self.clip_norm is not None and not self.clip_norm > 0.0:
            raise ValueError(f"clip_norm must be positive, got {self.clip_norm}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience must be at least 1 epoch, got {self.patience}")
        if self.monitor not in ("val_nll", "val_accuracy", "loss", "nll"):
            raise ValueError(f"monitor must be 'val_nll', 'val_accuracy', 'loss' or 'nll', got {self.monitor!r}")
        check_precision(self.precision)


SHORT = {"accuracy": "acc", "divergence": "kl", "val_accuracy": "val_acc"}
"""Names that let a line of metrics, a bar and the time left fit into 80 columns."""


LINES = 20
"""About how many epochs of a run have a line."""


FIRST_SIGN, NEXT_SIGN = 10.0, 30.0
"""Seconds before a first epoch that takes long shows how far it is, and between such lines."""


class Display:
    """Shows nothing."""

    def batch(self, epoch: int, batch: int, loss: float) -> None:
        """After a batch."""

    def epoch(self, metrics: dict[str, float]) -> None:
        """After an epoch."""

    def note(self, text: str) -> None:
        """Something worth a line."""


class ProgressLines(Display):
    """A line after the first epoch, the last, and about twenty between, with the time left: for a file or a pipe.

    While the first epoch takes long, a line after ten seconds and then every half minute says how far it is. What the
    first epoch takes, which may compile, counts for the time left only while it is alone.
    """

    def __init__(self, epochs: int, num_batches: int | None = None) -> None:
        self._epochs, self._since, self._first = epochs, time.perf_counter(), 0
        self._every = math.ceil(epochs / LINES)
        self._num_batches = num_batches
        self._next_sign = self._since + FIRST_SIGN

    def batch(self, epoch: int, batch: int, loss: float) -> None:
        """After a batch."""
        now = time.perf_counter()
        if self._first or now < self._next_sign:
            return
        self._next_sign = now + NEXT_SIGN
        of = "" if self._num_batches is None else f" of {self._num_batches}"
        self.note(
            f"epoch {epoch + 1}/{self._epochs}: {batch}{of} batches in {now - self._since:.0f} s, loss {loss:.4g}"
        )

    def epoch(self, metrics: dict[str, float]) -> None:
        """After an epoch."""
        number, now = int(metrics["epoch"]), time.perf_counter()
        is_first = not self._first
        pace = (now - self._since) / (number - self._first if self._first else 1)
        if not self._first:
            self._first, self._since = number, now
        if not is_first and number % self._every and number != self._epochs:
            return
        left = pace * (self._epochs - number)
        self.note(f"epoch {number}/{self._epochs}  {summary(metrics)}  {left:.0f} s left")

    def note(self, text: str) -> None:
        """Something worth a line."""
        print(text, file=sys.stderr, flush=True)  # noqa: T201


class ProgressBar(Display):
    """A bar over all batches, with the latest metrics."""

    def __init__(self, bar: Any, task: Any, epochs: int, num_batches: int | None) -> None:
        self._bar, self._task, self._epochs, self._num_batches = bar, task, epochs, num_batches
        self._metrics = ""

    def batch(self, epoch: int, batch: int, loss: float) -> None:
        """After a batch."""
        share = batch / self._num_batches if self._num_batches else 0.0
        text = f"{epoch + 1}/{self._epochs} {self._metrics or f'loss {loss:.3g}'}"
        self._bar.update(self._task, completed=epoch + share, description=text)

    def epoch(self, metrics: dict[str, float]) -> None:
        """After an epoch."""
        self._metrics = summary(metrics, SHORT)
        text = f"{int(metrics['epoch'])}/{self._epochs} {self._metrics}"
        self._bar.update(self._task, completed=metrics["epoch"], description=text)

    def note(self, text: str) -> None:
        """Something worth a line."""
        self._bar.console.print(text, markup=False, highlight=False)


def summary(metrics: dict[str, float], names: dict[str, str] | None = None) -> str:
    """Metrics in one line, some of them under shorter names; terms that are nothing are left out."""
    hidden = ("epoch", "step", "seconds", *(["nll"] if names else []))
    shown = {name: value for name, value in metrics.items() if name not in hidden and (value or name != "divergence")}
    digits, gap = (3, " ") if names else (4, "  ")
    return gap.join(f"{(names or {}).get(name, name)} {value:.{digits}g}" for name, value in shown.items())


@contextmanager
def display_for(progress: bool, epochs: int, num_batches: int | None) -> Iterator[Display]:
    """What to show a run with."""
    if not progress:
        yield Display()
        return
    try:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    except ImportError:
        yield ProgressLines(epochs, num_batches)
        return
    if not sys.stderr.isatty():
        yield ProgressLines(epochs, num_batches)
        return
    from rich.console import Console

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield ProgressBar(bar, bar.add_task("starting", total=epochs), epochs, num_batches)


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

    def on_end(self, run: FitResult) -> None:
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
