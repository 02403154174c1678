"""Calibrations, thresholds and prediction sets as frozen values, which print, compare and are stored in files.

A calibration changes probabilities, a threshold says which predictions are accepted, and prediction sets hold several
classes where one is not certain enough. Each keeps the fingerprint of the data that it was fitted on. The formulas are
in ``functional``; ``dubio.calibrate``, ``dubio.abstain`` and ``dubio.conformal`` fit the numbers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dubio import functional
from dubio.checks import check_choice, check_positive, listed

Surety = Literal["confidence", "entropy", "mutual_information"]


class DecisionWarning(UserWarning):
    """Warns that a calibration, threshold or prediction sets are no longer valid, or lie at a limit of their range."""


@dataclass(frozen=True)
class Temperature:
    """The log-probabilities of all classes are divided by one number; above 1, predictions are less confident.

    Args:
        temperature: the divisor.
        per_draw: divide those of each draw, before averaging; by default those of the mean prediction.
        fingerprint: the data that it was fitted on.
    """

    temperature: float
    per_draw: bool = False
    fingerprint: str = ""

    def __post_init__(self) -> None:
        check_positive("temperature", self.temperature)

    def apply(self, log_probs: Float[Tensor, "*batch class"]) -> Float[Tensor, "*batch class"]:
        """The scaled log-probabilities."""
        return functional.calibration.scaled_log_probs(log_probs, self.temperature)

    def __str__(self) -> str:
        return f"temperature {self.temperature:.3g} on {'each draw' if self.per_draw else 'the mean prediction'}"


@dataclass(frozen=True)
class VectorScaling:
    """Each class's log-probability in the mean prediction is multiplied by its scale, and its bias added.

    Args:
        scale: one factor for each class.
        bias: one summand for each class.
        fingerprint: the data that they were fitted on.
    """

    scale: tuple[float, ...]
    bias: tuple[float, ...]
    fingerprint: str = ""
    per_draw: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if len(self.scale) != len(self.bias) or len(self.scale) < 2:
            raise ValueError(
                "scale and bias of a VectorScaling must have one number for each class, two at least, "
                f"got {len(self.scale)} and {len(self.bias)}"
            )
        if not all(math.isfinite(number) for number in (*self.scale, *self.bias)):
            raise ValueError("scale and bias of a VectorScaling must be finite")

    def apply(self, log_probs: Float[Tensor, "*batch class"]) -> Float[Tensor, "*batch class"]:
        """The scaled log-probabilities."""
        if log_probs.shape[-1] != len(self.scale):
            classes = f"{len(self.scale)} classes, got {log_probs.shape[-1]}"
            raise ValueError(f"this VectorScaling is for {classes}; calibrate anew")
        scale, bias = (log_probs.new_tensor(numbers) for numbers in (self.scale, self.bias))
        return functional.calibration.vector_scaled_log_probs(log_probs, scale, bias)

    def __str__(self) -> str:
        scales, biases = (f"{min(numbers):.3g} to {max(numbers):.3g}" for numbers in (self.scale, self.bias))
        return f"vector scaling of {len(self.scale)} classes, scales {scales}, biases {biases}, on the mean prediction"


Calibration = Temperature | VectorScaling


@dataclass(frozen=True)
class Threshold:
    """Predictions are accepted where they are more certain than a threshold; a person decides about the others.

    Args:
        score: ``"confidence"``, which is accepted above the limit, or ``"entropy"`` or ``"mutual_information"``, which
            are accepted below.
        limit: the threshold, itself not accepted; None accepts every prediction.
        error: the requested error among accepted predictions, or None.
        coverage: the requested share of accepted predictions, or None.
        level: the probability with which the error holds.
        accepted_share: share of the held-out examples that it accepted.
        accepted_error: share of those that were wrong.
        fingerprint: the data that it was fitted on.
        calibrated_score: whether ``"mutual_information"`` is that of the calibrated prediction, as ``dubio.abstain``
            sets it. A threshold from a file of an earlier version, which lacks this field, compares the mutual
            information of the uncalibrated draws, on which it was chosen.
    """

    score: Surety
    limit: float | None
    error: float | None = None
    coverage: float | None = None
    level: float | None = None
    accepted_share: float | None = None
    accepted_error: float | None = None
    fingerprint: str = ""
    calibrated_score: bool = False

    def __post_init__(self) -> None:
        check_choice("score", self.score, get_args(Surety))
        if self.limit is not None and not math.isfinite(self.limit):
            raise ValueError(f"limit of a Threshold must be finite, or None to accept everything, got {self.limit}")

    def accepts(self, score: Float[Tensor, "*batch"]) -> Bool[Tensor, "*batch"]:
        """Which predictions are accepted, from their scores."""
        if self.limit is None:
            return torch.ones_like(score, dtype=torch.bool)
        return score > self.limit if self.score == "confidence" else score < self.limit

    def __str__(self) -> str:
        side = "above" if self.score == "confidence" else "below"
        name = self.score.replace("_", " ")
        rule = "accepts everything" if self.limit is None else f"accepts {name} {side} {self.limit:.4g}"
        if self.error is not None:
            level = "" if self.level is None else f" with probability {self.level:g}"
            goal = f"error at most {self.error:g}{level}"
        else:
            goal = "" if self.coverage is None else f"coverage {self.coverage:g}"
        result = "" if self.accepted_share is None else f"{self.accepted_share:.1%} of the held-out examples accepted"
        result += f", {self.accepted_error:.2%} of them wrong" if result and self.accepted_error is not None else ""
        details = "; ".join(part for part in (goal, result) if part)
        return f"{rule} ({details})" if details else rule


@dataclass(frozen=True)
class PredictionSets:
    """A set of classes for every input, which holds the target with a requested probability.

    Args:
        kind: ``"lac"`` or ``"aps"``, the score of a class beside a prediction
            (``functional.calibration.conformal_scores``).
        quantile: classes with at most this score are in the set.
        coverage: the requested probability.
        allow_empty: whether a set may hold nothing; by default the most probable class always is in it.
        fingerprint: the data that it was fitted on.
    """

    kind: functional.calibration.ConformalScore
    quantile: float
    coverage: float
    allow_empty: bool = False
    fingerprint: str = ""

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, get_args(functional.calibration.ConformalScore))
        if not math.isfinite(self.quantile):
            raise ValueError(f"quantile of PredictionSets must be finite, got {self.quantile}")
        if not 0.0 < self.coverage < 1.0:
            raise ValueError(f"coverage must be in (0, 1), got {self.coverage}")

    def hold(self, log_probs: Float[Tensor, "*batch class"]) -> Bool[Tensor, "*batch class"]:
        """Which classes are in the set of each prediction."""
        return functional.calibration.prediction_sets(log_probs, self.kind, self.quantile, self.allow_empty)

    def __str__(self) -> str:
        empty = ", may be empty" if self.allow_empty else ""
        return f"sets that hold the target with probability {self.coverage:g} ({self.kind}, {self.quantile:.4g}{empty})"


MADE_BY = {"calibration": "dubio.calibrate", "threshold": "dubio.abstain", "sets": "dubio.conformal"}
"""The function that fits each of them."""
VALUES = (Temperature, VectorScaling, Threshold, PredictionSets)


@dataclass(frozen=True)
class Decisions:
    """The calibration, threshold and prediction sets of a network; None for those that it has not."""

    calibration: Calibration | None = None
    threshold: Threshold | None = None
    sets: PredictionSets | None = None

    @property
    def made(self) -> dict[str, Calibration | Threshold | PredictionSets]:
        """Those that exist, by ``calibration``, ``threshold`` and ``sets``."""
        return {name: value for name in MADE_BY if (value := getattr(self, name)) is not None}

    def summary(self) -> dict[str, str]:
        """Those that exist, as text."""
        return {name: str(value) for name, value in self.made.items()}


def removal_message(cause: str, removed: Sequence[str]) -> str:
    """The message that ``cause`` removed some decisions of a network, and which calls fit them again."""
    names = listed([f"the {name}" for name in removed], "and")
    calls = listed([MADE_BY[name] for name in removed], "and")
    return f"{cause} changes the predictions, so {names} of this network had to be removed; call {calls} again"


def decisions_of(model: nn.Module) -> Decisions:
    """The decisions of a network; none for one that was not converted."""
    record = getattr(model, "dubio_spec", None)
    return Decisions() if record is None else Decisions(record.calibration, record.threshold, record.sets)
