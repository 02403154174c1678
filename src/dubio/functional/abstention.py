"""Where to set the threshold above which predictions are accepted.

A surety is larger where a prediction is surer; what lies above the threshold is accepted. The threshold is itself one
of the held-out sureties, and the examples above it are then drawn independently from all that would be accepted: of
``k`` of them, the number wrong is binomial with the true error among accepted, so Clopper and Pearson's upper bound
holds. Several thresholds are looked at; each gets an equal part of the allowed chance of a bound that fails, so all
bounds hold together, whatever is chosen by them (the idea of Geifman and El-Yaniv 2017).

Invariants: the error among accepted of new data stays within the bound in as many repetitions as ``level`` says, and
equal sureties are accepted together (``tests/functional/test_abstention.py``).
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dubio.functional.intervals import share_upper_bound

__all__ = ["Acceptance", "acceptance_at_coverage", "acceptances", "num_for_error"]

TRIED = 20
"""Thresholds that accept so many equal parts of the held-out examples are tried; more would weaken every bound."""


class Acceptance(NamedTuple):
    """What a threshold does with held-out examples."""

    threshold: float | None
    """Accepted is what lies above; everything is where it is None."""
    num_accepted: int
    num_wrong: int
    bound: float | None
    """The error among accepted is at most this, with the chance asked for; None where none was."""

    @property
    def error(self) -> float:
        """Share of the accepted that are wrong."""
        return self.num_wrong / max(self.num_accepted, 1)


def acceptances(
    surety: Float[Tensor, " example"], correct: Bool[Tensor, " example"], error: float, level: float
) -> list[Acceptance]:
    """Thresholds with bounds that hold together with probability ``level``, from the most accepted to the fewest.

    Left out, from the start, are those that accept too few for a bound of ``error`` even where none is wrong.
    """
    sizes = list(dict.fromkeys(-(-part * len(surety) // TRIED) for part in range(TRIED, 0, -1)))
    while sizes and sizes[-1] < num_for_error(error, level, len(sizes)):
        sizes.pop()
    failure = (1.0 - level) / max(len(sizes), 1)
    ordered = surety.sort().values
    return [_acceptance(surety, correct, _below(ordered, len(surety) - size), failure) for size in sizes]


def acceptance_at_coverage(
    surety: Float[Tensor, " example"], correct: Bool[Tensor, " example"], coverage: float
) -> Acceptance:
    """The highest threshold that accepts ``coverage`` of the held-out examples at least.

    Of new examples it accepts as many at least on average, where they are exchangeable with these.
    """
    wanted = math.ceil(coverage * len(surety) - 1e-9)
    ordered = surety.sort().values
    last = ordered[len(surety) - wanted]
    lower = int(torch.searchsorted(ordered, last, right=False))
    return _acceptance(surety, correct, _below(ordered, lower))


def num_for_error(error: float, level: float, num_thresholds: int = 1) -> int:
    """How many accepted examples, all right, bound the error: ``(1 - error)^k <= (1 - level) / thresholds``."""
    return math.ceil(math.log((1.0 - level) / num_thresholds) / math.log1p(-error) - 1e-9)


def _below(ordered: Float[Tensor, " example"], count: int) -> float | None:
    """The largest of the ``count`` smallest values."""
    return None if count == 0 else ordered[count - 1].item()


def _acceptance(surety: Tensor, correct: Tensor, threshold: float | None, failure: float | None = None) -> Acceptance:
    accepted = torch.ones_like(correct) if threshold is None else surety > threshold
    num_accepted, num_wrong = int(accepted.sum()), int((accepted & ~correct).sum())
    if failure is None:
        return Acceptance(threshold, num_accepted, num_wrong, None)
    bound = share_upper_bound(num_wrong, num_accepted, failure) if num_accepted else 1.0
    return Acceptance(threshold, num_accepted, num_wrong, bound)
