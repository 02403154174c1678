"""Tables as datasets, and new data to predict: rows of tables, arrays and images.

``read_table`` reads the arrays of a ``.npz`` or the columns of a ``.csv`` or parquet file. A ``.npz`` has inputs called
``x`` or ``inputs`` and targets called ``y``, ``targets`` or ``labels``; the suffixes ``_train`` and ``_test`` name the
parts. Without them, and in the other files, a quarter of the rows is the test part, always the same. ``columns.py`` has
the rules for the target column and its task, and ``encoder.py`` those for the inputs of named columns. Bytes of shape
`(example, height, width)`, also with a channel axis of 1 or 3 before or after the two, are images and stay bytes. All
other inputs become ``float32``; the first layer of the network standardises them.

``read_new`` reads new data in chunks of rows, without targets. Tables (``.csv``, ``.parquet``, and ``.jsonl`` with one
object per line) are encoded with the ``TableEncoder`` of the training data; a column of targets is ignored
(``tests/data/test_unlabelled.py``). Images are a file, or a folder that is searched recursively.
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
from dubio.data import columns
from dubio.data.columns import CHUNK_ROWS, TableChunk, Task
from dubio.data.encoder import TableEncoder, fit_encoder, remarks_as_text
from dubio.data.examples import VALIDATION_SHARE, Examples, Splits, scaled, split_examples, split_rows, with_validation
from dubio.data.files import DataError, TableWarning, check_members, check_room, damage_as_data_error
from dubio.data.image_files import decode_image, image_files, read_image_file

INPUTS, TARGETS = ("x", "inputs"), ("y", "targets", "labels")
NAMED_COLUMNS = (".csv", ".parquet")
TABLES = (".npz", *NAMED_COLUMNS)
NEW_DATA_FILES = (*NAMED_COLUMNS, ".jsonl")
CHUNK_IMAGES = 256
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class NewRows:
    """Rows of new data.

    Args:
        inputs: inputs of the network, rows first.
        names: name of each row: its number in the data from 0, or the file of an image.
        remarks: differences from the training data, each with the number of rows.
        total: number of all rows, if it is available before the end.
    """

    inputs: Tensor
    names: Sequence[int | str]
    remarks: Counter[str] = field(default_factory=Counter)
    total: int | None = None


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
        task: "classification" or "regression", if the targets do not show it.
        target: the column to predict; by default the one called target, label or class, else y, else the last.
        drop: columns to leave out.
        delimiter: the separator of the cells of a ``.csv``; by default it is detected from the first rows.
        encoder: an encoder fitted on other data (``Examples.encoder``), which contains target, task and dropped
            columns; by default an encoder is fitted on the training rows of this file.

    Raises:
        DataError: the file is damaged, lacks arrays or columns, or has cells that cannot be read.
    """
    columns.check_task(task)
    ending, file = path.suffix.lower(), str(path)
    if ending == ".npz":
        if target is not None or drop or delimiter is not None:
            raise DataError(f"{file} has arrays and no named columns", "leave out {target}, {drop} and {delimiter}")
        return _splits(_load(path), file, path.stem, validation, task)
    if ending not in TABLES:
        raise ValueError(f"a table must end in {', '.join(TABLES)}, got {file!r}")
    if encoder is not None and (target is not None or task is not None or drop):
        raise ValueError("an encoder has its own target, task and dropped columns; leave these arguments out")
    skipped = drop if encoder is None else encoder.dropped_names
    table = columns.joined(list(columns.read_rows(path, delimiter, skip=skipped)))
    if encoder is not None and encoder.target.name not in table.columns:
        raise DataError(f"{file} must have the target column {encoder.target.name!r}, got {', '.join(table.columns)}")
    used = encoder or _fit(table, path.stem, validation, target, task, drop)
    inputs, targets, remarks = used.encode(table, may_drop=encoder is None)
    if encoder is not None:
        _warn(remarks, len(table), file)
    assert targets is not None
    examples = Examples(inputs, targets, used.target.classes, path.stem, used)
    return split_examples(examples, validation)


def read_unseen_table(path: Path, encoder: TableEncoder) -> Examples:
    """The test part of a ``.csv`` or ``.parquet`` file without its targets, which are not read and all 0.

    The target column may be absent. The test part is the quarter of the rows that ``read_table`` uses for testing.
    """
    skipped = (*encoder.dropped_names, encoder.target.name)
    table = columns.joined(list(columns.read_rows(path, skip=skipped)))
    inputs, _, remarks = encoder.encode(table, with_targets=False)
    _warn(remarks, len(table), str(path))
    is_regression = encoder.target.task == "regression"
    targets = torch.zeros(len(table), 1) if is_regression else torch.zeros(len(table), dtype=torch.int64)
    _, _, test = split_rows(len(table), 0, path.stem)
    return Examples(inputs, targets, encoder.target.classes, path.stem, encoder)[test]


