"""Tables of named columns, ``.csv`` and parquet: which column is the target, and all others as numbers.

The target is the column called target, label or class, or else the last one. A ``.csv`` is text in UTF-8 with commas
between cells, and its first line names the columns. A cell that is missing or no number is an error that names its line
and column: a table with gaps needs a decision, which is not made here.
"""

import csv
import io
import math
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dubio.data.errors import DataError

__all__ = ["Table", "parse_csv", "read_parquet"]

TARGETS = ("target", "label", "class")
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")

Table = tuple[NDArray[np.float64], NDArray[Any]]
"""Inputs `(example, feature)`, and targets: whole numbers, numbers or texts."""


def parse_csv(content: bytes, file: str) -> Table:
    """The inputs and targets in a ``.csv``; ``file`` is what messages call it."""
    names, lines, rows = _cells(content, file)
    target = _target(names, file)
    inputs = np.empty((len(rows), len(names) - 1))
    features = [index for index in range(len(names)) if index != target]
    for row, (line, cells) in enumerate(zip(lines, rows, strict=True)):
        for feature, index in enumerate(features):
            number = _number(cells[index])
            if number is None:
                _refuse_cell(cells[index], "a number", f"line {line}, column {names[index]!r}", file)
            inputs[row, feature] = number
        if cells[target].strip().lower() in MISSING:
            _refuse_cell(cells[target], "a target", f"line {line}, column {names[target]!r}", file)
    return inputs, _typed([cells[target].strip() for cells in rows])


def read_parquet(path: Path) -> Table:
    """The inputs and targets in a parquet file."""
    try:
        from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError("reading parquet needs pyarrow, which is missing: pip install 'dubio[tables]'") from error
    file = str(path)
    with path.open("rb") as opened:
        try:
            table = parquet.read_table(opened)
        except Exception as error:  # pyarrow has a different one for every kind of damage
            raise DataError(f"{file} is not a readable parquet file: {error}") from None
    names = [str(name) for name in table.column_names]
    if not names or table.num_rows == 0:
        raise DataError(f"{file} must have columns and at least one row, got {len(names)} and {table.num_rows}")
    target = _target(names, file)
    inputs = [_values(table.column(index), file, names[index], False) for index in range(len(names)) if index != target]
    return np.stack(inputs, axis=1).astype(np.float64), _values(table.column(target), file, names[target], True)


def _values(column: Any, file: str, name: str, texts: bool) -> NDArray[Any]:
    """A column of pyarrow as numbers, or as texts where these will do."""
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        _refuse_cell("", "a value", f"row {row}, column {name!r}", file)
    kind = str(column.type)
    if re.fullmatch(r"bool|u?int(8|16|32|64)|halffloat|float|double", kind):
        return np.asarray(column.to_numpy())
    if texts and re.fullmatch(r"(large_)?string|string_view|dictionary<values=(large_)?string,.*", kind):
        return np.array(column.to_pylist())
    raise DataError(
        f"{file} must have {'targets' if texts else 'numbers'} in column {name!r}, got {kind}; encode it first"
    )


def _cells(content: bytes, file: str) -> tuple[list[str], list[int], list[list[str]]]:
    """Names of the columns, then the number of each line and its cells."""
    try:
        reader = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
        read = [(reader.line_num, cells) for cells in reader if cells]
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file} must be text in UTF-8, got byte 0x{content[error.start]:02x} at {error.start}"
        ) from None
    except csv.Error as error:
        raise DataError(f"{file} is no proper .csv: line {reader.line_num}: {error}") from None
    if not read:
        raise DataError(f"{file} is empty; its first line must name the columns")
    names = [name.strip() for name in read[0][1]]
    if len(set(names)) < len(names) or "" in names or all(_number(name) is not None for name in names):
        raise DataError(
            f"{file} must begin with a line that names each column differently, got {','.join(names)[:80]!r}"
        )
    if len(read) == 1:
        raise DataError(f"{file} must have at least one row after the names of its columns, got none")
    for line, cells in read:
        if len(cells) != len(names):
            raise DataError(f"{file}, line {line} must have {len(names)} cells, one for each column, got {len(cells)}")
    return names, [line for line, _ in read[1:]], [cells for _, cells in read[1:]]


def _target(names: list[str], file: str) -> int:
    chosen = [index for index, name in enumerate(names) if name.lower() in TARGETS]
    if len(chosen) > 1:
        raise DataError(f"{file} must have one target, got columns {', '.join(names[index] for index in chosen)}")
    if len(names) < 2:
        raise DataError(f"{file} must have inputs beside the target, got the column {names[0]!r} alone")
    return chosen[0] if chosen else len(names) - 1


def _number(text: str) -> float | None:
    """The finite number a text is, if it is one."""
    try:
        number = float(text) if "_" not in text else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _typed(texts: list[str]) -> NDArray[Any]:
    """Whole numbers if all are, else numbers if all are, else texts."""
    if all(WHOLE.fullmatch(text) for text in texts):
        return np.array([int(text) for text in texts], dtype=np.int64)
    numbers = [_number(text) for text in texts]
    return np.array(texts if None in numbers else numbers)


def _refuse_cell(text: str, wanted: str, place: str, file: str) -> NoReturn:
    got = "nothing" if text.strip().lower() in MISSING else repr(text[:40])
    raise DataError(f"{file}, {place} must hold {wanted}, got {got}; fill it in or leave it out")
