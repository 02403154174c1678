"""Callbacks of a run, its result, and its progress display.

The display is a bar on a terminal, and otherwise about twenty lines for a run.

``TensorBoard`` is a callback that writes curves: ``step/...`` have a point for every optimizer step, ``epoch/...`` one
for every epoch; both are plotted over the number of optimizer steps. Every step is on disk before the next one begins.
A run that is resumed continues its step numbers, and steps that are taken a second time replace those of the first time
(``tests/training/test_tensorboard.py``).
"""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dubio.objectives import Loss
from dubio.training.steps import StepMode

COUNTERS = ("epoch", "step")
SHORT = {"accuracy": "acc", "divergence": "kl", "val_accuracy": "val_acc"}
"""Short names with which a line of metrics, a bar and the remaining time fit into 80 columns."""
LINES = 20
"""About how many epochs of a run print a line."""
FIRST_SIGN, NEXT_SIGN = 10.0, 30.0
"""Seconds until a long first epoch prints its progress, and between such lines."""


class Interrupted(KeyboardInterrupt):
    """Training was interrupted; with a folder, its state is saved there."""


@runtime_checkable
class Callback(Protocol):
    """The protocol of a callback of ``fit``; its methods return nothing."""

    def on_step(self, step: int, loss: Loss) -> None:
        """Called after every optimizer step. The next one may overwrite the tensors: copy those that are kept."""

    def on_epoch(self, metrics: dict[str, float]) -> None:
        """Called after every epoch."""

    def on_end(self, run: "FitResult") -> None:
        """Called at the end of training."""


@dataclass(frozen=True)
class FitResult:
    """The result of training."""

    history: tuple[dict[str, float], ...]
    """Metrics of every epoch."""
    best_epoch: int
    """The epoch whose weights the network has now (the last one without validation)."""
    stopped_early: bool
    seconds: float
    folder: Path | None
    mode: StepMode = StepMode.EAGER
    """How most steps ran."""
    reason: str = ""
    """Why steps did not run in a faster mode, as a sentence; empty where nothing prevented it."""
    capture_seconds: float = 0.0
    """Part of ``seconds`` that compiling and recording the step took."""

    @property
    def metrics(self) -> dict[str, float]:
        """Metrics of the best epoch."""
        return self.history[self.best_epoch - 1]


class Display:
    """A display that shows nothing, the base class of the others."""

    def batch(self, epoch: int, batch: int, loss: float) -> None:
        """Called after a batch."""

    def epoch(self, metrics: dict[str, float]) -> None:
        """Called after an epoch."""

    def note(self, text: str) -> None:
        """Show a message."""


class ProgressLines(Display):
    """Prints a line after the first epoch, the last one and about twenty between, with the remaining time.

    During a long first epoch, a line after ten seconds and then every half minute shows its progress. The first epoch,
    which may compile, counts for the remaining time only until the second one ends.
    """

    def __init__(self, epochs: int, num_batches: int | None = None) -> None:
        self._epochs, self._since, self._first = epochs, time.perf_counter(), 0
        self._every = math.ceil(epochs / LINES)
        self._num_batches = num_batches
        self._next_sign = self._since + FIRST_SIGN

    def batch(self, epoch: int, batch: int, loss: float) -> None:
        """Called after a batch."""
        now = time.perf_counter()
        if self._first or now < self._next_sign:
            return
        self._next_sign = now + NEXT_SIGN
        of = "" if self._num_batches is None else f" of {self._num_batches}"
        done = f"{batch}{of} batches in {now - self._since:.0f} s"
        self.note(f"epoch {epoch + 1}/{self._epochs}: {done}, loss {loss:.4g}")

    def epoch(self, metrics: dict[str, float]) -> None:
        """Called after an epoch."""
        number, now, is_first = int(metrics["epoch"]), time.perf_counter(), not self._first
        pace = (now - self._since) / (1 if is_first else number - self._first)
        if is_first:
            self._first, self._since = number, now
        elif number % self._every and number != self._epochs:
            return
        left = pace * (self._epochs - number)
        self.note(f"epoch {number}/{self._epochs}  {summary(metrics)}  {left:.0f} s left")

    def note(self, text: str) -> None:
        """Show a message."""
        print(text, file=sys.stderr, flush=True)  # noqa: T201


class ProgressBar(Display):
    """A progress bar over all batches, with the latest metrics."""

    def __init__(self, bar: Any, task: Any, epochs: int, num_batches: int | None) -> None:
        self._bar, self._task, self._epochs, self._num_batches = bar, task, epochs, num_batches
        self._metrics = ""

    def batch(self, epoch: int, batch: int, loss: float) -> None:
        """Called after a batch."""
        share = batch / self._num_batches if self._num_batches else 0.0
        text = f"{epoch + 1}/{self._epochs} {self._metrics or f'loss {loss:.3g}'}"
        self._bar.update(self._task, completed=epoch + share, description=text)

    def epoch(self, metrics: dict[str, float]) -> None:
        """Called after an epoch."""
        self._metrics = summary(metrics, SHORT)
        text = f"{int(metrics['epoch'])}/{self._epochs} {self._metrics}"
        self._bar.update(self._task, completed=metrics["epoch"], description=text)

    def note(self, text: str) -> None:
        """Show a message."""
        self._bar.console.print(text, markup=False, highlight=False)


def summary(metrics: dict[str, float], names: dict[str, str] | None = None) -> str:
    """Metrics in one line, optionally with shorter names; a divergence of zero is left out."""
    hidden = ("epoch", "step", "seconds", *(["nll"] if names else []))
    shown = {name: value for name, value in metrics.items() if name not in hidden and (value or name != "divergence")}
    digits, gap = (3, " ") if names else (4, "  ")
    return gap.join(f"{(names or {}).get(name, name)} {value:.{digits}g}" for name, value in shown.items())


@contextmanager
def display_for(progress: bool, epochs: int, num_batches: int | None) -> Iterator[Display]:
    """The display for this terminal."""
    if not progress:
        yield Display()
        return
    if not sys.stderr.isatty() or find_spec("rich") is None:
        yield ProgressLines(epochs, num_batches)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield ProgressBar(bar, bar.add_task("starting", total=epochs), epochs, num_batches)


class TensorBoard:
    """Writes the loss and its parts at every step, and all metrics at every epoch: ``callbacks=[TensorBoard(folder)]``.

    With accumulated batches, a step shows the last of them. View the curves with ``tensorboard --logdir folder``.

    Args:
        folder: folder of the events; a resumed run must use the same folder again, and each other run its own.
    """

    def __init__(self, folder: str | Path) -> None:
        _summary_writer()  # fails before training begins where the package is missing, as mkdir does for the folder
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
        # A run that was interrupted at the end of an epoch starts here; its step has been written before.
        self._write("epoch", values, step, first=step + 1)

    def on_end(self, run: FitResult) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _write(self, group: str, values: dict[str, float], step: int, first: int) -> None:
        """Write values of a step; events in the folder from step ``first`` on are discarded at the first call."""
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
