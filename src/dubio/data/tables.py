"""Tables as datasets: arrays in a ``.npz``, or the columns of a ``.csv`` or parquet file.

A ``.npz`` has inputs called ``x`` or ``inputs`` and targets called ``y``, ``targets`` or ``labels``; with ``_train``
and ``_test`` after the names it says which are for testing. Without, and in the other files, a quarter of the rows is
for testing, always the same. ``targets.py`` says which column is the target and what targets are for, ``encoding.py``
how columns of numbers, texts, dates and gaps become numbers.

Bytes of shape `(example, height, width)`, with a channel axis of 1 or 3 before or after the two or without, are images
and stay bytes. All other inputs become ``float32``; the network's first layer standardises them.

New data to predict: rows of a table, arrays or images, a few thousand at a time. No labels are needed or read.

Tables (``.csv``, ``.parquet``, and ``.jsonl`` with one object per line) are encoded as the training data were
(``TableEncoder``); a column of targets is ignored. A ``.npz`` has inputs called ``x`` or
``inputs``. Images are a file, or a folder that is searched with the folders in it.
"""

import itertools
import json
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dubio.checks import did_you_mean
from dubio.codec import open_regular
from dubio.data.columns import (
    CHUNK_ROWS,
    TableChunk,
    Task,
    check_task,
    choose_target,
    joined,
    looks_like_data,
    parse_targets,
    read_rows,
    read_target,
)
from dubio.data.encoder import TableEncoder, fit_encoder, remarks_as_text
from dubio.data.examples import VALIDATION_SHARE, Examples, Splits, scaled, split_examples, split_rows, with_validation
from dubio.data.files import DataError, TableWarning, check_members, check_room
from dubio.data.image_files import decode_image, image_files, read_image_file

INPUTS, TARGETS = ("x", "inputs"), ("y", "targets", "labels")


NAMED_COLUMNS = (".csv", ".parquet")


TABLES = (".npz", *NAMED_COLUMNS)


Arrays = dict[str, NDArray[Any]]


