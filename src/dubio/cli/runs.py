"""Runs on disk: found by name, listed, and the model in each.

What ``dubio train`` was asked for, kept beside the run so that ``--resume`` needs no options again.
"""

import contextlib
import csv
import dataclasses
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from dubio._engine import Precision
from dubio.checks import did_you_mean
from dubio.cli.fields import make_method
from dubio.codec import (
    MAX_BYTES,
    RecordError,
    check_fields,
    current_names,
    dump_json,
    forget_commands,
    printable,
    read_commands,
    read_file,
    read_history,
    read_object,
    read_value,
    write_atomically,
)
from dubio.data import (
    CropAndFlip,
    DataError,
    Examples,
    Loader,
    Splits,
    TableEncoder,
    TableWarning,
    Task,
    find_name,
    load,
    parse_label_noise,
)
from dubio.io import Identity, identity_of, load as load_network, locked, save
from dubio.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from dubio.models import build, standardised
from dubio.objectives import Loss
from dubio.training import ALONE, Callback, FitResult, Processes, fit

CONFIG, METRICS, MODEL = "config.json", "metrics.jsonl", "model.safetensors"


@dataclass(frozen=True)
class Summary:
    """One run, as the list shows it."""

    name: str
    method: str
    epochs_done: int
    epochs: int
    best: dict[str, float]
    """Metrics of the epoch with the least validation NLL; empty before the first epoch is over."""


@dataclass(frozen=True)
class Unreadable:
    """A run whose files cannot be read, and why."""

    name: str
    reason: str


def load_model(named: str, runs: Path) -> nn.Module:
    """The network of a run's name, a run's folder or a ``.safetensors`` file."""
    path = Path(named)
    if path.suffix == ".safetensors":
        return load_network(path)
    folder = find_run(named, runs)
    file = folder / MODEL
    if not file.is_file():
        raise FileNotFoundError(f"run {named!r} has no {MODEL} yet; finish it with: dubio train {named} --resume")
    if _config(folder / CONFIG).get("method") == str(None):
        raise ValueError(f"run {named!r} holds an ordinary network's weights; it has no draws to look at")
    return load_network(file)


def folder_of(named: str, runs: Path) -> Path:
    """Where the files of a run, or of a ``.safetensors`` file, belong."""
    return Path(named).parent if Path(named).suffix == ".safetensors" else find_run(named, runs)


def class_names(folder: Path) -> tuple[str, ...]:
    """Names of the classes that a run was trained on; empty where it does not keep them."""
    names = _dataset_of(folder).get("classes")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def input_shape(folder: Path) -> tuple[int, ...]:
    """The shape of one input that a run was trained on; empty where it does not keep it."""
    shape = _dataset_of(folder).get("shape")
    return tuple(shape) if isinstance(shape, list) and all(type(size) is int for size in shape) else ()


def _dataset_of(folder: Path) -> dict[str, Any]:
    """What a run keeps of its training data."""
    data = (_config(folder / CONFIG) or {}).get("data")
    train = data.get("train") if isinstance(data, dict) else None
    return train if isinstance(train, dict) else {}


def network_of(named: str, runs: Path) -> Identity:
    """Which network a run, or a ``.safetensors`` file, holds now; records keep it."""
    path = Path(named)
    found = identity_of(path if path.suffix == ".safetensors" else find_run(named, runs) / MODEL)
    if found is None:
        raise FileNotFoundError(f"{named} holds no network that dubio saved")
    return found


def check_resumable(folder: Path) -> None:
    """Refuse to go on training a run that was pruned: training would build the whole network."""
    pruned = [command for command in read_commands(folder) if command.kind == "prune"]
    if pruned:
        raise ValueError(
            f"a pruned run cannot be resumed, got {folder}; train the whole one on and prune again (dubio train "
            f"{pruned[0].run} --resume), or go on in Python: dubio.fit(dubio.load({str(folder / MODEL)!r}), ...)"
        )


def find_run(named: str, runs: Path) -> Path:
    """The folder of a run, given by its name under ``runs`` or by its path."""
    for folder in (runs / named, Path(named)):
        if (folder / CONFIG).is_file():
            return folder
    known = _names(runs)
    if not known:
        raise FileNotFoundError(f"there is no run {named!r}, and none at all in {runs}; train one: dubio train {named}")
    hint = did_you_mean(named, known) or "; dubio runs lists those there are"
    raise FileNotFoundError(f"there is no run {named!r} in {runs}{hint}")


def list_runs(runs: Path) -> list[Summary | Unreadable]:
    """All runs of a folder, by name; one that cannot be read keeps no other from being listed."""
    listed: list[Summary | Unreadable] = []
    for name in _names(runs):
        try:
            listed.append(_summary(runs / name))
        except (ValueError, OSError) as error:
            listed.append(Unreadable(name, str(error)))
    return listed


