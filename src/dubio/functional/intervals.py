"""How sure a share is: intervals for counted successes, and chances over repeated tries."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = [
    "PairedDifference",
    "clopper_pearson",
    "mean_interval",
    "normal_interval",
    "paired_difference",
    "retry_influence",
    "retry_probability",
    "share_upper_bound",
    "two_way_standard_error",
]


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


def paired_difference(
    before: Bool[Tensor, " example"], after: Bool[Tensor, " example"], level: float = 0.95
) -> PairedDifference:
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
    width = math.sqrt(2.0) * torch.erfinv(torch.tensor(level, dtype=torch.float64, device="cpu")).item() * error
    return PairedDifference((lost - won) / count, middle - width, middle + width)


def normal_interval(mean: float, standard_error: float, level: float = 0.95) -> tuple[float, float]:
    """Mean and a number of standard errors to either side, within [0, 1]."""
    width = (
        math.sqrt(2.0) * torch.erfinv(torch.tensor(level, dtype=torch.float64, device="cpu")).item() * standard_error
    )
    return max(mean - width, 0.0), min(mean + width, 1.0)


def mean_interval(values: Float[Tensor, " trial"], level: float = 0.95) -> tuple[float, float]:
    """The interval of Student for the mean of a few numbers, each found on its own."""
    count = len(values)
    if count < 2:
        raise ValueError(f"values must be two or more, to tell how far they scatter, got {count}")
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
    """What each draw adds to the mean of ``retry_probability`` over examples, to first order.

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


def _student_quantile(level: float, freedom: int) -> float:
    """What the size of Student's t stays below with probability ``level``.

    With ``t = sqrt(freedom) tan(angle)`` its density is ``cos(angle)^(freedom - 1)`` over the angle, up to a factor.
    """
    angle = torch.linspace(0.0, math.pi / 2.0, 400_001, dtype=torch.float64)
    mass = torch.cumulative_trapezoid(angle.cos().clamp_min(0.0) ** (freedom - 1), angle)
    place = int(torch.searchsorted(mass, level * mass[-1]))
    return math.sqrt(freedom) * math.tan(angle[place + 1].item())
