"""Named columns of ``.csv`` and parquet files, read in chunks of rows, and the column of targets.

A ``.csv`` is text in UTF-8, and its first line names the columns. Cells are separated by commas, semicolons, tabs or
vertical bars; without ``delimiter`` the separator is detected from the first rows. In a file with semicolons ``1,5`` is
the number 1.5, as spreadsheets write it in many countries. An empty cell and the usual words for one (``NA``, ``nan``,
``null``, ``none``, ``?``) are missing values.

Every column is an array. A ``.csv`` has texts (``object``, None for a missing value); parquet has ``float64`` (NaN for
a missing value), ``datetime64`` or texts.

The target is the column called target, label or class; else y, if there is no x; else the last one. Whole numbers and
texts name classes; numbers with a fraction are for regression. Classes are the distinct values, sorted; labels count
them from 0. If there are too many different whole numbers for classes, ``task`` must say what they are: prices in whole
dollars are not classes. Whole numbers are classes if there are at most 5 different ones; or at most 20, if they count
from 0 or 1 without a gap or there are twice as many rows; or if they count from 0 or 1 without a gap, with at least 50
rows for each (``tests/data/test_targets.py``).
"""

import csv
import io
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubio.checks import did_you_mean
from dubio.codec import open_regular
from dubio.data.files import DataError, damage_as_data_error

Task = Literal["classification", "regression"]
CHUNK_ROWS = 8192
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
DELIMITER_WORDS = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|", "bar": "|"}
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
SAMPLE_ROWS, SAMPLE_CHARACTERS = 20, 2**18
"""How much of a ``.csv`` is read to detect its separator."""
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+(?:[eE][+-]?[0-9]+)?")
DECIMAL_POINT = re.compile(r"[+-]?[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?")
BOTH_MARKS = re.compile(r"[+-]?[0-9]{1,3}(?:(?:\.[0-9]{3})+,[0-9]+|(?:,[0-9]{3})+\.[0-9]+)")
TARGET_NAMES = ("target", "label", "class")
TARGET_RULE = "whole numbers and texts are classes, other numbers are for regression"
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
FEW_CLASSES, MANY_CLASSES, ROWS_PER_CLASS = 5, 20, 50
LARGEST_TARGET = 1e18
"""Magnitude; ``float32``, in which networks are trained and evaluated, holds the squares of these."""
TYPING_ERRORS = 0.05
"""If a smaller share of the cells is not a number, the column is one of numbers with errors, not one of texts."""


