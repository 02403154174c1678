"""A report as one HTML page that needs nothing but itself: no script, no address outside, light and dark."""

from importlib.resources import files
from typing import Any

from dubio.codec import printable
from dubio.reporting.charts import draw
from dubio.reporting.numbers import tabulate
from dubio.reporting.values import Bars, Block, Cell, Lines, Reliability, Report, Stacks
from dubio.reporting.wording import decimal, percent

__all__ = ["render"]


def render(report: Report) -> str:
    """The page. Names of runs and classes are text from elsewhere: markup in it is escaped, and control characters."""
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise ImportError("a report needs jinja2, which is missing: pip install jinja2") from None
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=_joined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        draw=lambda figure: Markup(draw(figure)),
        kind_of=_kind,
        interval=_interval,
        tabulate=tabulate,
    )
    source = files("dubio.reporting").joinpath("page.html.jinja").read_text(encoding="utf-8")
    return printable(environment.from_string(source).render(report=report))


def _joined(value: Any) -> Any:
    """Text whose percent signs stay on the line of their numbers."""
    return value.replace(" %", "\u00a0%") if isinstance(value, str) else value


def _kind(block: Block) -> str:
    """How the page shows a block."""
    return "figure" if isinstance(block, Lines | Bars | Reliability | Stacks) else type(block).__name__.lower()


def _interval(cell: Cell) -> str:
    if cell.low is None or cell.high is None:
        return ""
    if "%" in cell.text:
        return f"{percent(cell.low).removesuffix(' %')} to {percent(cell.high)}"
    return f"{decimal(cell.low)} to {decimal(cell.high)}"
