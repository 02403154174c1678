"""The encoder that turns the columns of a table into the inputs of a network; it is stored with the run.

``fit_encoder`` fits it on the training rows, and ``TableEncoder.encode`` applies it to rows with the same columns, in
any order. It is equal to this ``ColumnTransformer`` of scikit-learn, column by column, but needs neither scikit-learn
nor a pickle (``test_the_encoder_equals_a_column_transformer``):

    numbers       SimpleImputer(strategy="median", add_indicator=True)
    true/false    0 and 1, then as numbers
    dates         days since 1970-01-01, then as numbers; also month and weekday
    texts         OneHotEncoder(max_categories=30, handle_unknown="infrequent_if_exist"); a missing value is a category

A text column in which all values are different identifies the rows, and is dropped. A column with a single value is
dropped too. Numbers far from zero with a small spread, such as times in seconds, are shifted by their median first,
because ``float32`` has seven digits. Nothing else is scaled here: the first layer of the network standardises its
inputs (``dubio.models.standardised``), so a saved network needs nothing else.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubio.codec import RecordError, parse_json, read_value
from dubio.data.columns import TYPING_ERRORS, TableChunk, Target, cell_text, encode_targets, finite_number, without_zone
from dubio.data.files import DataError

Kind = Literal["number", "boolean", "date", "category", "dropped"]
MAX_CATEGORIES = 30
TRUE, FALSE = ("true", "yes", "t", "y"), ("false", "no", "f", "n")
BOOLEANS = {**dict.fromkeys((*TRUE, "1", "1.0"), 1.0), **dict.fromkeys((*FALSE, "0", "0.0"), 0.0)}
DATE_FORMATS = ("iso", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y")
ROW_NUMBERS = re.compile(r"Unnamed: \d+|__index_level_\d+__")
"""Names that pandas gives to the index of a frame in files."""
EPOCH = datetime(1970, 1, 1)
FAR = 1e3
"""Numbers whose median exceeds their spread by this factor are shifted."""
NUMBER_SIGNS = re.compile("[\\s,%$\u20ac\u00a3\u00a5]")
FLOAT32_MAX = float(np.finfo(np.float32).max)
VERSION = 1


class Encoded(NamedTuple):
    """Rows of a table as inputs of a network.

    Args:
        inputs: ``float32``, `(row, feature)`.
        targets: labels `(row,)` or values `(row, 1)`; None if the table has no column of targets.
        remarks: differences from the training data, each with the number of rows; chunks can be added up.
    """

    inputs: Tensor
    targets: Tensor | None
    remarks: Counter[str]


@dataclass(frozen=True)
class TableColumn:
    """The encoding of one column as features.

    Args:
        name: name of the column.
        kind: number, boolean, date, category or dropped.
        fill: the median of numbers, booleans and dates, which replaces missing values.
        has_indicator: whether a feature marks missing values; it does if the training rows have any.
        centre: the number that is subtracted, to keep digits in ``float32``.
        date_format: ``iso``, or a format of ``strptime``.
        part_fills: medians of the month and the weekday of a date.
        categories: texts with a feature each; None is a missing value.
        has_other: whether the last feature is for all other texts.
        reason: the reason why a column is dropped.
    """

    name: str
    kind: Kind
    fill: float = 0.0
    has_indicator: bool = False
    centre: float = 0.0
    date_format: str = "iso"
    part_fills: tuple[float, ...] = ()
    categories: tuple[str | None, ...] = ()
    has_other: bool = False
    reason: str = ""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The name of each feature."""
        if self.kind == "dropped":
            return ()
        if self.kind == "category":
            shown = ["missing" if category is None else category for category in self.categories]
            return tuple(f"{self.name}={category}" for category in [*shown, *["other"] * self.has_other])
        missing = (f"{self.name} is missing",) * self.has_indicator
        parts = (f"{self.name} month", f"{self.name} weekday") if self.kind == "date" else ()
        return (self.name, *missing, *parts)


