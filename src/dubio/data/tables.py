"""Tables as datasets: arrays in a ``.npz``, or the columns of a ``.csv`` or parquet file.

A ``.npz`` has inputs called ``x`` or ``inputs`` and targets called ``y``, ``targets`` or ``labels``; with ``_train``
and ``_test`` after the names it says which are for testing. Without, and in the other files, a quarter of the rows is
for testing, always the same. ``columns.py`` says which column is the target, ``targets.py`` what targets are for.

Bytes of shape `(example, height, width)`, with a channel axis of 1 or 3 before or after the two or without, are images
and stay bytes. All other inputs become ``float32``, and nothing is standardised.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubio.data.columns import parse_csv, read_parquet
from dubio.data.errors import DataError
from dubio.data.examples import Examples, Splits
from dubio.data.splitting import TENTH, split_three_ways, with_validation
from dubio.data.targets import Task, check_task, parse_targets

__all__ = ["TABLES", "read_table"]

INPUTS, TARGETS = ("x", "inputs"), ("y", "targets", "labels")
TABLES = (".npz", ".csv", ".parquet")
Arrays = dict[str, NDArray[Any]]


def read_table(path: Path, validation: int | float = TENTH, task: Task | None = None) -> Splits:
    """A ``.npz``, ``.csv`` or ``.parquet`` file as a dataset.

    Raises:
        DataError: the file is damaged, lacks arrays or columns, or has values that are missing or no numbers.
    """
    check_task(task)
    ending, file = path.suffix.lower(), str(path)
    if ending == ".npz":
        return _splits(_load(path), file, path.stem, validation, task)
    if ending not in TABLES:
        raise ValueError(f"a table must end in {', '.join(TABLES)}, got {file!r}")
    inputs, targets = parse_csv(path.read_bytes(), file) if ending == ".csv" else read_parquet(path)
    labels, classes = parse_targets(targets, file, task)
    return split_three_ways(Examples(_numbers(inputs, file), labels, classes, path.stem), validation)


def _splits(arrays: Arrays, file: str, name: str, validation: int | float, task: Task | None) -> Splits:
    parts = [_part(arrays, suffix, file) for suffix in ("", "_train", "_test")]
    given = [part for part in parts if part is not None]
    if not given or (parts[0] is not None and len(given) > 1):
        raise DataError(
            f"{file} must have arrays x and y, or x_train, y_train, x_test and y_test, "
            f"got {', '.join(sorted(arrays)) or 'none of these'}"
        )
    labels, classes = parse_targets(_joined([targets for _, targets in given], file), file, task)
    rows = iter(labels.split([len(targets) for _, targets in given]))
    whole, train, test = (
        None if part is None else Examples(_inputs(part[0], file), next(rows), classes, name) for part in parts
    )
    return split_three_ways(whole, validation) if whole is not None else with_validation(train, test, validation)


def _part(arrays: Arrays, suffix: str, file: str) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Inputs and targets whose names end so, or None where there are none."""
    found = [[name + suffix for name in names if name + suffix in arrays] for names in (INPUTS, TARGETS)]
    if not any(found):
        return None
    if [len(names) for names in found] != [1, 1]:
        raise DataError(
            f"{file} must have one array of inputs, {' or '.join(name + suffix for name in INPUTS)}, and one of "
            f"targets, {' or '.join(name + suffix for name in TARGETS)}, got {', '.join(found[0] + found[1])}"
        )
    inputs, targets = (arrays[names[0]] for names in found)
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets) or len(inputs) == 0:
        raise DataError(
            f"{file} must have as many rows in {found[0][0]} as in {found[1][0]}, and at least one, "
            f"got shapes {inputs.shape} and {targets.shape}"
        )
    return inputs, targets


def _load(path: Path) -> Arrays:
    """The arrays with names that are known here; nothing is unpickled."""
    known = [name + suffix for name in INPUTS + TARGETS for suffix in ("", "_train", "_test")]
    with path.open("rb") as opened:
        try:
            with np.load(opened, allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files if name in known}
        except Exception as error:  # numpy has a different one for every kind of damage
            raise DataError(f"{path} is not a readable .npz of numbers and texts: {error}") from None


def _joined(arrays: list[NDArray[Any]], file: str) -> NDArray[Any]:
    kinds = {"text" if array.dtype.kind in "US" else array.dtype.kind for array in arrays}
    if len({array.shape[1:] for array in arrays}) > 1 or ("text" in kinds and len(kinds) > 1):
        raise DataError(f"{file} must have targets of one kind and shape for training and testing")
    return np.concatenate(arrays)


def _inputs(array: NDArray[Any], file: str) -> Tensor:
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        return _numbers(array, file)
    if array.ndim == 3:
        return torch.tensor(array).unsqueeze(1)
    if array.shape[1] in (1, 3):
        return torch.tensor(array)
    if array.shape[3] in (1, 3):
        return torch.tensor(array).permute(0, 3, 1, 2).contiguous()
    raise DataError(f"{file} must have images with 1 or 3 channels, got bytes of shape {array.shape}")


def _numbers(array: NDArray[Any], file: str) -> Tensor:
    if array.dtype.kind not in "biuf":
        raise DataError(f"{file} must have numbers as inputs, got {array.dtype}")
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(array, dtype=np.float32)
    bad = np.argwhere(~np.isfinite(numbers))
    if len(bad):
        raise DataError(f"{file} must have finite inputs, got {array[tuple(bad[0])]} in example {bad[0][0]}")
    return torch.tensor(numbers if numbers.ndim > 1 else numbers[:, None])