def num_processes_of(folder: Path) -> int | None:
    """How many processes train a run together; None where it has not begun."""
    return int(_config(folder / CONFIG).get("num_processes", 1)) if (folder / CONFIG).exists() else None


def check_name(name: str) -> None:
    """Refuse names that would lead out of the folder of runs, and those that a terminal would not show as they are."""
    if not name or name.startswith((".", "-")) or any(sign in name for sign in "/\\\t\n") or printable(name) != name:
        raise ValueError(f"NAME must be a plain name such as first or mlp-2, got {name!r}; --runs names the folder")


def unused_name(name: str, runs: Path, ending: str = "") -> str:
    """The name, or with a number where there is a folder (or a file with this ending) of that name."""
    number, free = 1, name
    while (runs / f"{free}{ending}").exists():
        number += 1
        free = f"{name}-{number}"
    return free


def _names(runs: Path) -> list[str]:
    return sorted(file.parent.name for file in runs.glob(f"[!.]*/{CONFIG}") if _is_of_a_run(file))


def _is_of_a_run(file: Path) -> bool:
    """Whether a file may be the configuration of a run; only what is read without an error and is none is not."""
    try:
        config = read_object(file)
    except (OSError, ValueError):
        return True
    return {"method", "epochs"} <= config.keys()


def _config(file: Path) -> dict[str, Any]:
    """The configuration of a run."""
    config: dict[str, Any] = current_names(read_object(file))
    if not {"method", "epochs"} <= config.keys():
        raise RecordError(f"{file} is not the configuration of a run: it names no method or no epochs")
    check_fields(config, {"method": str, "epochs": int, "num_processes": int}, str(file))
    return config


def _summary(folder: Path) -> Summary:
    config = _config(folder / CONFIG)
    history = read_history(folder / METRICS)
    best = min(history, key=_judged_by) if history else {}
    method = config["method"].partition("(")[0]
    return Summary(folder.name, "Deterministic" if method == "None" else method, len(history), config["epochs"], best)


def _judged_by(metrics: dict[str, Any]) -> float:
    """The NLL by which epochs are compared; the largest number where an epoch has none."""
    value = metrics.get("val_nll", metrics.get("nll"))
    return math.inf if value is None else float(value)


FILE = "command.json"


ENCODER = "table.json"
"""How the columns of the run's table become numbers."""


OF_TABLES = ("target", "task", "drop")
"""What the encoder of a run has decided."""


LIKELIHOODS = ("gaussian", "categorical", "bernoulli")


LIKELIHOOD_TEXTS = (*LIKELIHOODS, "gaussian:learned")


BETA = 0.5
"""Weight of variances in training where noise depends on the input; docs/decisions/0006 has the measurements."""


@dataclass(frozen=True)
class TrainConfig:
    """Values of the options; None is the method's default."""

    data: str = "digits"
    data_dir: str | None = None
    target: str | None = None
    """The column of a table to predict."""
    task: Task | None = None
    drop: str | None = None
    """Columns to leave out, with commas."""
    delimiter: str | None = None
    standardise: bool = True
    """Whether the first layer standardises the inputs of tables."""
    label_noise: str | None = None
    augment: bool = False
    resize: str | None = None
    """The size of all images of a folder, as in ``32`` or ``32x48``."""
    model: str = "fc:100-100"
    likelihood: str | None = None
    """As it was written; see ``make_likelihood``."""
    standardise_targets: bool = True
    """Whether the network predicts standardised targets, where they are numbers; older runs did not."""
    method: str = "bayes"
    fields: dict[str, str | bool] = field(default_factory=dict)
    """Those of the method that were given, as they were written."""
    epochs: int | None = None
    lr: float | None = None
    noise_lr: float | None = None
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    batch_size: int = 128
    samples: int | None = None
    seed: int = 0
    precision: Precision = "fp32"
    fast: bool | None = None
    """Whether to insist on a compiled step, or on a plain one; None is what suits."""
    memory: str | None = None
    """What the draws of a step may take, as in ``2 GiB``."""


