"""What Li and Gal 2017 measured of their networks on MNIST: error and likelihood, and what more draws cost.

Log-likelihoods are sums over the test images, as they are there. Reference: Li and Gal 2017, sections 5.1 and 5.3, and
appendix.
"""

from dubio_lab.protocols.alpha_networks import dropout_network, summed_log_likelihood, timed_network
from dubio_lab.protocols.images import load_images
from dubio_lab.protocols.judging import judge
from dubio_lab.protocols.measuring import predict_classes, share
from dubio_lab.protocols.trial import Trial
from dubio_lab.results import Curve, Findings, Measured

__all__ = ["alpha_classification", "alpha_honest", "alpha_samples"]


def alpha_classification(trial: Trial) -> Findings:
    """Test error in percent and summed log-likelihood of a network.

    Settings: those of ``load_images`` and ``dropout_network``, and ``draws``.
    """
    splits = load_images(trial)
    assert splits.test is not None
    model = dropout_network(trial, splits)
    inputs, targets = splits.test.tensors
    pred = predict_classes(trial, model, inputs)
    total, error = summed_log_likelihood(pred, targets)
    return Findings({"error": share(pred.label != targets), "test_ll": Measured(total, error, len(targets))})


def alpha_samples(trial: Trial) -> Findings:
    """Accuracy and log-likelihood at the end of training and along it, and what an epoch takes.

    Settings: those of ``load_images`` and ``timed_network``, and ``draws``.
    """
    settings, splits = trial.settings, load_images(trial)
    assert splits.test is not None
    timed = timed_network(trial, splits)
    history = timed.history
    inputs, targets = splits.test.tensors
    pred = predict_classes(trial, timed.model, inputs)
    total, error = summed_log_likelihood(pred, targets)
    per_epoch = history["seconds"].item()
    metrics = {
        "accuracy": share(pred.label == targets),
        "test_ll": Measured(total, error, len(targets)),
        "seconds": Measured(per_epoch * settings["epochs"]),
        "seconds_per_epoch": Measured(per_epoch),
    }
    seconds = tuple((per_epoch * history["epoch"]).tolist())
    return Findings(metrics, {name: Curve(seconds, tuple(history[name].tolist())) for name in ("accuracy", "test_ll")})


def alpha_honest(trial: Trial) -> Findings:
    """What the source did not ask of its networks.

    Settings: those of ``load_images``, ``dropout_network`` and ``judge``; and ``watch_every``, which is 0 for networks
    that were not watched.
    """
    splits = load_images(trial)
    watched = trial.settings["watch_every"] > 0
    model = timed_network(trial, splits).model if watched else dropout_network(trial, splits)
    return judge(trial, model, splits)
