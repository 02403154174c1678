"""Formulas of calibration, prediction sets and abstention, for classification.

Calibration errors. Confidences are counted in equal bins. Counts and sums are added up over batches and divided at the
end, so that cutting the data changes nothing (T-66); the mean of batches' errors would be too large. A bin's weight is
its share of the examples (a document prints one over it, T-65). References: Naeini, Cooper and Hauskrecht 2015; Guo et
al. 2017; Nixon et al. 2019 for the adaptive and class-wise forms; Brier 1950.

Scaling. ``p = softmax(z / T)`` with ``z = log p`` of the mean prediction, or of each draw before averaging (E-66), or a
scale and a bias for each class. The result is the same as with logits, since a constant for all classes changes
nothing. A temperature never changes which class is most probable; ``T = 1``, or scale 1 and bias 0, changes nothing
(T-67, ``tests/functional/test_scaling.py``). Reference: Guo et al. 2017.

Prediction sets. A score is large where a class does not conform with a prediction. A set holds the classes whose score
is at most the ``ceil((n + 1) coverage)``-th of ``n`` held-out targets. Where held-out and new examples are
exchangeable, the set of a new example contains its target with probability ``coverage`` at least, and ``coverage + 1 /
(n + 1)`` at most where no scores are equal (Vovk et al. 2005; Lei et al. 2018; ``tests/functional/test_conformal.py``).

- ``lac``: ``1 - p_k`` (Sadinle et al. 2019), the smallest sets on average; some may be empty.
- ``aps``: the probability of all classes that are more probable (Romano et al. 2020, without their random part: the
  most probable class scores 0, so no set is empty); larger sets, more even over easy and hard examples.

Abstention. Predictions whose surety lies above a threshold are accepted. The threshold is itself one of the held-out
sureties, and the examples above it are then independent draws from all that would be accepted. Of ``k`` of them, the
number wrong is binomial with the true error, so that Clopper and Pearson's upper bound holds. Each of several
thresholds gets an equal part of the allowed chance of failure, so that all bounds hold together (the idea of Geifman
and El-Yaniv 2017). The error on new data stays within the bound in as many repetitions as ``level`` says, and equal
sureties are accepted together (``tests/functional/test_abstention.py``).
"""

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dubio.functional.statistics import share_upper_bound
from dubio.functional.uncertainty import predictive_log_probs

LogProbs = Float[Tensor, "*batch class"]
Scalar = Float[Tensor, ""]
Scores = Float[Tensor, " example"]
Flags = Bool[Tensor, " example"]
Weights = Float[Tensor, "*resample example"]
Classes = Float[Tensor, " class"]

NUM_BINS = 15
SMALLEST_LOG_PROB = -1e4
"""A class that is impossible stays so, and no infinity meets a zero."""
ConformalScore = Literal["lac", "aps"]
TRIED = 20
"""Number of thresholds tried, each accepting one more equal part of the examples; more would weaken every bound."""


class BinSums(NamedTuple):
    """Sums over batches, by bin."""

    size: Float[Tensor, "*resample bin"]
    confidence: Float[Tensor, "*resample bin"]
    correct: Float[Tensor, "*resample bin"]

    def plus(self, other: "BinSums") -> "BinSums":
        """The sums over both."""
        return BinSums(*(one + another for one, another in zip(self, other, strict=True)))


class Reliability(NamedTuple):
    """Values of a reliability plot, by bin; accuracy and confidence are NaN where a bin is empty."""

    share: Float[Tensor, " bin"]
    confidence: Float[Tensor, " bin"]
    accuracy: Float[Tensor, " bin"]


def bin_sums(confidence: Scores, correct: Flags, num_bins: int = NUM_BINS, weight: Weights | None = None) -> BinSums:
    """Sums over the bins ``((k-1)/K, k/K]``; a confidence of 0 goes into the first, one of 1 into the last.

    An example of weight 2 counts as two of it.
    """
    _check_bins(num_bins)
    if confidence.numel() and not 0.0 <= float(confidence.min()) <= float(confidence.max()) <= 1.0 + 1e-6:
        raise ValueError(f"confidence must be in [0, 1], got {float(confidence.min())} to {float(confidence.max())}")

    exact = confidence.double()
    place = (torch.ceil(exact * num_bins).long() - 1).clamp(0, num_bins - 1)

    weights = torch.ones_like(exact) if weight is None else weight.double()
    members = torch.nn.functional.one_hot(place, num_bins).double()  # summing by a matrix takes all resamples at once
    return BinSums(
        weights @ members, weights @ (members * exact[:, None]), weights @ (members * correct.double()[:, None])
    )


