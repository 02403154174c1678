"""New data to predict: rows of a table, arrays or images, a few thousand at a time. No labels are needed or read.

Tables (``.csv``, ``.parquet``, and ``.jsonl`` with one object per line) are encoded as the training data were
(``TableEncoder``); a column of targets is ignored. A ``.npz`` has inputs called ``x`` or
``inputs``. Images are a file, or a folder that is searched with the folders in it.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dubio.codec import open_regular
from dubio.data.columns import CHUNK_ROWS, TableChunk, read_rows
from dubio.data.encoding import TableEncoder
from dubio.data.errors import DataError
from dubio.data.examples import scaled
from dubio.data.image_folder import image_files
from dubio.data.pixels import decode_image, read_image_file
from dubio.data.tables import read_inputs

__all__ = ["NewRows", "read_new"]

CHUNK_IMAGES = 256
TABLES = (".csv", ".parquet", ".jsonl")


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
    if source.is_dir() or (ending not in TABLES and ending != ".npz"):
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
