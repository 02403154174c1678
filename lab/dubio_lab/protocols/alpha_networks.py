"""The networks of Li and Gal 2017 on images: dropout trained with an alpha-divergence, and the plain one beside them.

All of them are one network with its settings: a rate of 0 makes it plain, trained by maximum likelihood with the same
penalty (D-31), and one draw makes every alpha the same (T-28). The penalty has one weight for all layers (D-33).
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dubio.data import Examples, Splits
from dubio.methods import Dropout
from dubio.models import dad_cnn, dad_mlp
from dubio.prediction import ClassificationPredictive
from dubio.training import Callback, FitResult, fit
from dubio_lab.protocols.measuring import predict_classes
from dubio_lab.protocols.trial import Learned, Trial
from dubio_lab.protocols.watching import Watch

__all__ = ["described", "dropout_network", "summed_log_likelihood", "timed_network"]

PARTS = (
    *("data", "num_train", "num_validation", "network", "hidden", "rate", "alpha", "l2", "train_draws"),
    *("epochs", "batch_size", "lr", "momentum", "precision"),
)
"""Settings that a trained network depends on, beside its seed."""


def described(trial: Trial) -> dict[str, Any]:
    """All that the trained network of a trial depends on, beside its seed."""
    return {"family": "alpha", **{name: trial.settings[name] for name in PARTS}}


def dropout_network(trial: Trial, splits: Splits) -> nn.Module:
    """The network of a trial, trained once for all trials that want the same.

    Settings: ``PARTS``.
    """
    what = described(trial)
    # On a GPU it takes a minute; on a CPU a run that was interrupted goes on.
    folder = trial.checkpoints(what) if trial.device.type == "cpu" else None
    return trial.trained(
        what, lambda: _untrained(trial, splits), lambda model: _train(trial, model, splits, folder=folder)
    )


def timed_network(trial: Trial, splits: Splits) -> Learned[nn.Module]:
    """The network of a trial, and what its training was like.

    Also settings: ``watch_every`` (epochs between two looks at the test images) and ``watch_draws``. Told are, look by
    look, ``epoch``, ``accuracy`` in percent and ``test_ll``; and ``seconds`` that training took for an epoch, without
    looking and without compiling.
    """
    settings = trial.settings
    assert splits.test is not None
    test = splits.test

    def train(model: nn.Module) -> dict[str, Tensor]:
        watch = Watch(lambda: _look(trial, model, test), settings["watch_every"])
        run = _train(trial, model, splits, [watch])
        seconds = (run.seconds - run.capture_seconds - watch.seconds) / settings["epochs"]
        return {**watch.history, "seconds": torch.tensor(seconds, dtype=torch.float64)}

    watched = {name: settings[name] for name in ("watch_every", "watch_draws", "num_test")}
    return trial.learned({**described(trial), "watched": watched}, lambda: _untrained(trial, splits), train)


def summed_log_likelihood(pred: ClassificationPredictive, targets: Tensor) -> tuple[float, float]:
    """The sum over all images of the log of the mean probability of their class, and its standard error (E-14)."""
    own = pred.log_probs.gather(-1, targets[:, None]).squeeze(-1).double()
    return own.sum().item(), own.std().item() * len(own) ** 0.5


def _untrained(trial: Trial, splits: Splits) -> nn.Module:
    settings = trial.settings
    assert splits.train is not None
    shape, num_classes = splits.train.shape, len(splits.train.classes)
    builders: dict[str, Callable[[], nn.Module]] = {
        "mlp": lambda: dad_mlp(math.prod(shape), *settings["hidden"], num_classes),
        "cnn": lambda: dad_cnn(shape, num_classes),
    }
    alpha = settings["alpha"] if settings["train_draws"] > 1 else 0.0
    return Dropout(settings["rate"], alpha, settings["l2"]).convert(builders[settings["network"]]())


def _train(
    trial: Trial, model: nn.Module, splits: Splits, callbacks: Sequence[Callback] = (), folder: Path | None = None
) -> FitResult:
    settings = trial.settings
    run = fit(
        model,
        splits.train,
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        lr=settings["lr"],
        optimizer=lambda groups: torch.optim.SGD(groups, momentum=settings["momentum"]),
        num_samples=settings["train_draws"],
        precision=settings["precision"],
        callbacks=callbacks,
        folder=folder,
        resume=folder is not None,
        seed=trial.seed,
        device=trial.device,
        progress=False,
    )
    trial.tell(f"trained in {run.seconds:.0f} s, {run.mode}{run.reason and f', since {run.reason}'}")
    return run


def _look(trial: Trial, model: nn.Module, test: Examples) -> dict[str, float]:
    """Accuracy in percent and summed log-likelihood."""
    inputs, targets = test.tensors
    pred = predict_classes(trial, model, inputs, trial.settings["watch_draws"])
    accuracy = 100.0 * (pred.label == targets).double().mean().item()
    return {"accuracy": accuracy, "test_ll": summed_log_likelihood(pred, targets)[0]}
