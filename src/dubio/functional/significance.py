"""Whether two networks differ on the same examples: paired tests and their correction for several comparisons.

Each test takes what two networks did with the same examples, and gives the probability of a difference at least as
large where there is none. Two networks agree on most examples, so a paired test finds differences that the intervals of
the single numbers, which ignore this, cannot.

Invariants: exact binomial and Student probabilities equal SciPy's; DeLong's areas are those of ``detection``
(``tests/functional/test_significance.py``).

References: McNemar 1947; DeLong, DeLong and Clarke-Pearson 1988; Holm 1979.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = [
    "auroc_placements",
    "holm",
    "mcnemar",
    "normal_test",
    "paired_auroc_test",
    "paired_mean_test",
    "student_test",
]


def mcnemar(first: Bool[Tensor, " example"], second: Bool[Tensor, " example"]) -> float:
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


def paired_auroc_test(
    first: tuple[Float[Tensor, " negative"], Float[Tensor, " positive"]],
    second: tuple[Float[Tensor, " negative"], Float[Tensor, " positive"]],
) -> float:
    """p-value of DeLong's test, that two areas on the same examples are equal, from their ``auroc_placements``."""
    parts = []
    for one, other in zip(first, second, strict=True):
        _check_paired(one, other)
        parts.append(one.double() - other.double())
    variance = sum(part.var().item() / len(part) for part in parts if len(part) > 1)
    return normal_test(parts[1].mean().item(), math.sqrt(variance))


def auroc_placements(
    negative: Float[Tensor, " negative"], positive: Float[Tensor, " positive"]
) -> tuple[Float[Tensor, " negative"], Float[Tensor, " positive"]]:
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
