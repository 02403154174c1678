"""Dropout with alpha-divergences on a table: error and likelihood over random splits.

The source did so on tables of the UCI collection; this is another table, which needs no files, so its numbers have no
published ones beside them. A seed is a split. The precision of the data (tau) is the one of several whose network finds
held-out rows of the training part likeliest. Reference: Li and Gal 2017, section 5.1.
"""

import torch
from torch import Tensor, nn

from dubio.data import Examples, diabetes_table, standardised
from dubio.evaluation import real_measures_per_example
from dubio.likelihoods import Gaussian
from dubio.methods import Dropout
from dubio.models import dad_mlp
from dubio.prediction import RegressionPredictive, predict
from dubio.training import fit
from dubio_lab.protocols.trial import Trial
from dubio_lab.results import Findings, Measured

__all__ = ["alpha_regression", "measures_in_units", "random_split"]


def alpha_regression(trial: Trial) -> Findings:
    """Root mean squared error and mean negative log-likelihood of the test part, in the unit of the targets.

    Settings: ``test_share``; ``precisions``, those to choose from, of standardised targets; ``validation_share``, the
    part of the training rows by which to choose; ``hidden``, ``rate``, ``alpha``, ``l2``, ``train_draws``, ``epochs``,
    ``batch_size``, ``lr``, ``draws``.
    """
    settings = trial.settings
    train, test = random_split(diabetes_table(), settings["test_share"], trial.seed)
    kept, held_out = random_split(train, settings["validation_share"], trial.seed)
    tries = {tau: _measured(trial, kept, held_out, tau)["nll"].mean() for tau in settings["precisions"]}
    precision = min(tries, key=lambda tau: float(tries[tau]))
    measures = _measured(trial, train, test, precision)
    square, nll, count = measures["square"], measures["nll"], len(test)
    rmse = square.mean().sqrt()
    metrics = {
        "rmse": Measured(rmse.item(), (square.std() / (2.0 * rmse * count**0.5)).item(), count),
        "nll": Measured(nll.mean().item(), (nll.std() / count**0.5).item(), count),
        "precision": Measured(precision),
    }
    return Findings(metrics)


def random_split(table: Examples, share: float, seed: int) -> tuple[Examples, Examples]:
    """The table in two parts, of which the second has this share of the rows."""
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(seed))
    second, first = order.tensor_split([round(share * len(table))])
    return table[first], table[second]


def measures_in_units(pred: RegressionPredictive, targets: Tensor, seen: Tensor) -> dict[str, Tensor]:
    """What each example adds, of standardised predictions in the unit of the targets, of which ``seen`` were known."""
    assert pred.samples is not None
    assert pred.sample_stds is not None
    mean, unit = seen.mean(), seen.std()
    return real_measures_per_example(mean + unit * pred.samples.cpu(), unit * pred.sample_stds.cpu(), targets)


def _measured(trial: Trial, train: Examples, test: Examples, precision: float) -> dict[str, Tensor]:
    """What each of the test examples adds, after a network is trained on the training examples."""
    model = _trained(trial, standardised(train, train), precision)
    inputs = standardised(test, train).inputs.to(trial.device)
    pred = predict(model, inputs, trial.settings["draws"], seed=trial.seed)
    assert isinstance(pred, RegressionPredictive)
    return measures_in_units(pred, test.targets, train.targets)


def _trained(trial: Trial, train: Examples, precision: float) -> nn.Module:
    settings = trial.settings
    net = dad_mlp(*train.shape, *settings["hidden"], 1)
    method = Dropout(settings["rate"], settings["alpha"], settings["l2"])
    model = method.convert(net, Gaussian(precision**-0.5)).to(trial.device)
    fit(
        model,
        train.to(trial.device),
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        lr=settings["lr"],
        num_samples=settings["train_draws"],
        seed=trial.seed,
        device=trial.device,
        fast=False,  # to compile would take longer than to train
        progress=False,
    )
    return model
