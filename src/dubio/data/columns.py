"""Named columns of ``.csv`` and parquet files, read a few thousand rows at a time.

A ``.csv`` is text in UTF-8, and its first line names the columns. Cells are separated by commas, semicolons, tabs or
vertical bars; which of them is read off the first rows unless ``delimiter`` says so. In a file with semicolons ``1,5``
is the number 1.5, as spreadsheets write it in many countries. An empty cell and the usual words for one (``NA``,
``nan``, ``null``, ``none``, ``?``) are gaps.

Every column is an array: texts (``object``, None for a gap) from a ``.csv``; from parquet ``float64`` (NaN for a gap),
``datetime64`` or texts.
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
from typing import IO, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from dubio.codec import open_regular
from dubio.data.errors import DataError

__all__ = ["CHUNK_ROWS", "TableChunk", "joined", "looks_like_data", "read_rows"]

CHUNK_ROWS = 8192
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "vertical bar"}
SPELLED = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|", "bar": "|"}
MISSING = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
NOT_CLOSED = "a quote opens here and is not closed"
SAMPLE_ROWS, SAMPLE_CHARACTERS = 20, 2**18
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+(?:[eE][+-]?[0-9]+)?")
DECIMAL_POINT = re.compile(r"[+-]?[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?")
BOTH_MARKS = re.compile(r"[+-]?[0-9]{1,3}(?:(?:\.[0-9]{3})+,[0-9]+|(?:,[0-9]{3})+\.[0-9]+)")


@dataclass(frozen=True, eq=False)
class TableChunk:
    """Some rows of a table, column by column.

    Args:
        columns: arrays of one length, by name.
        file: what messages call the table.
        places: where each row is in the file, for messages.
        unit: what ``places`` count: lines of a ``.csv``, from 1, or rows, from 0.
    """

    columns: dict[str, NDArray[Any]]
    file: str
    places: NDArray[np.int64]
    unit: str = "row"

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, rows: Any) -> "TableChunk":
        """Some of the rows, by slice, mask or row numbers."""
        columns = {name: column[rows] for name, column in self.columns.items()}
        return TableChunk(columns, self.file, self.places[rows], self.unit)

    def place(self, row: int, name: str) -> str:
        """Where a cell is: ``wine.csv, line 3, column 'price'``."""
        return f"{self.file}, {self.unit} {self.places[row]}, column {name!r}"


def read_rows(
    path: Path, delimiter: str | None = None, *, skip: Collection[str] = (), chunk_rows: int = CHUNK_ROWS
) -> Iterator[TableChunk]:
    """The rows of a ``.csv`` or ``.parquet`` file, in chunks; every file has at least one row.

    Args:
        path: the file.
        delimiter: what separates the cells of a ``.csv``; by default what its first rows show.
        skip: columns whose cells are not needed; they may be of any type, and come out as gaps.
        chunk_rows: how many rows are read at a time.

    Raises:
        DataError: the file is damaged or has no rows, or a line has another number of cells than the first.
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
    """Chunks of one file as one."""
    columns = {name: np.concatenate([chunk.columns[name] for chunk in chunks]) for name in chunks[0].columns}
    return TableChunk(columns, chunks[0].file, np.concatenate([chunk.places for chunk in chunks]), chunks[0].unit)


def is_missing(text: str) -> bool:
    """Whether a cell of text is a gap."""
    return text.strip().lower() in MISSING


def finite_number(text: str) -> float | None:
    """The finite number a text is, if it is one."""
    try:
        number = float(text) if "_" not in text else math.nan
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def looks_like_data(names: Sequence[str]) -> bool:
    """Whether several names of columns are numbers that do not rise, as pixels, years and wavelengths do."""
    numbers = [number for name in names if (number := finite_number(name)) is not None]
    return len(numbers) > 1 and any(later <= earlier for earlier, later in pairwise(numbers))


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
            num_rows, numbers = 0, _NumberMarks(file)
            while chunk := list(islice(rows, chunk_rows)):
                for line, cells in chunk:
                    _check_width(len(cells), len(names), line, file, mark)
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
                        texts = numbers.with_points(texts, places, name)
                    columns[name] = np.array([None if is_missing(cell) else cell for cell in texts], dtype=object)
                yield TableChunk(columns, file, places, "line")
        except UnicodeDecodeError as error:
            at = opened.tell() - len(error.object) + error.start
            got = f"got byte 0x{error.object[error.start]:02x} at {at}"
            advice = "save it as UTF-8; a spreadsheet calls that 'CSV UTF-8'"
            raise DataError(f"{file} must be text in UTF-8, {got}", advice) from None
        except csv.Error as error:
            text.seek(0)
            opening = _open_quote(islice(text, reader.line_num), mark)
            told = f"line {reader.line_num}: {error}" if opening is None else f"line {opening}: {NOT_CLOSED}"
            raise DataError(f"{file} is no proper .csv: {told}") from None
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
    """The line in which the quote opens that is still open at the end; None where none is."""
    opening = None
    for number, line in enumerate(lines, start=1):
        place = 0
        while place >= 0:
            if opening is not None:
                place = line.find('"', place)
                if place >= 0 and line[place + 1 : place + 2] != '"':  # two of them are one that is meant
                    opening = None
                place = place if place < 0 else place + (1 if opening is None else 2)
                continue
            # A quote opens where a cell begins; in the midst of one it is a character.
            place = 0 if place == 0 and line.startswith('"') else line.find(f'{mark}"', place)
            if place >= 0:
                opening, place = number, line.index('"', place) + 1
    return opening


