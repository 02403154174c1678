"""What a column of targets means: whole numbers and texts name classes, numbers with a fraction are for regression.

Classes are the values that occur, sorted; labels count them from 0. Where the rule guesses wrong, such as with ages in
whole years, ``task`` says what is meant.
"""

from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubio.data.errors import DataError

__all__ = ["Task", "check_task", "parse_targets"]

Task = Literal["classification", "regression"]
RULE = "whole numbers and texts are classes, other numbers are for regression"


def check_task(task: str | None) -> None:
    """Refuse what is not a task."""
    if task not in (None, "classification", "regression"):
        raise ValueError(f"task must be 'classification', 'regression' or None to go by the targets, got {task!r}")


def parse_targets(values: NDArray[Any], file: str, task: Task | None) -> tuple[Tensor, tuple[str, ...]]:
    """Labels `(example,)` with the names of the classes, or values `(example, target)` without any."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    wanted = task or ("regression" if values.dtype.kind == "f" else "classification")
    return _labels(values, file) if wanted == "classification" else (_values(values, file), ())


def _labels(values: NDArray[Any], file: str) -> tuple[Tensor, tuple[str, ...]]:
    if values.ndim != 1:
        raise DataError(f"{file} must have one label for each example, got targets of shape {values.shape}; {RULE}")
    if values.dtype.kind == "f":
        whole = np.isfinite(values) & (values == np.round(values))
        if not whole.all():
            row = int(np.flatnonzero(~whole)[0])
            raise DataError(f"{file} must have whole numbers or texts as classes, got {values[row]} in example {row}")
        values = values.astype(np.int64)
    if values.dtype.kind not in "biuUS":
        raise DataError(f"{file} must have whole numbers or texts as classes, got {values.dtype}; {RULE}")
    names, labels = np.unique(values, return_inverse=True)
    return torch.from_numpy(labels.astype(np.int64)), tuple(_name(name) for name in names.tolist())


def _values(values: NDArray[Any], file: str) -> Tensor:
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2):
        raise DataError(f"{file} must have numbers to regress on, got {values.dtype} {values.shape}; {RULE}")
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(values, dtype=np.float32)
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        raise DataError(f"{file} must have finite targets, got {values[tuple(bad[0])]} in example {bad[0][0]}")
    return torch.tensor(numbers.reshape(len(numbers), -1))


def _name(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
