"""Write a report: the page, and the same as JSON beside it."""

from collections.abc import Sequence
from pathlib import Path

from dubio.codec import dump_json, write_atomically
from dubio.reporting.content import make_report
from dubio.reporting.page import render
from dubio.reporting.reading import read_runs
from dubio.reporting.values import Report

__all__ = ["write_report"]


def write_report(folders: Sequence[str | Path], path: str | Path, *, title: str | None = None) -> Report:
    """Make a report from the folders of runs and write it; no network and no data are loaded.

    Args:
        folders: one or more run folders, in the order in which they are to appear.
        path: the page to write, ending in ``.html``; the same as JSON goes beside it, ending in ``.json``.
        title: what stands at the top; by default the names of the runs.
    """
    path = Path(path)
    if path.suffix != ".html":
        raise ValueError(f"path must end in .html, got {str(path)!r}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {path.parent} to write {path.name} to")
    report = make_report(read_runs(folders), title)
    page, data = render(report), dump_json(report.to_json(), indent=1)
    write_atomically(path.with_suffix(".json"), f"{data}\n".encode())
    write_atomically(path, page.encode())
    return report
