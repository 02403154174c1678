"""Uncertainty from many draws, scores of predictive distributions, and detection by a score.

Classification. Class probabilities are `(sample, batch, class)`. Predictive entropy splits into the expected entropy of
single draws (noise in the data) and the mutual information between prediction and draw (uncertainty of the network):
E-9 to E-14. Entropies are in nats. Calibration of the mean prediction changes its entropy; the share of it that is
mutual information stays (``calibrated_expected_entropy``). Mutual information is never negative and is zero for equal
draws (T-68); the log of averaged probabilities is at least the average of their logs (T-22).

Regression. The predictive distribution is a mixture of one Gaussian per draw. Its quantiles have no closed form;
bisection of the distribution function is exact to the resolution of the number format (tested against SciPy). The
regression curve is that of Blundell et al. 2015, section 5.2. The continuous ranked probability score is that of Grimit
et al. 2006 and Gneiting and Raftery 2007.

Ensembles cut from many draws. Probabilities are averaged, never logits or votes (E-28). From 100 draws come 100
ensembles of one, 20 of five and one of all; reports hold their mean accuracy (T-22, T-23).

Detection. A score separates two sets, such as in-distribution from out-of-distribution data, clean from attacked
images, right from wrong predictions. All measures depend on the order of the scores alone; equal scores count half.
Larger scores belong to the positive set. Examples may have weights, and several sets of weights at once,
`(resample, example)`: an example of weight 2 counts as two of it (``test_weights_are_repetitions``), so that a
bootstrap evaluates all its resamples together. References: Hanley and McNeil 1982; Davis and Goadrich 2006; Geifman and
El-Yaniv 2017 for risk and coverage.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dubio.functional.variational import normal_log_prob, safe_sqrt

Batch = Float[Tensor, "*batch"]
Probs = Float[Tensor, "*batch class"]
Draws = Float[Tensor, "sample *batch"]
Negatives = Float[Tensor, " negative"]
Positives = Float[Tensor, " positive"]
Resampled = Float[Tensor, "*resample"]
Weights = Float[Tensor, "*resample example"]

SMALLEST_PROBABILITY = 1e-8


def predictive_log_probs(log_probs: Float[Tensor, "sample *batch class"]) -> Probs:
    """Log of the mean probability over draws: probabilities are averaged, never logits (E-9, E-14)."""
    return torch.logsumexp(log_probs, dim=0) - math.log(log_probs.shape[0])


def entropy(probs: Probs) -> Batch:
    """Entropy in nats, ``-sum p log p`` with p clamped to [1e-8, 1] inside the logarithm (E-10)."""
    return -(probs * probs.clamp(SMALLEST_PROBABILITY, 1.0).log()).sum(dim=-1)


def energy(logits: Float[Tensor, "sample *batch class"]) -> Batch:
    """``-logsumexp`` of the logits, averaged over draws: large where no class finds evidence (Liu et al. 2020)."""
    return -torch.logsumexp(logits, dim=-1).mean(dim=0)


def expected_entropy(log_probs: Float[Tensor, "sample *batch class"]) -> Batch:
    """Mean over draws of each draw's entropy: the uncertainty of the data itself (E-11)."""
    return entropy(log_probs.exp()).mean(dim=0)


def mutual_information(predictive_entropy: Batch, mean_entropy: Batch) -> Batch:
    """Disagreement of the draws: predictive minus expected entropy, at least zero (E-12).

    Values within rounding error are zero: otherwise rounding alone would order equal draws.
    """
    difference = predictive_entropy - mean_entropy
    rounding = 4.0 * torch.finfo(difference.dtype).eps * (1.0 + predictive_entropy)
    return torch.where(difference > rounding, difference, 0.0)


def calibrated_expected_entropy(calibrated_entropy: Batch, predictive_entropy: Batch, mean_entropy: Batch) -> Batch:
    """The expected entropy of a prediction that was calibrated after averaging over draws.

    Calibration says how large the entropy is, and the draws say which share of it is mutual information: the
    coefficient ``MI / H`` of Theil (1970) is that of the uncalibrated draws. A prediction without entropy has no share
    to keep, and all its calibrated entropy is expected entropy.
    """
    information = mutual_information(predictive_entropy, mean_entropy)
    share = information / predictive_entropy.clamp_min(torch.finfo(predictive_entropy.dtype).tiny)
    return calibrated_entropy * (1.0 - share.clamp_max(1.0))


def class_variance(mean_square: Probs, mean: Probs) -> Probs:
    """Variance over draws of each class's probability, divisor S (E-13); zero where it is rounding alone."""
    variance = mean_square - mean.square()
    rounding = 8.0 * torch.finfo(variance.dtype).eps * mean_square
    return torch.where(variance > rounding, variance, 0.0)


def vote_counts(labels: Int[Tensor, "sample *batch"], num_classes: int) -> Int[Tensor, "*batch class"]:
    """How many draws have each class as their most probable one."""
    return torch.nn.functional.one_hot(labels.long(), num_classes).sum(dim=0)