def load_splits(order: TrainConfig, encoder: TableEncoder | None = None) -> Splits:
    """The data of an order, with noise on the labels that are trained and validated with.

    A run that has an encoder reads its table with it, even if the file has changed since.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableWarning)  # these are the run's own data
        splits = load(order.data, folder=order.data_dir, **table_options(order, encoder))
    if splits.train is None:
        raise FileNotFoundError(f"--data {order.data} has no training part here, only a test part; see dubio data")
    if order.label_noise is None:
        return splits
    noise, train = parse_label_noise(order.label_noise), splits.train
    if not train.classes:
        raise ValueError(f"--label-noise needs classes to mix up, and {order.data} has numbers for targets")
    held_out = [] if splits.validation is None else [splits.validation]
    labels = torch.cat([part.targets for part in (train, *held_out)])
    noisy = noise(labels, len(train.classes), torch.Generator().manual_seed(order.seed)).labels
    parts = noisy.split([len(part) for part in (train, *held_out)])
    changed = [dataclasses.replace(part, targets=own) for part, own in zip((train, *held_out), parts, strict=True)]
    return Splits(changed[0], changed[1] if held_out else None, splits.test)


def table_options(order: TrainConfig, encoder: TableEncoder | None = None) -> dict[str, Any]:
    """Arguments of ``dubio.data.load`` that an order has for its data; an encoder knows most of them already."""
    if encoder is not None:
        return {"encoder": encoder, "delimiter": order.delimiter}
    drop = (
        () if order.drop is None else [name.strip() for name in next(csv.reader([order.drop], skipinitialspace=True))]
    )
    return {
        "target": order.target,
        "task": order.task,
        "drop": drop,
        "delimiter": order.delimiter,
        "resize": parse_resize(order.resize),
    }


def read_encoder(folder: Path) -> TableEncoder | None:
    """How a run's table becomes numbers; None for a run of other data."""
    file = folder / ENCODER
    if not file.exists():
        return None
    try:
        return TableEncoder.from_json(read_file(file, MAX_BYTES, DataError).decode("utf-8"))
    except ValueError as error:
        raise DataError(f"{file} cannot be read: {str(error).removeprefix(f'{file} ')}") from error


def parse_resize(text: str | None) -> tuple[int, int] | None:
    """Height and width from ``32x48``, or from one number for both."""
    if text is None:
        return None
    sides = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if sides is None:
        raise ValueError(f"--resize must be one number of pixels or HEIGHTxWIDTH, such as 32 or 32x48, got {text!r}")
    return int(sides[1]), int(sides[2] or sides[1])


def build_for(order: TrainConfig, examples: Examples) -> tuple[nn.Module, Likelihood]:
    """The plain network of an order, as large as the data need, and what its outputs mean."""
    likelihood = make_likelihood(order, examples)
    torch.manual_seed(order.seed)
    if isinstance(likelihood, Categorical):
        outputs = len(examples.classes)
    elif isinstance(likelihood, Bernoulli):
        outputs = 1
    else:
        outputs = examples.targets[0].numel() * (2 if likelihood.std == "output" else 1)
    net = build(order.model, inputs=examples.shape, num_classes=outputs)
    if order.standardise and _has_features(order, examples):
        net = standardised(net, examples.inputs)
    return net, likelihood


def make_likelihood(order: TrainConfig, examples: Examples) -> Likelihood:
    """What ``--likelihood`` stands for with these training data; without it, what suits them."""
    name, std = parse_likelihood(order.likelihood)
    of_classes = name in ("categorical", "bernoulli")
    if name and of_classes != bool(examples.classes):
        wants, has = ("classes", "numbers") if of_classes else ("numbers", "classes")
        suits = "categorical" if examples.classes else "gaussian"
        raise ValueError(
            f"--likelihood {name} is for {wants}, and the targets of {order.data} are {has}; leave it out, or give "
            f"--likelihood {suits}"
        )
    if name == "bernoulli" and len(examples.classes) != 2:
        raise ValueError(
            f"--likelihood bernoulli is for two classes, and {order.data} has {len(examples.classes)}; leave it out"
        )
    if examples.classes:
        return Bernoulli() if name == "bernoulli" else Categorical()
    if not order.standardise_targets:
        return Gaussian(std if name else "learned")
    return Gaussian.for_targets(examples.targets, std, beta=BETA if std == "output" else 0.0)


def parse_likelihood(text: str | None) -> tuple[str, float | Literal["learned", "output"]]:
    """The name of a likelihood, empty for none, and where the standard deviation of a Gaussian comes from."""
    if text is None:
        return "", "output"
    name, colon, std = text.strip().lower().partition(":")
    if name in LIKELIHOODS and not colon:
        return name, "output"
    if name == "gaussian" and std in ("learned", "output"):
        return name, "learned" if std == "learned" else "output"
    if name == "gaussian":
        with contextlib.suppress(ValueError):
            if math.isfinite(float(std)) and float(std) > 0.0:
                return name, float(std)
    raise ValueError(
        "--likelihood must be gaussian, gaussian:learned or gaussian:STD, such as gaussian:0.1, for numbers, or "
        f"categorical or bernoulli for classes, got {text!r}{did_you_mean(text.strip().lower(), LIKELIHOOD_TEXTS)}"
    )


