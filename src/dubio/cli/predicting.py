"""What ``dubio predict`` needs: which examples, whether they fit, and a table of what was predicted."""

import warnings
from pathlib import Path

from rich.table import Table
from torch import Tensor, nn

from dubio.cli.folders import folder_of
from dubio.cli.ordering import FILE, Order, parse_resize, read_encoder, read_order, table_options
from dubio.data import Examples, TableWarning, load_test
from dubio.data.registry import find_name
from dubio.data.tables import TABLES
from dubio.evaluation.words import figure
from dubio.models import sizes_of
from dubio.prediction import ClassPredictive, Predictive, RealPredictive

__all__ = ["check_fits", "order_of", "parse_index", "tabulate", "test_examples"]


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


def order_of(named: str, runs: Path) -> Order:
    """What a run was trained with; the defaults for a ``.safetensors`` file, and for a run of ``dubio.fit``."""
    file = folder_of(named, runs) / FILE
    return read_order(file.parent) if Path(named).suffix != ".safetensors" and file.is_file() else Order()


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


def tabulate(found: Predictive, rows: list[int], targets: Tensor, classes: tuple[str, ...]) -> Table:
    """Predictions beside the truth."""
    if isinstance(found, ClassPredictive):
        found = found.in_rows()
        return _tabulate_classes(found, rows, targets, classes)
    assert isinstance(found, RealPredictive)
    table = Table("example", "truth", "mean", "std", "of the data", "of the network")
    columns = (targets, found.mean, found.std, found.aleatoric_std, found.epistemic_std)
    first = [column.view(len(rows), -1)[:, 0].tolist() for column in columns]
    for place, row in enumerate(rows):
        table.add_row(str(row), *(figure(column[place], 3) for column in first))
    return table


def _tabulate_classes(found: ClassPredictive, rows: list[int], targets: Tensor, classes: tuple[str, ...]) -> Table:
    decided = _decided(found, classes)
    table = Table(
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


def _decided(found: ClassPredictive, classes: tuple[str, ...]) -> dict[str, list[str]]:
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


def _name(number: int, classes: tuple[str, ...]) -> str:
    return classes[number] if number < len(classes) else str(number)
