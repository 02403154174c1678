"""Calibration of the embeddings paper's networks on CIFAR, before and after one temperature for all.

The temperature is found on validation images. Calibration errors have bootstrap intervals over the test images, all
errors of one network on the same resamples.

Reference: Towards Stochastic Neural Networks via Inductive Wasserstein Embeddings, Table 1; Guo et al. 2017, On
Calibration of Modern Neural Networks.
"""

import warnings

import torch
from torch import Tensor, nn

from dubio import functional
from dubio.calibration import calibrate
from dubio.calibrators import Temperature
from dubio.data import Examples
from dubio.prediction import ClassificationPredictive
from dubio_lab.protocols.image_networks import image_network
from dubio_lab.protocols.images import load_images, load_unseen
from dubio_lab.protocols.measuring import predict_classes, quality
from dubio_lab.protocols.trial import Learned, Trial
from dubio_lab.results import Curve, Findings, Measured

__all__ = ["error_with_interval", "image_calibration", "image_search"]

RESAMPLES = 1000


def image_calibration(trial: Trial) -> Findings:
    """Calibration errors of a network with intervals, with and without temperature, and what else it was not asked.

    Settings: those of ``image_network``, ``load_images`` and ``load_unseen``; ``draws``.
    """
    splits = load_images(trial)
    assert splits.validation is not None
    assert splits.test is not None
    learned = image_network(trial, splits)
    trial.tell("trained")
    inputs, targets = splits.test.tensors
    pred = predict_classes(trial, learned.model, inputs)
    scaling = _temperature(trial, learned.model, splits.validation)
    scaled = functional.calibration.scaled_log_probs(pred.log_probs, torch.tensor(scaling.temperature))
    metrics = quality(pred.log_probs, targets)
    metrics |= error_with_interval("ece", pred.log_probs, targets, trial.seed)
    metrics |= error_with_interval("ece_after_temperature", scaled, targets, trial.seed)
    metrics["temperature"] = Measured(scaling.temperature)
    metrics["nll_after_temperature"] = quality(scaled, targets)["nll"]
    metrics["ece_one_draw"] = quality(predict_classes(trial, learned.model, inputs, 1).log_probs, targets)["ece"]
    confidence, right = pred.confidence.clamp(max=1.0), pred.label == targets
    adaptive = functional.calibration.adaptive_calibration_error(confidence, right).item()
    metrics["adaptive_ece"] = Measured(100.0 * adaptive, n=len(targets))
    classwise = functional.calibration.classwise_calibration_error(pred.log_probs.exp().clamp(max=1.0), targets).item()
    metrics["classwise_ece"] = Measured(100.0 * classwise, n=len(targets))
    metrics["train_accuracy"] = Measured(learned.history["train_accuracy"][-1].item())
    trial.tell("predicted")
    return Findings(metrics | _unseen(trial, learned.model, pred), _curves(learned))


def image_search(trial: Trial) -> Findings:
    """What is chosen by: the quality of a network on validation images. Test images have no part in it.

    Settings: those of ``image_network`` and ``load_images``; ``draws``.
    """
    splits = load_images(trial)
    assert splits.validation is not None
    learned = image_network(trial, splits)
    inputs, targets = splits.validation.tensors
    seen = quality(predict_classes(trial, learned.model, inputs).log_probs, targets)
    metrics = {f"validation_{name}": value for name, value in seen.items()}
    metrics["train_accuracy"] = Measured(learned.history["train_accuracy"][-1].item())
    return Findings(metrics, _curves(learned))


def error_with_interval(name: str, log_probs: Tensor, targets: Tensor, seed: int) -> dict[str, Measured]:
    """The expected calibration error in percent, and the ends of its interval at 95 % over resampled images."""
    confidence, label = log_probs.exp().clamp(max=1.0).max(dim=-1)
    confidence, right = confidence.cpu(), (label == targets).cpu()
    weights = functional.statistics.resample_weights(len(right), RESAMPLES, torch.Generator().manual_seed(seed))
    bins = functional.calibration.bin_sums(confidence, right)
    value = functional.calibration.calibration_error(bins).item()
    resampled = functional.calibration.calibration_error(
        functional.calibration.bin_sums(confidence, right, weight=weights)
    )
    low, high = functional.statistics.bootstrap_interval(value, resampled)
    ends = {name: value, f"{name}_low": low, f"{name}_high": high}
    return {key: Measured(100.0 * end, n=len(right)) for key, end in ends.items()}


def _temperature(trial: Trial, model: nn.Module, held_out: Examples) -> Temperature:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a temperature is at the edge, or 1, can be seen from it
        scaling = calibrate(model, held_out, num_samples=trial.settings["draws"], seed=trial.judging_seed)
    assert isinstance(scaling, Temperature)
    return scaling


def _unseen(trial: Trial, model: nn.Module, seen: ClassificationPredictive) -> dict[str, Measured]:
    """How well doubt tells images of the other dataset from the test images; ``load_unseen`` has one set of them."""
    metrics = {}
    for examples in load_unseen(trial).values():
        pred = predict_classes(trial, model, examples.tensors[0])
        for doubt in ("mutual_information", "entropy"):
            area = functional.uncertainty.auroc(getattr(seen, doubt).double(), getattr(pred, doubt).double())
            metrics[f"auroc_{doubt}"] = Measured(area.item(), n=len(examples))
    return metrics


def _curves(learned: Learned[nn.Module]) -> dict[str, Curve]:
    """Validation images at every look, and training images while it trains, by epoch."""
    history = learned.history
    places = tuple(history["epoch"].tolist())
    curves = {f"validation_{name}": Curve(places, tuple(history[name].tolist())) for name in ("accuracy", "ece", "nll")}
    epochs = tuple(float(epoch) for epoch in range(1, len(history["train_accuracy"]) + 1))
    return curves | {name: Curve(epochs, tuple(history[name].tolist())) for name in ("train_accuracy", "train_nll")}
