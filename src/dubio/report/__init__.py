"""Reports on runs: one HTML page that works offline, and the same as JSON, from the files in run folders."""

from dubio.report.elements import Cell, Column, HeadlineRow, HeadlineTable, Report, Section, decimal as decimal
from dubio.report.page import make_report as make_report, write_report
from dubio.report.runs import (
    AttackRow,
    RobustnessRecord,
    RunRecord,
    ScoreRecord,
    distance_of as distance_of,
    read_run,
    read_runs,
)
from dubio.report.summary import failures_of, headlines, unpaired

__all__ = [
    "AttackRow",
    "Cell",
    "Column",
    "HeadlineTable",
    "HeadlineRow",
    "Report",
    "RobustnessRecord",
    "RunRecord",
    "ScoreRecord",
    "Section",
    "failures_of",
    "headlines",
    "read_run",
    "read_runs",
    "unpaired",
    "write_report",
]
