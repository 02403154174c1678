"""The numbers of a figure as a table, for those who want them exactly or cannot see the figure."""

from itertools import pairwise

from dubio.reporting.values import Bars, Cell, Figure, Lines, Reliability, Table
from dubio.reporting.wording import number

__all__ = ["tabulate"]


def tabulate(figure: Figure) -> Table:
    """A figure's numbers."""
    caption = f"{figure.title}: the numbers"
    if isinstance(figure, Lines):
        return _of_lines(figure, caption)
    if isinstance(figure, Bars):
        columns = (f"{figure.x_label} from", "to", *(f"{figure.y_label}: {name}" for name in figure.groups))
        groups = zip(*figure.groups.values(), strict=True)
        rows = [(*bounds, *values) for bounds, values in zip(pairwise(figure.edges), groups, strict=True)]
        return Table(caption, columns, tuple(tuple(map(_cell, row)) for row in rows))
    if isinstance(figure, Reliability):
        found = zip(figure.share, figure.confidence, figure.accuracy, strict=True)
        filled = [tuple(map(_cell, row)) for row in found if row[1] is not None]
        return Table(caption, ("share of examples", "mean confidence", "accuracy"), tuple(filled))
    parts = zip(figure.rows, zip(*figure.parts.values(), strict=True), strict=True)
    rows_of_parts = tuple((Cell(name), *map(_cell, values)) for name, values in parts)
    return Table(caption, ("", *figure.parts), rows_of_parts)


def _of_lines(figure: Lines, caption: str) -> Table:
    """One column for each line where all have the same places; else one row for each point."""
    first = figure.series[0].x
    if all(series.x == first and not series.low for series in figure.series):
        columns = (figure.x_label, *(series.name for series in figure.series))
        rows = zip(first, *(series.y for series in figure.series), strict=True)
        return Table(caption, columns, tuple(tuple(map(_cell, row)) for row in rows))
    bounded = any(series.low for series in figure.series)
    found = []
    for series in figure.series:
        none = (None,) * len(series.x)
        for x, y, *ends in zip(series.x, series.y, series.low or none, series.high or none, strict=True):
            found.append((Cell(series.name), _cell(x), _cell(y), *(map(_cell, ends) if bounded else ())))
    ends_named = ("95 % from", "to") if bounded else ()
    return Table(caption, ("", figure.x_label, figure.y_label, *ends_named), tuple(found))


def _cell(value: float | None) -> Cell:
    return Cell(number(value), value)
