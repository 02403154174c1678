"""Statistics of evaluations: paired tests, intervals of shares and means, and resampling.

Paired tests compare two networks on the same examples and give the probability of a difference at least as large where
there is none. Two networks agree on most examples, so that a paired test detects differences that the intervals of the
single numbers do not. Exact binomial and Student probabilities equal SciPy's; DeLong's areas are those of ``detection``
(``tests/functional/test_significance.py``).

Intervals are those of counted successes and of means. The bootstrap estimates how far a number would move over other
examples, the jackknife over other draws.

References: McNemar 1947; DeLong, DeLong and Clarke-Pearson 1988; Holm 1979; Clopper and Pearson 1934; Efron 1979 for
the bootstrap; Quenouille 1956 and Tukey 1958 for the jackknife.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Flags = Bool[Tensor, " example"]
Negatives = Float[Tensor, " negative"]
Positives = Float[Tensor, " positive"]


def mcnemar(first: Flags, second: Flags) -> float:
    """Exact p-value for two shares of the same examples: of the examples that differ, each side has half (binomial)."""
    _check_paired(first, second)
    only_first, only_second = int((first & ~second).sum()), int((~first & second).sum())
    differing = only_first + only_second
    counts = torch.arange(min(only_first, only_second) + 1, dtype=torch.float64)
    whole = torch.tensor(float(differing), dtype=torch.float64)
    log_terms = torch.lgamma(whole + 1.0) - torch.lgamma(counts + 1.0) - torch.lgamma(whole - counts + 1.0)
    return min(2.0 * (log_terms - differing * math.log(2.0)).exp().sum().item(), 1.0)


def paired_mean_test(first: Float[Tensor, " example"], second: Float[Tensor, " example"]) -> float:
    """p-value of Student's paired test, that two means over the same examples are equal."""
    _check_paired(first, second)
    differences = first.double() - second.double()
    count = len(differences)
    error = differences.std().item() / math.sqrt(count) if count > 1 else 0.0
    return student_test(differences.mean().item(), error, max(count - 1, 1))


def paired_auroc_test(first: tuple[Negatives, Positives], second: tuple[Negatives, Positives]) -> float:
    """p-value of DeLong's test, that two areas on the same examples are equal, from their ``auroc_placements``."""
    parts = []
    for one, other in zip(first, second, strict=True):
        _check_paired(one, other)
        parts.append(one.double() - other.double())
    variance = sum(part.var().item() / len(part) for part in parts if len(part) > 1)
    return normal_test(parts[1].mean().item(), math.sqrt(variance))


def auroc_placements(negative: Negatives, positive: Positives) -> tuple[Negatives, Positives]:
    """For each negative the share of positives above it, for each positive that of negatives below; ties are half.

    The mean of either is the area under the curve.
    """

    def share_below(values: Tensor, others: Tensor) -> Tensor:
        ordered = others.double().sort().values
        below, through = (torch.searchsorted(ordered, values.double(), right=right) for right in (False, True))
        return (below + through).double() / (2.0 * len(others))

    return 1.0 - share_below(negative, positive), share_below(positive, negative)


def normal_test(difference: float, error: float) -> float:
    """Two-sided p-value of a difference with a known standard error."""
    if error <= 0.0:
        return 1.0 if difference == 0.0 else 0.0
    return math.erfc(abs(difference) / error / math.sqrt(2.0))


def student_test(difference: float, error: float, freedom: int) -> float:
    """Two-sided p-value of a difference whose standard error was estimated with ``freedom`` degrees of freedom."""
    if error <= 0.0:
        return 1.0 if difference == 0.0 else 0.0
    return _incomplete_beta(freedom / 2.0, 0.5, freedom / (freedom + (difference / error) ** 2))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for being several (Holm 1979): the chance of any false difference stays below the level."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda place: p_values[place])):
        largest = max(largest, min((len(p_values) - rank) * p_values[place], 1.0))
        corrected[place] = largest
    return corrected


