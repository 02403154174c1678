"""Wrong labels (section 13): each class is taken for one other in a share of the training images.

The pattern and the images that it hits come from the seed alone, so that all methods learn the same labels, and more
of them are wrong at a larger share. Test labels are the true ones. References: Towards Stochastic Neural Networks via
Inductive Wasserstein Embeddings, Figure 3; Hendrycks et al. 2018, Using Trusted Data to Train Deep Networks on Labels
Corrupted by Severe Noise.
"""

from dataclasses import replace

import torch
from torch import nn

from dubio.data import Examples, Flip, Splits
from dubio_lab.protocols.images import load_images
from dubio_lab.protocols.measuring import predict_classes, quality
from dubio_lab.protocols.noised_networks import train_network
from dubio_lab.protocols.trial import Trial
from dubio_lab.results import Findings, Measured

__all__ = ["label_noise", "label_noise_search", "predicted_quality", "with_wrong_labels"]


def label_noise(trial: Trial) -> Findings:
    """Accuracy, likelihood and calibration on true labels, after training on partly wrong ones.

    Settings: ``wrong_labels``, a share; ``draws``; those of ``train_network`` and ``load_images``.
    """
    splits, model = _train(trial)
    assert splits.test is not None
    return Findings(predicted_quality(trial, model, splits.test))


def label_noise_search(trial: Trial) -> Findings:
    """The same on held-out images whose labels are as wrong as those of training, for choosing; and the test, for us.

    Settings: as in ``label_noise``.
    """
    splits, model = _train(trial)
    assert splits.validation is not None
    assert splits.test is not None
    held_out = predicted_quality(trial, model, splits.validation)
    return Findings(
        {
            "validation_accuracy": held_out["accuracy"],
            "validation_nll": held_out["nll"],
            **predicted_quality(trial, model, splits.test),
        }
    )


def with_wrong_labels(splits: Splits, share: float, seed: int) -> Splits:
    """Training and held-out images with a share of their labels turned wrong by one pattern; the test as it was."""
    parts = [part for part in (splits.train, splits.validation) if part is not None]
    labels = torch.cat([part.targets for part in parts])
    noisy = Flip(share)(labels, len(parts[0].classes), torch.Generator().manual_seed(seed)).labels
    wrong = iter(noisy.split([len(part) for part in parts]))

    def turned(part: Examples | None) -> Examples | None:
        return None if part is None else replace(part, targets=next(wrong))

    return Splits(turned(splits.train), turned(splits.validation), splits.test)


def predicted_quality(trial: Trial, model: nn.Module, examples: Examples) -> dict[str, Measured]:
    """Accuracy and calibration error in percent, and negative log-likelihood, of the mean over ``draws``."""
    inputs, targets = examples.tensors
    return quality(predict_classes(trial, model, inputs).log_probs, targets)


def _train(trial: Trial) -> tuple[Splits, nn.Module]:
    share = trial.settings["wrong_labels"]
    splits = with_wrong_labels(load_images(trial), share, trial.seed)
    assert splits.train is not None
    return splits, train_network(trial, splits.train, share)