def _check_width(num_cells: int, num_columns: int, line: int, file: str, mark: str) -> None:
    if num_cells != num_columns:
        raise DataError(
            f"{file}, line {line} must have {num_columns} cells, one for each column, got {num_cells}",
            f"the cells are separated by {_name_of(mark)}s; if that is wrong, set {{delimiter}}, else mend the line",
        )


def _check_delimiter(delimiter: str | None) -> str | None:
    if delimiter is None:
        return None
    mark = SPELLED.get(delimiter, delimiter)
    if len(mark) != 1 or mark in '"\r\n ' or mark.isalnum():
        raise DataError(
            f"a delimiter must be one character such as ';', or comma, semicolon, tab or pipe, got {delimiter!r}",
            "leave {delimiter} out to have it detected",
        )
    return mark


def _detect(sample: str) -> str:
    """What separates the cells: the mark that cuts the first rows into the most cells, as many in each of them."""
    best, best_score = ",", (False, 1)
    for mark in DELIMITERS:
        try:
            rows = list(islice(csv.reader(io.StringIO(sample, newline=""), delimiter=mark), SAMPLE_ROWS))
        except csv.Error:
            continue
        if len(sample) == SAMPLE_CHARACTERS and len(rows) < SAMPLE_ROWS:
            rows.pop()  # it is cut off
        widths = [len(cells) for cells in rows if cells] or [1]
        score = (widths[0] > 1 and min(widths) == max(widths), widths[0])
        if score > best_score:
            best, best_score = mark, score
    return best


def _name_of(mark: str) -> str:
    return DELIMITERS.get(mark, repr(mark))


class _NumberMarks:
    """Turns decimal commas into points, and refuses a column that has both."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._first: dict[tuple[str, str], str] = {}

    def with_points(self, texts: list[str], lines: NDArray[np.int64], name: str) -> list[str]:
        """Cells of a column in which ``1,5`` becomes ``1.5``."""
        pointed = []
        for text, line in zip(texts, lines.tolist(), strict=True):
            comma = DECIMAL_COMMA.fullmatch(text)
            if comma or DECIMAL_POINT.fullmatch(text):
                mark, other = (",", ".") if comma else (".", ",")
                self._first.setdefault((name, mark), f"{text} in line {line}")
                if (name, other) in self._first:
                    self._refuse(name, f"{self._first[name, other]} and {text} in line {line}")
            elif BOTH_MARKS.fullmatch(text):
                self._refuse(name, f"{text} in line {line}")
            pointed.append(text.replace(",", ".") if comma else text)
        return pointed

    def _refuse(self, name: str, got: str) -> NoReturn:
        raise DataError(
            f"{self._file} must write the numbers of column {name!r} in one way, 1234.5 or 1234,5, got {got}"
        )


def _read_parquet(path: Path, skip: Collection[str], chunk_rows: int) -> Iterator[TableChunk]:
    try:
        from pyarrow import parquet  # type: ignore[import-untyped, unused-ignore]
    except ImportError as error:
        raise ImportError("reading parquet needs pyarrow, which is missing: pip install 'dubio[tables]'") from error
    file, start = str(path), 0
    with open_regular(path, DataError) as opened:
        try:
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
        except DataError:
            raise
        except Exception as error:  # pyarrow has a different one for every kind of damage
            raise DataError(f"{file} is not a readable parquet file: {error}") from None


def _values(column: Any, file: str, name: str) -> NDArray[Any]:
    """A column of pyarrow as numbers, dates or texts."""
    kind = str(column.type)
    if re.fullmatch(r"bool|null|u?int(8|16|32|64)|halffloat|float|double|decimal.*", kind):
        if kind == "bool":
            return np.array([None if cell is None else str(cell).lower() for cell in column.to_pylist()], dtype=object)
        if kind == "null":
            return np.full(len(column), None, dtype=object)
        if column.null_count == 0 and not kind.startswith("decimal"):
            return np.asarray(column.to_numpy(zero_copy_only=False))
        return np.array([np.nan if cell is None else float(cell) for cell in column.to_pylist()])
    if re.fullmatch(r"timestamp.*|date(32|64).*", kind):
        return np.array(
            ["NaT" if cell is None else _without_zone(cell) for cell in column.to_pylist()], dtype="datetime64[us]"
        )
    if re.fullmatch(r"(large_)?string|string_view|dictionary<values=(large_)?string,.*", kind):
        cells = column.to_pylist()
        return np.array([None if cell is None or is_missing(cell) else cell.strip() for cell in cells], dtype=object)
    raise DataError(
        f"{file} must have numbers, texts or dates in column {name!r}, got {kind}",
        f"encode it first, or {{drop={name}}}",
    )


def _without_zone(value: Any) -> Any:
    """A date or a time as numpy takes it: times with a zone in UTC."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).replace(tzinfo=None)
    return value
