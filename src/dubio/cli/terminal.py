"""Text for the terminal: names come from files and folders, and none of them is markup or a control sequence here.

Command lines as they were given, but for what is the default anyway: records keep them, so that reports can.
"""

import shlex
from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dubio.codec import printable


class PlainTable(Table):
    """A table of rich whose headings, cells and title are shown as they are; square brackets are no markup."""

    def __init__(self, *headings: str, title: str | None = None, **options: Any) -> None:
        super().__init__(title=None if title is None else Text(printable(title), "table.title"), **options)
        for heading in headings:
            self.add_column(heading)

    def add_column(self, header: RenderableType = "", footer: RenderableType = "", **options: Any) -> None:
        """Add a column."""
        super().add_column(_plain(header), _plain(footer), **options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row."""
        super().add_row(*map(_plain, cells), **options)


def _plain(cell: Any) -> Any:
    """A cell as text that rich does not parse; what has a style already keeps it."""
    if isinstance(cell, str):
        return Text(printable(cell))
    return Text(printable(cell.plain), cell.style, spans=cell.spans) if isinstance(cell, Text) else cell


def command_line(command: str, run: str, options: Mapping[str, tuple[Any, Any]]) -> str:
    """A command on a run, with those options, by name, whose value is not the default beside it."""
    words = ["dubio", command, run]
    for name, (value, default) in options.items():
        if value == default:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(words)