def _check_paired(first: Tensor, second: Tensor) -> None:
    if first.shape != second.shape or first.dim() != 1 or first.numel() == 0:
        raise ValueError(
            "first and second must hold one value for each of the same examples, "
            f"got shapes {tuple(first.shape)} and {tuple(second.shape)}"
        )


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0.0 or x >= 1.0:
        return 0.0 if x <= 0.0 else 1.0
    if x > (a + 1.0) / (a + b + 2.0):  # where the fraction converges fast
        return 1.0 - _incomplete_beta(b, a, 1.0 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny = 1e-300
    c, d = 1.0, 1.0 / (1.0 - (a + b) * x / (a + 1.0) or tiny)
    fraction = d
    for step in range(1, 1000):
        even = step * (b - step) * x / ((a + 2.0 * step - 1.0) * (a + 2.0 * step))
        odd = -(a + step) * (a + b + step) * x / ((a + 2.0 * step) * (a + 2.0 * step + 1.0))
        for term in (even, odd):
            d, c = 1.0 / (1.0 + term * d or tiny), 1.0 + term / c or tiny
            fraction *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return math.exp(log_front) * fraction / a


def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """The exact interval of Clopper and Pearson for a share of successes."""
    _check_counts(successes, trials)
    tail = (1.0 - level) / 2.0
    low = 0.0 if successes == 0 else _solve(lambda p: 1.0 - _binomial_cdf(successes - 1, trials, p) - tail)
    return low, share_upper_bound(successes, trials, tail)


def share_upper_bound(successes: int, trials: int, failure: float) -> float:
    """The share that lies above a true one with probability ``1 - failure`` at least (Clopper and Pearson 1934)."""
    _check_counts(successes, trials)
    return 1.0 if successes == trials else _solve(lambda p: failure - _binomial_cdf(successes, trials, p))


class PairedDifference(NamedTuple):
    """How much smaller a share is than another on the same examples, with an interval."""

    value: float
    low: float
    high: float


def paired_difference(before: Flags, after: Flags, level: float = 0.95) -> PairedDifference:
    """Share of ``before`` minus share of ``after``, from the examples on which they differ (Agresti and Min 2005).

    Half an example is added to each of the four cells, so that no difference among few examples is not taken for none.
    """
    if before.shape != after.shape or before.numel() == 0:
        raise ValueError(
            f"before and after must be of the same examples, got shapes {tuple(before.shape)} and {tuple(after.shape)}"
        )
    count = len(before)
    lost, won = int((before & ~after).sum()), int((~before & after).sum())
    size, larger, smaller = count + 2.0, lost + 0.5, won + 0.5
    middle = (larger - smaller) / size
    error = math.sqrt(max(larger + smaller - (larger - smaller) ** 2 / size, 0.0)) / size
    width = _normal_quantile(level) * error
    return PairedDifference((lost - won) / count, middle - width, middle + width)


def normal_interval(mean: float, standard_error: float, level: float = 0.95) -> tuple[float, float]:
    """Mean and a number of standard errors to either side, within [0, 1]."""
    width = _normal_quantile(level) * standard_error
    return max(mean - width, 0.0), min(mean + width, 1.0)


def mean_interval(values: Float[Tensor, " trial"], level: float = 0.95) -> tuple[float, float]:
    """The interval of Student for the mean of a few independent numbers."""
    count = len(values)
    if count < 2:
        raise ValueError(f"values must be two or more, to estimate their spread, got {count}")
    exact = values.double()
    width = _student_quantile(level, count - 1) * exact.std().item() / math.sqrt(count)
    return exact.mean().item() - width, exact.mean().item() + width


def two_way_standard_error(per_example: Float[Tensor, " batch"], per_draw: Float[Tensor, " sample"]) -> float:
    """Standard error of a mean over examples and draws, both chosen at random: their variances add up."""
    parts = [values.double().var().item() / len(values) for values in (per_example, per_draw) if len(values) > 1]
    return math.sqrt(sum(parts))


def retry_probability(right: Int[Tensor, "*batch"], draws: int, tries: int) -> Float[Tensor, "*batch"]:
    """Chance that ``tries`` draws are all right, from how many of ``draws`` were: ``C(right, m) / C(draws, m)``.

    Without bias, being the share of all sets of ``tries`` among the draws that hold right ones alone.
    """
    if tries > draws:
        raise ValueError(f"tries must be at most the number of draws, {draws}, got {tries}")
    steps = torch.arange(tries, dtype=torch.float64, device=right.device)
    factors = (right.double().unsqueeze(-1) - steps).clamp_min(0.0) / (draws - steps)
    return factors.prod(dim=-1)


def retry_influence(right: Bool[Tensor, "sample batch"], tries: int) -> Float[Tensor, " sample"]:
    """The influence of each draw on the mean of ``retry_probability`` over examples, to first order.

    The variance of a mean over sets of ``tries`` draws is that of these numbers over how many there are (Hoeffding
    1948): ``tries`` times the chance, given that this draw is right, that so are all others of its set.
    """
    draws = right.shape[0]
    others = retry_probability((right.sum(dim=0) - 1).clamp_min(0), draws - 1, tries - 1)
    return tries * (right.double() * others).mean(dim=1)


def _check_counts(successes: int, trials: int) -> None:
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"successes must be from 0 to the number of trials, {trials}, got {successes}")


