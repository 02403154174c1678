"""The networks of this family: plain, with dropout, and Bayesian with a Gaussian or a mixture prior.

All specs of the family train them here, and ``TRAINING`` names every setting that has a part in them: specs that agree
on these share the network, and the error that it had while it learned. Inputs are in [0, 1]; their scaling is the
network's first layer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dubio.data import Examples, Splits
from dubio.methods import Bayes, Deterministic, Dropout, Method
from dubio.models import build, normalised
from dubio.objectives import ELBO
from dubio.prediction import ClassificationPredictive, predict
from dubio.priors import Normal, Prior, ScaleMixture
from dubio.training import Callback, fit
from dubio_lab.protocols.images import load_images
from dubio_lab.protocols.trial import Trial
from dubio_lab.protocols.watching import Watch
from dubio_lab.results import Curve

__all__ = ["TRAINING", "Trained", "error_percent", "fit_network", "make_network", "objective_of", "train_network"]

TRAINING = (
    *("data", "num_validation", "num_train", "num_test"),
    *("network", "model", "normalise", "input_dropout", "hidden_dropout"),
    *("prior_std", "mixture_weight", "minus_log_wide", "minus_log_narrow", "estimator", "init_std"),
    *("optimiser", "lr", "noise_lr", "momentum", "schedule", "epochs", "batch_size", "train_draws", "precision"),
    *("beta", "kl_weighting", "warmup", "curve_every", "curve_draws"),
)
"""What a trained network and its learning curve depend on, beside the seed."""
NETWORKS = ("mlp", "dropout", "gaussian", "mixture")


@dataclass(frozen=True, eq=False)
class Trained:
    """A network after training, its images, and the test error in percent on the way there."""

    model: nn.Module
    splits: Splits
    test: Examples
    learning_curve: Curve


def train_network(trial: Trial) -> Trained:
    """The network that the settings describe, trained once for all trials that describe it so.

    Settings: ``TRAINING``; ``num_train`` and ``num_test`` only where a run takes fewer.
    """
    settings, splits = trial.settings, load_images(trial)
    assert splits.train is not None
    assert splits.test is not None
    train, test = splits.train, splits.test

    def train_it(model: nn.Module) -> dict[str, Tensor]:
        watch = Watch(
            lambda: {"error": error_percent(model, test, settings["curve_draws"])},
            settings["curve_every"],
            settings["epochs"],
        )
        fit_network(trial, model, train, [watch])
        return watch.history

    learned = trial.learned(
        {"bbb": {name: settings.get(name) for name in TRAINING}},
        lambda: make_network(settings, test.shape, len(test.classes)),
        train_it,
    )
    curve = Curve(tuple(learned.history["epoch"].tolist()), tuple(learned.history["error"].tolist()))
    return Trained(learned.model, splits, test, curve)


def error_percent(model: nn.Module, test: Examples, draws: int) -> float:
    """Test error in percent, of the mean over draws that are the same at every look."""
    inputs, targets = test.tensors
    pred = predict(model, inputs, draws, keep_samples=False, seed=0)
    assert isinstance(pred, ClassificationPredictive)
    return 100.0 * (pred.label != targets).double().mean().item()


def make_network(settings: dict[str, Any], inputs: tuple[int, ...], num_classes: int) -> nn.Module:
    """The network as it begins: ``mlp``, ``dropout``, ``gaussian`` or ``mixture``."""
    kind = settings["network"]
    if kind not in NETWORKS:
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}, got {kind!r}")
    net = build(settings["model"], inputs=inputs, num_classes=num_classes)
    if kind == "dropout":
        net = _with_dropout(net, settings["input_dropout"], settings["hidden_dropout"])
    method: Method = Bayes(prior=_prior(settings), estimator=settings["estimator"], init_std=settings["init_std"])
    if kind in ("mlp", "dropout"):
        method = Deterministic() if kind == "mlp" else Dropout(l2=0.0)
    return method.convert(normalised(net, settings["normalise"]))


def _prior(settings: dict[str, Any]) -> Prior:
    """A Gaussian, or the scale mixture (E-18), whose widths are given as the paper does: as minus their logarithms."""
    if settings["network"] != "mixture":
        return Normal(0.0, settings["prior_std"])
    wide, narrow = (math.exp(-settings[name]) for name in ("minus_log_wide", "minus_log_narrow"))
    return ScaleMixture(settings["mixture_weight"], wide, narrow)


def _with_dropout(net: nn.Module, input_rate: float, hidden_rate: float) -> nn.Sequential:
    """The same layers with a mask before every linear one: on the inputs, and on hidden units."""
    layers: list[nn.Module] = []
    for layer in net.children():
        if isinstance(layer, nn.Linear):
            is_first = not any(isinstance(before, nn.Linear) for before in layers)
            layers.append(nn.Dropout(input_rate if is_first else hidden_rate))
        layers.append(layer)
    return nn.Sequential(*layers)


def objective_of(settings: dict[str, Any]) -> ELBO:
    """The bound, as the settings weight its divergence."""
    return ELBO(beta=settings["beta"], kl_weighting=settings["kl_weighting"], warmup=settings["warmup"])


def fit_network(
    trial: Trial, model: nn.Module, train: Examples, callbacks: Sequence[Callback], folder: Path | None = None
) -> None:
    """Train a network as the settings describe; with a folder, from the checkpoint there, if there is one."""
    settings = trial.settings

    def sgd(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, momentum=settings["momentum"])

    fit(
        model,
        train,
        objective=objective_of(settings),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        lr=settings["lr"],
        noise_lr=settings["noise_lr"],
        optimizer={"adam": None, "sgd": sgd}[settings["optimiser"]],
        schedule=settings["schedule"],
        num_samples=settings["train_draws"],
        callbacks=callbacks,
        folder=folder,
        resume=folder is not None,
        seed=trial.seed,
        device=trial.device,
        precision=settings["precision"],
        progress=False,
    )
