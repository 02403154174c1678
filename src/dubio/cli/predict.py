"""What ``dubio predict`` needs: which examples, whether they fit, and tables of predictions on screen and in files."""

import csv
import io
import json
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

from dubio.cli.runs import FILE, TrainConfig, folder_of, parse_resize, read_encoder, read_order, table_options
from dubio.cli.terminal import PlainTable
from dubio.codec import unfinished_file
from dubio.data import (
    TABLES,
    Examples,
    NewRows,
    TableEncoder,
    TableWarning,
    find_name,
    load_test,
    read_new,
    remarks_as_text,
)
from dubio.evaluation import figure
from dubio.models import sizes_of
from dubio.prediction import ClassificationPredictive, Predictive, RegressionPredictive, predict_batches

OUTPUTS = (".csv", ".jsonl", ".parquet", ".npz")
SHOWN = 10
"""Rows of new data that are shown where no file is written."""
SHOWN_NUMBERS = 7
"""Columns of a network that predicts several numbers that are shown; more do not fit."""
Columns = dict[str, Sequence[Any]]


def test_examples(named: str, runs: Path, data: str | None, data_dir: Path | None) -> Examples:
    """The test part of the data named, or else of those that a run was trained on."""
    order, encoder = order_of(named, runs), read_encoder(folder_of(named, runs))
    if data is not None:  # another table, or folder of images, is read as the run's own was
        own_task = None if encoder is not None or Path(data).suffix.lower() not in TABLES else order.task
        is_folder = find_name(data) is None and Path(data).expanduser().is_dir()
        resize = parse_resize(order.resize) if is_folder else None
        return load_test(data, folder=data_dir or order.data_dir, task=own_task, encoder=encoder, resize=resize)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # these are the run's own data
        return load_test(order.data, folder=data_dir or order.data_dir, **table_options(order, encoder))


def order_of(named: str, runs: Path) -> TrainConfig:
    """What a run was trained with; the defaults for a ``.safetensors`` file, and for a run of ``dubio.fit``."""
    file = folder_of(named, runs) / FILE
    return read_order(file.parent) if Path(named).suffix != ".safetensors" and file.is_file() else TrainConfig()


def check_fits(model: nn.Module, examples: Examples) -> None:
    """Refuse examples that a network cannot read."""
    sizes = sizes_of(model)
    if sizes is None or sizes.inputs is None:
        return
    numel = examples.inputs[0].numel()
    if sizes.inputs != examples.shape and sizes.inputs != (numel,):
        raise ValueError(
            f"this network reads inputs of shape {sizes.inputs}, and {examples.name} has {examples.shape}; "
            "name its data with --data"
        )


def parse_index(text: str, count: int) -> list[int]:
    """Row numbers from ``3``, ``0..9``, ``40..`` or ``1,5,7``."""
    try:
        rows: list[int] = []
        for part in text.split(","):
            first, dots, last = part.partition("..")
            begin = int(first)
            end = begin if not dots else int(last) if last else count - 1
            rows += range(begin, end + 1)
    except ValueError:
        raise ValueError(f"--index must be like 3, 0..9, 40.. or 1,5,7, got {text!r}") from None
    if not rows or min(rows) < 0 or max(rows) >= count:
        raise ValueError(f"--index must name examples from 0 to {count - 1}, got {text!r}")
    return rows


def predict_new(
    model: nn.Module,
    source: Path,
    *,
    out: Path | None = None,
    encoder: TableEncoder | None = None,
    classes: Sequence[str] = (),
    shape: tuple[int, ...] = (),
    num_samples: int = 100,
    level: float = 0.95,
    precision: str = "fp32",
    seed: int = 0,
    delimiter: str | None = None,
    resize: tuple[int, int] | None = None,
    quiet: bool = False,
) -> None:
    """Predict data without labels, a few thousand rows at a time, into a file or onto the screen.

    Args:
        model: the network.
        source: a table, an ``.npz``, an image, or a folder of images.
        out: the file to write, in the format of its ending; by default the first rows are shown.
        encoder: how the columns of a table become inputs.
        classes: names of the classes, in the order of their labels.
        shape: of one input in training, where it is known; a network that flattens images does not know it.
        num_samples: how many draws.
        level: probability that an interval of a numeric target holds.
        precision: what the network computes in.
        seed: which draws.
        delimiter: what separates the cells of a ``.csv``.
        resize: the height and width that images get.
        quiet: show no progress and no remarks.
    """
    if out is not None and out.suffix.lower() not in OUTPUTS:
        raise ValueError(f"--out must end in {', '.join(OUTPUTS)}, got {str(out)!r}")
    if out is not None and out.exists() and out.resolve() == source.resolve():
        raise ValueError(f"--out must not be the file that is read, got {str(out)!r}")
    if not 0.0 < level < 1.0:
        raise ValueError(f"--level must be between 0 and 1, got {level}")
    if encoder is not None:
        classes = encoder.target.classes
    sizes = sizes_of(model)
    remarks: Counter[str] = Counter()
    count = 0
    with _progress(quiet or out is None) as advance, _writer(out, quiet) as write:
        chunks: list[NewRows] = []

        def batches() -> Iterator[Tensor]:
            own = None if sizes is None else sizes.inputs
            for chunk in read_new(source, encoder=encoder, shape=shape or own, delimiter=delimiter, resize=resize):
                chunks.append(chunk)
                yield chunk.inputs if own is None or len(own) > 1 else chunk.inputs.flatten(1)

        for pred in predict_batches(model, batches(), num_samples, precision=precision, seed=seed):  # type: ignore[arg-type]
            chunk = chunks.pop()
            write(columns_of(pred, chunk.names, classes, level))
            remarks += chunk.remarks
            count += len(chunk.names)
            advance(count, chunk.total)
            if out is None:
                break
    if quiet:
        return
    for remark in remarks_as_text(remarks, count):
        typer.echo(f"{source}: {remark}", err=True)
    if out is not None:
        typer.echo(f"{out}: predictions of {count} rows")