@dataclass(frozen=True, eq=False)
class TableChunk:
    """Rows of a table, column by column.

    Args:
        columns: arrays of the same length, by name.
        file: name of the table in messages.
        places: position of each row in the file, for messages.
        unit: unit of ``places``: "line" of a ``.csv``, from 1, or "row", from 0.
    """

    columns: dict[str, NDArray[Any]]
    file: str
    places: NDArray[np.int64]
    unit: str = "row"

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: Any) -> "TableChunk":
        """A selection of the rows, by slice, mask or row numbers."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return TableChunk(columns, self.file, self.places[rows], self.unit)

    def place(self, row: int, name: str) -> str:
        """The position of a cell: ``wine.csv, line 3, column 'price'``."""
        return f"{self.file}, {self.unit} {self.places[row]}, column {name!r}"

    def cell_error(self, row: int, name: str, kind: str, advice: str = "") -> DataError:
        """The error for a cell that does not hold a value of this kind."""
        return DataError(f"{self.place(row, name)} must hold {kind}, got {str(self.columns[name][row])[:40]!r}", advice)


@dataclass(frozen=True)
class Target:
    """The column that a network learns to predict.

    Args:
        name: name of the column.
        task: classification or regression.
        classes: names of the classes in the order of their labels; empty for regression.
    """

    name: str
    task: Task
    classes: tuple[str, ...] = ()


def read_rows(
    path: Path, delimiter: str | None = None, *, skip: Collection[str] = (), chunk_rows: int = CHUNK_ROWS
) -> Iterator[TableChunk]:
    """The rows of a ``.csv`` or ``.parquet`` file, in chunks; every file has at least one row.

    Args:
        path: the file.
        delimiter: the separator of the cells of a ``.csv``; by default it is detected from the first rows.
        skip: columns that are not read; they may have any type, and all their values are missing.
        chunk_rows: number of rows in a chunk.

    Raises:
        DataError: the file is damaged or has no rows, or the lines have different numbers of cells.
    """
    ending = path.suffix.lower()
    if ending == ".csv":
        with open_regular(path, DataError) as opened:
            yield from _read_csv(opened, str(path), _check_delimiter(delimiter), skip, chunk_rows)
    elif ending == ".parquet":
        if delimiter is not None:
            raise ValueError(f"delimiter is for .csv files, got {delimiter!r} for {str(path)!r}; leave it out")
        yield from _read_parquet(path, skip, chunk_rows)
    else:
        raise ValueError(f"a table of named columns must end in .csv or .parquet, got {str(path)!r}")


def joined(chunks: Sequence[TableChunk]) -> TableChunk:
    """The chunks of a file as one chunk."""
    columns = {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in chunks[0].columns}
    return TableChunk(columns, chunks[0].file, np.concatenate([chunk.places for chunk in chunks]), chunks[0].unit)


def cell_text(value: Any) -> str | None:
    """The text of a cell without blanks around it; None for a missing value."""
    text = None if value is None or value != value else str(value).strip()
    return None if text is None or text.lower() in MISSING else text


def finite_number(text: str) -> float | None:
    """The finite number in a text, or None."""
    try:
        number = float(text) if "_" not in text else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def looks_like_data(names: Sequence[str]) -> bool:
    """Whether names of columns are numbers that do not increase, unlike pixels, years and wavelengths."""
    numbers = [number for name in names if (number := finite_number(name)) is not None]
    return len(numbers) > 1 and any(later <= earlier for earlier, later in pairwise(numbers))


def check_task(task: str | None) -> None:
    """Refuse values that are not a task."""
    if task not in (None, "classification", "regression"):
        raise ValueError(f"task must be 'classification', 'regression' or None to go by the targets, got {task!r}")


def choose_target(names: Sequence[str], file: str, target: str | None = None) -> str:
    """The name of the column to predict: the argument, or by the rule of this module."""
    if target is not None:
        if target not in names:
            raise DataError(
                f"{file} has no column {target!r}, it has {', '.join(names)}",
                "set {target} to one of them" + did_you_mean(target, names),
            )
        return target
    by_name = [name for name in names if name.lower() in TARGET_NAMES]
    if len(by_name) > 1:
        raise DataError(f"{file} must have one target, got columns {', '.join(by_name)}", "name it with {target}")
    lower = [name.lower() for name in names]
    if not by_name and lower.count("y") == 1 and "x" not in lower:
        by_name = [names[lower.index("y")]]
    return by_name[0] if by_name else names[-1]


def read_target(table: TableChunk, name: str, task: Task | None = None) -> Target:
    """The task of a column of targets and its classes, from all rows of a table.

    Raises:
        DataError: a cell is empty, the task is not clear, or all rows have the same value.
    """
    check_task(task)
    values = _cells(table, name)
    place = f"{table.file}, column {name!r}"
    texts = _rows_of_texts(values)
    is_mostly_numbers = 0 < len(texts) <= TYPING_ERRORS * len(values)
    if task is None and is_mostly_numbers and len(set(values.tolist())) > MANY_CLASSES:
        advice = "correct it or remove the row, or add {task=classification} if these are classes"
        raise table.cell_error(texts[0], name, "a number as the other rows do", advice)
    chosen = task or _task_of(values, place)
    if chosen == "classification":
        return Target(name, chosen, _labels(values, place)[1])
    if texts:
        advice = "choose another column with {target}, or use {task=classification}"
        raise table.cell_error(texts[0], name, "a number for regression", advice)
    if len(_target_values(values, place).unique()) == 1:
        raise DataError(f"{place} has the same value, {values[0]}, in every row", "choose another column with {target}")
    return Target(name, chosen)


def encode_targets(table: TableChunk, target: Target) -> Tensor:
    """Labels `(row,)`, or values `(row, 1)`, of rows of a table."""
    values = _cells(table, target.name)
    if target.task == "regression":
        if texts := _rows_of_texts(values):
            raise table.cell_error(texts[0], target.name, "a number")
        return _target_values(values, f"{table.file}, column {target.name!r}")
    labels = {name: label for label, name in enumerate(target.classes)}
    cells = [str(cell) for cell in table.columns[target.name].tolist()]
    names = [cell if cell in labels else _class_name(cell) for cell in cells]
    for row, name in enumerate(names):
        if name not in labels:
            raise DataError(
                f"{table.place(row, target.name)} holds a class that training did not have, {cells[row][:40]!r}; the "
                f"classes are {', '.join(target.classes)}"
            )
    return torch.tensor([labels[name] for name in names], dtype=torch.int64)


def parse_targets(values: NDArray[Any], file: str, task: Task | None) -> tuple[Tensor, tuple[str, ...]]:
    """Labels `(example,)` with the names of the classes, or values `(example, target)` without any."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    chosen = task or _task_of(values, file)
    return _labels(values, file) if chosen == "classification" else (_target_values(values, file), ())