def read_table(
    path: Path,
    validation: int | float = VALIDATION_SHARE,
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
    return split_examples(examples, validation)


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
    _, _, test = split_rows(len(table), 0, path.stem)
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
    train, _, _ = split_rows(len(table), validation, name)
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
    return split_examples(whole, validation) if whole is not None else with_validation(train, test, validation)


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


CHUNK_IMAGES = 256


NEW_DATA_FILES = (".csv", ".parquet", ".jsonl")


@dataclass(frozen=True, eq=False)
class NewRows:
    """Some rows of new data.

    Args:
        inputs: what the network reads, rows first.
        names: what each row is called: its number in the data from 0, or the file of an image.
        remarks: what was not as in training, each with the number of rows.
        total: how many rows there are in all, where that is known before the end.
    """

    inputs: Tensor
    names: Sequence[int | str]
    remarks: Counter[str] = field(default_factory=Counter)
    total: int | None = None


def read_new(
    source: Path,
    *,
    encoder: TableEncoder | None = None,
    shape: tuple[int, ...] | None = None,
    delimiter: str | None = None,
    resize: tuple[int, int] | None = None,
) -> Iterator[NewRows]:
    """The rows of new data, in their order.

    Args:
        source: a ``.csv``, ``.parquet``, ``.jsonl`` or ``.npz`` file, an image, or a folder of images.
        encoder: how the columns of a table become inputs; needed for a table of named columns.
        shape: of one input, where it is known; what does not fit is refused before the network sees it.
        delimiter: what separates the cells of a ``.csv``; by default what its first rows show.
        resize: the height and width that images get; by default none is resized.

    Raises:
        DataError: the data cannot be read, or are not such as the network was trained on.
        FileNotFoundError: there is nothing of this name.
    """
    if not source.exists():
        raise FileNotFoundError(f"there is no file or folder {source}")
    ending = source.suffix.lower()
    if source.is_dir() or (ending not in NEW_DATA_FILES and ending != ".npz"):
        rows = _read_images(source, shape, resize)
    elif ending == ".npz":
        rows = _read_array(source)
    elif encoder is None:
        raise DataError(
            f"{source} has named columns, and the network was not trained on such a table; give a .npz with an array x"
        )
    else:
        rows = _read_table(source, encoder, delimiter)
    for part in rows:
        _check_shape(part, source, shape)
        yield part


def _read_table(source: Path, encoder: TableEncoder, delimiter: str | None) -> Iterator[NewRows]:
    if source.suffix.lower() == ".jsonl":
        chunks = _read_json_lines(source)
    else:
        chunks = read_rows(source, delimiter, skip=(*encoder.dropped_names, encoder.target.name))
    first = 0
    for chunk in chunks:
        inputs, _, remarks = encoder.encode(chunk, with_targets=False)
        yield NewRows(inputs, range(first, first + len(chunk)), remarks)
        first += len(chunk)


def _read_json_lines(source: Path) -> Iterator[TableChunk]:
    """One object per line; a key that a row lacks is a gap."""
    with open_regular(source, DataError) as opened:
        lines = ((number, line) for number, line in enumerate(opened, start=1) if line.strip())
        count = 0
        while chunk := list(itertools.islice(lines, CHUNK_ROWS)):
            rows = [_object(line, source, number) for number, line in chunk]
            names = list(dict.fromkeys(name for row in rows for name in row))
            columns = {name: np.array([_cell(row.get(name)) for row in rows], dtype=object) for name in names}
            places = np.array([number for number, _ in chunk], dtype=np.int64)
            yield TableChunk(columns, str(source), places, "line")
            count += len(chunk)
        if count == 0:
            raise DataError(f"{source} must have at least one row, got none")


def _object(line: bytes, source: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source}, line {number} must be a JSON object, got {line[:40]!r}: {error}") from None
    if not isinstance(row, dict):
        raise DataError(f"{source}, line {number} must be a JSON object, got {line[:40]!r}")
    return row


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError("each key must occur once")
    return row


def _cell(value: Any) -> str | None:
    """A value as the text that a ``.csv`` would have."""
    if value is None or isinstance(value, str):
        return value or None
    return json.dumps(value)


def _read_array(source: Path) -> Iterator[NewRows]:
    inputs = read_inputs(source)
    for start in range(0, len(inputs), CHUNK_ROWS):
        part = inputs[start : start + CHUNK_ROWS]
        yield NewRows(scaled(part), range(start, start + len(part)), total=len(inputs))


def _read_images(source: Path, shape: tuple[int, ...] | None, resize: tuple[int, int] | None) -> Iterator[NewRows]:
    files = image_files(source) if source.is_dir() else [source]
    if not files:
        raise DataError(f"{source} must hold images, got none")
    for start in range(0, len(files), CHUNK_IMAGES):
        chunk = files[start : start + CHUNK_IMAGES]
        remarks: Counter[str] = Counter()
        images = [_image(file, shape, resize, remarks) for file in chunk]
        odd = next((number for number, image in enumerate(images) if image.shape != images[0].shape), None)
        if odd is not None:
            raise DataError(
                f"{chunk[odd]} must have the size of {chunk[0]}, {_size(images[0])}, got {_size(images[odd])}"
            )
        names = [file.relative_to(source).as_posix() if source.is_dir() else file.name for file in chunk]
        yield NewRows(scaled(torch.stack(images)), names, remarks=remarks, total=len(files))


def _image(file: Path, shape: tuple[int, ...] | None, resize: tuple[int, int] | None, remarks: Counter[str]) -> Tensor:
    """An image with the channels that the network reads."""
    image = torch.from_numpy(decode_image(read_image_file(file), str(file), resize).pixels)
    channels = _channels(image, shape)
    if len(image) == channels:
        return image
    if len(image) == 1:
        remarks["grey images were read as coloured ones"] += 1
        return image.expand(channels, -1, -1)
    remarks["coloured images were read as grey ones"] += 1
    weights = torch.tensor([0.299, 0.587, 0.114])  # ITU-R 601, as Pillow converts
    return (image.float() * weights[:, None, None]).sum(dim=0, keepdim=True).round().to(torch.uint8)


def _channels(image: Tensor, shape: tuple[int, ...] | None) -> int:
    """How many channels the network reads, also where it flattens them; those of the image where that is unknown."""
    if shape is None or len(shape) not in (1, 3):
        return len(image)
    if len(shape) == 3:
        return shape[0]
    channels, rest = divmod(shape[0], image[0].numel())
    return channels if rest == 0 and channels in (1, 3) else len(image)


def _check_shape(rows: NewRows, source: Path, shape: tuple[int, ...] | None) -> None:
    own = tuple(rows.inputs.shape[1:])
    if shape is None or own == shape or (len(shape) == 1 and rows.inputs[0].numel() == shape[0]):
        return
    if len(shape) == 3 and isinstance(rows.names[0], str):
        raise DataError(
            f"{source} must have images of {shape[2]}x{shape[1]} pixels, as the network was trained on, got "
            f"{own[2]}x{own[1]} in {rows.names[0]}",
            f"resize them first; a run trained with --resize {shape[1]}x{shape[2]} resizes new images itself",
        )
    raise DataError(f"{source} must have inputs of shape {shape}, as the network was trained on, got {own}")


def _size(image: Tensor) -> str:
    return f"{'grey' if len(image) == 1 else 'RGB'} {image.shape[2]}x{image.shape[1]}"