def columns_of(
    pred: Predictive, names: Sequence[int | str], classes: Sequence[str] = (), level: float = 0.95
) -> Columns:
    """Predictions as named columns, the same in every format.

    For classes: label, confidence, the probability of each class, entropy and its two parts, and what was decided
    (accepted, set). For numbers: mean, standard deviation and its two parts, and the central interval.
    """
    columns: Columns = {"file" if names and isinstance(names[0], str) else "row": list(names)}
    if isinstance(pred, ClassificationPredictive):
        return columns | _columns_of_classes(pred, classes)
    assert isinstance(pred, RegressionPredictive)
    low, high = pred.interval(level)
    numbers = {
        "mean": pred.mean,
        "std": pred.std,
        "aleatoric_std": pred.aleatoric_std,
        "epistemic_std": pred.epistemic_std,
        f"low_{level:g}": low,
        f"high_{level:g}": high,
    }
    num_outputs = pred.mean[0].numel()
    for output in range(num_outputs):
        ending = f"_{output}" if num_outputs > 1 else ""
        for name, values in numbers.items():
            columns[name + ending] = values.reshape(len(values), -1)[:, output].tolist()
    return columns


def _columns_of_classes(pred: ClassificationPredictive, classes: Sequence[str]) -> Columns:
    if pred.log_probs.dim() == 3 and pred.log_probs.shape[-1] == 2:  # a Bernoulli: yes or no for each output
        yes = pred.probs[..., 1]
        if yes.shape[1] > 1:
            return {
                **{f"prob_{_name(output, classes)}": yes[:, output].tolist() for output in range(yes.shape[1])},
                **{
                    f"entropy_{_name(output, classes)}": pred.entropy[:, output].tolist()
                    for output in range(yes.shape[1])
                },
            }
    pred = pred.in_rows()
    num_classes = pred.log_probs.shape[-1]
    columns: Columns = {
        "label": [_name(number, classes) for number in pred.label.tolist()],
        "confidence": pred.confidence.tolist(),
        **{f"prob_{_name(number, classes)}": pred.probs[:, number].tolist() for number in range(num_classes)},
        "entropy": pred.entropy.tolist(),
        "aleatoric": pred.expected_entropy.tolist(),
        "epistemic": pred.mutual_information.tolist(),
    }
    if pred.threshold is not None:
        columns["accepted"] = pred.accepted.tolist()
    if pred.prediction_sets is not None:
        columns["set"] = [
            [_name(number, classes) for number in row.nonzero().flatten().tolist()] for row in pred.sets.cpu()
        ]
    return columns


