"""Statistics over draws, gathered a few draws at a time: memory does not grow with the number of draws.

Sums run in float64, so that the result does not depend on how the draws were cut into chunks beyond the last digits
(``test_streaming_equals_all_draws_at_once``). Votes are counted, and exactly 1 where all draws agree.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dubio import functional
from dubio.calibrators import Decisions
from dubio.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from dubio.prediction.predictive import ClassPredictive, RealPredictive

__all__ = ["ClassStatistics", "RealStatistics", "Statistics", "statistics_for"]

NOTHING_DECIDED = Decisions()


class ClassStatistics:
    """Sums over draws for a distribution over classes, and what was decided about it."""

    def __init__(
        self, likelihood: Categorical | Bernoulli, keep_samples: bool, decisions: Decisions = NOTHING_DECIDED
    ) -> None:
        self._likelihood = likelihood
        self._decisions = decisions
        self._kept: list[Tensor] | None = [] if keep_samples else None
        self._count = 0
        self._log_sum: Tensor | None = None
        self._entropies: Tensor
        self._squares: Tensor
        self._votes: Tensor
        self._energies: Tensor | None

    def update(self, outputs: Float[Tensor, "sample batch *rest"]) -> None:
        """Take some draws in."""
        log_probs = self._likelihood.log_probs(outputs)
        calibration = self._decisions.calibration
        if calibration is not None and calibration.per_draw:
            log_probs = calibration.apply(log_probs)
        if self._kept is not None:
            self._kept.append(log_probs)
        exact = log_probs.double()
        count, probs = len(exact), exact.exp()
        log_sum = functional.uncertainty.predictive_log_probs(exact) + math.log(count)
        entropies = functional.uncertainty.entropy(probs).sum(dim=0)
        squares = probs.square().sum(dim=0)
        votes = functional.uncertainty.vote_counts(exact.argmax(dim=-1), exact.shape[-1])
        energies = self._energies_of(outputs)
        if self._log_sum is None:
            self._log_sum, self._entropies, self._squares, self._votes = log_sum, entropies, squares, votes
            self._energies = energies
        else:
            self._log_sum = torch.logaddexp(self._log_sum, log_sum)
            self._entropies += entropies
            self._squares += squares
            self._votes += votes
            self._energies = None if energies is None or self._energies is None else self._energies + energies
        self._count += count
        self._dtype = log_probs.dtype

    def finish(self, seed: int | None) -> ClassPredictive:
        """The prediction from all draws so far."""
        assert self._log_sum is not None
        log_probs = self._log_sum - math.log(self._count)
        variance = functional.uncertainty.class_variance(self._squares / self._count, log_probs.exp())
        expected = self._entropies / self._count
        calibration = self._decisions.calibration
        afterwards = None if calibration is None or calibration.per_draw else calibration
        calibrated, calibrated_expected = log_probs, expected
        if afterwards is not None:
            calibrated = afterwards.apply(log_probs)
            entropies = (
                functional.uncertainty.entropy(calibrated.exp()),
                functional.uncertainty.entropy(log_probs.exp()),
            )
            calibrated_expected = functional.uncertainty.calibrated_expected_entropy(*entropies, expected)
        return ClassPredictive(
            num_samples=self._count,
            seed=seed,
            samples=None if self._kept is None else torch.cat(self._kept),
            log_probs=calibrated.to(self._dtype),
            expected_entropy=calibrated_expected.to(self._dtype),
            votes=functional.uncertainty.shares_of_counts(self._votes).to(self._dtype),
            class_variance=variance.to(self._dtype),
            energy=None if self._energies is None else (self._energies / self._count).to(self._dtype),
            uncalibrated_log_probs=None if afterwards is None else log_probs.to(self._dtype),
            uncalibrated_expected_entropy=None if afterwards is None else expected.to(self._dtype),
            calibration=afterwards,
            threshold=self._decisions.threshold,
            prediction_sets=self._decisions.sets,
        )

    def _energies_of(self, outputs: Tensor) -> Tensor | None:
        if not isinstance(self._likelihood, Categorical) or self._likelihood.output != "logits":
            return None
        return functional.uncertainty.energy(self._likelihood.scores(outputs).double()) * len(outputs)


class RealStatistics:
    """Sums over draws for a distribution over real targets; means and variances are merged after Chan et al. 1983."""

    def __init__(self, likelihood: Gaussian, keep_samples: bool, scale: Tensor | None = None) -> None:
        self._likelihood = likelihood
        self._scale = scale
        self._kept: list[tuple[Tensor, Tensor]] | None = [] if keep_samples else None
        self._count = 0
        self._mean: Tensor | None = None
        self._deviations: Tensor
        self._noise: Tensor

    def update(self, outputs: Float[Tensor, "sample batch *rest"]) -> None:
        """Take some draws in."""
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

    def finish(self, seed: int | None) -> RealPredictive:
        """The prediction from all draws so far."""
        assert self._mean is not None
        return RealPredictive(
            num_samples=self._count,
            seed=seed,
            samples=None if self._kept is None else torch.cat([means for means, _ in self._kept]),
            mean=self._mean.to(self._dtype),
            aleatoric_std=(self._noise / self._count).sqrt().to(self._dtype),
            epistemic_std=(self._deviations / self._count).sqrt().to(self._dtype),
            sample_stds=None if self._kept is None else torch.cat([stds for _, stds in self._kept]),
        )


Statistics = ClassStatistics | RealStatistics


def statistics_for(
    likelihood: Likelihood,
    keep_samples: bool,
    scale: Tensor | None = None,
    decisions: Decisions = NOTHING_DECIDED,
) -> Statistics:
    """Empty statistics for outputs of this meaning; ``scale`` is the observation noise that a network learned."""
    if isinstance(likelihood, Gaussian):
        return RealStatistics(likelihood, keep_samples, scale)
    return ClassStatistics(likelihood, keep_samples, decisions)
