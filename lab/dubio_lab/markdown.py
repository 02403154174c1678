"""Tables in Markdown, and where their numbers come from."""

from collections.abc import Iterable, Sequence

__all__ = ["commit_in_words", "markdown_table", "short_commit"]


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown; bars in its cells are kept from ending them."""
    cells = ([cell.replace("|", r"\|") for cell in row] for row in rows)
    head, *body = (f"| {' | '.join(row)} |" for row in (headings, *cells))
    return "\n".join([head, f"|{'---|' * len(headings)}", *body])


def commit_in_words(commit: str | None) -> str:
    """A commit as sentences have it."""
    return "a commit not recorded" if commit is None else f"commit {short_commit(commit)}"


def short_commit(commit: str) -> str:
    """The beginning of a commit, and whether files were changed since."""
    return f"{commit[:7]}{' with changed files' if commit.endswith('-dirty') else ''}"