def calibration_error(sums: BinSums) -> Float[Tensor, "*resample"]:
    """``sum_k |B_k| / n |acc(B_k) - conf(B_k)|``; empty bins add nothing (E-65)."""
    gaps = (sums.correct - sums.confidence).abs()  # a bin's size times its gap
    return gaps.sum(dim=-1) / sums.size.sum(dim=-1).clamp_min(1.0)


def reliability(sums: BinSums) -> Reliability:
    """Share, mean confidence and accuracy of every bin."""
    return Reliability(
        sums.size / sums.size.sum().clamp_min(1.0), sums.confidence / sums.size, sums.correct / sums.size
    )


def matching_share(sums: BinSums, tolerance: float) -> Float[Tensor, "*resample"]:
    """Share of the examples whose bin is right as often as it is confident, to within ``tolerance``."""
    matches = (sums.correct - sums.confidence).abs() <= tolerance * sums.size
    return (matches * sums.size).sum(dim=-1) / sums.size.sum(dim=-1).clamp_min(1.0)


def adaptive_calibration_error(
    confidence: Scores, correct: Flags, num_bins: int = NUM_BINS, weight: Weights | None = None
) -> Float[Tensor, "*resample"]:
    """The same with bins of equal numbers of examples, in the order of their confidence; the first take what is over.

    An example of weight 2 counts as two of it, which may lie in two bins.
    """
    _check_bins(num_bins)
    ordered, order = confidence.double().sort(stable=True)
    weights = torch.ones_like(ordered) if weight is None else weight.double()[..., order]
    ends = weights.cumsum(dim=-1)
    total = ends[..., -1:]
    bins = torch.arange(num_bins + 1, dtype=torch.float64, device=ordered.device)
    size = (total / num_bins).floor()
    edges = bins * size + torch.minimum(bins, total - num_bins * size)
    gaps = ordered - correct[order].double()

    # The sum of the gaps up to an edge: of whole examples before it, and of a part of the one that it cuts.
    cut = torch.searchsorted(ends, edges.contiguous()).clamp_max(len(ordered) - 1)
    sums = (weights * gaps).cumsum(dim=-1)
    up_to = sums.gather(-1, cut) - (ends.gather(-1, cut) - edges) * gaps[cut]
    return up_to.diff(dim=-1).abs().sum(dim=-1) / total.squeeze(-1)


def classwise_calibration_error(
    probs: Float[Tensor, "example class"],
    targets: Int[Tensor, " example"],
    num_bins: int = NUM_BINS,
    weight: Weights | None = None,
) -> Float[Tensor, "*resample"]:
    """Mean over classes of the error of each class's probability for being the class."""
    errors = [
        calibration_error(bin_sums(probs[:, label], targets == label, num_bins, weight))
        for label in range(probs.shape[1])
    ]
    return torch.stack(errors).mean(dim=0)


