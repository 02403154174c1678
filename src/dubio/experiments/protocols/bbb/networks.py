"""The networks of this family: plain, with dropout, and Bayesian with a Gaussian or a mixture prior.

All specs of the family train them here, and ``TRAINING`` names every setting that has a part in them: specs that agree
on these share the network, and the error that it had while it learned. Inputs are in [0, 1]; their scaling is the
network's first layer.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dubio.data import Examples, Splits
from dubio.experiments.protocols.images import load_images
from dubio.experiments.protocols.trial import Trial
from dubio.experiments.results import Curve
from dubio.methods import Bayes, Deterministic, Dropout, Method
from dubio.models import build, normalised
from dubio.objectives import Elbo, Loss
from dubio.prediction import ClassPredictive, predict
from dubio.priors import Normal, Prior, ScaleMixture
from dubio.training import Run, fit

__all__ = ["TRAINING", "Trained", "make_network", "train_network"]

TRAINING = (
    *("data", "num_validation", "num_train", "num_test"),
    *("network", "model", "normalise", "input_dropout", "hidden_dropout"),
    *("prior_std", "mixture_weight", "minus_log_wide", "minus_log_narrow", "estimator", "init_std"),
    *("optimiser", "lr", "noise_lr", "momentum", "schedule", "epochs", "batch_size", "train_draws", "precision"),
    *("beta", "kl_weighting", "warmup", "curve_every", "curve_draws"),
)
"""What a trained network and its learning curve depend on, beside the seed."""
NETWORKS = ("mlp", "dropout", "gaussian", "mixture")
STATE = "network."


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
    model = make_network(settings, test.shape, len(test.classes), trial.seed).to(trial.device)

    def learn() -> dict[str, Tensor]:
        watching = _Watching(model, test, settings["curve_every"], settings["curve_draws"], settings["epochs"])
        _fit(trial, model, train, watching)
        state = {STATE + name: value for name, value in model.state_dict().items()}
        places, errors = (torch.tensor(part, dtype=torch.float64) for part in (watching.epochs, watching.errors))
        return {**state, "epochs": places, "errors": errors}

    kept = trial.kept({"bbb": {name: settings.get(name) for name in TRAINING}, "seed": trial.seed}, learn)
    model.load_state_dict({name.removeprefix(STATE): kept[name] for name in kept if name.startswith(STATE)})
    curve = Curve(tuple(kept["epochs"].tolist()), tuple(kept["errors"].tolist()))
    return Trained(model.eval(), splits, test, curve)


def make_network(settings: dict[str, Any], inputs: tuple[int, ...], num_classes: int, seed: int) -> nn.Module:
    """The network as it begins: ``mlp``, ``dropout``, ``gaussian`` or ``mixture``."""
    kind = settings["network"]
    if kind not in NETWORKS:
        raise ValueError(f"network must be one of {', '.join(NETWORKS)}, got {kind!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
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


def _fit(trial: Trial, model: nn.Module, train: Examples, watching: "_Watching") -> None:
    settings = trial.settings

    def sgd(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, momentum=settings["momentum"])

    fit(
        model,
        train,
        objective=Elbo(beta=settings["beta"], kl_weighting=settings["kl_weighting"], warmup=settings["warmup"]),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        lr=settings["lr"],
        noise_lr=settings["noise_lr"],
        optimizer={"adam": None, "sgd": sgd}[settings["optimiser"]],
        schedule=settings["schedule"],
        num_samples=settings["train_draws"],
        callbacks=[watching],
        seed=trial.seed,
        device=trial.device,
        precision=settings["precision"],
        progress=False,
    )


@dataclass(eq=False)
class _Watching:
    """Notes the test error in percent after some epochs, the last one among them; nothing is chosen by it."""

    model: nn.Module
    test: Examples
    every: int
    draws: int
    last: int
    epochs: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)

    def on_step(self, step: int, loss: Loss) -> None:
        """Steps are not looked at."""

    def on_epoch(self, metrics: dict[str, float]) -> None:
        """Look after every so many epochs."""
        epoch = metrics["epoch"]
        if epoch % self.every == 0 or epoch == self.last:
            inputs, targets = self.test.tensors
            found = predict(self.model, inputs, self.draws, keep_samples=False, seed=0)
            assert isinstance(found, ClassPredictive)
            label = found.label
            self.epochs.append(epoch)
            self.errors.append(100.0 * (label != targets).double().mean().item())

    def on_end(self, run: Run) -> None:
        """Nothing is left to do."""
