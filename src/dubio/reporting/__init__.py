"""Reports on runs: one HTML page that works offline, and the same as JSON, from the files in run folders."""

from dubio.reporting.content import make_report as make_report
from dubio.reporting.headline import headlines
from dubio.reporting.reading import RunRecord, read_run, read_runs
from dubio.reporting.summarising import failures_of, unpaired
from dubio.reporting.values import Cell, Column, Headline, HeadlineRow, Report, Section
from dubio.reporting.wording import decimal as decimal
from dubio.reporting.writing import write_report

__all__ = [
    "Cell",
    "Column",
    "Headline",
    "HeadlineRow",
    "Report",
    "RunRecord",
    "Section",
    "failures_of",
    "headlines",
    "read_run",
    "read_runs",
    "unpaired",
    "write_report",
]
