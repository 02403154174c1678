"""What ``dubio predict`` needs: test examples, and predictions as columns, in tables on the screen and in files.

A file of predictions is written as a whole or not at all.
"""

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

from dubio.cli import runs as run_files
from dubio.cli.options import device_for
from dubio.cli.terminal import PlainTable
from dubio.codec import unfinished_file
from dubio.data import TABLES, Examples, NewRows, TableWarning, find_name, load_test, read_new, remarks_as_text
from dubio.evaluation import figure
from dubio.models import sizes_of
from dubio.prediction import ClassificationPredictive, Predictive, RegressionPredictive, predict_batches

OUTPUTS = (".csv", ".jsonl", ".parquet", ".npz")
SHOWN = 10
"""Rows of new data that are shown where no file is written."""
SHOWN_NUMBERS = 7
"""Columns of a network that predicts several numbers that are shown; more do not fit."""
Columns = dict[str, Sequence[Any]]


def _test_examples(named: str, runs: Path, data: str | None, data_dir: Path | None) -> Examples:
    """The test part of the given data, by default of those that a run was trained on."""
    config, encoder = config_of(named, runs), run_files.read_encoder(run_files.folder_of(named, runs))
    folder = data_dir or config.data_dir
    if data is not None:  # another table or folder of images is read as that of the run was
        task = None if encoder is not None or Path(data).suffix.lower() not in TABLES else config.task
        is_folder = find_name(data) is None and Path(data).expanduser().is_dir()
        resize = run_files.parse_resize(config.resize) if is_folder else None
        return load_test(data, folder=folder, task=task, encoder=encoder, resize=resize)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # these are the data that the run was trained on
        return load_test(config.data, folder=folder, **run_files.table_options(config, encoder))


def config_of(named: str, runs: Path) -> run_files.TrainConfig:
    """The configuration of a run; the defaults for a ``.safetensors`` file and for a run of ``dubio.fit``."""
    folder = run_files.folder_of(named, runs)
    is_trained = Path(named).suffix != ".safetensors" and (folder / run_files.FILE).is_file()
    return run_files.read_config(folder) if is_trained else run_files.TrainConfig()


def load_to_test(
    named: str, runs: Path, device: str | None, data: str | None, data_dir: Path | None
) -> tuple[nn.Module, Examples]:
    """A network on its device, and its test examples; raises an error for examples that it cannot read."""
    model = run_files.load_model(named, runs).to(device_for(device))
    examples = _test_examples(named, runs, data, data_dir)
    sizes = sizes_of(model)
    shape = None if sizes is None else sizes.inputs
    if shape is not None and shape != examples.shape and shape != (examples.inputs[0].numel(),):
        raise ValueError(
            f"this network reads inputs of shape {shape}, and {examples.name} has {examples.shape}; "
            "name its data with --data"
        )
    return model, examples


def parse_index(text: str, count: int) -> list[int]:
    """Row numbers from ``3``, ``0..9``, ``40..`` or ``1,5,7``."""
    try:
        rows: list[int] = []
        for part in text.split(","):
            first, dots, last = part.partition("..")
            end = int(last or count - 1) if dots else int(first)
            rows += range(int(first), end + 1)
    except ValueError:
        raise ValueError(f"--index must be like 3, 0..9, 40.. or 1,5,7, got {text!r}") from None
    if not rows or min(rows) < 0 or max(rows) >= count:
        raise ValueError(f"--index must name examples from 0 to {count - 1}, got {text!r}")
    return rows