def brier_score(probs: LogProbs, targets: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """``sum_k (p_k - [k = y])^2`` for each example: 0 is certain and right, 2 certain and wrong."""
    one_hot = torch.nn.functional.one_hot(targets.long(), probs.shape[-1]).to(probs.dtype)
    return (probs - one_hot).square().sum(dim=-1)


def _check_bins(num_bins: int) -> None:
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1, got {num_bins}")


def scaled_log_probs(log_probs: LogProbs, temperature: Scalar | float) -> LogProbs:
    """``log softmax(z / T)`` (E-66)."""
    return (log_probs.clamp_min(SMALLEST_LOG_PROB) / temperature).log_softmax(dim=-1)


def scaled_mixture(samples: Float[Tensor, "sample *batch class"], temperature: Scalar | float) -> LogProbs:
    """Log of the mean over draws of the scaled probabilities of each."""
    return predictive_log_probs(scaled_log_probs(samples, temperature))


def vector_scaled_log_probs(log_probs: LogProbs, scale: Classes, bias: Classes) -> LogProbs:
    """``log softmax(scale z + bias)``, class by class (Guo et al. 2017, section 4.2)."""
    return (log_probs.clamp_min(SMALLEST_LOG_PROB) * scale + bias).log_softmax(dim=-1)


def class_nll(log_probs: Float[Tensor, "example class"], targets: Int[Tensor, " example"]) -> Scalar:
    """Mean negative log-probability of the target classes (E-14)."""
    return -log_probs.gather(-1, targets.unsqueeze(-1)).mean()


def bounded_temperature(free: Scalar, largest: float) -> Scalar:
    """A temperature from any number: near 0 its exponential, and never beyond ``1 / largest`` and ``largest``."""
    bound = torch.tensor(largest, dtype=free.dtype).log()
    return (bound * torch.tanh(free / bound)).exp()


def departure_from_identity(scale: Classes, bias: Classes) -> Scalar:
    """Mean over classes of how far, squared, a vector scaling is from changing nothing."""
    return ((scale - 1.0).square() + bias.square()).mean()


def conformal_scores(log_probs: LogProbs, kind: ConformalScore) -> LogProbs:
    """The score of each class, large where it does not conform with the prediction, in double precision."""
    if kind == "lac":
        return -torch.expm1(log_probs.double())
    probs = log_probs.double().exp()
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    first = torch.searchsorted(-ordered, -ordered, right=False)  # equal classes have the same ones before them
    return torch.empty_like(probs).scatter(-1, order, before.gather(-1, first))


def conformal_rank(count: int, coverage: float) -> int:
    """``ceil((n + 1) coverage)``: which score, from the smallest, bounds the sets; more than ``n`` where none does."""
    return -(-round((count + 1) * coverage * 10**9) // 10**9)  # rounded up, but for rounding errors


def conformal_quantile(scores: Scores, coverage: float) -> Scalar:
    """The score that bounds the sets, from the scores of held-out targets."""
    if not 0.0 < coverage < 1.0:
        raise ValueError(f"coverage must be in (0, 1), got {coverage}")
    rank = conformal_rank(len(scores), coverage)
    if rank > len(scores):
        raise ValueError(f"coverage {coverage} needs more scores than {len(scores)}: the bound would be their {rank}th")
    return scores.sort().values[rank - 1]


def prediction_sets(
    log_probs: LogProbs, kind: ConformalScore, quantile: float, allow_empty: bool = False
) -> Bool[Tensor, "*batch class"]:
    """Which classes are in each set; the most probable one always is, unless sets may be empty."""
    sets = conformal_scores(log_probs, kind) <= quantile
    if allow_empty:
        return sets
    return sets.scatter(-1, log_probs.argmax(dim=-1, keepdim=True), True)


class Acceptance(NamedTuple):
    """Counts of a threshold on held-out examples."""

    threshold: float | None
    """Accepted is what lies above; everything is where it is None."""
    num_accepted: int
    num_wrong: int
    bound: float | None
    """Upper bound of the error among accepted, at the requested level; None where there was none."""

    @property
    def error(self) -> float:
        """Share of the accepted that are wrong."""
        return self.num_wrong / max(self.num_accepted, 1)


def acceptances(surety: Scores, correct: Flags, error: float, level: float) -> list[Acceptance]:
    """Thresholds with bounds that hold together with probability ``level``, from the most accepted to the fewest.

    Left out, from the start, are those that accept too few for a bound of ``error`` even where none is wrong.
    """
    sizes = list(dict.fromkeys(-(-part * len(surety) // TRIED) for part in range(TRIED, 0, -1)))
    while sizes and sizes[-1] < num_for_error(error, level, len(sizes)):
        sizes.pop()
    failure = (1.0 - level) / max(len(sizes), 1)
    ordered = surety.sort().values
    return [_acceptance(surety, correct, _below(ordered, len(surety) - size), failure) for size in sizes]


def acceptance_at_coverage(surety: Scores, correct: Flags, coverage: float) -> Acceptance:
    """The highest threshold that accepts ``coverage`` of the held-out examples at least.

    Of new examples it accepts as many at least on average, where they are exchangeable with these.
    """
    num_accepted = math.ceil(coverage * len(surety) - 1e-9)
    ordered = surety.sort().values
    last = ordered[len(surety) - num_accepted]
    lower = int(torch.searchsorted(ordered, last, right=False))
    return _acceptance(surety, correct, _below(ordered, lower))


def num_for_error(error: float, level: float, num_thresholds: int = 1) -> int:
    """How many accepted examples, all right, bound the error: ``(1 - error)^k <= (1 - level) / thresholds``."""
    return math.ceil(math.log((1.0 - level) / num_thresholds) / math.log1p(-error) - 1e-9)


def _below(ordered: Scores, count: int) -> float | None:
    """The largest of the ``count`` smallest values."""
    return None if count == 0 else ordered[count - 1].item()


def _acceptance(surety: Tensor, correct: Tensor, threshold: float | None, failure: float | None = None) -> Acceptance:
    accepted = torch.ones_like(correct) if threshold is None else surety > threshold
    num_accepted, num_wrong = int(accepted.sum()), int((accepted & ~correct).sum())
    if failure is None:
        return Acceptance(threshold, num_accepted, num_wrong, None)
    bound = share_upper_bound(num_wrong, num_accepted, failure) if num_accepted else 1.0
    return Acceptance(threshold, num_accepted, num_wrong, bound)
