"""Runs on disk: found by name, listed, loaded, and trained from a ``TrainConfig``.

``config.json`` is what ``dubio.fit`` writes; ``command.json`` is the ``TrainConfig`` of ``dubio train``, so that
``--resume`` needs no options again (``tests/end_to_end/test_train_resume.py``).
"""

import contextlib
import csv
import dataclasses
import itertools
import math
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from dubio import codec, data
from dubio._engine import Precision
from dubio.checks import did_you_mean
from dubio.cli.fields import make_method
from dubio.data import Examples, Splits, TableEncoder, Task
from dubio.io import Identity, identity_of, load as load_network, locked, save
from dubio.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from dubio.models import build, standardised
from dubio.objectives import Loss
from dubio.training import ALONE, Callback, FitResult, Processes, fit

CONFIG, METRICS, MODEL = "config.json", "metrics.jsonl", "model.safetensors"
FILE = "command.json"
ENCODER = "table.json"
"""How the columns of the run's table become numbers."""
OF_TABLES = ("target", "task", "drop")
"""Options that the encoder of a run has fixed."""
LIKELIHOODS = ("gaussian", "categorical", "bernoulli")
BETA = 0.5
"""Weight of variances in training where noise depends on the input; docs/decisions/0006 has the measurements."""


@dataclass(frozen=True)
class TrainConfig:
    """The options of ``dubio train``; None stands for the default of the method."""

    data: str = "digits"
    data_dir: str | None = None
    target: str | None = None
    """The column of a table to predict."""
    task: Task | None = None
    drop: str | None = None
    """Columns to leave out, separated by commas."""
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
    """The given fields of the method, as they were written."""
    epochs: int | None = None
    lr: float | None = None
    noise_lr: float | None = None
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    batch_size: int = 128
    samples: int | None = None
    seed: int = 0
    precision: Precision = "fp32"
    fast: bool | None = None
    """Whether a step must be compiled, or must be eager; None decides by the network."""
    memory: str | None = None
    """Memory for the draws of a step, as in ``2 GiB``."""


@dataclass(frozen=True)
class Summary:
    """One run, as the list shows it."""

    name: str
    method: str
    epochs_done: int
    epochs: int
    best: dict[str, float]
    """Metrics of the epoch with the least validation NLL; empty before the first epoch is over."""


def train_network(
    config: TrainConfig,
    splits: Splits,
    folder: Path,
    resume: bool = False,
    device: str | None = None,
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    processes: Processes = ALONE,
) -> tuple[nn.Module, FitResult]:
    """Build, convert, train and save a network; of several processes only the first writes."""
    method, train = make_method(config.method, config.fields), splits.train
    assert train is not None
    if config.augment and train.inputs.dim() != 4:
        raise ValueError(f"--augment needs images, and {config.data} has inputs of shape {train.shape}")
    model = method.convert(*build_for(config, train))
    examples: Examples | data.Loader = in_rows(train)
    if config.augment:
        examples = data.Loader(train, config.batch_size, seed=config.seed, augment=data.CropAndFlip(), device=device)
    with contextlib.ExitStack() as lock:
        processes.by_writer(lambda: lock.enter_context(locked(folder)))
        if not resume:
            processes.by_writer(lambda: _write_config(config, folder, train))
        try:
            result = fit(
                model,
                examples,
                None if splits.validation is None else in_rows(splits.validation),
                epochs=config.epochs,
                batch_size=config.batch_size,
                lr=config.lr,
                noise_lr=config.noise_lr,
                schedule=config.schedule,
                num_samples=config.samples,
                callbacks=(_ConfigWriter(config, folder), *callbacks),
                folder=folder,
                resume=resume,
                seed=config.seed,
                device=device,
                precision=config.precision,
                fast="auto" if config.fast is None else config.fast,
                progress=progress,
            )
        except Exception:
            # Refused before it began: leave no file. The lock removes an empty folder that it has made.
            if processes.is_writer and not (folder / CONFIG).exists():
                for file in (FILE, ENCODER):
                    (folder / file).unlink(missing_ok=True)
            raise
        processes.by_writer(lambda: _save_model(model, folder))
    return model, result