def shares_of_counts(counts: Int[Tensor, "*batch class"]) -> Probs:
    """Counts over the last axis as shares of their sum, in float64; exactly 1 where all are of one class."""
    # Divided by a tensor: by a number, a GPU would multiply with its rounded inverse.
    return counts.double() / counts.sum(dim=-1, keepdim=True)


def variation_ratio(votes: Probs) -> Batch:
    """Share of draws that do not vote for the most frequent class."""
    return 1.0 - votes.amax(dim=-1)


def beta_nll(
    targets: Float[Tensor, "..."], means: Float[Tensor, "*draws"], stds: Float[Tensor, "*draws"], beta: float
) -> Float[Tensor, "*draws"]:
    """Negative log density of ``N(means, stds^2)``, weighted by the variance to the power of ``beta`` (a constant).

    The gradient of a mean is ``(mean - target) / variance ** (1 - beta)``: at 0 it is that of the likelihood, which
    hardly moves a mean whose variance is large; at 1 that of the squared error. Seitzer et al. 2022, "On the Pitfalls
    of Heteroscedastic Uncertainty Estimation with Probabilistic Neural Networks", equation 6.
    """
    loss = -normal_log_prob(targets, means, stds)
    return loss if beta == 0.0 else loss * stds.detach().pow(2.0 * beta)


def mixture_cdf(value: Batch, means: Draws, stds: Draws) -> Batch:
    """Probability that the equal mixture of ``N(means, stds^2)`` lies below ``value``."""
    below: Tensor = torch.special.ndtr((value - means) / stds)
    return below.mean(dim=0)


def mixture_quantile(level: float, means: Draws, stds: Draws) -> Batch:
    """The value below which the equal mixture of ``N(means, stds^2)`` has probability ``level``."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"quantile level must be in (0, 1), got {level}")
    means, stds = means.double(), stds.double()

    # Every component's own quantile brackets the mixture's.
    quantiles = means + stds * torch.special.ndtri(torch.tensor(level, dtype=torch.float64, device=means.device))
    low: Tensor = quantiles.amin(dim=0)
    high: Tensor = quantiles.amax(dim=0)
    for _ in range(60):
        middle = 0.5 * (low + high)
        below = mixture_cdf(middle, means, stds) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)


def central_interval(draws: Draws, level: float) -> tuple[Batch, Batch]:
    """The edges between which the middle share ``level`` of some draws lies; between two draws, a straight line."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be in (0, 1), got {level}")
    low, high = draws.quantile(draws.new_tensor([0.5 - level / 2, 0.5 + level / 2]), dim=0)
    return low, high


def regression_curve(x: Batch, noise: Batch) -> Batch:
    """``x + 0.3 sin(2 pi (x + e)) + 0.3 sin(4 pi (x + e)) + e`` (E-29): the same noise ``e`` enters three times."""
    phase = 2.0 * math.pi * (x + noise)
    return x + 0.3 * torch.sin(phase) + 0.3 * torch.sin(2.0 * phase) + noise


def crps_mixture(means: Draws, stds: Draws, targets: Batch) -> Batch:
    """``E|X - y| - E|X - X'| / 2`` for the mixture of the draws' Gaussians, in closed form; less is better.

    In the unit of the targets: for a single point it is the absolute error.
    """
    error = _mean_absolute(means - targets, stds).mean(dim=0)
    spread = torch.zeros_like(error)
    for mean, std in zip(means, stds, strict=True):  # no array over all pairs of draws
        spread = spread + _mean_absolute(means - mean, safe_sqrt(stds.square() + std.square())).mean(dim=0)
    return error - 0.5 * spread / len(means)


