"""How training goes: a bar on a terminal, else lines, about twenty for a run."""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Display", "display_for"]

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


class Lines(Display):
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


class Bar(Display):
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
        yield Lines(epochs, num_batches)
        return
    if not sys.stderr.isatty():
        yield Lines(epochs, num_batches)
        return
    from rich.console import Console

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield Bar(bar, bar.add_task("starting", total=epochs), epochs, num_batches)
