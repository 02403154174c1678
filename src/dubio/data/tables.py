"""Tables as datasets: arrays in a ``.npz``, or the columns of a ``.csv`` or parquet file.

A ``.npz`` has inputs called ``x`` or ``inputs`` and targets called ``y``, ``targets`` or ``labels``; with ``_train``
and ``_test`` after the names it says which are for testing. Without, and in the other files, a quarter of the rows is
for testing, always the same. ``targets.py`` says which column is the target and what targets are for, ``encoding.py``
how columns of numbers, texts, dates and gaps become numbers.

Bytes of shape `(example, height, width)`, with a channel axis of 1 or 3 before or after the two or without, are images
and stay bytes. All other inputs become ``float32``; the network's first layer standardises them.
"""

import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubio.checks import did_you_mean
from dubio.codec import open_regular
from dubio.data.archives import check_members, check_room
from dubio.data.columns import TableChunk, joined, looks_like_data, read_rows
from dubio.data.encoding import TableEncoder, fit_encoder, remarks_as_text
from dubio.data.errors import DataError, TableWarning
from dubio.data.examples import Examples, Splits
from dubio.data.splitting import TENTH, rows_three_ways, split_three_ways, with_validation
from dubio.data.targets import Task, check_task, choose_target, parse_targets, read_target

__all__ = ["NAMED_COLUMNS", "TABLES", "read_inputs", "read_table", "read_unseen_table"]

INPUTS, TARGETS = ("x", "inputs"), ("y", "targets", "labels")
NAMED_COLUMNS = (".csv", ".parquet")
TABLES = (".npz", *NAMED_COLUMNS)
Arrays = dict[str, NDArray[Any]]


def read_table(
    path: Path,
    validation: int | float = TENTH,
    task: Task | None = None,
    *,
    target: str | None = None,
    drop: Sequence[str] = (),
    delimiter: str | None = None,
    encoder: TableEncoder | None = None,
) -> Splits:
    """A ``.npz``, ``.csv`` or ``.parquet`` file as a dataset.

    Args:
        path: the file.
        validation: how many training examples to hold out, or a fraction of them; 0 for none.
        task: what the targets are for, where that is not plain: "classification" or "regression".
        target: the column to predict; by default the one called target, label or class, else y, else the last.
        drop: columns to leave out.
        delimiter: what separates the cells of a ``.csv``; by default what its first rows show.
        encoder: how columns become numbers, from other data (``Examples.encoder``); by default it is fitted on the
            training rows of this file. It knows its target, task and dropped columns.

    Raises:
        DataError: the file is damaged, lacks arrays or columns, or has cells that cannot be read.
    """
    check_task(task)
    ending, file = path.suffix.lower(), str(path)
    if ending == ".npz":
        if target is not None or drop or delimiter is not None:
            raise DataError(f"{file} has arrays and no named columns", "leave out {target}, {drop} and {delimiter}")
        return _splits(_load(path), file, path.stem, validation, task)
    if ending not in TABLES:
        raise ValueError(f"a table must end in {', '.join(TABLES)}, got {file!r}")
    if encoder is not None and (target is not None or task is not None or drop):
        raise ValueError("an encoder has its own target, task and dropped columns; leave these arguments out")
    table = joined(list(read_rows(path, delimiter, skip=drop if encoder is None else encoder.dropped_names)))
    if encoder is not None and encoder.target.name not in table.columns:
        raise DataError(f"{file} must have the target column {encoder.target.name!r}, got {', '.join(table.columns)}")
    used = encoder or _fit(table, path.stem, validation, target, task, drop)
    inputs, targets, remarks = used.encode_own(table) if encoder is None else used.encode(table)
    if encoder is not None:
        _warn(remarks, len(table), file)
    assert targets is not None
    examples = Examples(inputs, targets, used.target.classes, path.stem, used)
    return split_three_ways(examples, validation)


def read_inputs(path: Path) -> Tensor:
    """The inputs in a ``.npz``, whose array is called ``x`` or ``inputs``; targets are not needed.

    Raises:
        DataError: the file is damaged, or has no such array.
    """
    arrays = _load(path)
    names = [name for name in INPUTS if name in arrays]
    if len(names) != 1 or arrays[names[0]].ndim == 0 or len(arrays[names[0]]) == 0:
        raise DataError(
            f"{path} must have one array of inputs with at least one row, called {' or '.join(INPUTS)}, "
            f"got {', '.join(f'{name} {arrays[name].shape}' for name in sorted(arrays)) or 'none'}"
        )
    return _inputs(arrays[names[0]], str(path))


def read_unseen_table(path: Path, encoder: TableEncoder) -> Examples:
    """The rows of a ``.csv`` or ``.parquet`` file as inputs alone: the target column may be absent or hold anything.

    All targets are 0. A quarter of the rows is taken, that which is for testing in ``read_table``.
    """
    skipped = (*encoder.dropped_names, encoder.target.name)
    table = joined(list(read_rows(path, skip=skipped)))
    inputs, _, remarks = encoder.encode(table, with_targets=False)
    _warn(remarks, len(table), str(path))
    is_regression = encoder.target.task == "regression"
    targets = torch.zeros(len(table), 1) if is_regression else torch.zeros(len(table), dtype=torch.int64)
    _, _, test = rows_three_ways(len(table), 0, path.stem)
    return Examples(inputs, targets, encoder.target.classes, path.stem, encoder)[test]


def _warn(remarks: Mapping[str, int], num_rows: int, file: str) -> None:
    for text in remarks_as_text(remarks, num_rows):
        warnings.warn(f"{file}: {text}", TableWarning, stacklevel=2)


def _fit(
    table: TableChunk, name: str, validation: int | float, target: str | None, task: Task | None, drop: Sequence[str]
) -> TableEncoder:
    """The encoder of those rows that are trained with."""
    names = list(table.columns)
    if looks_like_data(names) and target is None:
        raise DataError(
            f"{table.file} must begin with a line that names the columns, got what looks like data: "
            f"{', '.join(names)[:80]}",
            "add such a line, or name the column to predict with {target} if these are names",
        )
    chosen = choose_target(names, table.file, target)
    unknown = [column for column in drop if column not in names]
    if unknown:
        raise DataError(
            f"{table.file} has no column {', '.join(map(repr, unknown))}, it has {', '.join(names)}",
            "set {drop} to columns of the table" + did_you_mean(unknown[0], names),
        )
    if chosen in drop:
        raise DataError(
            f"column {chosen!r} of {table.file} is the target and dropped", "name another one with {target}"
        )
    if len(names) < 2:
        raise DataError(
            f"{table.file} must have inputs beside the target, got the column {names[0][:80]!r} alone",
            "set {delimiter} if its cells are separated by another mark",
        )
    read = read_target(table, chosen, task)
    train, _, _ = rows_three_ways(len(table), validation, name)
    return fit_encoder(table[train.numpy()], read, drop)


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
    with open_regular(path, DataError) as opened:
        try:
            with zipfile.ZipFile(opened) as members:
                check_room(check_members(members.infolist(), path), str(path))
            opened.seek(0)
            with np.load(opened, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files if name in known}
            if foreign := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
                raise DataError(f"{path} must hold arrays as numpy writes them, got other contents in {foreign[0]}.npy")
            for array in arrays.values():
                if array.dtype.kind == "U":
                    array.tolist()  # damaged characters raise here, and a SystemError wherever they are used
            return arrays
        except DataError:
            raise
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
