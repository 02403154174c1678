"""The networks of the label-noise figure and of those around it: one plain network, and what each method makes of it.

A spec lists them in ``networks``, by name: a ``method`` as it stands in a saved network, and for bootstrapping
``bootstrap`` and ``beta``. All are trained alike, from the same weights, on the same batches.
"""

import copy
from typing import Any

import torch
from torch import nn

from dubio.convert import spec
from dubio.data import Examples
from dubio.io import from_json
from dubio.methods import Method
from dubio.models import build
from dubio.objectives import BootstrapHard, BootstrapSoft, Objective
from dubio.training import StepCache, fit
from dubio_lab.protocols.trial import Trial

__all__ = ["train_network"]

BOOTSTRAPS = {"hard": BootstrapHard, "soft": BootstrapSoft}
TRAINING = ("data", "num_train", "num_validation", "model", "epochs", "batch_size", "lr", "weight_decay", "train_draws")
"""Settings that a trained network depends on, beside its own and the share of wrong labels."""
WORKSHOP: dict[tuple[str, str], tuple[nn.Module, StepCache]] = {}
"""The module in which networks of one kind, the last, are trained one after another: it is compiled once."""


def train_network(trial: Trial, train: Examples, wrong_labels: float = 0.0) -> nn.Module:
    """The trial's network, trained on these examples, or as another trial has left it.

    Settings: ``network``, its name in ``networks``; ``model``, ``epochs``, ``batch_size``, ``lr``, ``weight_decay``,
    ``train_draws``; and those of ``load_images``, from which the examples come.

    Args:
        trial: whose network it is.
        train: the examples, with the labels to learn.
        wrong_labels: what share of these labels is wrong, drawn with the trial's seed.
    """
    settings = trial.settings
    own = settings["networks"][settings["network"]]
    unknown = set(own) - {"method", "bootstrap", "beta"}
    if unknown:
        raise ValueError(f"a network has method, bootstrap and beta, got {', '.join(sorted(unknown))}")
    method = from_json(own["method"])
    what = {name: settings.get(name) for name in TRAINING}
    return trial.trained(
        {**what, "own": own, "method": repr(method), "wrong_labels": wrong_labels},
        lambda: _begin(method, settings["model"], train),
        lambda model: _learn(trial, model, train, own),
    )


def _begin(method: Method, model: str, train: Examples) -> nn.Module:
    """The network before training; the plain part of it is the same for all methods."""
    net = build(model, inputs=train.shape, num_classes=len(train.classes))
    _draw_weights(net)
    return method.convert(net)


def _draw_weights(net: nn.Module) -> None:
    """Weights from N(0, 1 / number of inputs), and biases of zero (Hendrycks et al. 2018)."""
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
            nn.init.zeros_(module.bias)


def _learn(trial: Trial, model: nn.Module, train: Examples, own: dict[str, Any]) -> None:
    settings = trial.settings
    place, steps = _workshop(model, trial.device)
    fit(
        place,
        train,
        objective=_objective(own),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        lr=settings["lr"],
        weight_decay=settings["weight_decay"],
        num_samples=settings["train_draws"],
        seed=trial.seed,
        device=trial.device,
        steps=steps,
        progress=False,
    )
    model.load_state_dict(place.state_dict())


def _workshop(model: nn.Module, device: torch.device) -> tuple[nn.Module, StepCache]:
    """A module of the network's kind with the network's weights, and the steps that others of the kind have left."""
    kind = (f"{spec(model)!r} {model}", str(device))
    if kind not in WORKSHOP:
        WORKSHOP.clear()
        WORKSHOP[kind] = copy.deepcopy(model), StepCache()
    place, steps = WORKSHOP[kind]
    place.load_state_dict(model.state_dict())
    return place, steps


def _objective(own: dict[str, Any]) -> Objective | None:
    """What is minimised; None stands for the method's own."""
    return BOOTSTRAPS[own["bootstrap"]](own["beta"]) if "bootstrap" in own else None
