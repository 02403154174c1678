"""What ``predict`` returns: a distribution over targets, and where its doubt comes from."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dubio import functional
from dubio.calibrators import Calibration, PredictionSets, Threshold

__all__ = ["ClassPredictive", "Predictive", "RealPredictive", "joined", "moved"]

BY_CLASS = ("samples", "log_probs", "uncalibrated_log_probs", "votes", "class_variance")
"""What a prediction tells of every class."""


@dataclass(frozen=True, eq=False, repr=False)
class Predictive:
    """A prediction from ``num_samples`` draws; ``seed`` gives the same draws again."""

    num_samples: int
    seed: int | None
    samples: Float[Tensor, "sample batch ..."] | None
    """Per draw, where samples were kept: log-probabilities for classes, means for real targets."""


@dataclass(frozen=True, eq=False, repr=False)
class ClassPredictive(Predictive):
    """A distribution over classes for every input. Entropies are in nats.

    ``entropy`` is the sum of ``expected_entropy`` and ``mutual_information``, calibrated or not, and neither part is
    negative. With a calibrated network these three are calibrated, as ``log_probs``, ``probs``, ``label`` and
    ``confidence`` are: the calibrated entropy is divided in the proportion that the draws give. ``samples``, ``votes``,
    ``class_variance`` and ``top_std`` describe single draws, which only a temperature with ``per_draw=True`` changes.
    ``energy`` is never calibrated.
    """

    log_probs: Float[Tensor, "batch *rest class"]
    """Log of the mean probability over draws, calibrated where the network is."""
    expected_entropy: Float[Tensor, "batch *rest"]
    """The part of the entropy that lies in the data: the mean of each draw's entropy, calibrated with the entropy."""
    votes: Float[Tensor, "batch *rest class"]
    """Share of draws that hold each class most probable."""
    class_variance: Float[Tensor, "batch *rest class"]
    """Variance over draws of each class's probability."""
    energy: Float[Tensor, "batch *rest"] | None
    """Minus the log of the summed exponentials of the logits, averaged over draws; None where there are no logits."""
    uncalibrated_log_probs: Float[Tensor, "batch *rest class"] | None = None
    """Log of the mean probability over draws, where it was calibrated afterwards; else None."""
    uncalibrated_expected_entropy: Float[Tensor, "batch *rest"] | None = None
    """Mean over draws of each draw's entropy, where the mean prediction was calibrated afterwards; else None."""
    calibration: Calibration | None = None
    """What ``dubio.calibrate`` decided, where it is applied to the mean prediction."""
    threshold: Threshold | None = None
    """What ``dubio.abstain`` decided, where it did."""
    prediction_sets: PredictionSets | None = None
    """What ``dubio.conformal`` decided, where it did."""

    @cached_property
    def probs(self) -> Float[Tensor, "batch *rest class"]:
        """Mean probability over draws."""
        return self.log_probs.exp()

    @cached_property
    def label(self) -> Int[Tensor, "batch *rest"]:
        """The most probable class."""
        return self.log_probs.argmax(dim=-1)

    @cached_property
    def confidence(self) -> Float[Tensor, "batch *rest"]:
        """Probability of the most probable class."""
        return self.probs.amax(dim=-1)

    @cached_property
    def entropy(self) -> Float[Tensor, "batch *rest"]:
        """Entropy of the mean probabilities: all doubt together."""
        return functional.uncertainty.entropy(self.probs)

    @cached_property
    def mutual_information(self) -> Float[Tensor, "batch *rest"]:
        """What draws disagree about: doubt that more data could remove."""
        return functional.uncertainty.mutual_information(self.entropy, self.expected_entropy)

    @cached_property
    def uncalibrated_mutual_information(self) -> Float[Tensor, "batch *rest"]:
        """The mutual information of the draws, before the mean prediction was calibrated."""
        if self.uncalibrated_log_probs is None or self.uncalibrated_expected_entropy is None:
            return self.mutual_information
        entropy = functional.uncertainty.entropy(self.uncalibrated_log_probs.exp())
        return functional.uncertainty.mutual_information(entropy, self.uncalibrated_expected_entropy)

    @cached_property
    def variation_ratio(self) -> Float[Tensor, "batch *rest"]:
        """Share of draws that do not vote for the most frequent class."""
        return functional.uncertainty.variation_ratio(self.votes)

    @cached_property
    def top_std(self) -> Float[Tensor, "batch *rest"]:
        """Standard deviation over draws of the most probable class's probability."""
        return self.class_variance.gather(-1, self.label.unsqueeze(-1)).squeeze(-1).sqrt()

    def calibrated(self, log_probs: Float[Tensor, "*any class"]) -> Float[Tensor, "*any class"]:
        """Other mean predictions of the same network, calibrated as these are."""
        return log_probs if self.calibration is None else self.calibration.apply(log_probs)

    def in_rows(self) -> "ClassPredictive":
        """The same without the axis of an only output, as yes or no has it: one row of classes for each input.

        Raises:
            ValueError: there are several outputs for each input.
        """
        shape = tuple(self.log_probs.shape)
        if len(shape) == 2:
            return self
        if len(shape) != 3 or shape[1] != 1:
            raise ValueError(
                f"predictions must be of one class per example here, got probabilities of shape {shape}; take the "
                "outputs of an example one at a time"
            )
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        rows: dict[str, Any] = {
            name: value.squeeze(-2 if name in BY_CLASS else -1)
            for name, value in own.items()
            if isinstance(value, Tensor)
        }
        return replace(self, **rows)

    @cached_property
    def accepted(self) -> Bool[Tensor, "batch *rest"]:
        """Whether each prediction is sure enough to be relied upon, by the threshold that ``dubio.abstain`` found."""
        if self.threshold is None:
            raise ValueError("no threshold was set for these predictions; dubio.abstain(model, validation, ...) does")
        if self.threshold.score == "mutual_information" and not self.threshold.calibrated_score:
            return self.threshold.accepts(self.uncalibrated_mutual_information)
        return self.threshold.accepts(getattr(self, self.threshold.score))

    @cached_property
    def sets(self) -> Bool[Tensor, "batch *rest class"]:
        """Whether each class is in the prediction's set, by what ``dubio.conformal`` found."""
        if self.prediction_sets is None:
            raise ValueError("no sets were set up for these predictions; dubio.conformal(model, validation, ...) does")
        return self.prediction_sets.hold(self.log_probs)

    def __repr__(self) -> str:
        return (
            f"ClassPredictive({_count(self.label)}, {self.log_probs.shape[-1]} classes, {self.num_samples} draws, "
            f"seed {self.seed}: mean confidence {self.confidence.mean():.3f}, entropy {self.entropy.mean():.3f}, "
            f"mutual information {self.mutual_information.mean():.3f})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class RealPredictive(Predictive):
    """A distribution over real targets for every input: a mixture of one Gaussian per draw."""

    mean: Float[Tensor, "batch *rest"]
    aleatoric_std: Float[Tensor, "batch *rest"]
    """Noise of the data: root of the mean observation variance."""
    epistemic_std: Float[Tensor, "batch *rest"]
    """Doubt of the network: standard deviation of the draws' means."""
    sample_stds: Float[Tensor, "sample batch *rest"] | None
    """Observation noise per draw, where samples were kept."""

    @cached_property
    def std(self) -> Float[Tensor, "batch *rest"]:
        """Standard deviation of the prediction, both kinds of doubt together."""
        return (self.aleatoric_std.square() + self.epistemic_std.square()).sqrt()

    def quantile(self, level: float | Sequence[float] | NDArray[Any] | Tensor) -> Float[Tensor, "..."]:
        """The value below which the target lies with probability ``level``; of several levels, on a leading axis."""
        several = level.tolist() if isinstance(level, np.ndarray | Tensor) else level
        if isinstance(several, Sequence) and not isinstance(several, str | bytes):
            if len(several) == 0:
                raise ValueError("level must be a probability, or several, got none")
            return torch.stack([self.quantile(_checked_level(each)) for each in several])
        level = _checked_level(several)
        if self.samples is None or self.sample_stds is None:
            raise ValueError("quantiles need the single draws: predict with keep_samples=True")
        return functional.uncertainty.mixture_quantile(level, self.samples, self.sample_stds).to(self.mean.dtype)

    def interval(self, level: float = 0.9) -> tuple[Float[Tensor, "batch *rest"], Float[Tensor, "batch *rest"]]:
        """The central interval that holds the target with probability ``level``."""
        if not 0.0 < _checked_level(level) < 1.0:
            raise ValueError(f"level must be in (0, 1), got {level}")
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def __repr__(self) -> str:
        return (
            f"RealPredictive({_count(self.mean)}, {self.num_samples} draws, seed {self.seed}: mean std "
            f"{self.std.mean():.3g}, of the data {self.aleatoric_std.mean():.3g}, of the network "
            f"{self.epistemic_std.mean():.3g})"
        )


def _checked_level(level: Any) -> float:
    """A level as a number; whether it is a probability is asked where it is used."""
    if isinstance(level, np.ndarray | Tensor) and level.ndim == 0:
        level = level.item()
    if not isinstance(level, Real):
        raise TypeError(f"level must be a probability in (0, 1), or several in one list, got {level!r}")
    return float(level)


P = TypeVar("P", bound=Predictive)


def joined(parts: list[P]) -> P:
    """Predictions of one network with the same draws, for inputs one after the other, as one."""
    if len(parts) == 1:
        return parts[0]
    values: dict[str, Any] = {}
    for field in fields(parts[0]):
        own = [getattr(part, field.name) for part in parts]
        if isinstance(own[0], Tensor):
            axis = 1 if field.name in ("samples", "sample_stds") else 0
            _check_shapes([value.shape[axis + 1 :] for value in own])
            values[field.name] = torch.cat(own, dim=axis)
        else:
            values[field.name] = own[0]
    return type(parts[0])(**values)


def moved(part: P, device: torch.device) -> P:
    """The same prediction on another device."""
    own = {field.name: getattr(part, field.name) for field in fields(part)}
    elsewhere: dict[str, Any] = {name: value.to(device) for name, value in own.items() if isinstance(value, Tensor)}
    return replace(part, **elsewhere)


def _check_shapes(shapes: list[torch.Size]) -> None:
    """Refuse what cannot be one tensor."""
    other = next((shape for shape in shapes if shape != shapes[0]), None)
    if other is not None:
        raise ValueError(
            "the network must give outputs of one shape for all batches, to predict them together, "
            f"got {tuple(shapes[0])} and {tuple(other)} for one row; predict them apart"
        )


def _count(rows: Tensor) -> str:
    return f"{len(rows)} input" + ("" if len(rows) == 1 else "s")
