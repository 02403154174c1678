"""What ``dubio data`` shows: the datasets, whether they are there, and where they go."""

from pathlib import Path

from rich.console import Console

from dubio import data
from dubio.cli.answers import say
from dubio.cli.terminal import PlainTable

__all__ = ["show_data"]


def show_data(folder: Path | None, download: str | None, quiet: bool = False) -> None:
    """Download a dataset, where one is named, and list all of them."""
    if download is not None:
        data.fetch(download, folder, progress=not quiet)
    rows = data.status(folder)
    table = PlainTable("name", "what", "state", "where")
    for row in rows:
        table.add_row(row.name, row.what, row.state, row.place or "-")
    say(f"in {data.data_folder(folder)}:")
    Console().print(table)
    for row in rows:
        if row.state == "incomplete":
            say(f"{row.name} lacks {', '.join(Path(file).name for file in row.missing)}")
    if not quiet and any(row.state == "missing" for row in rows):
        say("fetch what is missing with: dubio data --download NAME")