def _mean_absolute(mean: Float[Tensor, "*shape"], std: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """``E|Z|`` of a Gaussian."""
    scaled = mean / std.clamp_min(torch.finfo(std.dtype).tiny)
    density = torch.exp(-0.5 * scaled.square()) / math.sqrt(2.0 * math.pi)
    return 2.0 * std * density + mean * torch.erf(scaled / math.sqrt(2.0))


def ensemble_accuracies(
    log_probs: Float[Tensor, "sample batch class"], targets: Int[Tensor, " batch"], size: int
) -> Float[Tensor, " repeat"]:
    """Accuracy of each ensemble of ``size`` consecutive draws (E-28); draws are used once."""
    repeats = num_repeats(len(log_probs), size)

    ensembles = log_probs.reshape(repeats, size, *log_probs.shape[1:]).movedim(1, 0)
    return (predictive_log_probs(ensembles).argmax(dim=-1) == targets).to(log_probs.dtype).mean(dim=-1)


def num_repeats(num_draws: int, size: int) -> int:
    """How many ensembles of ``size`` can be cut from so many draws."""
    if size < 1 or num_draws % size:
        raise ValueError(f"size must divide the number of draws, {num_draws}, got {size}; leave some draws out")

    return num_draws // size


def auroc(negative: Negatives, positive: Positives) -> Float[Tensor, ""]:
    """Probability that a positive has a larger score than a negative."""
    return detection(negative, positive).auroc


def average_precision(negative: Negatives, positive: Positives) -> Float[Tensor, ""]:
    """Area under precision and recall."""
    return detection(negative, positive).average_precision


def false_positive_rate(negative: Negatives, positive: Positives, recall: float = 0.95) -> Float[Tensor, ""]:
    """Share of negatives that raise an alarm where ``recall`` of the positives do."""
    return detection(negative, positive, recall=recall).false_positive_rate


class Detection(NamedTuple):
    """How well a score separates two sets."""

    auroc: Resampled
    average_precision: Resampled
    false_positive_rate: Resampled


def detection(
    negative: Negatives,
    positive: Positives,
    negative_weight: Float[Tensor, "*resample negative"] | None = None,
    positive_weight: Float[Tensor, "*resample positive"] | None = None,
    *,
    recall: float = 0.95,
) -> Detection:
    """All three from one sorting.

    The first is the probability that a positive has a larger score than a negative. The second weights precision at
    every threshold by the recall it adds. The third is the share of negatives at or above the largest threshold that
    at least ``recall`` of the positives reach.
    """
    if not 0.0 < recall <= 1.0:
        raise ValueError(f"recall must be in (0, 1], got {recall}")
    _check_sets(negative, positive)

    thresholds = torch.cat([negative, positive]).double().unique(sorted=True)
    raised = _weight_at_least(negative, thresholds, negative_weight)
    detected = _weight_at_least(positive, thresholds, positive_weight)
    hits, alarms = (
        amount - torch.cat([amount[..., 1:], torch.zeros_like(amount[..., :1])], dim=-1)
        for amount in (detected, raised)
    )
    below = raised[..., :1] - raised + 0.5 * alarms
    area = (hits * below).sum(dim=-1) / (detected[..., 0] * raised[..., 0])

    precision = detected / (detected + raised).clamp_min(torch.finfo(detected.dtype).tiny)
    needed = recall * detected[..., :1] * (1.0 - 1e-12)  # 95 % of 20 is 19, whatever rounding makes of it
    largest = (detected >= needed).sum(dim=-1, keepdim=True) - 1
    alarmed = (raised.gather(-1, largest) / raised[..., :1]).squeeze(-1)
    return Detection(area, (hits * precision).sum(dim=-1) / detected[..., 0], alarmed)


def risk_coverage(
    confidence: Float[Tensor, " example"], correct: Bool[Tensor, " example"], weight: Weights | None = None
) -> tuple[Float[Tensor, "*resample step"], Float[Tensor, "*resample step"]]:
    """Coverage and the error among what is covered, as the threshold on confidence falls.

    Examples of equal confidence are accepted together.
    """
    if confidence.numel() == 0 or confidence.shape != correct.shape:
        raise ValueError(
            f"confidence and correct must be one per example, got shapes {tuple(confidence.shape)} and "
            f"{tuple(correct.shape)}"
        )

    thresholds = confidence.double().unique(sorted=True).flip(0)
    weights = torch.ones_like(confidence, dtype=torch.float64) if weight is None else weight.double()
    covered = _weight_at_least(confidence, thresholds, weights)
    wrong = _weight_at_least(confidence, thresholds, weights * ~correct)
    return covered / covered[..., -1:], wrong / covered.clamp_min(torch.finfo(covered.dtype).tiny)


def area_under_risk(
    confidence: Float[Tensor, " example"], correct: Bool[Tensor, " example"], weight: Weights | None = None
) -> Resampled:
    """Mean over all examples of the error among those at least as confident: less is better."""
    coverage, risk = risk_coverage(confidence, correct, weight)
    steps = torch.cat([coverage[..., :1], coverage.diff(dim=-1)], dim=-1)
    return (steps * risk).sum(dim=-1)


def _weight_at_least(
    scores: Float[Tensor, " example"], thresholds: Float[Tensor, " step"], weight: Weights | None = None
) -> Float[Tensor, "*resample step"]:
    """Weight of the examples whose score is at or above each threshold."""
    ordered, order = scores.double().sort()
    first = torch.searchsorted(ordered, thresholds.contiguous(), right=False)
    if weight is None:
        return (len(scores) - first).double()
    reached = weight.double()[..., order].flip(-1).cumsum(dim=-1).flip(-1)
    return torch.cat([reached, torch.zeros_like(reached[..., :1])], dim=-1)[..., first]


def _check_sets(negative: Tensor, positive: Tensor) -> None:
    for name, scores in (("negative", negative), ("positive", positive)):
        if scores.dim() != 1 or scores.numel() == 0:
            raise ValueError(f"{name} must hold one score per example, and at least one, got {tuple(scores.shape)}")
        if bool(scores.isnan().any()):
            raise ValueError(f"{name} must hold numbers, got NaN")