def load_model(named: str, runs: Path) -> nn.Module:
    """The network of a run, given by name or folder, or of a ``.safetensors`` file."""
    file = _model_file(named, runs)
    if Path(named) == file:
        return load_network(file)
    if not file.is_file():
        raise FileNotFoundError(f"run {named!r} has no {MODEL} yet; finish it with: dubio train {named} --resume")
    if _run_config(file.parent)["method"] == str(None):
        raise ValueError(f"run {named!r} holds an ordinary network's weights, which have no draws")
    return load_network(file)


def folder_of(named: str, runs: Path) -> Path:
    """The folder for the files of a run, or of a ``.safetensors`` file."""
    return _model_file(named, runs).parent


def network_of(named: str, runs: Path) -> Identity:
    """The identity of the network that a run, or a ``.safetensors`` file, holds now; records keep it."""
    identity = identity_of(_model_file(named, runs))
    if identity is None:
        raise FileNotFoundError(f"{named} holds no network that dubio saved")
    return identity


def stored_data(folder: Path) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The class names and the shape of one input that a run was trained on; empty where they are not stored."""
    data = _run_config(folder).get("data")
    train = data.get("train") if isinstance(data, dict) else None
    names, shape = (train.get("classes"), train.get("shape")) if isinstance(train, dict) else (None, None)
    sizes = shape if isinstance(shape, list) and all(type(size) is int for size in shape) else ()
    return tuple(map(str, names)) if isinstance(names, list) else (), tuple(sizes)


def num_processes_of(folder: Path) -> int | None:
    """How many processes train a run together; None before training has begun."""
    return int(_run_config(folder).get("num_processes", 1)) if (folder / CONFIG).exists() else None


def check_resumable(folder: Path) -> None:
    """Raise an error for a pruned run, because training would build the whole network."""
    pruned = [command for command in codec.read_commands(folder) if command.kind == "prune"]
    if pruned:
        raise ValueError(
            f"a pruned run cannot be resumed, got {folder}; continue the run before pruning and prune again "
            f"(dubio train {pruned[0].run} --resume), or continue in Python: "
            f"dubio.fit(dubio.load({str(folder / MODEL)!r}), ...)"
        )


def find_run(named: str, runs: Path) -> Path:
    """The folder of a run, given by its name under ``runs`` or by its path."""
    for folder in (runs / named, Path(named)):
        if (folder / CONFIG).is_file():
            return folder
    names = _names(runs)
    if not names:
        raise FileNotFoundError(f"there is no run {named!r}, and none at all in {runs}; train one: dubio train {named}")
    hint = did_you_mean(named, names) or "; dubio runs lists those there are"
    raise FileNotFoundError(f"there is no run {named!r} in {runs}{hint}")


def list_runs(runs: Path) -> tuple[list[Summary], list[str]]:
    """All runs of a folder by name, and an error for each that cannot be read."""
    summaries, errors = [], []
    for name in _names(runs):
        try:
            config, history = _run_config(runs / name), codec.read_history(runs / name / METRICS)
            best = min(history, key=_validation_nll) if history else {}
            method = "Deterministic" if config["method"] == "None" else config["method"].partition("(")[0]
            summaries.append(Summary(name, method, len(history), config["epochs"], best))
        except (ValueError, OSError) as error:
            errors.append(f"{name} cannot be read: {error}")
    return summaries, errors


def check_name(name: str) -> None:
    """Raise an error for names that leave the folder of runs, or that a terminal does not show as they are."""
    has_signs = any(sign in name for sign in "/\\\t\n") or codec.printable(name) != name
    if not name or name.startswith((".", "-")) or has_signs:
        raise ValueError(f"NAME must be a plain name such as first or mlp-2, got {name!r}; --runs names the folder")


def unused_name(name: str, runs: Path, ending: str = "") -> str:
    """The name, or the name with a number where a folder (or a file with this ending) has that name."""
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(name for name in names if not (runs / f"{name}{ending}").exists())


def load_splits(config: TrainConfig, encoder: TableEncoder | None = None) -> Splits:
    """The data of a configuration, with noise on the training and validation labels.

    A run that has an encoder reads its table with it, even if the file has changed since.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", data.TableWarning)  # these are the data that the run was trained on
        splits = data.load(config.data, folder=config.data_dir, **table_options(config, encoder))
    if splits.train is None:
        raise FileNotFoundError(f"--data {config.data} has no training part here, only a test part; see dubio data")
    if config.label_noise is None:
        return splits
    noise = data.parse_label_noise(config.label_noise)
    if not splits.train.classes:
        raise ValueError(f"--label-noise needs classes to mix up, and {config.data} has numbers for targets")
    parts = [splits.train] if splits.validation is None else [splits.train, splits.validation]
    labels = torch.cat([part.targets for part in parts])
    noisy = noise(labels, len(splits.train.classes), torch.Generator().manual_seed(config.seed)).labels
    targets = noisy.split([len(part) for part in parts])
    train, *held_out = (dataclasses.replace(part, targets=t) for part, t in zip(parts, targets, strict=True))
    return Splits(train, held_out[0] if held_out else None, splits.test)


