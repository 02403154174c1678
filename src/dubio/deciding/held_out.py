"""Predictions on held-out data, and the refusal to decide by data that judged the network."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from dubio.convert import spec
from dubio.data import Batch, Batches, batches_from, fingerprint_of_batches
from dubio.likelihoods import Categorical
from dubio.prediction import ClassPredictive, joined, predict

__all__ = ["HeldOut", "check_one_label_each", "check_unjudged", "predict_held_out"]

NAME = "validation"


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Predictions beside their targets, on the device of the predictions."""

    predictive: ClassPredictive
    targets: Int[Tensor, "example *rest"]
    fingerprint: str

    @property
    def correct(self) -> Bool[Tensor, "example *rest"]:
        """Whether each prediction is right."""
        return self.predictive.label == self.targets


def predict_held_out(
    model: nn.Module,
    validation: Any,
    *,
    asked_by: str,
    num_samples: int,
    batch_size: int,
    seed: int,
    decisions: bool,
    keep_samples: bool = False,
) -> HeldOut:
    """Predict validation data, after a look at whether they may decide anything; ``asked_by`` goes into messages.

    Raises:
        TypeError: the network does not tell classes apart, or the targets are no labels.
        ValueError: the network was judged on these data, or they have weights, or labels beyond the classes.
    """
    likelihood = spec(model).likelihood
    if not isinstance(likelihood, Categorical):
        raise TypeError(
            f"{asked_by} is for networks that tell classes apart, converted with Categorical(), got {likelihood!r}"
        )
    batches = batches_from(validation, batch_size, name=NAME)
    fingerprint = check_unjudged(model, batches, asked_by)
    parts: list[ClassPredictive] = []
    targets: list[Tensor] = []
    for batch in batches.epoch(0):
        found = predict(
            model,
            batch.inputs,
            num_samples,
            keep_samples=keep_samples,
            batch_size=batch_size,
            seed=seed,
            decisions=decisions,
        )
        assert isinstance(found, ClassPredictive)
        parts.append(found)
        targets.append(_labels(batch, found))
    return HeldOut(joined(parts), torch.cat(targets), fingerprint)


def check_one_label_each(held_out: HeldOut, asked_by: str) -> None:
    """Refuse several labels for an input, such as those of pixels, which are no independent examples."""
    if held_out.targets.dim() > 1:
        raise ValueError(
            f"{asked_by} needs one label for each input, since those of one input depend on each other, "
            f"got targets of shape {tuple(held_out.targets.shape)}"
        )


def check_unjudged(model: nn.Module, batches: Batches, asked_by: str) -> str:
    """The fingerprint of data that may decide something about a network; those that judged it are refused."""
    fingerprint = fingerprint_of_batches((batch.inputs, batch.targets) for batch in batches.epoch(0))
    if fingerprint.endswith("-0"):
        raise ValueError(f"{NAME} must hold at least one example, got none")
    if fingerprint in spec(model).evaluated:
        raise ValueError(
            f"{NAME} must be data that this network was not judged on, got those of an evaluation; {asked_by} would "
            "make their figures look better than they are: use validation data"
        )
    return fingerprint


def _labels(batch: Batch, found: ClassPredictive) -> Tensor:
    targets = batch.targets if isinstance(batch.targets, Tensor) else torch.as_tensor(batch.targets, device="cpu")
    if batch.weight is not None:
        raise ValueError(f"{NAME} must come without weights, which decisions do not use; give (inputs, targets)")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(f"targets of {NAME} must be whole numbers that name classes, got {targets.dtype}")
    if targets.shape != found.label.shape:
        raise ValueError(
            f"targets of {NAME} must have shape {tuple(found.label.shape)} beside these predictions, "
            f"got {tuple(targets.shape)}"
        )
    num_classes = found.log_probs.shape[-1]
    low, high = int(targets.min()), int(targets.max())
    if not 0 <= low <= high < num_classes:
        raise ValueError(
            f"targets of {NAME} must name classes from 0 to {num_classes - 1}, got {low if low < 0 else high}"
        )
    return targets.to(found.label.device).long()
