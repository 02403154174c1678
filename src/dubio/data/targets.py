"""What a column of targets means: whole numbers and texts name classes, numbers with a fraction are for regression.

Classes are the values that occur, sorted; labels count them from 0. Where whole numbers are too many to be classes,
``task`` has to say what is meant: a price in whole dollars is no class. Whole numbers are classes where at most 5
different ones occur; or at most 20, if they count from 0 or 1 without a gap or there are twice as many rows; or where
they count from 0 or 1 without a gap, with 50 rows or more for each.

The target of a table of named columns is the one called target, label or class; else y, where there is no x; else the
last.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubio.checks import did_you_mean
from dubio.data.columns import TableChunk, finite_number
from dubio.data.errors import DataError

__all__ = ["Target", "Task", "check_task", "choose_target", "encode_targets", "parse_targets", "read_target"]

Task = Literal["classification", "regression"]
RULE = "whole numbers and texts are classes, other numbers are for regression"
NAMES = ("target", "label", "class")
WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
FEW, SOME, ROWS_EACH = 5, 20, 50
LARGEST = 1e18
"""Of targets in size: ``float32``, in which networks are trained and judged, holds the squares of these."""
TYPING_ERRORS = 0.05
"""A column with fewer cells than this that are no numbers is a column of numbers with errors, not one of texts."""


@dataclass(frozen=True)
class Target:
    """The column that a network learns to predict.

    Args:
        name: what the table calls it.
        task: classification or regression.
        classes: the classes' names in the order of their labels; empty for regression.
    """

    name: str
    task: Task
    classes: tuple[str, ...] = ()


def check_task(task: str | None) -> None:
    """Refuse what is not a task."""
    if task not in (None, "classification", "regression"):
        raise ValueError(f"task must be 'classification', 'regression' or None to go by the targets, got {task!r}")


def choose_target(names: Sequence[str], file: str, target: str | None = None) -> str:
    """The name of the column to predict: the one given, or by the rule of this module."""
    if target is not None:
        if target not in names:
            raise DataError(
                f"{file} has no column {target!r}, it has {', '.join(names)}",
                "set {target} to one of them" + did_you_mean(target, names),
            )
        return target
    by_name = [name for name in names if name.lower() in NAMES]
    if len(by_name) > 1:
        raise DataError(f"{file} must have one target, got columns {', '.join(by_name)}", "name it with {target}")
    lower = [name.lower() for name in names]
    if not by_name and lower.count("y") == 1 and "x" not in lower:
        by_name = [names[lower.index("y")]]
    return by_name[0] if by_name else names[-1]


def read_target(table: TableChunk, name: str, task: Task | None = None) -> Target:
    """What a column of targets is for, and its classes, from all rows of a table.

    Raises:
        DataError: a cell is empty, it is unclear what the numbers are, or all rows are alike.
    """
    check_task(task)
    values = _cells(table, name)
    place = f"{table.file}, column {name!r}"
    if task is None:
        _check_numbers(values, table, name)
    chosen = task or _task_of(values, place)
    if chosen == "classification":
        return Target(name, chosen, _labels(values, place)[1])
    if values.dtype.kind in "USO":
        row = next(row for row, text in enumerate(values.tolist()) if finite_number(str(text)) is None)
        raise DataError(
            f"{table.place(row, name)} must hold a number for regression, got {values[row][:40]!r}",
            "choose another column with {target}, or use {task=classification}",
        )
    if len(_values(values, place).unique()) == 1:
        raise DataError(f"{place} has the same value, {values[0]}, in every row", "choose another column with {target}")
    return Target(name, chosen)


def encode_targets(table: TableChunk, target: Target) -> Tensor:
    """Labels `(row,)`, or values `(row, 1)`, of rows of a table."""
    values = _cells(table, target.name)
    if target.task == "regression":
        if values.dtype.kind in "USO":
            row = next(row for row, text in enumerate(values.tolist()) if finite_number(str(text)) is None)
            raise DataError(f"{table.place(row, target.name)} must hold a number, got {values[row][:40]!r}")
        return _values(values, f"{table.file}, column {target.name!r}")
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
    return _labels(values, file) if chosen == "classification" else (_values(values, file), ())


def _cells(table: TableChunk, name: str) -> NDArray[Any]:
    """The cells of a column of targets: whole numbers if all are, else numbers if all are, else texts."""
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


def _check_numbers(values: NDArray[Any], table: TableChunk, name: str) -> None:
    """Refuse a column of numbers in which a few cells are none: its texts would all be classes."""
    if values.dtype.kind not in "USO":
        return
    texts = [str(value) for value in values.tolist()]
    wrong = [row for row, text in enumerate(texts) if finite_number(text) is None]
    if len(set(texts)) > SOME and len(wrong) <= TYPING_ERRORS * len(texts):
        raise DataError(
            f"{table.place(wrong[0], name)} must hold a number as the other rows do, got {texts[wrong[0]][:40]!r}",
            "correct it or remove the row, or add {task=classification} if these are classes",
        )


def _task_of(values: NDArray[Any], place: str) -> Task:
    """What targets are for, by their kind and by how many there are of each; refuses what may be either."""
    if values.dtype.kind == "f" or values.ndim != 1:
        distinct = np.unique(values)
        if values.ndim == 1 and len(distinct) == 2 and len(values) > SOME and (distinct == np.round(distinct)).all():
            raise DataError(
                f"{place} has only two different numbers as targets, {distinct[0]:g} and {distinct[1]:g}",
                "add {task=classification}, or {task=regression} if they are values",
            )
        return "regression" if values.dtype.kind == "f" else "classification"
    if values.dtype.kind not in "iu":
        _check_repeated(values, place)
        return "classification"
    distinct, num_rows = np.unique(values), len(values)
    count = len(distinct)
    counted = distinct[0] in (0, 1) and distinct[-1] - distinct[0] == count - 1
    if count <= FEW or (count <= SOME and (counted or 2 * count <= num_rows)):
        return "classification"
    if counted and ROWS_EACH * count <= num_rows:
        return "classification"
    raise DataError(
        f"{place} has {count} different whole numbers as targets in {num_rows} rows",
        "add {task=regression}, or {task=classification} if they are classes",
    )


def _check_repeated(values: NDArray[Any], place: str) -> None:
    """Refuse texts of which hardly any comes twice: dates, names and numbers with signs are no classes."""
    distinct = set(values.tolist())
    if len(distinct) > SOME and 2 * len(distinct) > len(values):
        raise DataError(
            f"{place} has {len(distinct)} different texts as targets in {len(values)} rows, such as "
            f"{_name(values[0])[:40]!r}",
            "choose another column with {target}, write numbers as 1234.5, or add {task=classification} if they are "
            "classes",
        )


def _whole(values: NDArray[Any], file: str) -> NDArray[Any]:
    """Values that may name classes; numbers with a point must be whole."""
    if values.dtype.kind == "f":
        whole = np.isfinite(values) & (values == np.round(values))
        if not whole.all():
            row = int(np.flatnonzero(~whole)[0])
            raise DataError(f"{file} must have whole numbers or texts as classes, got {values[row]} in example {row}")
        values = values.astype(np.int64)
    if values.dtype.kind not in "biuUSO":
        raise DataError(f"{file} must have whole numbers or texts as classes, got {values.dtype}; {RULE}")
    return values


def _labels(values: NDArray[Any], file: str) -> tuple[Tensor, tuple[str, ...]]:
    if values.ndim != 1:
        raise DataError(f"{file} must have one label for each example, got targets of shape {values.shape}; {RULE}")
    names, labels = np.unique(_whole(values, file), return_inverse=True)
    if len(names) == 1:
        raise DataError(
            f"{file} must have two classes or more, got {_name(names[0])!r} in all {len(values)} rows",
            "choose another target with {target}, or use {task=regression} for numbers",
        )
    return torch.from_numpy(labels.astype(np.int64)), tuple(_name(name) for name in names.tolist())


def _values(values: NDArray[Any], file: str) -> Tensor:
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2):
        raise DataError(f"{file} must have numbers to regress on, got {values.dtype} {values.shape}; {RULE}")
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(values, dtype=np.float32)
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        raise DataError(f"{file} must have finite targets, got {values[tuple(bad[0])]} in example {bad[0][0]}")
    if numbers.size and np.abs(numbers).max() > LARGEST:
        largest = numbers.flat[np.abs(numbers).argmax()]
        raise DataError(
            f"{file} must have targets of at most {LARGEST:g} in size, got {largest:g}",
            "scale them, or take logarithms",
        )
    return torch.tensor(numbers.reshape(len(numbers), -1))


def _class_name(cell: str) -> str:
    """What the class of a cell is called: 1.0 and 01 are class 1, and True is true."""
    number = finite_number(cell)
    if number is not None and number == round(number):
        return str(int(cell) if WHOLE.fullmatch(cell) else int(number))
    return cell.lower() if cell.lower() in ("true", "false") else cell


def _name(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
