"""The rules by which the interval of an effect becomes a verdict on what was published.

- A published difference is *reproduced* where the whole interval lies on its side of zero, at half of its size or more.
  It is reproduced *partly* where the whole interval lies on its side of zero and the difference is a tenth of the
  published one or more. The verdict is *opposite* where the whole interval lies on the other side, and *not
  reproduced* where the whole interval is below half of the published size.
- A published factor goes by the same rule, with one in the place of zero and without the tenth.
- A published direction without a size is *reproduced* or *opposite* where the whole interval lies on one side of zero.
- A bar or a range is met where the whole interval lies within it, and not where all of it lies outside. A number that
  is better than the published one is within, since a bar is open on its better side.
- A statement of several parts is *reproduced* with all of them, *partly* with half of them or more, *opposite* where
  all parts are, and *undecided* where the undecided parts could still make it half.
- Everything else, and everything without an interval, is *undecided*.
"""

import math
from collections.abc import Sequence
from enum import StrEnum

from dubio_lab.claims.estimate import Estimate

__all__ = ["Verdict", "combine", "difference", "direction", "factor", "within"]

LEAST_PART = 0.1
"""The share of a published difference that still counts as a part of it."""


class Verdict(StrEnum):
    """What records say of a published statement."""

    REPRODUCED = "reproduced"
    PARTLY = "partly"
    NOT_REPRODUCED = "not reproduced"
    OPPOSITE = "opposite"
    UNDECIDED = "undecided"
    NOT_RUN = "not run"


def difference(estimate: Estimate, published: float) -> Verdict:
    """On a published difference of a size, which is not 0."""
    if estimate.low is None or estimate.high is None:
        return Verdict.UNDECIDED
    own, size = (estimate, published) if published > 0.0 else (-estimate, -published)
    assert own.low is not None
    assert own.high is not None
    if own.low >= size / 2.0:
        return Verdict.REPRODUCED
    if own.high < 0.0:
        return Verdict.OPPOSITE
    if own.low > 0.0 and own.value >= LEAST_PART * size:
        return Verdict.PARTLY
    return Verdict.NOT_REPRODUCED if own.high < size / 2.0 else Verdict.UNDECIDED


def factor(estimate: Estimate, published: float) -> Verdict:
    """On a published factor, which is above 1."""
    if estimate.low is None or estimate.high is None:
        return Verdict.UNDECIDED
    if estimate.low >= published / 2.0:
        return Verdict.REPRODUCED
    if estimate.high < 1.0:
        return Verdict.OPPOSITE
    if estimate.low > 1.0:
        return Verdict.PARTLY
    return Verdict.NOT_REPRODUCED if estimate.high < published / 2.0 else Verdict.UNDECIDED


def direction(estimate: Estimate) -> Verdict:
    """On a difference that was published as positive, without a size."""
    if estimate.low is None or estimate.high is None:
        return Verdict.UNDECIDED
    if estimate.low > 0.0:
        return Verdict.REPRODUCED
    return Verdict.OPPOSITE if estimate.high < 0.0 else Verdict.UNDECIDED


def within(estimate: Estimate, least: float = -math.inf, most: float = math.inf) -> Verdict:
    """On a bar or a range; leave out the end on whose side a number is better than the published one."""
    if estimate.low is None or estimate.high is None:
        return Verdict.UNDECIDED
    if least <= estimate.low and estimate.high <= most:
        return Verdict.REPRODUCED
    return Verdict.NOT_REPRODUCED if estimate.high < least or estimate.low > most else Verdict.UNDECIDED


def combine(parts: Sequence[Verdict]) -> Verdict:
    """On a statement of several parts; what is reproduced in part counts half."""
    if len({*parts}) == 1:
        return parts[0]
    reproduced = sum((part is Verdict.REPRODUCED) + (part is Verdict.PARTLY) / 2.0 for part in parts)
    open_parts = sum(part in (Verdict.UNDECIDED, Verdict.NOT_RUN) for part in parts)
    if reproduced >= len(parts) / 2.0:
        return Verdict.PARTLY
    return Verdict.UNDECIDED if reproduced + open_parts >= len(parts) / 2.0 else Verdict.NOT_REPRODUCED