def _binomial_cdf(successes: int, trials: int, share: float) -> float:
    """Probability of at most so many successes."""
    counts = torch.arange(successes + 1, dtype=torch.float64, device="cpu")
    whole = torch.tensor(float(trials), dtype=torch.float64, device="cpu")
    log_terms = torch.lgamma(whole + 1) - torch.lgamma(counts + 1) - torch.lgamma(whole - counts + 1)
    log_terms = log_terms + counts * math.log(share) + (trials - counts) * math.log1p(-share)
    return min(torch.logsumexp(log_terms, dim=0).exp().item(), 1.0)


def _solve(rising: Callable[[float], float], low: float = 0.0, high: float = 1.0) -> float:
    """Where a rising function crosses zero, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2.0
        if rising(middle) < 0.0:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _normal_quantile(level: float) -> float:
    """The size that a standard normal number stays below with probability ``level``."""
    return math.sqrt(2.0) * torch.erfinv(torch.tensor(level, dtype=torch.float64, device="cpu")).item()


def _student_quantile(level: float, freedom: int) -> float:
    """The size that Student's t stays below with probability ``level``.

    With ``t = sqrt(freedom) tan(angle)`` its density is ``cos(angle)^(freedom - 1)`` over the angle, up to a factor.
    """
    angle = torch.linspace(0.0, math.pi / 2.0, 400_001, dtype=torch.float64)
    mass = torch.cumulative_trapezoid(angle.cos().clamp_min(0.0) ** (freedom - 1), angle)
    place = int(torch.searchsorted(mass, level * mass[-1]))
    return math.sqrt(freedom) * math.tan(angle[place + 1].item())


def resample_weights(
    num_examples: int, num_resamples: int, generator: torch.Generator
) -> Float[Tensor, "resample example"]:
    """How often each example occurs in each resample of as many examples, drawn with replacement."""
    chosen = torch.randint(num_examples, (num_resamples, num_examples), generator=generator)
    counts = torch.zeros(num_resamples, num_examples, dtype=torch.float64)
    return counts.scatter_add_(1, chosen, torch.ones((), dtype=torch.float64).expand_as(chosen))


def bootstrap_interval(value: float, resampled: Float[Tensor, " resample"], level: float = 0.95) -> tuple[float, float]:
    """The central interval that holds ``level`` of the resampled values, less the bias that resampling shows.

    A calibration error is larger on a resample than on the examples themselves, by about as much as it is too large on
    them: without the shift the interval may not hold the value at all. What is never negative gets no negative end, and
    what is never above one none above it.
    """
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be in (0, 1), got {level}")
    tails = torch.tensor([0.5 - level / 2, 0.5 + level / 2], dtype=torch.float64, device=resampled.device)
    exact = resampled.double()
    bias = exact.mean().item() - value
    low, high = (end - bias for end in exact.quantile(tails).tolist())
    if bool((exact >= 0.0).all()):
        low = max(low, 0.0)
    return low, min(high, 1.0) if value <= 1.0 and bool((exact <= 1.0).all()) else high


def group_means(log_probs: Float[Tensor, "sample *rest"], num_groups: int) -> Float[Tensor, "group *rest"]:
    """Log of the mean probability in each of several groups of as many neighbouring draws; draws left over are out."""
    size = len(log_probs) // num_groups
    if size < 1:
        raise ValueError(f"num_groups must be at most the number of draws, {len(log_probs)}, got {num_groups}")
    grouped = log_probs[: size * num_groups].reshape(num_groups, size, *log_probs.shape[1:])
    return torch.logsumexp(grouped, dim=1) - math.log(size)


def left_out_means(groups: Float[Tensor, "group *rest"]) -> Float[Tensor, "group *rest"]:
    """Log of the mean probability over all groups but one, for each that is left out."""
    others = [torch.cat([groups[:number], groups[number + 1 :]]) for number in range(len(groups))]
    return torch.stack([torch.logsumexp(rest, dim=0) for rest in others]) - math.log(len(groups) - 1)


def jackknife_error(left_out: Float[Tensor, " group"]) -> float:
    """Standard error of a statistic from its values with each group left out: ``sqrt((G-1)/G sum (t_g - mean)^2)``."""
    count = len(left_out)
    if count < 2:
        raise ValueError(f"left_out must hold at least two values, got {count}")
    deviations = (left_out.double() - left_out.double().mean()).square().sum()
    return float((deviations * (count - 1) / count).sqrt())