def predict_new(
    model: nn.Module,
    source: Path,
    named: str,
    runs: Path,
    out: Path | None,
    delimiter: str | None,
    quiet: bool,
    *,
    samples: int,
    level: float,
    precision: str,
    seed: int,
) -> None:
    """Predict data without labels in chunks of a few thousand rows, into a file or onto the screen.

    Args:
        model: the network.
        source: a table, an ``.npz``, an image, or a folder of images.
        named: the run of the network, which stores how to read the data.
        runs: the folder of the runs.
        out: the file to write, in the format of its ending; without one the first rows are shown.
        delimiter: separator of the cells of a ``.csv``.
        quiet: show no progress and no remarks.
        samples: number of draws.
        level: coverage of the intervals of numeric targets.
        precision: precision of the forward pass.
        seed: seed of the draws.
    """
    if out is not None and out.suffix.lower() not in OUTPUTS:
        raise ValueError(f"--out must end in {', '.join(OUTPUTS)}, got {str(out)!r}")
    if out is not None and out.exists() and out.resolve() == source.resolve():
        raise ValueError(f"--out must not be the file that is read, got {str(out)!r}")
    if not 0.0 < level < 1.0:
        raise ValueError(f"--level must be between 0 and 1, got {level}")
    folder, resize = run_files.folder_of(named, runs), run_files.parse_resize(config_of(named, runs).resize)
    encoder = run_files.read_encoder(folder)
    classes, shape = (encoder.target.classes, ()) if encoder else run_files.stored_data(folder)
    sizes = sizes_of(model)
    expected = None if sizes is None else sizes.inputs  # flat where the network flattens images
    remarks: Counter[str] = Counter()
    count = 0
    with _progress(quiet or out is None) as advance, _writer(out, quiet) as write:
        chunks: list[NewRows] = []

        def batches() -> Iterator[Tensor]:
            for chunk in read_new(source, encoder=encoder, shape=shape or expected, delimiter=delimiter, resize=resize):
                chunks.append(chunk)
                yield chunk.inputs if expected is None or len(expected) > 1 else chunk.inputs.flatten(1)

        for pred in predict_batches(model, batches(), samples, precision=precision, seed=seed):  # type: ignore[arg-type]
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

    For classes: label, confidence, the probability of each class, entropy and its two parts, and the decisions
    (accepted, set). For numbers: mean, standard deviation and its two parts, and the central interval.
    """
    columns: Columns = {"file" if names and isinstance(names[0], str) else "row": list(names)}
    if isinstance(pred, ClassificationPredictive):
        return columns | _columns_of_classes(pred, classes)
    assert isinstance(pred, RegressionPredictive)
    numbers: dict[str, Tensor] = {
        name: getattr(pred, name) for name in ("mean", "std", "aleatoric_std", "epistemic_std")
    }
    numbers |= zip((f"low_{level:g}", f"high_{level:g}"), pred.interval(level), strict=True)
    num_outputs = pred.mean[0].numel()
    for output in range(num_outputs):
        ending = f"_{output}" if num_outputs > 1 else ""
        for name, values in numbers.items():
            columns[name + ending] = values.reshape(len(values), -1)[:, output].tolist()
    return columns


def tabulate(pred: Predictive, rows: list[int], targets: Tensor, classes: tuple[str, ...]) -> PlainTable:
    """Predictions beside the true targets."""
    if isinstance(pred, ClassificationPredictive):
        pred = pred.in_rows()
        decisions = _decisions(pred, classes)
        information = "mutual inf." if decisions else "mutual information"
        table = PlainTable("example", "truth", "label", "confidence", "entropy", information, *decisions)
        labels = ([_name(number, classes) for number in tensor.tolist()] for tensor in (targets, pred.label))
        values = (pred.confidence, pred.entropy, pred.mutual_information)
        shown = ([f"{value:.3f}" for value in tensor.tolist()] for tensor in values)
        last = ([_cell(cell) or "-" for cell in column] for column in decisions.values())
        columns = [*labels, *shown, *last]
    else:
        assert isinstance(pred, RegressionPredictive)
        table = PlainTable("example", "truth", "mean", "std", "of the data", "of the network")
        tensors = (targets, pred.mean, pred.std, pred.aleatoric_std, pred.epistemic_std)
        columns = [[figure(value, 3) for value in tensor.view(len(rows), -1)[:, 0].tolist()] for tensor in tensors]
    for cells in zip(map(str, rows), *columns, strict=True):
        table.add_row(*cells)
    return table


def _columns_of_classes(pred: ClassificationPredictive, classes: Sequence[str]) -> Columns:
    shape = pred.log_probs.shape
    if len(shape) == 3 and shape[1] > 1 and shape[2] == 2:
        # A Bernoulli with several outputs, each yes or no.
        values = {"prob": pred.probs[..., 1], "entropy": pred.entropy}
        return {
            f"{name}_{_name(output, classes)}": tensor[:, output].tolist()
            for name, tensor in values.items()
            for output in range(tensor.shape[1])
        }
    pred = pred.in_rows()
    columns: Columns = {
        "label": [_name(number, classes) for number in pred.label.tolist()],
        "confidence": pred.confidence.tolist(),
        **{f"prob_{_name(number, classes)}": pred.probs[:, number].tolist() for number in range(pred.probs.shape[-1])},
        "entropy": pred.entropy.tolist(),
        "aleatoric": pred.expected_entropy.tolist(),
        "epistemic": pred.mutual_information.tolist(),
    }
    return columns | _decisions(pred, classes)


def _decisions(pred: ClassificationPredictive, classes: Sequence[str]) -> Columns:
    """Whether each prediction is accepted, and the classes of its set, where the network has such decisions."""
    columns: Columns = {}
    if pred.threshold is not None:
        columns["accepted"] = pred.accepted.tolist()
    if pred.prediction_sets is not None:
        columns["set"] = [
            [_name(number, classes) for number in row.nonzero().flatten().tolist()] for row in pred.sets.cpu()
        ]
    return columns


@contextmanager
def _progress(hidden: bool) -> Iterator[Callable[[int, int | None], None]]:
    """A count of rows, where stderr is a terminal."""
    console = Console(stderr=True)
    shown = (SpinnerColumn(), TextColumn("predicting"), MofNCompleteColumn(), TextColumn("rows"), TimeElapsedColumn())
    with Progress(*shown, console=console, transient=True, disable=hidden or not console.is_terminal) as progress:
        task = progress.add_task("predicting", total=None)
        yield lambda count, total: progress.update(task, completed=count, total=total)


@contextmanager
def _writer(out: Path | None, quiet: bool) -> Iterator[Callable[[Columns], None]]:
    """A function that writes the columns of some rows after the other; the file appears when it is whole."""
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

    def write(columns: Columns) -> None:
        if file.tell() == 0:
            rows.writerow(columns)
        rows.writerows(zip(*(map(_text, column) for column in columns.values()), strict=True))

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
    """One array for each column, which are written at the end."""
    parts: list[Columns] = []
    yield parts.append
    arrays: Any = {name: np.array([_text(cell) for part in parts for cell in part[name]]) for name in parts[0]}
    np.savez(file, **arrays)


def _text(cell: Any) -> Any:
    return "|".join(cell) if isinstance(cell, list) else cell


def _show(columns: Columns, quiet: bool) -> None:
    """Print the first rows as a table; with labels, without the probabilities of the other classes."""
    has_labels = "label" in columns
    named = [name for name in columns if not (has_labels and name.startswith("prob_"))]
    shown = {name: columns[name] for name in (named if has_labels else named[:SHOWN_NUMBERS])}
    table = PlainTable()
    for name in shown:
        table.add_column(name.replace("_", " "), overflow="fold")  # a number that is cut would be wrong
    num_rows = len(next(iter(columns.values())))
    for row in range(min(SHOWN, num_rows)):
        table.add_row(*(_cell(cells[row], has_labels) for cells in shown.values()))
    Console().print(table)
    parts = [f"{SHOWN} rows"] * (num_rows > SHOWN)
    parts += [f"{len(shown)} of {len(named)} columns"] * (len(shown) < len(named))
    if parts and not quiet:
        typer.echo(f"the first {' and '.join(parts)}; --out predictions.csv writes all of them", err=True)


def _cell(value: Any, is_probability: bool = True) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if is_probability else figure(value) if abs(value) >= 1e4 else f"{value:.4g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _name(number: int, classes: Sequence[str]) -> str:
    return classes[number] if number < len(classes) else str(number)
