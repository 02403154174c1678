"""Whether doubt gives attacks away: one step from the network's own answer, and a hundred towards a wanted class.

Gradients are those of the mean over draws, drawn anew at every step; the draws that judge had no part in them.
Reference: Li and Gal 2017, section 5.4; E-61 and E-62.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from dubio.attacks import FGSM, TargetedFGSM
from dubio.plots import blank_figure, write
from dubio_lab.protocols.alpha_networks import dropout_network
from dubio_lab.protocols.images import load_images
from dubio_lab.protocols.measuring import mean_of, predict_classes, share
from dubio_lab.protocols.trial import Trial
from dubio_lab.results import Curve, Findings, Measured

__all__ = ["alpha_targeted", "alpha_untargeted"]


def alpha_untargeted(trial: Trial) -> Findings:
    """Accuracy and mean entropy on images moved by one step of each size, away from what the network takes them for.

    Settings: those of ``load_images`` and ``dropout_network``; ``etas``, the sizes; ``told_etas``, those whose numbers
    are told beside the curves: entropy rises from the first to the last of them; ``draws``, ``attack_draws`` and
    ``attack_batch``; ``pictured``, how many images are shown at some of the sizes.
    """
    settings, splits = trial.settings, load_images(trial)
    assert splits.test is not None
    model = dropout_network(trial, splits)
    inputs, targets = splits.test.tensors
    accuracy, entropy, shown = [], [], []
    for eta in settings["etas"]:
        attack = FGSM(eta, num_samples=settings["attack_draws"], label="own", batch_size=settings["attack_batch"])
        moved = attack.moved(model, inputs, targets)
        shown.append(moved[: settings["pictured"]].cpu())
        label, doubt = _look(trial, model, moved)
        accuracy.append(share(label == targets))
        entropy.append(doubt)
    if settings["pictured"]:
        trial.draw("images", lambda file: _draw_ways(shown, [f"{eta:g}" for eta in settings["etas"]], file))
    places = {eta: settings["etas"].index(eta) for eta in settings["told_etas"]}
    metrics = {f"accuracy_at_{eta:g}": accuracy[place] for eta, place in places.items()}
    metrics |= {f"entropy_at_{eta:g}": entropy[place] for eta, place in places.items()}
    first, *_, last = (entropy[place].value for place in places.values())
    metrics["entropy_rises"] = Measured(last - first, n=len(inputs))
    return Findings(metrics, _curves(settings["etas"], {"accuracy": accuracy, "entropy": entropy}))


def alpha_targeted(trial: Trial) -> Findings:
    """Accuracy for the true and for the wanted class, and mean entropy, at every step towards the wanted class.

    Images of the wanted class are left out. Settings: those of ``load_images`` and ``dropout_network``; ``target``,
    ``step_size``, ``steps``, ``middle_step``, after which numbers are told; ``draws``, ``attack_draws`` and
    ``attack_batch``; ``pictured``, how many images are shown on their way.
    """
    settings, splits = trial.settings, load_images(trial)
    assert splits.test is not None
    model = dropout_network(trial, splits)
    others = splits.test[splits.test.targets != settings["target"]]
    images, targets = others.tensors
    target_labels = torch.full_like(targets, settings["target"])
    lines: dict[str, list[Measured]] = {"original": [], "target": [], "entropy": []}
    shown = []
    for moved in _walk(trial, model, images, target_labels):
        label, doubt = _look(trial, model, moved)
        lines["original"].append(share(label == targets))
        lines["target"].append(share(label == target_labels))
        lines["entropy"].append(doubt)
        shown.append(moved[: settings["pictured"]].cpu())
    if settings["pictured"]:
        trial.draw("ways", lambda file: _draw_ways(shown, [str(step) for step in range(len(shown))], file))
    metrics = {f"{name}_middle": line[settings["middle_step"]] for name, line in lines.items()}
    metrics |= {f"{name}_end": line[-1] for name, line in lines.items()}
    return Findings(metrics, _curves(range(settings["steps"] + 1), lines))


def _walk(trial: Trial, model: nn.Module, images: Tensor, target_labels: Tensor) -> Iterator[Tensor]:
    """The images as they are, and after each step."""
    settings = trial.settings
    attack = TargetedFGSM(
        step_size=settings["step_size"],
        steps=1,
        num_samples=settings["attack_draws"],
        batch_size=settings["attack_batch"],
    )
    yield images
    for _ in range(settings["steps"]):
        images = attack.moved(model, images, target_labels)
        yield images


def _look(trial: Trial, model: nn.Module, images: Tensor) -> tuple[Tensor, Measured]:
    """What the images are taken for, and the mean predictive entropy with its standard error, ``sqrt(var / n)``."""
    pred = predict_classes(trial, model, images)
    return pred.label, mean_of(pred.entropy)


def _curves(places: Sequence[float], lines: dict[str, list[Measured]]) -> dict[str, Curve]:
    """A line for each, and one for the standard error of the entropy."""
    x = tuple(float(place) for place in places)
    curves = {name: Curve(x, tuple(value.value for value in line)) for name, line in lines.items()}
    errors = tuple(value.standard_error or 0.0 for value in lines["entropy"])
    return {**curves, "entropy_error": Curve(x, errors)}


def _draw_ways(shown: Sequence[Tensor], names: Sequence[str], path: Path, columns: int = 6) -> None:
    """Images on their way, a row for each, from the first place to the last, with the names of some."""
    steps = sorted({round(place * (len(shown) - 1) / (columns - 1)) for place in range(columns)})
    rows = len(shown[0])
    figure = blank_figure(len(steps), rows + 0.3)
    for axes_of_row, row in zip(figure.subplots(rows, len(steps), squeeze=False), range(rows), strict=True):
        for axes, step in zip(axes_of_row, steps, strict=True):
            axes.imshow(shown[step][row, 0].numpy(), cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            if row == 0:
                axes.set_title(names[step], fontsize="medium")
    write(figure, path)
