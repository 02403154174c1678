"""Whether doubt gives attacks away, as a detector: one that rejects an input whose entropy is above a threshold.

The threshold is the one that rejects a share of held-out clean images. What is to be detected are images that the
network had right and has wrong after the attack. Attacks come from attackers that do not know the detector, from some
that do, and from one that wants right answers to be rejected; random noise of the same size shows what a detector makes
of a perturbation that is no attack. Gradients are those of the mean over draws, drawn anew at every step; the draws
that judge had no part in them.

Reference: Li and Gal 2017, section 5.4, which shows the mean entropy alone.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dubio import functional
from dubio.attacks import FGSM, PGD, Attack, Evade, RandomNoise
from dubio.prediction import ClassificationPredictive
from dubio_lab.protocols.alpha_networks import dropout_network
from dubio_lab.protocols.images import load_images
from dubio_lab.protocols.measuring import predict_classes, share
from dubio_lab.protocols.trial import Trial
from dubio_lab.results import Findings, Measured

__all__ = ["CleanImages", "alpha_detection", "detected"]


@dataclass(frozen=True, eq=False)
class CleanImages:
    """What a network says of images as they are, their labels, and the largest entropy that the detector accepts."""

    pred: ClassificationPredictive
    targets: Tensor
    threshold: float

    @property
    def right(self) -> Tensor:
        """Which of them the network has right."""
        return self.pred.label == self.targets

    def accepted_wrong(self, pred: ClassificationPredictive) -> Measured:
        """In how many of a hundred images what is said of them is wrong and accepted."""
        return share((pred.label != self.targets) & (pred.entropy <= self.threshold))


def alpha_detection(trial: Trial) -> Findings:
    """How well entropy tells attacked images from clean ones and from noisy ones, and what passes the detector.

    Settings: those of ``load_images`` and ``dropout_network``; ``attacked_images``, how many of the test images;
    ``epsilon``; ``attack_steps`` and ``attack_step_size`` of the attacks that have several; ``evade_weights``;
    ``rejected_percent`` of clean images; ``draws``, ``attack_draws`` and ``attack_batch``.
    """
    settings, splits = trial.settings, load_images(trial)
    assert splits.validation is not None
    assert splits.test is not None
    model = dropout_network(trial, splits)
    trial.tell("trained")
    inputs, targets = splits.test[: settings["attacked_images"]].tensors
    held_out = predict_classes(trial, model, splits.validation.tensors[0]).entropy.double()
    threshold = held_out.quantile(1.0 - settings["rejected_percent"] / 100.0).item()
    clean = CleanImages(predict_classes(trial, model, inputs), targets, threshold)

    def said_after(attack: Attack) -> ClassificationPredictive:
        return predict_classes(trial, model, attack(model, inputs, targets, progress=False).inputs)

    noise = said_after(RandomNoise(settings["epsilon"], tries=1, kind="sign", seed=trial.seed))
    raised = said_after(_evade(trial, goal="reject"))
    accepted = clean.right & (clean.pred.entropy <= threshold)
    metrics = {
        "accuracy_clean": share(clean.right),
        "rejected_clean": share(clean.pred.entropy > threshold),
        "accepted_wrong_clean": clean.accepted_wrong(clean.pred),
        "accuracy_noise": share(noise.label == targets),
        "auroc_noise": _area(clean.pred.entropy, noise.entropy),
        "rejected_noise": share(noise.entropy > threshold),
        "accepted_wrong_noise": clean.accepted_wrong(noise),
        "accuracy_raised": share(raised.label == targets),
        "rejected_raised": share(raised.entropy[accepted] > threshold),
    }
    for name, attack in _attacks(trial).items():
        metrics |= {f"{what}_{name}": value for what, value in detected(clean, noise, said_after(attack)).items()}
        trial.tell(f"attacked by {name}")
    return Findings(metrics)


def detected(
    clean: CleanImages, noise: ClassificationPredictive, attacked: ClassificationPredictive
) -> dict[str, Measured]:
    """What an attack leaves of accuracy, what passes, and how well those are detected that it turned to wrong.

    Where it has turned none there is nothing to miss: areas are then 1, false alarms 0, and ``n`` is 0.
    """
    turned = clean.right & (attacked.label != clean.targets)
    entropy, information = attacked.entropy[turned].double(), attacked.mutual_information[turned]
    alarms = 0.0
    if bool(turned.any()):
        alarms = functional.uncertainty.false_positive_rate(clean.pred.entropy.double(), entropy).item()
    return {
        "accuracy": share(attacked.label == clean.targets),
        "accepted_wrong": clean.accepted_wrong(attacked),
        "auroc": _area(clean.pred.entropy, entropy),
        "auroc_over_noise": _area(noise.entropy, entropy),
        "auroc_mutual_information": _area(clean.pred.mutual_information, information),
        "false_alarms": Measured(100.0 * alarms, n=len(entropy)),
    }


def _attacks(trial: Trial) -> dict[str, Attack]:
    """By the name of their numbers: one step and many by attackers that do not know the detector, and some that do."""
    settings = trial.settings
    common: dict[str, Any] = {"num_samples": settings["attack_draws"], "batch_size": settings["attack_batch"]}
    many = {"steps": settings["attack_steps"], "step_size": settings["attack_step_size"]}
    return {
        "fgsm": FGSM(settings["epsilon"], label="own", seed=trial.seed, **common),
        "pgd": PGD(settings["epsilon"], seed=trial.seed, **many, **common),
        **{f"evade_{weight:g}": _evade(trial, weight=weight) for weight in settings["evade_weights"]},
    }


def _evade(trial: Trial, **own: Any) -> Evade:
    settings = trial.settings
    return Evade(
        settings["epsilon"],
        steps=settings["attack_steps"],
        step_size=settings["attack_step_size"],
        num_samples=settings["attack_draws"],
        batch_size=settings["attack_batch"],
        seed=trial.seed,
        **own,
    )


def _area(negative: Tensor, positive: Tensor) -> Measured:
    """Probability that a positive has the larger score; 1 where there are no positives."""
    if len(positive) == 0:
        return Measured(1.0, n=0)
    return Measured(functional.uncertainty.auroc(negative.double(), positive.double()).item(), n=len(positive))
