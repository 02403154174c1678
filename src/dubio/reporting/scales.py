"""From numbers to places on a page: linear and logarithmic scales, and where their ticks stand.

Invariants: the ends of a range lie at the ends of the scale; ticks lie within the range and are round numbers
(``tests/reporting/test_scales.py``).
"""

import math
from dataclasses import dataclass

__all__ = ["Scale", "tick_text", "ticks"]


@dataclass(frozen=True)
class Scale:
    """``low`` lies at ``start`` and ``high`` at ``end``, in units of the drawing."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where a value lies; what is outside the range lies at its end."""
        low, high, here = (_log(number) if self.log else number for number in (self.low, self.high, value))
        share = 0.5 if high == low else (here - low) / (high - low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, most: int = 6) -> list[float]:
        """Round numbers within the range."""
        return _log_ticks(self.low, self.high, most) if self.log else ticks(self.low, self.high, most)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, at most so many."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    step = next(
        step for step in (power, 2 * power, 5 * power, 10 * power, 20 * power) if _count(low, high, step) <= most
    )
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_text(value: float) -> str:
    """A tick's number: no digits that say nothing."""
    return (
        f"{value:.6g}"
        if 1e-3 <= abs(value) < 1e5 or value == 0.0
        else f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    )


def _count(low: float, high: float, step: float) -> int:
    return math.floor(high / step + 1e-9) - math.ceil(low / step - 1e-9) + 1


def _log(value: float) -> float:
    return math.log10(max(value, 1e-12))


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    powers = range(math.floor(_log(low)), math.ceil(_log(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(found) <= most:
            return found
    return found[:: math.ceil(len(found) / most)]