def table_options(config: TrainConfig, encoder: TableEncoder | None = None) -> dict[str, Any]:
    """Arguments of ``dubio.data.load``; an encoder has most of them already."""
    if encoder is not None:
        return {"encoder": encoder, "delimiter": config.delimiter}
    names = [] if config.drop is None else next(csv.reader([config.drop], skipinitialspace=True))
    return {
        "target": config.target,
        "task": config.task,
        "drop": [name.strip() for name in names],
        "delimiter": config.delimiter,
        "resize": parse_resize(config.resize),
    }


def read_encoder(folder: Path) -> TableEncoder | None:
    """How the table of a run becomes numbers; None for a run on other data."""
    file = folder / ENCODER
    if not file.exists():
        return None
    try:
        return TableEncoder.from_json(codec.read_file(file, codec.MAX_BYTES, data.DataError).decode("utf-8"))
    except ValueError as error:
        raise data.DataError(f"{file} cannot be read: {str(error).removeprefix(f'{file} ')}") from error


def parse_resize(text: str | None) -> tuple[int, int] | None:
    """Height and width from ``32x48``, or from one number for both."""
    if text is None:
        return None
    sides = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if sides is None:
        raise ValueError(f"--resize must be one number of pixels or HEIGHTxWIDTH, such as 32 or 32x48, got {text!r}")
    return int(sides[1]), int(sides[2] or sides[1])


def build_for(config: TrainConfig, examples: Examples) -> tuple[nn.Module, Likelihood]:
    """The deterministic network of a configuration, with the sizes of the data, and the likelihood of its outputs."""
    likelihood = make_likelihood(config, examples)
    torch.manual_seed(config.seed)
    outputs = len(examples.classes) if isinstance(likelihood, Categorical) else 1
    if isinstance(likelihood, Gaussian):
        outputs = examples.targets[0].numel() * (2 if likelihood.std == "output" else 1)
    net = build(config.model, inputs=examples.shape, num_classes=outputs)
    is_table = examples.inputs.dim() == 2 and data.find_name(config.data) is None
    if config.standardise and is_table and "," not in config.model:  # a model with a comma normalises by itself
        net = standardised(net, examples.inputs)
    return net, likelihood


def make_likelihood(config: TrainConfig, examples: Examples) -> Likelihood:
    """The likelihood that ``--likelihood`` names, for these training data; by default the one for their targets."""
    name, std = parse_likelihood(config.likelihood)
    needs_classes = name in ("categorical", "bernoulli")
    if name and needs_classes != bool(examples.classes):
        needed, given = ("classes", "numbers") if needs_classes else ("numbers", "classes")
        suitable = "categorical" if examples.classes else "gaussian"
        raise ValueError(
            f"--likelihood {name} is for {needed}, and the targets of {config.data} are {given}; leave it out, or give "
            f"--likelihood {suitable}"
        )
    if name == "bernoulli" and len(examples.classes) != 2:
        count = len(examples.classes)
        raise ValueError(f"--likelihood bernoulli is for two classes, and {config.data} has {count}; leave it out")
    if examples.classes:
        return Bernoulli() if name == "bernoulli" else Categorical()
    if not config.standardise_targets:
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
    hint = did_you_mean(text.strip().lower(), (*LIKELIHOODS, "gaussian:learned"))
    raise ValueError(
        "--likelihood must be gaussian, gaussian:learned or gaussian:STD, such as gaussian:0.1, for numbers, or "
        f"categorical or bernoulli for classes, got {text!r}{hint}"
    )


