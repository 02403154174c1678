"""The results of ``predict``: a distribution over targets, and its uncertainty by source.

Statistics over draws are accumulated a few draws at a time, so that memory does not grow with the number of draws. Sums
run in float64, so that the result depends on how the draws were cut into chunks in the last digits only
(``test_streaming_equals_all_draws_at_once``). Votes are counted, and exactly 1 where all draws agree.
"""

import math
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

from dubio.calibrators import Calibration, Decisions, PredictionSets, Threshold
from dubio.functional import uncertainty
from dubio.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood

BY_CLASS = ("samples", "log_probs", "uncalibrated_log_probs", "votes", "class_variance")
"""Fields of a prediction that have an axis of classes."""

NO_DECISIONS = Decisions()


@dataclass(frozen=True, eq=False, repr=False)
class Predictive:
    """A prediction from ``num_samples`` draws; the same ``seed`` gives the same draws."""

    num_samples: int
    seed: int | None
    samples: Float[Tensor, "sample batch ..."] | None
    """Per draw, where samples were kept: log-probabilities for classes, means for real targets."""


@dataclass(frozen=True, eq=False, repr=False)
class ClassificationPredictive(Predictive):
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
    """The part of the entropy due to the data: the mean of each draw's entropy, calibrated with the entropy."""
    votes: Float[Tensor, "batch *rest class"]
    """Share of draws in which each class is the most probable."""
    class_variance: Float[Tensor, "batch *rest class"]
    """Variance over draws of each class's probability."""
    energy: Float[Tensor, "batch *rest"] | None
    """Minus the log of the summed exponentials of the logits, averaged over draws; None where there are no logits."""
    uncalibrated_log_probs: Float[Tensor, "batch *rest class"] | None = None
    """Log of the mean probability over draws, where it was calibrated afterwards; else None."""
    uncalibrated_expected_entropy: Float[Tensor, "batch *rest"] | None = None
    """Mean over draws of each draw's entropy, where the mean prediction was calibrated afterwards; else None."""
    calibration: Calibration | None = None
    """The calibration by ``dubio.calibrate``, where it is applied to the mean prediction."""
    threshold: Threshold | None = None
    """The threshold of ``dubio.abstain``, where one was set."""
    prediction_sets: PredictionSets | None = None
    """The prediction sets of ``dubio.conformal``, where they were set up."""

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
        """Entropy of the mean probabilities: the total uncertainty."""
        return uncertainty.entropy(self.probs)

    @cached_property
    def mutual_information(self) -> Float[Tensor, "batch *rest"]:
        """The disagreement of the draws: uncertainty that more data could remove."""
        return uncertainty.mutual_information(self.entropy, self.expected_entropy)

    @cached_property
    def uncalibrated_mutual_information(self) -> Float[Tensor, "batch *rest"]:
        """The mutual information of the draws, before the mean prediction was calibrated."""
        if self.uncalibrated_log_probs is None or self.uncalibrated_expected_entropy is None:
            return self.mutual_information
        entropy = uncertainty.entropy(self.uncalibrated_log_probs.exp())
        return uncertainty.mutual_information(entropy, self.uncalibrated_expected_entropy)

    @cached_property
    def variation_ratio(self) -> Float[Tensor, "batch *rest"]:
        """Share of draws that do not vote for the most frequent class."""
        return uncertainty.variation_ratio(self.votes)

    @cached_property
    def top_std(self) -> Float[Tensor, "batch *rest"]:
        """Standard deviation over draws of the most probable class's probability."""
        return self.class_variance.gather(-1, self.label.unsqueeze(-1)).squeeze(-1).sqrt()

    def calibrated(self, log_probs: Float[Tensor, "*any class"]) -> Float[Tensor, "*any class"]:
        """Other mean predictions of the same network, with the calibration of these."""
        return log_probs if self.calibration is None else self.calibration.apply(log_probs)

    def in_rows(self) -> "ClassificationPredictive":
        """The same without the axis of a single output, as a ``Bernoulli`` has it: one row of classes for each input.

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
        tensors = _tensor_fields(self).items()
        rows: dict[str, Any] = {name: value.squeeze(-2 if name in BY_CLASS else -1) for name, value in tensors}
        return replace(self, **rows)

    @cached_property
    def accepted(self) -> Bool[Tensor, "batch *rest"]:
        """Whether each prediction is certain enough to be accepted, by the threshold of ``dubio.abstain``."""
        if self.threshold is None:
            raise ValueError("no threshold was set for these predictions; dubio.abstain(model, validation, ...) does")
        if self.threshold.score == "mutual_information" and not self.threshold.calibrated_score:
            return self.threshold.accepts(self.uncalibrated_mutual_information)
        return self.threshold.accepts(getattr(self, self.threshold.score))

    @cached_property
    def sets(self) -> Bool[Tensor, "batch *rest class"]:
        """Whether each class is in the prediction's set, by the prediction sets of ``dubio.conformal``."""
        if self.prediction_sets is None:
            raise ValueError("no sets were set up for these predictions; dubio.conformal(model, validation, ...) does")
        return self.prediction_sets.hold(self.log_probs)

    def __repr__(self) -> str:
        return (
            f"ClassificationPredictive({_count(self.label)}, {self.log_probs.shape[-1]} classes, {self.num_samples} "
            f"draws, seed {self.seed}: mean confidence {self.confidence.mean():.3f}, entropy "
            f"{self.entropy.mean():.3f}, mutual information {self.mutual_information.mean():.3f})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class RegressionPredictive(Predictive):
    """A distribution over real targets for every input: a mixture of one Gaussian per draw."""

    mean: Float[Tensor, "batch *rest"]
    aleatoric_std: Float[Tensor, "batch *rest"]
    """Noise of the data: root of the mean observation variance."""
    epistemic_std: Float[Tensor, "batch *rest"]
    """Uncertainty of the network: standard deviation of the draws' means."""
    sample_stds: Float[Tensor, "sample batch *rest"] | None
    """Observation noise per draw, where samples were kept."""

    @cached_property
    def std(self) -> Float[Tensor, "batch *rest"]:
        """Standard deviation of the prediction, from the data and the network together."""
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
        return uncertainty.mixture_quantile(level, self.samples, self.sample_stds).to(self.mean.dtype)

    def interval(self, level: float = 0.9) -> tuple[Float[Tensor, "batch *rest"], Float[Tensor, "batch *rest"]]:
        """The central interval that holds the target with probability ``level``."""
        if not 0.0 < _checked_level(level) < 1.0:
            raise ValueError(f"level must be in (0, 1), got {level}")
        return self.quantile(0.5 - level / 2), self.quantile(0.5 + level / 2)

    def __repr__(self) -> str:
        return (
            f"RegressionPredictive({_count(self.mean)}, {self.num_samples} draws, seed {self.seed}: mean std "
            f"{self.std.mean():.3g}, of the data {self.aleatoric_std.mean():.3g}, of the network "
            f"{self.epistemic_std.mean():.3g})"
        )


def _checked_level(level: Any) -> float:
    """A level as a number; its range is checked where it is used."""
    if isinstance(level, np.ndarray | Tensor) and level.ndim == 0:
        level = level.item()
    if not isinstance(level, Real):
        raise TypeError(f"level must be a probability in (0, 1), or several in one list, got {level!r}")
    return float(level)


P = TypeVar("P", bound=Predictive)


def joined(parts: list[P]) -> P:
    """Predictions of one network with the same draws for consecutive inputs, as one prediction."""
    if len(parts) == 1:
        return parts[0]
    values = {field.name: getattr(parts[0], field.name) for field in fields(parts[0])}
    for name in _tensor_fields(parts[0]):
        tensors = [getattr(part, name) for part in parts]
        axis = 1 if name in ("samples", "sample_stds") else 0
        shapes = [tuple(value.shape[axis + 1 :]) for value in tensors]
        if (other := next((shape for shape in shapes if shape != shapes[0]), None)) is not None:
            raise ValueError(
                "the network must give outputs of one shape for all batches, to predict them together, "
                f"got {shapes[0]} and {other} for one row; predict them apart"
            )
        values[name] = torch.cat(tensors, dim=axis)
    return type(parts[0])(**values)


def moved(part: P, device: torch.device) -> P:
    """The same prediction on another device."""
    elsewhere: dict[str, Any] = {name: value.to(device) for name, value in _tensor_fields(part).items()}
    return replace(part, **elsewhere)


def _tensor_fields(part: Predictive) -> dict[str, Tensor]:
    values = ((field.name, getattr(part, field.name)) for field in fields(part))
    return {name: value for name, value in values if isinstance(value, Tensor)}


def _count(rows: Tensor) -> str:
    return f"{len(rows)} input" + ("" if len(rows) == 1 else "s")


class ClassStatistics:
    """Sums over draws for a distribution over classes, with the decisions that apply to it."""

    def __init__(self, likelihood: Categorical | Bernoulli, keep_samples: bool, decisions: Decisions) -> None:
        self._likelihood, self._decisions = likelihood, decisions
        self._kept: list[Tensor] | None = [] if keep_samples else None
        self._count = 0
        self._log_sum: Tensor | None = None
        self._sums: list[Tensor]
        """Of entropies, squares, votes and, for logits, energies."""

    def update(self, outputs: Float[Tensor, "sample batch *rest"]) -> None:
        """Add some draws."""
        log_probs = self._likelihood.log_probs(outputs)
        calibration = self._decisions.calibration
        if calibration is not None and calibration.per_draw:
            log_probs = calibration.apply(log_probs)
        if self._kept is not None:
            self._kept.append(log_probs)
        exact = log_probs.double()
        count, probs = len(exact), exact.exp()
        log_sum = uncertainty.predictive_log_probs(exact) + math.log(count)
        votes = uncertainty.vote_counts(exact.argmax(dim=-1), exact.shape[-1])
        sums = [uncertainty.entropy(probs).sum(dim=0), probs.square().sum(dim=0), votes]
        if isinstance(self._likelihood, Categorical) and self._likelihood.output == "logits":
            sums.append(uncertainty.energy(self._likelihood.scores(outputs).double()) * len(outputs))
        if self._log_sum is None:
            self._log_sum, self._sums = log_sum, sums
        else:
            self._log_sum = torch.logaddexp(self._log_sum, log_sum)
            for total, part in zip(self._sums, sums, strict=True):
                total += part
        self._count += count
        self._dtype = log_probs.dtype

    def finish(self, seed: int | None) -> ClassificationPredictive:
        """The prediction from all draws so far."""
        assert self._log_sum is not None
        log_probs = self._log_sum - math.log(self._count)
        entropies, squares, votes, *energies = self._sums
        variance = uncertainty.class_variance(squares / self._count, log_probs.exp())
        expected = entropies / self._count
        calibration = self._decisions.calibration
        afterwards = None if calibration is None or calibration.per_draw else calibration
        calibrated, calibrated_expected = log_probs, expected
        if afterwards is not None:
            calibrated = afterwards.apply(log_probs)
            before, after = uncertainty.entropy(log_probs.exp()), uncertainty.entropy(calibrated.exp())
            calibrated_expected = uncertainty.calibrated_expected_entropy(after, before, expected)
        return ClassificationPredictive(
            num_samples=self._count,
            seed=seed,
            samples=None if self._kept is None else torch.cat(self._kept),
            log_probs=calibrated.to(self._dtype),
            expected_entropy=calibrated_expected.to(self._dtype),
            votes=uncertainty.shares_of_counts(votes).to(self._dtype),
            class_variance=variance.to(self._dtype),
            energy=(energies[0] / self._count).to(self._dtype) if energies else None,
            uncalibrated_log_probs=None if afterwards is None else log_probs.to(self._dtype),
            uncalibrated_expected_entropy=None if afterwards is None else expected.to(self._dtype),
            calibration=afterwards,
            threshold=self._decisions.threshold,
            prediction_sets=self._decisions.sets,
        )


class RealStatistics:
    """Sums over draws for a distribution over real targets; means and variances are merged after Chan et al. 1983."""

    def __init__(self, likelihood: Gaussian, keep_samples: bool, scale: Tensor | None) -> None:
        self._likelihood, self._scale = likelihood, scale
        self._kept: list[tuple[Tensor, Tensor]] | None = [] if keep_samples else None
        self._count = 0
        self._mean: Tensor | None = None
        self._deviations: Tensor
        self._noise: Tensor

    def update(self, outputs: Float[Tensor, "sample batch *rest"]) -> None:
        """Add some draws."""
        means, stds = self._likelihood.moments(outputs, self._scale)
        if self._kept is not None:
            self._kept.append((means, stds))
        count, exact = len(means), means.double()
        mean = exact.mean(dim=0)
        deviations = (exact - mean).square().sum(dim=0)
        noise = stds.double().square().sum(dim=0)
        if self._mean is None:
            self._mean, self._deviations, self._noise = mean, deviations, noise
        else:
            total = self._count + count
            shift = mean - self._mean
            self._mean = self._mean + shift * (count / total)
            self._deviations = self._deviations + deviations + shift.square() * (self._count * count / total)
            self._noise = self._noise + noise
        self._count += count
        self._dtype = means.dtype

    def finish(self, seed: int | None) -> RegressionPredictive:
        """The prediction from all draws so far."""
        assert self._mean is not None
        return RegressionPredictive(
            num_samples=self._count,
            seed=seed,
            samples=None if self._kept is None else torch.cat([means for means, _ in self._kept]),
            mean=self._mean.to(self._dtype),
            aleatoric_std=(self._noise / self._count).sqrt().to(self._dtype),
            epistemic_std=(self._deviations / self._count).sqrt().to(self._dtype),
            sample_stds=None if self._kept is None else torch.cat([stds for _, stds in self._kept]),
        )


def statistics_for(
    likelihood: Likelihood, keep_samples: bool, scale: Tensor | None = None, decisions: Decisions = NO_DECISIONS
) -> ClassStatistics | RealStatistics:
    """Empty statistics for outputs of this meaning; ``scale`` is the observation noise that a network learned."""
    if isinstance(likelihood, Gaussian):
        return RealStatistics(likelihood, keep_samples, scale)
    return ClassStatistics(likelihood, keep_samples, decisions)
