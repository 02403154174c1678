"""What ``dubio train`` was asked for, kept beside the run so that ``--resume`` needs no options again."""

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dubio.cli.digits import Digits, check_fits
from dubio.methods import Bayes
from dubio.models import build
from dubio.objectives import Loss
from dubio.persistence import save
from dubio.priors import CentredNormal, Normal, Prior, ScaleMixture
from dubio.sampling import Estimator
from dubio.training import Run, fit

__all__ = ["Order", "parse_prior", "read_order", "train_order"]

FILE = "command.json"
PRIORS = "normal:MEAN,STD, mixture, mixture:WEIGHT,WIDE,NARROW or centred:STD"


@dataclass(frozen=True)
class Order:
    """Values of the options; None is the method's default."""

    data: str = "digits"
    model: str = "mlp:64-100-100-10"
    method: str = "bayes"
    prior: str = "normal:0,1"
    estimator: Estimator = "local"
    epochs: int | None = None
    lr: float | None = None
    batch_size: int = 128
    samples: int | None = None
    seed: int = 0


def train_order(order: Order, digits: Digits, folder: Path, resume: bool = False) -> tuple[nn.Module, Run]:
    """Build, convert, train and save a network."""
    if order.data != "digits":
        raise ValueError(f"--data must be digits for now, got {order.data!r}")
    if order.method != "bayes":
        raise ValueError(f"--method must be bayes for now, got {order.method!r}")
    torch.manual_seed(order.seed)
    net = build(order.model)
    check_fits(net)
    model = Bayes(prior=parse_prior(order.prior), estimator=order.estimator).convert(net)
    if not resume:
        _write_order(order, folder)
    try:
        run = fit(
            model,
            digits.train,
            digits.validation,
            epochs=order.epochs,
            batch_size=order.batch_size,
            lr=order.lr,
            num_samples=order.samples,
            callbacks=(_Keeper(order, folder),),
            folder=folder,
            resume=resume,
            seed=order.seed,
        )
    except Exception:
        if not (folder / "config.json").exists():  # refused before it began: leave no trace of it
            (folder / FILE).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise
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
    unfinished = folder / f".{FILE}"
    unfinished.write_text(json.dumps(dataclasses.asdict(order), indent=1) + "\n")
    os.replace(unfinished, folder / FILE)
