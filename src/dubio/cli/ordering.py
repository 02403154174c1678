"""What ``dubio train`` was asked for, kept beside the run so that ``--resume`` needs no options again."""

import contextlib
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from dubio.data import CropAndFlip, Examples, Loader, Splits, load, parse_label_noise
from dubio.likelihoods import Categorical, Gaussian, Likelihood
from dubio.methods import Bayes
from dubio.models import build
from dubio.objectives import Loss
from dubio.persistence import save
from dubio.persistence.atomic import write_atomically
from dubio.priors import CentredNormal, Normal, Prior, ScaleMixture
from dubio.sampling import Estimator
from dubio.training import Run, fit

__all__ = ["Order", "build_for", "load_splits", "parse_prior", "read_order", "train_order"]

FILE = "command.json"
PRIORS = "normal:MEAN,STD, mixture, mixture:WEIGHT,WIDE,NARROW or centred:STD"


@dataclass(frozen=True)
class Order:
    """Values of the options; None is the method's default."""

    data: str = "digits"
    data_dir: str | None = None
    label_noise: str | None = None
    augment: bool = False
    model: str = "fc:100-100"
    method: str = "bayes"
    prior: str = "normal:0,1"
    estimator: Estimator = "local"
    init_std: float = 0.05
    epochs: int | None = None
    lr: float | None = None
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    batch_size: int = 128
    samples: int | None = None
    seed: int = 0


def load_splits(order: Order) -> Splits:
    """The data of an order, with noise on the labels that are trained and validated with."""
    splits = load(order.data, folder=order.data_dir)
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


def build_for(order: Order, examples: Examples) -> tuple[nn.Module, Likelihood]:
    """The plain network of an order, as large as the data need, and what its outputs mean."""
    torch.manual_seed(order.seed)
    outputs = len(examples.classes) or examples.targets[0].numel()
    net = build(order.model, inputs=examples.shape, num_classes=outputs)
    return net, Categorical() if examples.classes else Gaussian("learned")


def train_order(
    order: Order, splits: Splits, folder: Path, resume: bool = False, device: str | None = None
) -> tuple[nn.Module, Run]:
    """Build, convert, train and save a network."""
    if order.method != "bayes":
        raise ValueError(f"--method must be bayes for now, got {order.method!r}")
    assert splits.train is not None
    if order.augment and splits.train.inputs.dim() != 4:
        raise ValueError(f"--augment needs images, and {order.data} has inputs of shape {splits.train.shape}")
    net, likelihood = build_for(order, splits.train)
    model = Bayes(prior=parse_prior(order.prior), estimator=order.estimator, init_std=order.init_std).convert(
        net, likelihood
    )
    if not resume:
        _write_order(order, folder)
    try:
        run = fit(
            model,
            _training_data(order, splits.train, device),
            None if splits.validation is None else _in_rows(splits.validation),
            epochs=order.epochs,
            batch_size=order.batch_size,
            lr=order.lr,
            schedule=order.schedule,
            num_samples=order.samples,
            callbacks=(_Keeper(order, folder),),
            folder=folder,
            resume=resume,
            seed=order.seed,
            device=device,
        )
    except Exception:
        if not (folder / "config.json").exists():  # refused before it began: leave no trace of it
            (folder / FILE).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
    model.cpu()
    save(model, folder / "model.safetensors")
    return model, run


def read_order(folder: Path, **changed: Any) -> Order:
    """What a run was asked for, but for what is asked for now."""
    file = folder / FILE
    if not file.is_file():
        raise FileNotFoundError(
            f"{folder} was not made by dubio train (it has no {FILE}), so it cannot go on from here"
        )
    try:
        return dataclasses.replace(Order(**json.loads(file.read_text())), **changed)
    except (TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from error


def parse_prior(text: str) -> Prior:
    """A prior from text such as ``normal:0,1``."""
    kind, _, rest = text.partition(":")
    makers: dict[str, tuple[type[Prior], tuple[int, ...]]] = {
        "normal": (Normal, (0, 2)),
        "mixture": (ScaleMixture, (0, 3)),
        "centred": (CentredNormal, (0, 1)),
    }
    try:
        maker, counts = makers[kind]
        numbers = [float(number) for number in rest.split(",")] if rest else []
    except (KeyError, ValueError):
        raise ValueError(f"--prior must be {PRIORS}, got {text!r}") from None
    if len(numbers) not in counts:
        raise ValueError(f"--prior must be {PRIORS}, got {text!r}")
    return maker(*numbers)


def _training_data(order: Order, train: Examples, device: str | None) -> Examples | Loader:
    if not order.augment:
        return _in_rows(train)
    return Loader(train, order.batch_size, seed=order.seed, augment=CropAndFlip(), device=device)


def _in_rows(examples: Examples) -> Examples:
    """Numbers to predict as rows of outputs, which is what a network gives."""
    if examples.classes or examples.targets.dim() > 1:
        return examples
    return dataclasses.replace(examples, targets=examples.targets.unsqueeze(1))


class _Keeper:
    """Keeps the order of a resumed run, once ``fit`` has taken it."""

    def __init__(self, order: Order, folder: Path) -> None:
        self._order, self._folder, self._kept = order, folder, False

    def on_step(self, step: int, loss: Loss) -> None:
        if not self._kept:
            _write_order(self._order, self._folder)
            self._kept = True

    def on_epoch(self, metrics: dict[str, float]) -> None:
        pass

    def on_end(self, run: Run) -> None:
        pass


def _write_order(order: Order, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / FILE, (json.dumps(dataclasses.asdict(order), indent=1) + "\n").encode())
