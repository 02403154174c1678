"""Tables for the terminal, in which names of files and folders are neither markup nor control sequences."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dubio.codec import printable


class PlainTable(Table):
    """A table of rich that shows headings, cells and title as they are, without reading square brackets as markup."""

    def __init__(self, *headings: str, numbers: Sequence[str] = (), title: str | None = None, **options: Any) -> None:
        super().__init__(title=None if title is None else Text(printable(title), "table.title"), **options)
        for heading in headings:
            self.add_column(heading)
        for heading in numbers:
            self.add_column(heading, justify="right")

    def add_column(self, header: RenderableType = "", footer: RenderableType = "", **options: Any) -> None:
        """Add a column."""
        super().add_column(_plain(header), _plain(footer), **options)

    def add_row(self, *cells: RenderableType | None, **options: Any) -> None:
        """Add a row."""
        super().add_row(*map(_plain, cells), **options)


def print_lines(console: Console, lines: Iterable[str], soft_wrap: bool | None = None) -> None:
    """Print lines as they are, without reading square brackets as markup."""
    for line in lines:
        console.print(printable(line), markup=False, soft_wrap=soft_wrap)


def _plain(cell: Any) -> Any:
    """A cell as text that rich does not parse; a style is kept."""
    if isinstance(cell, str):
        return Text(printable(cell))
    return Text(printable(cell.plain), cell.style, spans=cell.spans) if isinstance(cell, Text) else cell