@dataclass(frozen=True)
class TableEncoder:
    """The encoding of the columns of a table as inputs and targets.

    Args:
        columns: the columns of the inputs, in the order of their features.
        target: the column of the targets.
    """

    columns: tuple[TableColumn, ...]
    target: Target

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The name of each feature, in the order of the inputs."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The columns that a table needs."""
        return tuple(column.name for column in self.columns if column.kind != "dropped")

    @property
    def dropped_names(self) -> tuple[str, ...]:
        """The columns that are dropped; ``read_rows`` may skip them."""
        return tuple(column.name for column in self.columns if column.kind == "dropped")

    def encode(
        self,
        rows: TableChunk | Mapping[str, Sequence[Any] | NDArray[Any]],
        *,
        with_targets: bool = True,
        may_drop: bool = False,
    ) -> Encoded:
        """Inputs, and targets if the rows have them, in the order of the rows.

        Args:
            rows: columns by name, in any order; None, NaN or an empty text is a missing value. Other columns are
                ignored.
            with_targets: whether to read the target column; otherwise it may be absent, empty or hold other classes.
            may_drop: whether error messages advise to drop a column, as for the table that the encoder is fitted on.

        Raises:
            DataError: a column is missing, or a cell does not have the type of its column.
        """
        chunk = rows if isinstance(rows, TableChunk) else _chunk_of(rows)
        missing = [name for name in self.input_names if name not in chunk.columns]
        if missing:
            raise DataError(
                f"{chunk.file} must have the columns {', '.join(self.input_names)}, it lacks {', '.join(missing)}",
                f"it has {', '.join(chunk.columns)[:200]}",
            )
        remarks: Counter[str] = Counter()
        kept = [column for column in self.columns if column.kind != "dropped"]
        parts = [_encode(column, chunk, remarks, may_drop).reshape(len(chunk), -1) for column in kept]
        names = {column.name for column in self.columns} | {self.target.name}
        if extra := [name for name in chunk.columns if name not in names]:
            remarks[f"the columns {', '.join(extra)} are not in the training data and are ignored"] += len(chunk)
        has_targets = with_targets and self.target.name in chunk.columns
        targets = encode_targets(chunk, self.target) if has_targets else None
        return Encoded(torch.from_numpy(np.concatenate(parts, axis=1)), targets, remarks)

    def summary(self) -> str:
        """The target, the inputs and the dropped columns, as lines of text."""
        names = self.input_names
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        task = f"{len(self.target.classes)} classes" if self.target.classes else "regression"
        inputs = f"{len(names)} input{'s' * (len(names) != 1)}"
        lines = [f"target: {self.target.name} ({task}; {inputs}: {shown})"]
        if len(self.feature_names) != len(names):
            lines.append(f"the inputs become {len(self.feature_names)} numbers (texts one-hot, gaps filled and marked)")
        lines += [f"left out: {column.name} ({column.reason})" for column in self.columns if column.kind == "dropped"]
        return "\n".join(lines)

    def to_json(self) -> str:
        """The encoder as text."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "TableEncoder":
        """The encoder from the text of ``to_json``.

        Raises:
            DataError: the text is not an encoder.
        """
        try:
            stored = parse_json(text, "the encoding of a table")
            version = stored.pop("version")
            if version != VERSION:
                raise DataError(f"the encoding of a table must be of version {VERSION}, got {version}")
            encoder = read_value(cls, stored)
        except (KeyError, TypeError, AttributeError, RecordError) as error:
            reason = str(error) if isinstance(error, RecordError) else repr(error)
            raise DataError(f"this is not the encoding of a table: {reason}") from None
        _check(encoder)
        return encoder


def remarks_as_text(remarks: Mapping[str, int], num_rows: int) -> list[str]:
    """One sentence for each remark of ``Encoded``, with the number of rows."""
    return [f"{remark} ({count} of {num_rows} rows)" for remark, count in remarks.items()]


def fit_encoder(train: TableChunk, target: Target, drop: Sequence[str] = ()) -> TableEncoder:
    """Fit an encoder on the training rows of a table.

    Args:
        train: the training rows.
        target: the column of the targets.
        drop: columns to drop.

    Raises:
        DataError: a cell does not have the type of its column, or no input is left.
    """
    columns = tuple(_fit(name, train, name in drop) for name in train.columns if name != target.name)
    if all(column.kind == "dropped" for column in columns):
        reasons = "; ".join(f"{column.name}: {column.reason}" for column in columns) or "there is no other column"
        raise DataError(f"{train.file} must have inputs besides the target {target.name!r}, got none ({reasons})")
    return TableEncoder(columns, target)


def _fit(name: str, train: TableChunk, is_dropped: bool) -> TableColumn:
    """The encoding of a column of the training rows."""
    if is_dropped:
        return TableColumn(name, "dropped", reason="as requested")
    if ROW_NUMBERS.fullmatch(name):
        return TableColumn(name, "dropped", reason="row numbers of pandas")
    column, cells = TableColumn(name, "number"), train.columns[name]
    if cells.dtype.kind == "M":
        column = TableColumn(name, "date")
    elif cells.dtype.kind == "O":
        texts = [text for text in cells if text is not None]
        if _are_numbers(texts, train, name):
            column = TableColumn(name, "number")
        elif {text.lower() for text in texts} <= {*TRUE, *FALSE}:
            column = TableColumn(name, "boolean")
        elif date_format := _date_format(texts, train, name):
            column = TableColumn(name, "date", date_format=date_format)
        else:
            return _fit_category(name, list(cells))
    values = _values(column, train)
    missing = np.isnan(values)
    present = values[~missing]
    if not len(present):
        return TableColumn(name, "dropped", reason="empty in every training row")
    if not missing.any() and present.min() == present.max():
        return TableColumn(name, "dropped", reason="one value only")
    median, spread = float(np.median(present)), float(present.max() - present.min())
    centre = median if column.kind == "number" and abs(median) > FAR * spread else 0.0
    parts = _date_parts(present) if column.kind == "date" else ()
    part_fills = tuple(float(np.median(part)) for part in parts)
    return replace(
        column, fill=median - centre, has_indicator=bool(missing.any()), centre=centre, part_fills=part_fills
    )


def _fit_category(name: str, cells: list[str | None]) -> TableColumn:
    """One feature for each text, or for the most frequent ones; ties are broken as in OneHotEncoder."""
    counts = Counter(cells)
    num_missing = counts.pop(None, 0)
    num_rows = len(cells) - num_missing
    if len(counts) == num_rows and num_rows > 1:
        return TableColumn(name, "dropped", reason="every text is different")
    if len(counts) == 1 and not num_missing:
        return TableColumn(name, "dropped", reason="one value only")
    categories: list[str | None] = [*sorted(text for text in counts if text is not None), *[None] * bool(num_missing)]
    if len(categories) <= MAX_CATEGORIES:
        return TableColumn(name, "category", categories=tuple(categories))
    counts[None] = num_missing
    order = np.argsort([counts[category] for category in categories], kind="stable")
    frequent = sorted(order[-(MAX_CATEGORIES - 1) :].tolist())
    return TableColumn(name, "category", categories=tuple(categories[index] for index in frequent), has_other=True)


def _are_numbers(texts: Sequence[str], train: TableChunk, name: str) -> bool:
    """Whether cells are numbers; refuses a column of numbers with a few other cells."""
    others = [text for text in texts if finite_number(text) is None]
    if not others:
        return True
    if len(others) <= TYPING_ERRORS * len(texts) or all(map(_is_like_a_number, dict.fromkeys(others))):
        row = int(np.flatnonzero(train.columns[name] == others[0])[0])
        advice = f"correct it, leave the cell empty, or leave the column out with {{drop={name}}}"
        raise train.cell_error(row, name, "a number", advice)
    return False


def _is_like_a_number(text: str) -> bool:
    """Whether a text is a number in an unsupported format: ``1,234``, ``1_000``, ``$5``, ``7 %``, ``inf``."""
    try:
        float(NUMBER_SIGNS.sub("", text))
    except ValueError:
        return False
    return True


def _date_format(texts: Sequence[str], train: TableChunk, name: str) -> str:
    """The format of all dates; empty if the texts are not dates."""
    distinct = list(dict.fromkeys(texts))
    fitting = [form for form in DATE_FORMATS if all(_day(text, form) is not None for text in distinct)]
    if len(fitting) > 1:
        raise DataError(
            f"{train.file}, column {name!r} has dates whose day and month cannot be told apart, such as "
            f"{distinct[0][:40]!r}",
            f"write them as 2026-01-31, or leave the column out with {{drop={name}}}",
        )
    return fitting[0] if fitting else ""


def _encode(column: TableColumn, chunk: TableChunk, remarks: Counter[str], may_drop: bool) -> NDArray[np.float32]:
    """The features of a column."""
    if column.kind == "category":
        return _one_hot(column, chunk, remarks)
    values = _values(column, chunk)
    missing = np.isnan(values)
    if missing.any() and not column.has_indicator:
        remark = f"column {column.name!r} is empty, which it never was in training; it is replaced by its median"
        remarks[remark] += int(missing.sum())
    if too_large := np.flatnonzero(np.abs(values) > FLOAT32_MAX).tolist():
        raise DataError(
            f"{chunk.place(too_large[0], column.name)} is too large for float32, got {values[too_large[0]]:g}",
            f"scale the column, take its logarithm, or leave it out with {{drop={column.name}}}"
            if may_drop
            else "correct it, or leave the cell empty",
        )
    features = [np.where(missing, column.fill, values - column.centre)]
    if column.has_indicator:
        features.append(missing)
    if column.kind == "date":
        parts = zip(_date_parts(np.where(missing, 0.0, values)), column.part_fills, strict=True)
        features += [np.where(missing, fill, part) for part, fill in parts]
    return np.stack(features, axis=1).astype(np.float32)


def _one_hot(column: TableColumn, chunk: TableChunk, remarks: Counter[str]) -> NDArray[np.float32]:
    position = {category: index for index, category in enumerate(column.categories)}
    other = len(position) if column.has_other else -1
    texts = _texts(chunk.columns[column.name])
    indices = np.array([position.get(text, other) for text in texts])
    features = np.zeros((len(texts), len(position) + column.has_other), dtype=np.float32)
    rows = np.flatnonzero(indices >= 0)
    features[rows, indices[rows]] = 1.0
    if unseen := len(texts) - len(rows):
        remarks[f"column {column.name!r} has a text that did not occur in training; it is ignored"] += unseen
    return features


def _values(column: TableColumn, chunk: TableChunk) -> NDArray[np.float64]:
    """Cells of numbers, booleans or dates as numbers; a missing value is NaN."""
    cells = chunk.columns[column.name]
    if cells.dtype.kind == "M" and column.kind == "date":
        days = (cells - np.datetime64(EPOCH)) / np.timedelta64(1, "D")
        return np.asarray(days, dtype=np.float64)
    if cells.dtype.kind in "biuf" and column.kind != "date":
        values = cells.astype(np.float64)
        if infinite := np.flatnonzero(np.isinf(values)).tolist():
            raise _cell_error(chunk, infinite[0], column)
        return values
    reads: dict[str, Callable[[str], float | None]] = {
        "number": finite_number,
        "boolean": lambda text: BOOLEANS.get(text.lower()),
        "date": lambda text: _day(text, column.date_format),
    }
    read = reads[column.kind]
    numbers = [np.nan if cell is None else read(cell) for cell in _texts(cells)]
    if None in numbers:
        raise _cell_error(chunk, numbers.index(None), column)
    return np.array(numbers, dtype=np.float64)


def _cell_error(chunk: TableChunk, row: int, column: TableColumn) -> DataError:
    kind = {"number": "a number", "boolean": "true or false", "date": "a date"}[column.kind]
    if column.kind == "date" and column.date_format != "iso":
        kind += f" like {datetime(2026, 1, 31).strftime(column.date_format)}"
    return chunk.cell_error(row, column.name, kind, "correct it, or leave the cell empty")


def _day(text: str, date_format: str) -> float | None:
    """Days since 1970-01-01, with the time of day as a fraction; None if the text is not a date."""
    try:
        day = datetime.fromisoformat(text) if date_format == "iso" else datetime.strptime(text, date_format)
    except ValueError:
        return None
    elapsed: timedelta = without_zone(day) - EPOCH
    return elapsed / timedelta(days=1)


def _date_parts(days: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Month, from 1, and weekday, from 0 for Monday."""
    whole = np.floor(days).astype(np.int64)
    months = whole.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64) % 12 + 1
    return months.astype(np.float64), ((whole + 3) % 7).astype(np.float64)