def _has_features(order: TrainConfig, examples: Examples) -> bool:
    """Whether inputs are the features of a user's table, in units of their own."""
    own_layer = "," in order.model  # the network normalises by itself
    return examples.inputs.dim() == 2 and find_name(order.data) is None and not own_layer


def train_order(
    order: TrainConfig,
    splits: Splits,
    folder: Path,
    resume: bool = False,
    device: str | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    processes: Processes = ALONE,
) -> tuple[nn.Module, FitResult]:
    """Build, convert, train and save a network; of several processes the first alone writes."""
    method = make_method(order.method, order.fields)
    assert splits.train is not None
    if order.augment and splits.train.inputs.dim() != 4:
        raise ValueError(f"--augment needs images, and {order.data} has inputs of shape {splits.train.shape}")
    net, likelihood = build_for(order, splits.train)
    model = method.convert(net, likelihood)
    with contextlib.ExitStack() as lock:
        processes.by_writer(lambda: lock.enter_context(locked(folder)))
        if not resume:
            processes.by_writer(lambda: _write_order(order, folder, splits.train))
        try:
            run = fit(
                model,
                _training_data(order, splits.train, device),
                None if splits.validation is None else in_rows(splits.validation),
                epochs=order.epochs,
                batch_size=order.batch_size,
                lr=order.lr,
                noise_lr=order.noise_lr,
                schedule=order.schedule,
                num_samples=order.samples,
                callbacks=(_ModelKeeper(order, folder), *callbacks),
                folder=folder,
                resume=resume,
                seed=order.seed,
                device=device,
                precision=order.precision,
                fast="auto" if order.fast is None else order.fast,
                progress=progress,
            )
        except Exception:
            # Refused before it began: leave no trace of it. The lock removes an empty folder that it has made.
            if processes.is_writer and not (folder / "config.json").exists():
                for file in (FILE, ENCODER):
                    (folder / file).unlink(missing_ok=True)
            raise
        processes.by_writer(lambda: _save_model(model, folder))
    return model, run


def read_order(folder: Path, fields: dict[str, str | bool] | None = None, **changed: Any) -> TrainConfig:
    """What a run was asked for, but for what is asked for now; another method begins without fields."""
    file = folder / FILE
    if not file.is_file():
        raise FileNotFoundError(
            f"{folder} was not made by dubio train (it has no {FILE}), so it cannot go on from here"
        )
    # Runs from before inputs and targets were standardised go on without.
    earlier = {"standardise": False, "standardise_targets": False}
    stored = read_value(TrainConfig, {**earlier, **read_object(file)}, str(file))
    for name in (*OF_TABLES, "standardise"):
        before, now = getattr(stored, name), changed.get(name, getattr(stored, name))
        if before != now:
            raise ValueError(
                f"cannot resume with another configuration: {name} was {before!r}, is {now!r}; train another run for it"
            )
    kept = stored.fields if changed.get("method", stored.method) == stored.method else {}
    return dataclasses.replace(stored, fields={**kept, **(fields or {})}, **changed)


def _training_data(order: TrainConfig, train: Examples, device: str | None) -> Examples | Loader:
    if not order.augment:
        return in_rows(train)
    return Loader(train, order.batch_size, seed=order.seed, augment=CropAndFlip(), device=device)


def in_rows(examples: Examples) -> Examples:
    """Numbers to predict as rows of outputs, which is what a network gives."""
    if examples.classes or examples.targets.dim() > 1:
        return examples
    return dataclasses.replace(examples, targets=examples.targets.unsqueeze(1))


class _ModelKeeper:
    """Keeps the order of a resumed run, once ``fit`` has taken it."""

    def __init__(self, order: TrainConfig, folder: Path) -> None:
        self._order, self._folder, self._kept = order, folder, False

    def on_step(self, step: int, loss: Loss) -> None:
        if not self._kept:
            _write_order(self._order, self._folder)
            self._kept = True

    def on_epoch(self, metrics: dict[str, float]) -> None:
        pass

    def on_end(self, run: FitResult) -> None:
        pass


def _save_model(model: nn.Module, folder: Path) -> None:
    save(model, folder / "model.safetensors")
    forget_commands(folder)


def _write_order(order: TrainConfig, folder: Path, train: Examples | None = None) -> None:
    if train is not None and train.encoder is not None:
        write_atomically(folder / ENCODER, train.encoder.to_json().encode())
    write_atomically(folder / FILE, f"{dump_json(dataclasses.asdict(order), indent=1)}\n".encode())
