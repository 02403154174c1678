"""How sure a share is: intervals for counted successes, and chances over repeated tries."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = [
    "clopper_pearson",
    "normal_interval",
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


def normal_interval(mean: float, standard_error: float, level: float = 0.95) -> tuple[float, float]:
    """Mean and a number of standard errors to either side, within [0, 1]."""
    width = math.sqrt(2.0) * torch.erfinv(torch.tensor(level, dtype=torch.float64)).item() * standard_error
    return max(mean - width, 0.0), min(mean + width, 1.0)


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
    counts = torch.arange(successes + 1, dtype=torch.float64)
    whole = torch.tensor(float(trials), dtype=torch.float64)
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
