"""How the learning rate moves."""

import math
from collections.abc import Callable
from typing import Literal

__all__ = ["Schedule", "schedule_factor"]

Schedule = Literal["constant", "cosine", "linear"] | Callable[[float], float]


def schedule_factor(schedule: Schedule, done: float) -> float:
    """What the learning rate is multiplied with when ``done`` of the training, from 0 to 1, is over."""
    if callable(schedule):
        return float(schedule(done))
    if schedule not in ("constant", "cosine", "linear"):
        raise ValueError(f"schedule must be 'constant', 'cosine', 'linear' or a function, got {schedule!r}")
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    if schedule == "linear":
        return 1.0 - done
    return 1.0