def read_new(
    source: Path,
    *,
    encoder: TableEncoder | None = None,
    shape: tuple[int, ...] | None = None,
    delimiter: str | None = None,
    resize: tuple[int, int] | None = None,
) -> Iterator[NewRows]:
    """The rows of new data, in order, in chunks.

    Args:
        source: a ``.csv``, ``.parquet``, ``.jsonl`` or ``.npz`` file, an image, or a folder of images.
        encoder: the encoder of a table of named columns.
        shape: shape of one input of the network; inputs of another shape are refused.
        delimiter: the separator of the cells of a ``.csv``; by default it is detected from the first rows.
        resize: height and width to which images are resized; by default they are not.

    Raises:
        DataError: the data cannot be read, or do not have the form of the training data.
        FileNotFoundError: the source does not exist.
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


def _warn(remarks: Mapping[str, int], num_rows: int, file: str) -> None:
    for text in remarks_as_text(remarks, num_rows):
        warnings.warn(f"{file}: {text}", TableWarning, stacklevel=2)


def _fit(
    table: TableChunk, name: str, validation: int | float, target: str | None, task: Task | None, drop: Sequence[str]
) -> TableEncoder:
    """The encoder of the training rows."""
    names = list(table.columns)
    if columns.looks_like_data(names) and target is None:
        raise DataError(
            f"{table.file} must begin with a line that names the columns, got what looks like data: "
            f"{', '.join(names)[:80]}",
            "add such a line, or name the column to predict with {target} if these are names",
        )
    chosen = columns.choose_target(names, table.file, target)
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
            f"{table.file} must have inputs besides the target, got the column {names[0][:80]!r} alone",
            "set {delimiter} if its cells are separated by another mark",
        )
    parsed = columns.read_target(table, chosen, task)
    train, _, _ = split_rows(len(table), validation, name)
    return fit_encoder(table[train.numpy()], parsed, drop)


def _splits(arrays: Arrays, file: str, name: str, validation: int | float, task: Task | None) -> Splits:
    parts = [_part(arrays, suffix, file) for suffix in ("", "_train", "_test")]
    given = [part for part in parts if part is not None]
    if not given or (parts[0] is not None and len(given) > 1):
        raise DataError(
            f"{file} must have arrays x and y, or x_train, y_train, x_test and y_test, "
            f"got {', '.join(sorted(arrays)) or 'none of these'}"
        )
    labels, classes = columns.parse_targets(_joined([targets for _, targets in given], file), file, task)
    rows = iter(labels.split([len(targets) for _, targets in given]))
    whole, train, test = (
        None if part is None else Examples(_inputs(part[0], file), next(rows), classes, name) for part in parts
    )
    return split_examples(whole, validation) if whole is not None else with_validation(train, test, validation)


def _part(arrays: Arrays, suffix: str, file: str) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Inputs and targets whose names have a suffix, or None."""
    names = [[name + suffix for name in group if name + suffix in arrays] for group in (INPUTS, TARGETS)]
    if not any(names):
        return None
    if [len(group) for group in names] != [1, 1]:
        raise DataError(
            f"{file} must have one array of inputs, {' or '.join(name + suffix for name in INPUTS)}, and one of "
            f"targets, {' or '.join(name + suffix for name in TARGETS)}, got {', '.join(names[0] + names[1])}"
        )
    inputs, targets = (arrays[group[0]] for group in names)
    if inputs.ndim == 0 or targets.ndim == 0 or len(inputs) != len(targets) or len(inputs) == 0:
        raise DataError(
            f"{file} must have as many rows in {names[0][0]} as in {names[1][0]}, and at least one, "
            f"got shapes {inputs.shape} and {targets.shape}"
        )
    return inputs, targets


def _load(path: Path) -> Arrays:
    """The arrays of inputs and targets; nothing is unpickled."""
    names = [name + suffix for name in INPUTS + TARGETS for suffix in ("", "_train", "_test")]
    kind = "a readable .npz of numbers and texts"
    with open_regular(path, DataError) as opened, damage_as_data_error(path, kind):
        with zipfile.ZipFile(opened) as members:
            check_room(check_members(members.infolist(), path), str(path))
        opened.seek(0)
        with np.load(opened, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files if name in names}
        if foreign := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise DataError(f"{path} must hold arrays as numpy writes them, got other contents in {foreign[0]}.npy")
        for array in arrays.values():
            if array.dtype.kind == "U":
                array.tolist()  # damaged characters raise here, and a SystemError wherever they are used
        return arrays


