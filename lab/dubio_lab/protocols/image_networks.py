"""Networks of the embeddings paper on CIFAR: one backbone, what each method makes of it, and one recipe for all.

A spec lists methods in ``networks``, by name, as they stand in a saved network. The recipe is gradient descent with
momentum, whose rate falls by steps; images may be shifted and mirrored, and attacked in every step (E-59). Training
that was interrupted goes on from its checkpoint.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dubio.attacks import PGD
from dubio.convert import spec
from dubio.data import Examples, Splits
from dubio.io import from_json
from dubio.methods import Method
from dubio.models import build
from dubio.objectives import ELBO, Adversarial, Objective
from dubio.training import Schedule, fit
from dubio_lab.protocols.images import batches_of
from dubio_lab.protocols.measuring import predict_classes, quality
from dubio_lab.protocols.trial import Learned, Trial
from dubio_lab.protocols.watching import Watch

__all__ = ["Steps", "image_network", "objective_of", "schedule_of"]

PARTS = (
    *("data", "num_train", "num_validation", "model", "epochs", "batch_size", "lr", "noise_lr", "momentum", "nesterov"),
    *(
        "weight_decay",
        "schedule",
        "augment",
        "train_draws",
        "adversarial",
        "watch_every",
        "watch_draws",
        "watch_images",
    ),
)
"""Settings that a trained network and its curves depend on, beside its method and the seed."""


@dataclass(frozen=True)
class Steps:
    """A rate that is multiplied by a factor at some shares of the training."""

    at: tuple[float, ...]
    factor: float

    def __call__(self, done: float) -> float:
        """The factor of the rate when the share ``done`` of the training is completed."""
        return self.factor ** sum(done >= place for place in self.at)


def image_network(trial: Trial, splits: Splits) -> Learned[nn.Module]:
    """The trial's network after its last epoch, and how it learned.

    Settings: ``network``, its name in ``networks``; those in ``PARTS``. ``schedule`` is ``"cosine"``, ``"linear"``,
    ``"constant"``, or ``{at = [0.5, 0.75], factor = 0.1}``. ``augment`` is ``"none"`` or ``"crop-and-flip"``.
    ``adversarial`` is empty, or has ``weight`` of the clean loss, ``epsilon``, ``steps``, ``step_size`` and ``label``.
    After every ``watch_every`` epochs ``watch_images`` validation images are looked at, by ``watch_draws`` draws, which
    decides nothing. Told are, look by look, ``epoch``, ``accuracy``, ``ece`` and ``nll`` of these, and for every epoch
    ``train_accuracy`` in percent and ``train_nll`` while it trains.
    """
    settings = trial.settings
    method = from_json(settings["networks"][settings["network"]]["method"])
    what = {"backbone": {name: settings.get(name) for name in PARTS}, "method": repr(method)}
    assert splits.train is not None
    assert splits.validation is not None
    train, held_out = splits.train, splits.validation[: settings["watch_images"]]

    def learn(model: nn.Module) -> dict[str, Tensor]:
        return _fit(trial, what, model, train, held_out)

    return trial.learned(what, lambda: _begin(method, settings["model"], train), learn)


def schedule_of(value: str | dict[str, Any]) -> Schedule:
    """A schedule by its name, or by the places of its steps and their factor."""
    return Steps(tuple(value["at"]), value["factor"]) if isinstance(value, dict) else value  # type: ignore[return-value]


def objective_of(model: nn.Module, adversarial: dict[str, Any]) -> Objective:
    """The method's own objective, on clean images or on attacked ones, too."""
    method = spec(model).method
    assert isinstance(method, Method)
    objective = method.objective()
    if not adversarial:
        return objective
    assert isinstance(objective, ELBO)
    attack = PGD(adversarial["epsilon"], steps=adversarial["steps"], step_size=adversarial["step_size"], num_samples=1)
    return Adversarial(objective, attack, adversarial["weight"], adversarial["label"])


def _begin(method: Method, model: str, train: Examples) -> nn.Module:
    """The network before training; the plain part of it is the same for all methods."""
    return method.convert(build(model, inputs=train.shape, num_classes=len(train.classes)))


def _fit(
    trial: Trial, what: dict[str, Any], model: nn.Module, train: Examples, held_out: Examples
) -> dict[str, Tensor]:
    settings = trial.settings
    inputs, targets = held_out.tensors

    def look() -> dict[str, float]:
        seen = quality(predict_classes(trial, model, inputs, settings["watch_draws"]).log_probs, targets)
        return {name: seen[name].value for name in ("accuracy", "ece", "nll")}

    folder = trial.checkpoints(what)
    num_steps = -(-len(train) // settings["batch_size"])
    every, last = settings["watch_every"], settings["epochs"]
    watch = Watch(look, every, last, file=folder / "looks.json", steps_per_epoch=num_steps)
    run = fit(
        model,
        batches_of(trial, train),
        objective=objective_of(model, settings["adversarial"]),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        lr=settings["lr"],
        noise_lr=settings["noise_lr"],
        optimizer=partial(torch.optim.SGD, momentum=settings["momentum"], nesterov=settings["nesterov"]),
        schedule=schedule_of(settings["schedule"]),
        num_samples=settings["train_draws"],
        weight_decay=settings["weight_decay"],
        callbacks=[watch],
        folder=folder,
        resume=True,
        seed=trial.seed,
        device=trial.device,
        precision=settings["precision"],
        progress=False,
    )
    trial.tell(f"{len(run.history)} epochs, {run.mode}{run.reason and f', since {run.reason}'}, {run.seconds:.0f} s")
    return {
        **watch.history,
        "train_accuracy": torch.tensor([100.0 * metrics["accuracy"] for metrics in run.history]),
        "train_nll": torch.tensor([metrics["nll"] for metrics in run.history]),
    }