def _texts(cells: NDArray[Any]) -> list[str | None]:
    """Cells as texts, a missing value as None; a whole number is written without a point."""
    if cells.dtype.kind in "OUS":
        return [cell_text(cell) for cell in cells.tolist()]
    if cells.dtype.kind == "M":
        return [None if np.isnat(cell) else str(cell) for cell in cells]
    return [None if cell != cell else f"{cell:g}" if float(cell).is_integer() else str(cell) for cell in cells.tolist()]


def _chunk_of(columns: Mapping[str, Sequence[Any] | NDArray[Any]]) -> TableChunk:
    """Columns in memory as a chunk of a table."""
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biufM":
            arrays[name] = np.array([cell_text(value) for value in columns[name]], dtype=object)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"columns must all have as many rows, got {lengths}")
    return TableChunk(arrays, "the table", np.arange(next(iter(lengths.values()), 0)))


def _check(encoder: TableEncoder) -> None:
    """Refuse an encoder from a file that cannot have been fitted to a table."""
    if (encoder.target.task == "classification") != bool(encoder.target.classes):
        raise DataError(f"the target of a table must have classes only for classification, got {encoder.target}")
    if not encoder.input_names:
        raise DataError("the encoding of a table must have an input, got none")
    for column in encoder.columns:
        if (
            column.date_format not in DATE_FORMATS
            or len(column.part_fills) != 2 * (column.kind == "date")
            or len(set(column.categories)) < len(column.categories)
            or max(map(abs, (column.fill, column.centre, *column.part_fills))) > FLOAT32_MAX
        ):
            raise DataError(f"this is not the encoding of a column of a table: {column}")
