"""Tables in Markdown."""

from collections.abc import Iterable, Sequence

__all__ = ["markdown_table"]


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; bars in its cells are kept from ending them."""
    cells = ([cell.replace("|", r"\|") for cell in row] for row in rows)
    head, *body = (f"| {' | '.join(row)} |" for row in (headings, *cells))
    return "\n".join([head, f"|{'---|' * len(headings)}", *body])