@contextmanager
def _progress(hidden: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A count of rows on a terminal; nothing where the output is a file."""
    console = Console(stderr=True)
    if hidden or not console.is_terminal:
        yield lambda count, total: None
        return
    shown = (SpinnerColumn(), TextColumn("predicting"), MofNCompleteColumn(), TextColumn("rows"), TimeElapsedColumn())
    with Progress(*shown, console=console, transient=True) as progress:
        task = progress.add_task("predicting", total=None)
        yield lambda count, total: progress.update(task, completed=count, total=total)


@contextmanager
def _writer(out: Path | None, quiet: bool) -> Iterator[Callable[[Columns], None]]:
    """Takes columns of some rows after the other; a file is there as a whole or not at all."""
    if out is None:
        yield partial(_show, quiet=quiet)
        return
    make = {".csv": _write_csv, ".jsonl": _write_json_lines, ".parquet": _write_parquet, ".npz": _write_npz}
    out.parent.mkdir(parents=True, exist_ok=True)
    with unfinished_file(out) as file:
        with make[out.suffix.lower()](file) as write:
            yield write
        file.flush()
        os.fsync(file.fileno())
        os.replace(file.name, out)


@contextmanager
def _write_csv(file: IO[bytes]) -> Iterator[Callable[[Columns], None]]:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    rows = csv.writer(text)
    begun = False

    def write(columns: Columns) -> None:
        nonlocal begun
        if not begun:
            rows.writerow(columns)
            begun = True
        cells = [["|".join(cell) if isinstance(cell, list) else cell for cell in column] for column in columns.values()]
        rows.writerows(zip(*cells, strict=True))

    yield write
    text.flush()
    text.detach()


@contextmanager
def _write_json_lines(file: IO[bytes]) -> Iterator[Callable[[Columns], None]]:
    def write(columns: Columns) -> None:
        for row in zip(*columns.values(), strict=True):
            file.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False).encode() + b"\n")

    yield write


@contextmanager
def _write_parquet(file: IO[bytes]) -> Iterator[Callable[[Columns], None]]:
    try:
        import pyarrow  # type: ignore[import-untyped, unused-ignore]
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("writing parquet needs pyarrow, which is missing: pip install 'dubio[tables]'") from error
    writers: list[Any] = []

    def write(columns: Columns) -> None:
        table = pyarrow.table(columns)
        if not writers:
            writers.append(parquet.ParquetWriter(file, table.schema))
        writers[0].write_table(table)

    yield write
    for writer in writers:
        writer.close()


@contextmanager
def _write_npz(file: IO[bytes]) -> Iterator[Callable[[Columns], None]]:
    """One array for each column; these are kept until the end."""
    parts: list[Columns] = []
    yield parts.append
    names = list(parts[0])
    arrays: dict[str, Any] = {name: np.array([_text(cell) for part in parts for cell in part[name]]) for name in names}
    np.savez(file, **arrays)


def _text(cell: Any) -> Any:
    return "|".join(cell) if isinstance(cell, list) else cell


def _show(columns: Columns, quiet: bool) -> None:
    """The first rows as a table; beside a label, its own probability alone."""
    has_labels = "label" in columns
    named = [name for name in columns if not (has_labels and name.startswith("prob_"))]
    shown = {name: columns[name] for name in (named if has_labels else named[:SHOWN_NUMBERS])}
    table = PlainTable()
    for name in shown:
        table.add_column(name.replace("_", " "), overflow="fold")  # a number that is cut would be another one
    num_rows = len(next(iter(columns.values())))
    for row in range(min(SHOWN, num_rows)):
        table.add_row(*(_cell(cells[row], has_labels) for cells in shown.values()))
    Console().print(table)
    parts = [f"{SHOWN} rows"] * (num_rows > SHOWN)
    parts += [f"{len(shown)} of {len(named)} columns"] * (len(shown) < len(named))
    if parts and not quiet:
        typer.echo(f"the first {' and '.join(parts)}; --out predictions.csv writes all of them", err=True)


def _cell(value: Any, is_probability: bool) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if is_probability else figure(value) if abs(value) >= 1e4 else f"{value:.4g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)


def tabulate(found: Predictive, rows: list[int], targets: Tensor, classes: tuple[str, ...]) -> PlainTable:
    """Predictions beside the truth."""
    if isinstance(found, ClassificationPredictive):
        found = found.in_rows()
        return _tabulate_classes(found, rows, targets, classes)
    assert isinstance(found, RegressionPredictive)
    table = PlainTable("example", "truth", "mean", "std", "of the data", "of the network")
    columns = (targets, found.mean, found.std, found.aleatoric_std, found.epistemic_std)
    first = [column.view(len(rows), -1)[:, 0].tolist() for column in columns]
    for place, row in enumerate(rows):
        table.add_row(str(row), *(figure(column[place], 3) for column in first))
    return table


def _tabulate_classes(
    found: ClassificationPredictive, rows: list[int], targets: Tensor, classes: tuple[str, ...]
) -> PlainTable:
    decided = _decided(found, classes)
    table = PlainTable(
        "example",
        "truth",
        "label",
        "confidence",
        "entropy",
        "mutual inf." if decided else "mutual information",
        *decided,
    )
    figures = zip(found.confidence.tolist(), found.entropy.tolist(), found.mutual_information.tolist(), strict=True)
    for place, (row, truth, label, values) in enumerate(
        zip(rows, targets.tolist(), found.label.tolist(), figures, strict=True)
    ):
        names = [_name(number, classes) for number in (truth, label)]
        last = [column[place] for column in decided.values()]
        table.add_row(str(row), *names, *(f"{value:.3f}" for value in values), *last)
    return table


def _decided(found: ClassificationPredictive, classes: tuple[str, ...]) -> dict[str, list[str]]:
    """Columns for what was decided: whether a prediction is accepted, and the classes of its set."""
    columns = {}
    if found.threshold is not None:
        columns["accepted"] = ["yes" if accepted else "no" for accepted in found.accepted.tolist()]
    if found.prediction_sets is not None:
        columns["set"] = [
            ", ".join(_name(number, classes) for number in row.nonzero().flatten().tolist()) or "-"
            for row in found.sets.cpu()
        ]
    return columns


def _name(number: int, classes: Sequence[str]) -> str:
    return classes[number] if number < len(classes) else str(number)
