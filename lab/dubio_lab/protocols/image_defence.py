"""Accuracy of networks on CIFAR under attack: as published, and by attacks that take the noise into account.

As published, one draw gives each gradient. What stands beside it follows the mean over draws for more steps, takes the
gradient from the network with its noise off, looks at that network itself, and runs an audit. All images are scored by
draws that had no part in making them.

Reference: Towards Stochastic Neural Networks via Inductive Wasserstein Embeddings, Table 2; He et al. 2019, Parametric
Noise Injection.
"""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from dubio._engine import noise_off
from dubio.attacks import FGSM, PGD, Attack, Transfer
from dubio.auditing import audit
from dubio.data import Examples
from dubio_lab.protocols.image_networks import image_network
from dubio_lab.protocols.images import load_images
from dubio_lab.protocols.measuring import predict_classes, quality, share
from dubio_lab.protocols.trial import Learned, Trial
from dubio_lab.results import Curve, Findings, Measured

__all__ = ["image_defence", "image_defence_search"]


def image_defence(trial: Trial) -> Findings:
    """Accuracy on clean and attacked test images.

    Settings: those of ``image_network`` and ``load_images``; ``draws``; ``attack_epsilon``, ``attack_step_size`` and
    ``attack_steps``, as published; ``judge_images``, ``judge_steps`` and ``judge_draws`` of the attacks that take noise
    into account; ``audit_budget`` and ``audit_images``, 0 for none.
    """
    settings, splits = trial.settings, load_images(trial)
    assert splits.test is not None
    learned = image_network(trial, splits)
    model = learned.model
    trial.tell("trained")
    inputs, targets = splits.test.tensors
    metrics = quality(predict_classes(trial, model, inputs).log_probs, targets)
    metrics["accuracy_one_draw"] = share(predict_classes(trial, model, inputs, 1).label == targets)
    for name, attack in (("fgsm", _fgsm(trial)), ("pgd", _pgd(trial))):
        moved = _moved(model, attack, inputs, targets)
        metrics[name] = share(predict_classes(trial, model, moved).label == targets)
        metrics[f"{name}_one_draw"] = share(predict_classes(trial, model, moved, 1).label == targets)
        trial.tell(f"attacked by {name}")
    metrics |= _judged(trial, model, splits.test[: settings["judge_images"]])
    findings = Findings(metrics, _curves(learned))
    return findings | _audited(trial, model, splits.test) if settings["audit_images"] else findings


def image_defence_search(trial: Trial) -> Findings:
    """What is chosen by: accuracy on clean and attacked validation images, and the mean of both.

    The attack is that of the tables, with the gradient of the mean over ``judge_draws`` draws. Test images have no part
    in it. Settings: those of ``image_defence``.
    """
    settings, splits = trial.settings, load_images(trial)
    assert splits.validation is not None
    learned = image_network(trial, splits)
    inputs, targets = splits.validation[: settings["judge_images"]].tensors
    moved = _moved(learned.model, _pgd(trial, settings["judge_draws"]), inputs, targets)
    clean, attacked = (
        share(predict_classes(trial, learned.model, images).label == targets) for images in (inputs, moved)
    )
    both = Measured((clean.value + attacked.value) / 2.0, n=len(targets))
    return Findings(
        {"validation_accuracy": clean, "validation_pgd": attacked, "validation_both": both}, _curves(learned)
    )


def _judged(trial: Trial, model: nn.Module, test: Examples) -> dict[str, Measured]:
    """Attacks that take the noise into account, each on the same images, and the network with its noise off."""
    settings = trial.settings
    inputs, targets = test.tensors
    steps, draws = settings["judge_steps"], settings["judge_draws"]
    attacks: dict[str, Attack] = {
        "pgd_again": _pgd(trial),
        "pgd_eot": _pgd(trial, draws, steps),
        "transfer_noise_off": Transfer(attack=_pgd(trial, 1, steps), num_samples=1, seed=trial.seed),
    }
    metrics = {}
    for name, attack in attacks.items():
        moved = _moved(model, attack, inputs, targets)
        metrics[name] = share(predict_classes(trial, model, moved).label == targets)
        trial.tell(f"attacked by {name}")
    still = _moved(model, replace(_pgd(trial, 1, steps), noise="off"), inputs, targets)
    with noise_off():
        labels = (predict_classes(trial, model, images, 1).label for images in (inputs, still))
        metrics |= {
            name: share(label == targets)
            for name, label in zip(("accuracy_noise_off", "pgd_noise_off"), labels, strict=True)
        }
    return metrics


def _audited(trial: Trial, model: nn.Module, test: Examples) -> Findings:
    """The headline of an audit, its interval, and its verdict in words."""
    settings = trial.settings
    result = audit(
        model,
        test[: settings["audit_images"]],
        epsilon=settings["attack_epsilon"],
        budget=settings["audit_budget"],
        num_images=settings["audit_images"],
        seed=trial.seed,
        progress=False,
    )
    headline = result.headline
    ends = {"audit_accuracy": headline.accuracy, "audit_low": headline.low, "audit_high": headline.high}
    metrics = {name: Measured(100.0 * value, n=headline.num_images) for name, value in ends.items()}
    return Findings(metrics, notes={"verdict": str(result)})


def _fgsm(trial: Trial) -> FGSM:
    return FGSM(trial.settings["attack_epsilon"], num_samples=1, seed=trial.seed)


def _pgd(trial: Trial, draws: int = 1, steps: int | None = None) -> PGD:
    """The published attack, or one that averages more draws or takes more steps of the same size."""
    settings: dict[str, Any] = trial.settings
    return PGD(
        settings["attack_epsilon"],
        steps=steps or settings["attack_steps"],
        step_size=settings["attack_step_size"],
        num_samples=draws,
        seed=trial.seed,
    )


def _moved(model: nn.Module, attack: Attack, inputs: Tensor, targets: Tensor) -> Tensor:
    return attack(model, inputs, targets, progress=False).inputs


def _curves(learned: Learned[nn.Module]) -> dict[str, Curve]:
    """Clean validation images at every look, and training images while it trains, by epoch."""
    history = learned.history
    curves = {"validation_accuracy": Curve(tuple(history["epoch"].tolist()), tuple(history["accuracy"].tolist()))}
    epochs = tuple(float(epoch) for epoch in range(1, len(history["train_accuracy"]) + 1))
    return curves | {"train_accuracy": Curve(epochs, tuple(history["train_accuracy"].tolist()))}