def _joined(arrays: list[NDArray[Any]], file: str) -> NDArray[Any]:
    kinds = {"text" if array.dtype.kind in "US" else array.dtype.kind for array in arrays}
    if len({array.shape[1:] for array in arrays}) > 1 or ("text" in kinds and len(kinds) > 1):
        raise DataError(f"{file} must have targets of one kind and shape for training and testing")
    return np.concatenate(arrays)


def _inputs(array: NDArray[Any], file: str) -> Tensor:
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        if array.dtype.kind not in "biuf":
            raise DataError(f"{file} must have numbers as inputs, got {array.dtype}")
        numbers = columns.finite_float32(array, file, "inputs")
        return torch.tensor(numbers if numbers.ndim > 1 else numbers[:, None])
    if array.ndim == 3:
        return torch.tensor(array).unsqueeze(1)
    if array.shape[1] in (1, 3):
        return torch.tensor(array)
    if array.shape[3] in (1, 3):
        return torch.tensor(array).permute(0, 3, 1, 2).contiguous()
    raise DataError(f"{file} must have images with 1 or 3 channels, got bytes of shape {array.shape}")


def _read_table(source: Path, encoder: TableEncoder, delimiter: str | None) -> Iterator[NewRows]:
    if source.suffix.lower() == ".jsonl":
        chunks = _read_json_lines(source)
    else:
        chunks = columns.read_rows(source, delimiter, skip=(*encoder.dropped_names, encoder.target.name))
    first = 0
    for chunk in chunks:
        inputs, _, remarks = encoder.encode(chunk, with_targets=False)
        yield NewRows(inputs, range(first, first + len(chunk)), remarks)
        first += len(chunk)


def _read_json_lines(source: Path) -> Iterator[TableChunk]:
    """Rows of one object per line; a missing key is a missing value."""
    with open_regular(source, DataError) as opened:
        lines = ((number, line) for number, line in enumerate(opened, start=1) if line.strip())
        count = 0
        while chunk := list(itertools.islice(lines, CHUNK_ROWS)):
            rows = [_object(line, source, number) for number, line in chunk]
            names = list(dict.fromkeys(name for row in rows for name in row))
            cells = {name: np.array([_cell(row.get(name)) for row in rows], dtype=object) for name in names}
            places = np.array([number for number, _ in chunk], dtype=np.int64)
            yield TableChunk(cells, str(source), places, "line")
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
    """A value as the text that a ``.csv`` has for it."""
    return (value or None) if value is None or isinstance(value, str) else json.dumps(value)


def _read_array(source: Path) -> Iterator[NewRows]:
    """The array ``x`` or ``inputs`` of a ``.npz``; targets are not needed."""
    arrays = _load(source)
    names = [name for name in INPUTS if name in arrays]
    if len(names) != 1 or arrays[names[0]].ndim == 0 or len(arrays[names[0]]) == 0:
        raise DataError(
            f"{source} must have one array of inputs with at least one row, called {' or '.join(INPUTS)}, "
            f"got {', '.join(f'{name} {arrays[name].shape}' for name in sorted(arrays)) or 'none'}"
        )
    inputs = _inputs(arrays[names[0]], str(source))
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
    """An image with the channels of the network's inputs."""
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
    """The channels of the network's inputs, also if they are flattened; without a shape those of the image."""
    if shape is None or len(shape) not in (1, 3):
        return len(image)
    if len(shape) == 3:
        return shape[0]
    channels, rest = divmod(shape[0], image[0].numel())
    return channels if rest == 0 and channels in (1, 3) else len(image)


def _check_shape(rows: NewRows, source: Path, shape: tuple[int, ...] | None) -> None:
    actual = tuple(rows.inputs.shape[1:])
    if shape is None or actual == shape or (len(shape) == 1 and rows.inputs[0].numel() == shape[0]):
        return
    if len(shape) == 3 and isinstance(rows.names[0], str):
        raise DataError(
            f"{source} must have images of {shape[2]}x{shape[1]} pixels, as the network was trained on, got "
            f"{actual[2]}x{actual[1]} in {rows.names[0]}",
            f"resize them first; a run trained with --resize {shape[1]}x{shape[2]} resizes new images itself",
        )
    raise DataError(f"{source} must have inputs of shape {shape}, as the network was trained on, got {actual}")


def _size(image: Tensor) -> str:
    return f"{'grey' if len(image) == 1 else 'RGB'} {image.shape[2]}x{image.shape[1]}"
