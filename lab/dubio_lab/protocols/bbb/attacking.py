"""Accuracy under FGSA (E-60): one step of the size epsilon along the sign of the gradient, in pixels of [0, 1].

A network that draws is attacked through one draw, and through the mean over several (expectation over
transformation): a gradient of a single draw overstates what is left. Predictions are of draws that had no part in it.

Reference: Project Machine Learning, Milestone 3, Figures 7 and 8.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from torch import Tensor, nn

from dubio._engine import Using, noise_off
from dubio.attacks import FGSM
from dubio.plots import blank_figure, write
from dubio_lab.protocols.bbb.networks import Trained, train_network
from dubio_lab.protocols.measuring import predict_classes, share
from dubio_lab.protocols.trial import Trial
from dubio_lab.results import Curve, Findings, Measured

__all__ = ["fgsa"]

SHOWN = 6


def fgsa(trial: Trial) -> Findings:
    """Accuracy in percent on test images that were moved by each epsilon.

    Settings: those of ``train_network``, ``draws``, ``epsilons``, ``attack_draws`` (draws in each gradient),
    ``noise`` (``"fresh"``, or ``"off"`` for the mean network, attacked and predicting) and ``pictures``.
    """
    trained, epsilons = train_network(trial), trial.settings["epsilons"]
    inputs, targets = trained.test.tensors
    moved = [_moved(trial, trained.model, inputs, targets, epsilon) for epsilon in epsilons]
    labels = [_labels(trial, trained.model, images) for images in moved]
    accuracies = [share(label == targets) for label in labels]
    metrics: dict[str, Measured] = {
        f"accuracy_{round(100 * epsilon):03d}": accuracy for epsilon, accuracy in zip(epsilons, accuracies, strict=True)
    }
    if trial.settings["pictures"]:
        few = [images[:SHOWN] for images in moved]
        trial.draw("attacked", lambda file: _draw(trial, trained, few, labels, file))
    curve = Curve(tuple(epsilons), tuple(accuracy.value for accuracy in accuracies))
    return Findings(metrics, {"accuracy_by_epsilon": curve})


def _moved(trial: Trial, model: nn.Module, inputs: Tensor, targets: Tensor, epsilon: float) -> Tensor:
    settings = trial.settings
    attack = FGSM(epsilon, num_samples=settings["attack_draws"], noise=settings["noise"], seed=trial.seed)
    with Using(estimator="weight"):  # a draw is one set of weights, however the network was trained
        return attack(model, inputs, targets, progress=False).inputs


def _labels(trial: Trial, model: nn.Module, images: Tensor) -> Tensor:
    with noise_off() if trial.settings["noise"] == "off" else nullcontext():
        pred = predict_classes(trial, model, images)
    return pred.label


def _draw(trial: Trial, trained: Trained, moved: Sequence[Tensor], labels: Sequence[Tensor], file: Path) -> None:
    """A row of the first images for each epsilon, and what each is taken for: green where right, red where wrong."""
    figure = blank_figure(1.2 * SHOWN, 1.45 * len(moved))
    rows = figure.subplots(len(moved), SHOWN, squeeze=False)
    truth = trained.test.targets
    for epsilon, axes_row, images, pred in zip(trial.settings["epsilons"], rows, moved, labels, strict=True):
        axes_row[0].set_ylabel(f"{epsilon:g}")
        for number, axes in enumerate(axes_row):
            axes.set(xticks=[], yticks=[])
            if number >= len(images):
                continue
            axes.imshow(images[number, 0].cpu().numpy(), cmap="gray", vmin=0.0, vmax=1.0)
            is_right = bool(pred[number] == truth[number])
            axes.set_title(trained.test.classes[int(pred[number])], color="#1b7837" if is_right else "#b2182b")
    write(figure, file)
