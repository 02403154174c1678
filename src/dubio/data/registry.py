"""Datasets by name or by path: ``load("mnist")``, ``load("photos/")``, ``load("wine.csv")``.

Datasets in files are stored in torchvision's layout under one folder: the ``folder`` argument, else the environment
variable ``DUBIO_DATA``, else ``data``. Instead of a name, a path can be given: of a folder of images by class, or of a
table.

The small datasets need no files: digits and diabetes are part of scikit-learn, a curve and points of the plane are
generated. Every call returns the same data, unless a generator is passed (``tests/data/test_toy.py``).

Unseen data are the classes that were held out of training (``held_out_classes``), or the other datasets on which the
papers evaluate out-of-distribution detection (``ood_sets``).
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from dubio import functional
from dubio.checks import did_you_mean
from dubio.data.columns import Task
from dubio.data.encoder import TableEncoder
from dubio.data.examples import VALIDATION_SHARE, Examples, Splits, split_examples, with_validation
from dubio.data.files import DataError
from dubio.data.image_files import read_image_folder
from dubio.data.image_sets import CIFAR10, CIFAR100, FASHIONMNIST, KMNIST, MNIST, OMNIGLOT
from dubio.data.stored import Part, StoredSet, download as download_file
from dubio.data.tables import NAMED_COLUMNS, TABLES, read_table, read_unseen_table

STORED: dict[str, StoredSet] = {each.name: each for each in (MNIST, FASHIONMNIST, KMNIST, OMNIGLOT, CIFAR10, CIFAR100)}
OOD_PAIRS: dict[str, tuple[str, ...]] = {
    "mnist": ("fashionmnist", "kmnist", "omniglot"),
    "fashionmnist": ("mnist",),
    "cifar10": ("cifar100",),
    "cifar100": ("cifar10",),
}
"""Datasets with images of the same shape that a network trained on the first one has never seen."""
CLUSTER_CENTRES = ((0.0, 0.0), (2.0, 0.0), (0.0, 2.0), (-2.0, 0.0), (0.0, -2.0))
"""The purple cluster, then the four red ones around it."""
CLUSTER_STD = 0.52
"""With this width the accuracy of the optimal classifier is 95 % (tested by numerical integration)."""
CURVE_NOISE_STD = 0.02

Source = str | os.PathLike[str]


@dataclass(frozen=True)
class Status:
    """Whether the files of a dataset exist.

    Args:
        name: name of the dataset.
        what: its contents in a few words.
        state: whether all, some or none of the files exist. Their contents are checked only when they are read.
        place: the folder of the files, relative to the folder of all data.
        missing: the files that do not exist, relative to the folder of all data.
    """

    name: str
    what: str
    state: Literal["present", "incomplete", "missing", "embedded"]
    place: str = ""
    missing: tuple[str, ...] = ()


def load(
    source: Source,
    *,
    folder: Source | None = None,
    download: bool = False,
    validation: int | float = VALIDATION_SHARE,
    task: Task | None = None,
    target: str | None = None,
    drop: Sequence[str] = (),
    delimiter: str | None = None,
    encoder: TableEncoder | None = None,
    resize: int | tuple[int, int] | None = None,
) -> Splits:
    """A dataset, by its name or by the path of a folder of images or of a table.

    Args:
        source: one of ``NAMES``; or a folder of images by class, or a ``.npz``, ``.csv`` or ``.parquet`` file.
        folder: the folder of all data; by default ``DUBIO_DATA``, else ``data``.
        download: whether to download missing files.
        validation: how many training examples to hold out, or a fraction of them; 0 for none.
        task: "classification" or "regression", if the targets of a table do not show it.
        target: the column of a table to predict; by default target, label or class, else y, else the last.
        drop: columns of a table to leave out.
        delimiter: the separator of the cells of a ``.csv``; by default it is detected from the first rows.
        encoder: the encoder of a table that was fitted on other data (``Examples.encoder``); by default an encoder is
            fitted on the training rows.
        resize: height and width to which the images of a folder are resized, or one number for both.

    Raises:
        ValueError: there is no dataset of this name.
        FileNotFoundError: its files do not exist; the message says where to get and where to put them.
        DataError: a file is damaged, has another format, or is not the official one.
        DownloadError: a missing file cannot be downloaded.
    """
    name = find_name(source)
    options = {"task": task, "target": target, "drop": drop or None, "delimiter": delimiter}
    if name is None:
        path = Path(source).expanduser()
        if path.is_dir():
            _refuse_options("a folder of images", options)
            return read_image_folder(path, validation, resize)
    if resize is not None:
        raise ValueError(f"resize belongs to folders of images, got {resize!r} for {source}; leave it out")
    if name is None:
        return read_table(path, validation, task, target=target, drop=drop, delimiter=delimiter, encoder=encoder)
    _refuse_options(name, options)
    if name in EMBEDDED:
        return EMBEDDED[name][0](validation)
    dataset, where = STORED[name], data_folder(folder)
    has_train = not dataset.train_optional or download or not dataset.missing(where, "train")
    train = _read(dataset, where, "train", download) if has_train else None
    return with_validation(train, _read(dataset, where, "test", download), validation)


def load_test(
    source: Source,
    *,
    folder: Source | None = None,
    download: bool = False,
    task: Task | None = None,
    target: str | None = None,
    drop: Sequence[str] = (),
    delimiter: str | None = None,
    encoder: TableEncoder | None = None,
    resize: int | tuple[int, int] | None = None,
) -> Examples:
    """The test part of a dataset. The arguments are those of ``load``; of a dataset in files only this part is read."""
    name = find_name(source)
    if name in STORED and resize is None:
        return _read(STORED[name], data_folder(folder), "test", download)
    # The encoder of a table is fitted on the training rows, so the validation rows are held out as ``load`` does it.
    validation = VALIDATION_SHARE if name is None and Path(source).suffix.lower() in NAMED_COLUMNS else 0
    options: dict[str, Any] = {"task": task, "target": target, "drop": drop, "delimiter": delimiter, "resize": resize}
    test = load(source, validation=validation, encoder=encoder, **options).test
    if test is None:
        raise ValueError(f"{source} must have a test part, got none; add a folder test, or arrays x_test and y_test")
    return test


def load_unseen(
    source: Source, *, folder: Source | None = None, like: Examples, resize: int | tuple[int, int] | None = None
) -> Examples:
    """The test part of data that a network was not trained on; their targets are ignored.

    Args:
        source: as for ``load``.
        folder: the folder of all data.
        like: examples of the network's training data; a table is read with their encoder.
        resize: height and width to which images are resized, if the source is a folder of images.
    """
    path = Path(source).expanduser()
    if like.encoder is None or path.suffix.lower() not in NAMED_COLUMNS or find_name(source) is not None:
        is_folder = find_name(source) is None and path.is_dir()
        return load_test(source, folder=folder, resize=resize if is_folder else None)
    return read_unseen_table(path, like.encoder)


def fetch(name: str, folder: Source | None = None, *, progress: bool = True) -> None:
    """Download the missing files of a dataset; embedded datasets have none."""
    dataset = find_name(name)
    if dataset is None:
        raise ValueError(f"the dataset to download must be one of {', '.join(STORED)}, got the path {name!r}")
    for part in get_args(Part) if dataset in STORED else ():
        _fetch(STORED[dataset], data_folder(folder), part, progress)


def status(folder: Source | None = None) -> list[Status]:
    """The status of every dataset."""
    where = data_folder(folder)
    embedded = [Status(name, what, "embedded") for name, (_, what) in EMBEDDED.items()]
    return [_status(dataset, where) for dataset in STORED.values()] + embedded


def data_folder(folder: Source | None = None) -> Path:
    """The folder of all data: the argument, or the environment variable ``DUBIO_DATA``, or ``data``."""
    return Path(folder or os.environ.get("DUBIO_DATA") or "data").expanduser()


def find_name(source: Source) -> str | None:
    """The name of a dataset in any spelling (CIFAR-10, fashion_mnist); None for the path of a folder or table.

    Raises:
        ValueError: the source is neither.
        FileNotFoundError: the source looks like a path, and nothing exists there.
    """
    plain = re.sub("[-_ ]", "", str(source).lower())
    if isinstance(source, str) and plain in NAMES:
        return plain
    path = Path(source).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix.lower() in TABLES):
        return None
    if path.is_file():
        raise ValueError(
            f"data must be a folder of images or a file that ends in {', '.join(TABLES)}, got {str(path)!r}"
        )
    if not isinstance(source, str) or len(path.parts) > 1 or path.suffix.lower() in TABLES:
        raise FileNotFoundError(f"there is no folder or table {str(path)!r}")
    raise ValueError(
        f"data must be {', '.join(NAMES)}, or the path of a folder or table, got {source!r}{did_you_mean(plain, NAMES)}"
    )


def held_out_classes(examples: Examples, classes: Sequence[int | str]) -> tuple[Examples, Examples]:
    """Split examples by class: those of the other classes first, then those of ``classes``, given by label or name.

    In each of the two, the labels are renumbered from 0 in the same order, and the classes keep their names.
    """
    if not examples.classes:
        raise ValueError(f"{examples.name} must have classes to hold some out, got a regression")
    unseen = {_label(examples, name) for name in classes}
    rest = [label for label in range(len(examples.classes)) if label not in unseen]
    if not unseen or not rest:
        raise ValueError(
            f"classes must be some of the {len(examples.classes)} classes of {examples.name}, but not all, "
            f"got {list(classes)}"
        )
    return _only(examples, rest), _only(examples, sorted(unseen))


def ood_sets(name: str, *, folder: str | os.PathLike[str] | None = None, download: bool = False) -> dict[str, Examples]:
    """The test parts of the out-of-distribution datasets of a network trained on ``name``, by their names."""
    others = OOD_PAIRS.get(find_name(name) or "")
    if others is None:
        raise ValueError(f"name must be one of {', '.join(OOD_PAIRS)}, got {name!r}; load other data by name or path")
    return {other: load_test(other, folder=folder, download=download) for other in others}


def digits(validation: int | float = VALIDATION_SHARE) -> Splits:
    """The 1797 handwritten digits of scikit-learn, grey 8x8, pixels in [0, 1]; a quarter is the test part."""
    from sklearn.datasets import load_digits  # type: ignore[import-untyped, unused-ignore]

    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images / 16.0, dtype=torch.float32).reshape(-1, 1, 8, 8)
    return split_examples(Examples(inputs, torch.tensor(labels).long(), tuple("0123456789"), "digits"), validation)


def diabetes(validation: int | float = VALIDATION_SHARE) -> Splits:
    """Disease progression of 442 patients after a year, from ten measurements; a quarter is the test part.

    Inputs and targets are standardised by the mean and standard deviation of the training and validation parts.
    """
    table = diabetes_table()
    seen = split_examples(table, validation=0).train
    assert seen is not None
    return split_examples(standardised(table, seen), validation)


def curve(
    validation: int | float = VALIDATION_SHARE, *, num_points: int = 1000, generator: torch.Generator | None = None
) -> Splits:
    """Points of the regression curve (E-29): inputs uniform in [0, 0.5], noise of standard deviation 0.02.

    The test part is the curve without noise on a grid over [-0.2, 1.2], mostly outside of the training range.
    """
    generator = generator or torch.Generator().manual_seed(0)
    x = 0.5 * torch.rand(num_points, 1, generator=generator)
    noise = CURVE_NOISE_STD * torch.randn(num_points, 1, generator=generator)
    grid = torch.linspace(-0.2, 1.2, 281)[:, None]
    train = Examples(x, functional.uncertainty.regression_curve(x, noise), name="curve")
    test = Examples(grid, functional.uncertainty.regression_curve(grid, torch.zeros_like(grid)), name="curve")
    return with_validation(train, test, validation)


def clusters(
    validation: int | float = VALIDATION_SHARE, *, num_points: int = 1000, generator: torch.Generator | None = None
) -> Splits:
    """Points of the plane in two classes: a purple cluster, and four red ones around it that overlap with it.

    Both classes are equally likely, and so are the four red clusters. The test part is as large as the training part.
    """
    generator = generator or torch.Generator().manual_seed(0)
    train, test = (_plane(num_points, generator) for _ in range(2))
    return with_validation(train, test, validation)


def diabetes_table() -> Examples:
    """All patients of ``diabetes``, with measurements and targets in their original units."""
    from sklearn.datasets import load_diabetes  # type: ignore[import-untyped, unused-ignore]

    measurements, values = load_diabetes(return_X_y=True, scaled=False)
    inputs, targets = (torch.tensor(array, dtype=torch.float32) for array in (measurements, values))
    return Examples(inputs, targets[:, None], name="diabetes")


def standardised(table: Examples, seen: Examples) -> Examples:
    """Inputs and targets, standardised by the mean and standard deviation of the examples ``seen``."""
    pairs = (table.inputs, seen.inputs), (table.targets, seen.targets)
    inputs, targets = ((values - past.mean(dim=0)) / past.std(dim=0) for values, past in pairs)
    return replace(table, inputs=inputs, targets=targets)


EMBEDDED: dict[str, tuple[Callable[[int | float], Splits], str]] = {
    "digits": (digits, "1,797 digits, 8x8 grey"),
    "diabetes": (diabetes, "442 patients, regression"),
    "curve": (curve, "1,000 points, regression"),
    "clusters": (clusters, "1,000 points of 2 classes"),
}
NAMES = (*STORED, *EMBEDDED)


def _refuse_options(source: str, options: dict[str, Any]) -> None:
    """Refuse options of tables for other data."""
    for option, value in options.items():
        if value is not None:
            raise DataError(f"{option} is for tables, got {value!r} for {source}", f"leave {{{option}}} out")


def _read(dataset: StoredSet, where: Path, part: Part, download: bool) -> Examples:
    if download:
        _fetch(dataset, where, part)
    missing = dataset.missing(where, part)
    if missing:
        remotes = dataset.remotes(part)
        raise FileNotFoundError(
            f"{dataset.name} lacks {', '.join(missing)} in {where}: where there is a network, dubio data --data-dir "
            f"{where} --download {dataset.name} fetches it; elsewhere put {' and '.join(r.urls[0] for r in remotes)} "
            f"in {(where / remotes[0].path).parent}"
        )
    return dataset.read(where, part)


def _fetch(dataset: StoredSet, where: Path, part: Part, progress: bool = True) -> None:
    for remote in dataset.remotes(part) if dataset.missing(where, part) else ():
        download_file(remote, where, progress=progress)


def _status(dataset: StoredSet, where: Path) -> Status:
    files = tuple(dict.fromkeys(file for part in get_args(Part) for file in dataset.files(part)))
    missing = tuple(dict.fromkeys(file for part in get_args(Part) for file in dataset.missing(where, part)))
    state: Literal["present", "incomplete", "missing"]
    state = "present" if not missing else "missing" if len(missing) >= len(files) else "incomplete"
    return Status(dataset.name, dataset.what, state, dataset.place, missing)


def _label(examples: Examples, name: int | str) -> int:
    if isinstance(name, str) and name in examples.classes:
        return examples.classes.index(name)
    if not isinstance(name, str) and 0 <= name < len(examples.classes):
        return name
    raise ValueError(
        f"classes must be names, or labels from 0 to {len(examples.classes) - 1}, of {examples.name}, got {name!r}"
    )


def _only(examples: Examples, labels: list[int]) -> Examples:
    """The examples with these labels, renumbered."""
    number = torch.full((len(examples.classes),), -1, device=examples.targets.device)
    number[labels] = torch.arange(len(labels), device=number.device)
    renumbered = number[examples.targets]
    kept = renumbered >= 0
    classes = tuple(examples.classes[label] for label in labels)
    return replace(examples, inputs=examples.inputs[kept], targets=renumbered[kept], classes=classes)


def _plane(num_points: int, generator: torch.Generator) -> Examples:
    labels = torch.randint(2, (num_points,), generator=generator)
    cluster = labels * torch.randint(1, 5, (num_points,), generator=generator)
    noise = CLUSTER_STD * torch.randn(num_points, 2, generator=generator)
    return Examples(torch.tensor(CLUSTER_CENTRES)[cluster] + noise, labels, ("purple", "red"), "clusters")
