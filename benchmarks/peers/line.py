"""What a further draw costs: the slope of time over the number of draws, by least squares."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Line:
    """``intercept + slope * draws``; ``r2`` is the share of the variance that it explains."""

    intercept: float
    slope: float
    r2: float


def fitted(times: Mapping[int, float]) -> Line | None:
    """The line through times by numbers of draws; None for fewer than two of them."""
    if len(times) < 2:
        return None
    draws, values = np.array(list(times), dtype=float), np.array(list(times.values()), dtype=float)
    centred = draws - draws.mean()
    slope = float(centred @ (values - values.mean()) / (centred @ centred))
    intercept = float(values.mean() - slope * draws.mean())
    left = float(((values - intercept - slope * draws) ** 2).sum())
    total = float(((values - values.mean()) ** 2).sum())
    return Line(intercept, slope, 1.0 - left / total if total > 0.0 else 1.0)