def read_config(folder: Path, fields: dict[str, str | bool] | None = None, **changed: Any) -> TrainConfig:
    """The configuration of a run with changes; another method begins without the stored fields."""
    file = folder / FILE
    if not file.is_file():
        raise FileNotFoundError(f"{folder} was not made by dubio train (it has no {FILE}), so it cannot be continued")
    # Runs from before inputs and targets were standardised continue without.
    earlier = {"standardise": False, "standardise_targets": False}
    stored = codec.read_value(TrainConfig, {**earlier, **codec.read_object(file)}, str(file))
    for name in (*OF_TABLES, "standardise"):
        before, now = getattr(stored, name), changed.get(name, getattr(stored, name))
        if before != now:
            change = f"{name} was {before!r}, is {now!r}"
            raise ValueError(f"cannot resume with another configuration: {change}; train another run for it")
    kept = stored.fields if changed.get("method", stored.method) == stored.method else {}
    return dataclasses.replace(stored, fields={**kept, **(fields or {})}, **changed)


def in_rows(examples: Examples) -> Examples:
    """Numeric targets as rows, the shape of the outputs of a network."""
    if examples.classes or examples.targets.dim() > 1:
        return examples
    return dataclasses.replace(examples, targets=examples.targets.unsqueeze(1))


class _ConfigWriter:
    """Writes the configuration of a resumed run after the first step, when ``fit`` has accepted it."""

    def __init__(self, config: TrainConfig, folder: Path) -> None:
        self._write: Callable[[], None] | None = lambda: _write_config(config, folder)

    def on_step(self, step: int, loss: Loss) -> None:
        if self._write is not None:
            self._write()
            self._write = None

    def on_epoch(self, metrics: dict[str, float]) -> None:
        pass

    def on_end(self, run: FitResult) -> None:
        pass


def _model_file(named: str, runs: Path) -> Path:
    return Path(named) if Path(named).suffix == ".safetensors" else find_run(named, runs) / MODEL


def _names(runs: Path) -> list[str]:
    return sorted(file.parent.name for file in runs.glob(f"[!.]*/{CONFIG}") if _is_of_a_run(file))


def _is_of_a_run(file: Path) -> bool:
    """Whether a file may be the configuration of a run; a file that cannot be read may be one."""
    try:
        return {"method", "epochs"} <= codec.read_object(file).keys()
    except (OSError, ValueError):
        return True


def _run_config(folder: Path) -> dict[str, Any]:
    """The configuration that ``dubio.fit`` wrote."""
    file = folder / CONFIG
    config: dict[str, Any] = codec.current_names(codec.read_object(file))
    if not {"method", "epochs"} <= config.keys():
        raise codec.RecordError(f"{file} is not the configuration of a run: it names no method or no epochs")
    codec.check_fields(config, {"method": str, "epochs": int, "num_processes": int}, str(file))
    return config


def _validation_nll(metrics: dict[str, Any]) -> float:
    """The NLL by which epochs are compared; infinite where an epoch has none."""
    value = metrics.get("val_nll", metrics.get("nll"))
    return math.inf if value is None else float(value)


def _save_model(model: nn.Module, folder: Path) -> None:
    save(model, folder / MODEL)
    codec.forget_commands(folder)


def _write_config(config: TrainConfig, folder: Path, train: Examples | None = None) -> None:
    if train is not None and train.encoder is not None:
        codec.write_atomically(folder / ENCODER, train.encoder.to_json().encode())
    codec.write_atomically(folder / FILE, f"{codec.dump_json(dataclasses.asdict(config), indent=1)}\n".encode())
