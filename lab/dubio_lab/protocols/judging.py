"""What the papers did not ask of their networks: calibration, unseen data, attacks over draws, and an audit.

Every stochastic network of an experiment is judged so, beside what was published of it. A network without noise is
judged by the same measures; its mutual information is zero, so entropy stands beside it.
"""

import warnings

import torch
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Using
from dubio.attacks import PGD, score
from dubio.auditing import audit
from dubio.calibration import calibrate
from dubio.calibrators import Temperature
from dubio.data import Examples, Splits
from dubio.prediction import ClassificationPredictive
from dubio_lab.protocols.images import load_unseen
from dubio_lab.protocols.measuring import predict_classes, quality
from dubio_lab.protocols.trial import Trial
from dubio_lab.results import Findings, Measured

__all__ = ["judge"]


def judge(trial: Trial, model: nn.Module, splits: Splits) -> Findings:
    """Judge a converted classifier of images; without validation images no temperature is looked for.

    Settings: ``draws``, ``judge_epsilon``, ``judge_images`` (how many test images are attacked), ``judge_steps`` and
    ``judge_draws`` of the attack, ``audit_budget``, ``audit_images`` (0 for no audit); and those of ``load_unseen``.
    """
    settings = trial.settings
    assert splits.test is not None
    inputs, targets = splits.test.tensors
    pred = predict_classes(trial, model, inputs)
    metrics = quality(pred.log_probs, targets)
    if splits.validation is not None:
        metrics |= _calibrated(trial, model, splits.validation, pred, targets)
    trial.tell("predicted")
    metrics |= _unseen(trial, model, pred)
    with Using(estimator="weight"):  # an attacked draw is one set of weights, however the network was trained
        metrics |= _attacked(trial, model, splits.test)
        trial.tell("attacked")
        findings = Findings(metrics)
        return findings | _audited(trial, model, splits.test) if settings["audit_images"] else findings


def _calibrated(
    trial: Trial, model: nn.Module, held_out: Examples, pred: ClassificationPredictive, targets: Tensor
) -> dict[str, Measured]:
    """The temperature that suits held-out images, and the calibration error on the test images with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a temperature is at the edge can be seen from it
        scaling = calibrate(
            model, held_out, num_samples=trial.settings["draws"], batch_size=10_000, seed=trial.judging_seed
        )
    assert isinstance(scaling, Temperature)
    scaled = functional.calibration.scaled_log_probs(pred.log_probs, torch.tensor(scaling.temperature))
    return {"temperature": Measured(scaling.temperature), "ece_after_temperature": quality(scaled, targets)["ece"]}


def _unseen(trial: Trial, model: nn.Module, seen: ClassificationPredictive) -> dict[str, Measured]:
    """How well doubt tells unseen images from the test images."""
    metrics = {}
    for name, examples in load_unseen(trial).items():
        pred = predict_classes(trial, model, examples.tensors[0])
        for doubt in ("mutual_information", "entropy"):
            area = functional.uncertainty.auroc(getattr(seen, doubt).double(), getattr(pred, doubt).double())
            metrics[f"auroc_{doubt}_{name}"] = Measured(area.item(), n=len(examples))
    return metrics


def _attacked(trial: Trial, model: nn.Module, test: Examples) -> dict[str, Measured]:
    """Accuracy left by an attack that follows one draw, and by one that follows the mean over many (EOT)."""
    settings = trial.settings
    inputs, targets = test[: settings["judge_images"]].tensors
    metrics = {}
    for name, draws in (("one_draw", 1), ("eot", settings["judge_draws"])):
        attack = PGD(
            settings["judge_epsilon"], num_samples=draws, steps=settings["judge_steps"], restarts=1, seed=trial.seed
        )
        moved = attack(model, inputs, targets).inputs
        left = score(
            model,
            moved,
            targets,
            num_samples=settings["draws"],
            num_tries=1,
            seed=trial.judging_seed,
            batch_size=settings["judge_images"],
        )
        value = left.predictive.value
        error = 100.0 * (value * (1.0 - value) / len(inputs)) ** 0.5
        metrics[f"accuracy_pgd_{name}"] = Measured(100.0 * value, error, len(inputs))
    return metrics


def _audited(trial: Trial, model: nn.Module, test: Examples) -> Findings:
    """The headline of an audit of some of the same images, and its verdict in words."""
    settings = trial.settings
    result = audit(
        model,
        test[: settings["judge_images"]],
        epsilon=settings["judge_epsilon"],
        budget=settings["audit_budget"],
        num_images=settings["audit_images"],
        seed=trial.seed,
        progress=False,
    )
    headline = result.headline
    metrics = {"audit_accuracy": Measured(100.0 * headline.accuracy, n=headline.num_images)}
    return Findings(metrics, notes={"verdict": str(result)})
