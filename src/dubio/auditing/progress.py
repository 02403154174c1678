"""A bar that shows which check and which attack is on."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Bar", "progress_bar"]


class Bar:
    """Which check is on, and what is being done for it."""

    def __init__(self, show: Callable[[str, int], None]) -> None:
        self._show, self._name, self._done = show, "", 0

    def begin(self, name: str) -> None:
        """A check begins, and the one before is over."""
        self._done += 1 if self._name else 0
        self._name = name
        self.say("")

    def say(self, text: str) -> None:
        """What is being done for it."""
        self._show(f"{self._name}  {text}".strip(), self._done)


@contextmanager
def progress_bar(total: int, wanted: bool) -> Iterator[Bar]:
    """A bar on stderr where that is a terminal and rich is there; it is gone when the block is left."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        yield Bar(lambda text, done: None)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeElapsedColumn())
    disabled = not (wanted and sys.stderr.isatty())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=disabled) as shown:
        task = shown.add_task("starting", total=total)
        yield Bar(lambda text, done: shown.update(task, description=text, completed=done))
