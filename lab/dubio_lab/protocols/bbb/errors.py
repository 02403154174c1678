"""Test error of the networks, the choices that it hangs on, what pruning costs, and how far to trust them.

References: Blundell et al. 2015, sections 3.4 and 5.1.
"""

from torch import nn

from dubio._engine import noise_off
from dubio.data import Examples
from dubio.nn import divergence
from dubio.pruning import prune, snr_density
from dubio_lab.protocols.bbb.networks import Trained, train_network
from dubio_lab.protocols.judging import judge
from dubio_lab.protocols.measuring import predict_classes, quality, share
from dubio_lab.protocols.trial import Trial
from dubio_lab.results import Curve, Findings, Measured

__all__ = ["error", "honest", "pruning", "search"]


def error(trial: Trial) -> Findings:
    """Test error after training, of the mean over draws and of the mean network, and on the way there.

    Settings: those of ``train_network``, and ``draws``.
    """
    trained = train_network(trial)
    curve = trained.learning_curve
    lowest = {"lowest_error": Measured(min(curve.y), n=len(trained.test))}
    return Findings(_errors(trial, trained.model, trained.test, "test") | lowest, {"test_error_by_epoch": curve})


def search(trial: Trial) -> Findings:
    """Error on the images that were held out of training, and the divergence that training ended with.

    Settings: those of ``train_network``, and ``draws``.
    """
    trained = train_network(trial)
    train, held_out = trained.splits.train, trained.splits.validation
    assert train is not None
    assert held_out is not None
    metrics = _errors(trial, trained.model, held_out, "validation")
    inputs, targets = held_out.tensors
    pred = predict_classes(trial, trained.model, inputs)
    cost = divergence(trained.model, trial.settings["draws"], seed=trial.seed).item() / len(train)
    nll = quality(pred.log_probs, targets)["nll"]
    return Findings(metrics | {"validation_nll": nll, "divergence_per_example": Measured(cost, n=len(train))})


def pruning(trial: Trial) -> Findings:
    """Test error with a share of the weights removed, those of lowest signal-to-noise ratio in the whole network first.

    Settings: those of ``train_network``, ``draws``, and ``removed_percent``.
    """
    trained = train_network(trial)
    model, share_removed = trained.model, trial.settings["removed_percent"] / 100.0
    curve = _decibels(model)
    done = prune(model, share_removed, by="snr")
    threshold = None if done.density is None else done.density.threshold_db
    metrics = _errors(trial, model, trained.test, "test")
    metrics["weights_left"] = Measured(float(done.num_weights - done.num_removed))
    if threshold is not None:
        metrics["highest_removed_db"] = Measured(threshold)
    return Findings(metrics, {"weights_by_db": curve})


def honest(trial: Trial) -> Findings:
    """What the papers did not ask; see ``judge``.

    Settings: those of ``train_network`` and of ``judge``.
    """
    trained: Trained = train_network(trial)
    return judge(trial, trained.model, trained.splits)


def _errors(trial: Trial, model: nn.Module, examples: Examples, called: str) -> dict[str, Measured]:
    """Errors in percent: of the mean over draws, and of the network without noise."""
    inputs, targets = examples.tensors
    label = predict_classes(trial, model, inputs).label
    with noise_off():
        mean_label = predict_classes(trial, model, inputs, 1).label
    return {f"{called}_error": share(label != targets), f"{called}_error_mean_weights": share(mean_label != targets)}


def _decibels(model: nn.Module) -> Curve:
    """Share of the weights, in percent, by signal-to-noise ratio in decibels: the middles of a histogram's bins."""
    density = snr_density(model)
    middles = tuple((low + high) / 2.0 for low, high in zip(density.edges, density.edges[1:], strict=False))
    total = sum(density.counts)
    return Curve(middles, tuple(100.0 * count / total for count in density.counts))
