"""A bar for attacks that take long: shown after some seconds, on a terminal only."""

import sys
import time
from typing import Any

__all__ = ["Ticker"]

PATIENCE = 2.0


class Ticker:
    """Counts steps, and shows them once the attack has taken longer than ``PATIENCE`` seconds, until it is over."""

    def __init__(self, total: int, name: str, wanted: bool = True) -> None:
        self._total, self._name, self._done = total, name, 0
        self._wanted = wanted and sys.stderr.isatty()
        self._began = time.perf_counter()
        self._bar: Any = None

    def tick(self) -> None:
        """One step is over."""
        self._done += 1
        if not self._wanted:
            return
        if self._bar is None and time.perf_counter() - self._began > PATIENCE:
            self._open()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, total=self._total)

    def expect(self, more: int) -> None:
        """There will be more steps than thought."""
        self._total += more

    def __enter__(self) -> "Ticker":
        return self

    def __exit__(self, *failure: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _open(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
        except ImportError:
            self._wanted = False
            return
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._bar.start()
        self._task = self._bar.add_task(self._name, total=self._total)