def finite_float32(values: NDArray[Any], file: str, what: str) -> NDArray[np.float32]:
    """Numbers as ``float32``; refuses values that are not finite in it."""
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(values, dtype=np.float32)
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        raise DataError(f"{file} must have finite {what}, got {values[tuple(bad[0])]} in example {bad[0][0]}")
    return numbers


def without_zone(value: Any) -> Any:
    """A date or a time without a time zone; a time with a zone is converted to UTC."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value


def _read_csv(
    opened: IO[bytes], file: str, delimiter: str | None, skip: Collection[str], chunk_rows: int
) -> Iterator[TableChunk]:
    with io.TextIOWrapper(opened, encoding="utf-8-sig", newline="") as text:
        try:
            sample = text.read(SAMPLE_CHARACTERS)
            text.seek(0)
            mark = delimiter or _detect(sample)
            reader = csv.reader(text, delimiter=mark, strict=True)
            rows = ((reader.line_num, cells) for cells in reader if cells)
            names = _names(next(rows, None), file, mark)
            num_rows, decimal_marks = 0, dict[tuple[str, str], str]()
            while chunk := list(islice(rows, chunk_rows)):
                for line, cells in chunk:
                    if len(cells) != len(names):
                        separator = DELIMITERS.get(mark, repr(mark))
                        raise DataError(
                            f"{file}, line {line} must have {len(names)} cells, one for each column, got {len(cells)}",
                            f"the cells are separated by {separator}s; if that is wrong, set {{delimiter}}, else "
                            "correct the line",
                        )
                num_rows += len(chunk)
                places = np.array([line for line, _ in chunk], dtype=np.int64)
                columns = {}
                for index, name in enumerate(names):
                    if name in skip:
                        columns[name] = np.full(len(chunk), None, dtype=object)
                        continue
                    texts = [cells[index].strip() for _, cells in chunk]
                    _refuse_nul(texts, places, file, [name] * len(texts))
                    if mark == ";":
                        texts = _with_points(texts, places, name, file, decimal_marks)
                    columns[name] = np.array([cell_text(cell) for cell in texts], dtype=object)
                yield TableChunk(columns, file, places, "line")
        except UnicodeDecodeError as error:
            at = opened.tell() - len(error.object) + error.start
            got = f"got byte 0x{error.object[error.start]:02x} at {at}"
            advice = "save it as UTF-8; a spreadsheet calls that 'CSV UTF-8'"
            raise DataError(f"{file} must be text in UTF-8, {got}", advice) from None
        except csv.Error as error:
            text.seek(0)
            opening = _open_quote(islice(text, reader.line_num), mark)
            what = error if opening is None else "a quote opens here and is not closed"
            raise DataError(f"{file} is not a valid .csv: line {opening or reader.line_num}: {what}") from None
    if num_rows == 0:
        raise DataError(f"{file} must have at least one row after the names of its columns, got none")


def _names(first: tuple[int, list[str]] | None, file: str, mark: str) -> list[str]:
    """The names of the columns, from the first line."""
    if first is None:
        raise DataError(f"{file} is empty; its first line must name the columns")
    names = [name.strip() for name in first[1]]
    _refuse_nul(names, [first[0]] * len(names), file, names)
    if names[0] == "" and len(names) > 1:
        names[0] = "Unnamed: 0"  # the index of a pandas frame, and its name when pandas reads it again
    if len(set(names)) < len(names) or "" in names or all(finite_number(name) is not None for name in names):
        raise DataError(
            f"{file} must begin with a line that names each column differently, got {mark.join(names)[:80]!r}"
        )
    return names


def _refuse_nul(texts: Sequence[str], lines: Sequence[int] | NDArray[np.int64], file: str, names: list[str]) -> None:
    if "\0" not in "".join(texts):
        return
    for text, line, name in zip(texts, lines, names, strict=True):
        if "\0" in text:
            raise DataError(
                f"{file}, line {line}, column {name!r} must hold text, got a NUL byte in {text[:40]!r}",
                "take it out, or save the file as UTF-8 if it is in UTF-16",
            )


def _open_quote(lines: Iterable[str], mark: str) -> int | None:
    """The line of the quote that is still open at the end, or None."""
    # A quote opens only at the start of a cell; inside of an open quote, two quotes are a character.
    opening_quote, closing_quote = re.compile(f'(?:^|{re.escape(mark)})"'), re.compile('""?')
    opening = None
    for number, line in enumerate(lines, start=1):
        place = 0
        while match := (opening_quote if opening is None else closing_quote).search(line, place):
            place = match.end()
            if opening is None:
                opening = number
            elif match[0] == '"':
                opening = None
    return opening


def _check_delimiter(delimiter: str | None) -> str | None:
    if delimiter is None:
        return None
    mark = DELIMITER_WORDS.get(delimiter, delimiter)
    if len(mark) != 1 or mark in '"\r\n ' or mark.isalnum():
        raise DataError(
            f"a delimiter must be one character such as ';', or comma, semicolon, tab or pipe, got {delimiter!r}",
            "leave {delimiter} out to have it detected",
        )
    return mark


def _detect(sample: str) -> str:
    """The separator that splits the first rows into the most cells, preferably the same number in each row."""
    best, best_score = ",", (False, 1)
    for mark in DELIMITERS:
        try:
            rows = list(islice(csv.reader(io.StringIO(sample, newline=""), delimiter=mark), SAMPLE_ROWS))
        except csv.Error:
            continue
        if len(sample) == SAMPLE_CHARACTERS and len(rows) < SAMPLE_ROWS:
            rows.pop()  # the sample ends within it
        widths = [len(cells) for cells in rows if cells] or [1]
        score = (widths[0] > 1 and min(widths) == max(widths), widths[0])
        if score > best_score:
            best, best_score = mark, score
    return best


def _with_points(
    texts: list[str], lines: NDArray[np.int64], name: str, file: str, first: dict[tuple[str, str], str]
) -> list[str]:
    """Cells of a column in which ``1,5`` becomes ``1.5``; refuses a column with both marks.

    ``first`` collects the first number with each mark of each column of a file.
    """
    pointed = []
    for text, line in zip(texts, lines.tolist(), strict=True):
        is_decimal_comma, got = DECIMAL_COMMA.fullmatch(text) is not None, ""
        if is_decimal_comma or DECIMAL_POINT.fullmatch(text):
            mark, other = (",", ".") if is_decimal_comma else (".", ",")
            first.setdefault((name, mark), f"{text} in line {line}")
            if (name, other) in first:
                got = f"{first[name, other]} and {text} in line {line}"
        elif BOTH_MARKS.fullmatch(text):
            got = f"{text} in line {line}"
        if got:
            raise DataError(f"{file} must write the numbers of column {name!r} in one way, 1234.5 or 1234,5, got {got}")
        pointed.append(text.replace(",", ".") if is_decimal_comma else text)
    return pointed


def _read_parquet(path: Path, skip: Collection[str], chunk_rows: int) -> Iterator[TableChunk]:
    try:
        from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError("reading parquet needs pyarrow, which is missing: pip install 'dubio[tables]'") from error
    file, start = str(path), 0
    with open_regular(path, DataError) as opened, damage_as_data_error(path, "a readable parquet file"):
        table = parquet.ParquetFile(opened)
        names, num_rows = [str(name) for name in table.schema_arrow.names], table.metadata.num_rows
        if not names or num_rows == 0:
            raise DataError(f"{file} must have columns and at least one row, got {len(names)} and {num_rows}")
        if len(set(names)) < len(names):
            raise DataError(f"{file} must name each column differently, got {', '.join(names)[:80]!r}")
        for batch in table.iter_batches(chunk_rows):
            columns = {
                name: np.full(batch.num_rows, None, dtype=object)
                if name in skip
                else _values(batch.column(index), file, name)
                for index, name in enumerate(names)
            }
            yield TableChunk(columns, file, np.arange(start, start + batch.num_rows))
            start += batch.num_rows
        if start != num_rows:
            raise DataError(f"{file} is damaged: it says that it has {num_rows} rows, and holds {start}")


def _values(column: Any, file: str, name: str) -> NDArray[Any]:
    """A column of pyarrow as numbers, dates or texts."""
    kind = str(column.type)
    if re.fullmatch(r"bool|u?int(8|16|32|64)|halffloat|float|double|decimal.*", kind):
        if kind == "bool":
            return np.array([None if cell is None else str(cell).lower() for cell in column.to_pylist()], dtype=object)
        if column.null_count == 0 and not kind.startswith("decimal"):
            return np.asarray(column.to_numpy(zero_copy_only=False))
        return np.array([np.nan if cell is None else float(cell) for cell in column.to_pylist()])
    if re.fullmatch(r"timestamp.*|date(32|64).*", kind):
        dates = ["NaT" if cell is None else without_zone(cell) for cell in column.to_pylist()]
        return np.array(dates, dtype="datetime64[us]")
    if re.fullmatch(r"null|(large_)?string|string_view|dictionary<values=(large_)?string,.*", kind):
        return np.array([cell_text(cell) for cell in column.to_pylist()], dtype=object)
    raise DataError(
        f"{file} must have numbers, texts or dates in column {name!r}, got {kind}",
        f"encode it first, or {{drop={name}}}",
    )


def _cells(table: TableChunk, name: str) -> NDArray[Any]:
    """The cells of a column of targets: whole numbers if all of them are, else numbers, else texts."""
    cells = table.columns[name]
    missing = np.array([cell is None for cell in cells]) if cells.dtype.kind == "O" else cells != cells
    if missing.any():
        raise DataError(
            f"{table.place(int(np.flatnonzero(missing)[0]), name)} must hold a target, got nothing",
            "fill it in, or remove the row",
        )
    if cells.dtype.kind == "M":
        raise DataError(f"{table.file}, column {name!r} has dates", "choose another column with {target}")
    if cells.dtype.kind != "O":
        return cells
    texts = [str(cell) for cell in cells]
    if all(WHOLE.fullmatch(text) for text in texts):
        return np.array([int(text) for text in texts], dtype=np.int64)
    numbers = [finite_number(text) for text in texts]
    return np.array(texts, dtype=object) if None in numbers else np.array(numbers)


def _rows_of_texts(values: NDArray[Any]) -> list[int]:
    """The rows of a column of texts that do not hold a number."""
    if values.dtype.kind not in "USO":
        return []
    return [row for row, text in enumerate(values.tolist()) if finite_number(str(text)) is None]


def _task_of(values: NDArray[Any], place: str) -> Task:
    """The task of targets, from their type and the number of distinct values; refuses unclear cases."""
    if values.dtype.kind == "f" or values.ndim != 1:
        distinct = np.unique(values)
        is_binary = values.ndim == 1 and len(distinct) == 2 and (distinct == np.round(distinct)).all()
        if is_binary and len(values) > MANY_CLASSES:
            raise DataError(
                f"{place} has only two different numbers as targets, {distinct[0]:g} and {distinct[1]:g}",
                "add {task=classification}, or {task=regression} if they are values",
            )
        return "regression" if values.dtype.kind == "f" else "classification"
    if values.dtype.kind not in "iu":
        texts = set(values.tolist())
        if len(texts) > MANY_CLASSES and 2 * len(texts) > len(values):  # dates, names and numbers with signs
            raise DataError(
                f"{place} has {len(texts)} different texts as targets in {len(values)} rows, such as "
                f"{_text_of(values[0])[:40]!r}",
                "choose another column with {target}, write numbers as 1234.5, or add {task=classification} if they "
                "are classes",
            )
        return "classification"
    distinct, num_rows = np.unique(values), len(values)
    count = len(distinct)
    counted = distinct[0] in (0, 1) and distinct[-1] - distinct[0] == count - 1
    is_few = count <= FEW_CLASSES or (count <= MANY_CLASSES and (counted or 2 * count <= num_rows))
    if is_few or (counted and ROWS_PER_CLASS * count <= num_rows):
        return "classification"
    raise DataError(
        f"{place} has {count} different whole numbers as targets in {num_rows} rows",
        "add {task=regression}, or {task=classification} if they are classes",
    )


def _labels(values: NDArray[Any], file: str) -> tuple[Tensor, tuple[str, ...]]:
    if values.ndim != 1:
        raise DataError(
            f"{file} must have one label for each example, got targets of shape {values.shape}; {TARGET_RULE}"
        )
    if values.dtype.kind == "f":
        is_whole = np.isfinite(values) & (values == np.round(values))
        if not is_whole.all():
            row = int(np.flatnonzero(~is_whole)[0])
            raise DataError(f"{file} must have whole numbers or texts as classes, got {values[row]} in example {row}")
        values = values.astype(np.int64)
    if values.dtype.kind not in "biuUSO":
        raise DataError(f"{file} must have whole numbers or texts as classes, got {values.dtype}; {TARGET_RULE}")
    names, labels = np.unique(values, return_inverse=True)
    if len(names) == 1:
        raise DataError(
            f"{file} must have two classes or more, got {_text_of(names[0])!r} in all {len(values)} rows",
            "choose another target with {target}, or use {task=regression} for numbers",
        )
    return torch.from_numpy(labels.astype(np.int64)), tuple(_text_of(name) for name in names.tolist())


def _target_values(values: NDArray[Any], file: str) -> Tensor:
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2):
        raise DataError(f"{file} must have numbers to regress on, got {values.dtype} {values.shape}; {TARGET_RULE}")
    numbers = finite_float32(values, file, "targets")
    if numbers.size and np.abs(numbers).max() > LARGEST_TARGET:
        largest = numbers.flat[np.abs(numbers).argmax()]
        raise DataError(
            f"{file} must have targets of at most {LARGEST_TARGET:g} in size, got {largest:g}",
            "scale them, or take logarithms",
        )
    return torch.tensor(numbers.reshape(len(numbers), -1))


def _class_name(cell: str) -> str:
    """The name of the class of a cell: 1.0 and 01 are class 1, and True is true."""
    number = finite_number(cell)
    if number is not None and number == round(number):
        return str(int(cell) if WHOLE.fullmatch(cell) else int(number))
    return cell.lower() if cell.lower() in ("true", "false") else cell


def _text_of(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
