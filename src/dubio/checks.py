"""Names to choose from: how a list of them reads, and which one a misspelled name probably means.

What the fields of methods must be, with one wording for all.
"""

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

__all__ = [
    "check_choice",
    "did_you_mean",
    "listed",
    "check_value",
    "check_count",
    "check_finite",
    "check_flag",
    "check_not_negative",
    "check_positive",
]


def listed(parts: Sequence[str], last: str = "or") -> str:
    """Words in a row: ``a, b or c``."""
    return f" {last} ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def did_you_mean(value: object, choices: Iterable[object]) -> str:
    """The choice nearest to a value, as the end of a message: ``; did you mean 'bayes'?``; empty without any."""
    names = [choice for choice in choices if isinstance(choice, str)]
    close = get_close_matches(value, names, n=1) if isinstance(value, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a value that is not one of the choices, of an argument or option of this name."""
    names = list(choices)
    if value not in names:
        raise ValueError(f"{name} must be {listed(names)}, got {value!r}{did_you_mean(value, names)}")


def check_finite(name: str, value: object) -> None:
    """A finite number."""
    if not math.isfinite(_number(name, value)):
        raise ValueError(f"{name} must be finite, got {value!r}")


def check_not_negative(name: str, value: object) -> None:
    """A finite number of at least zero."""
    if not (math.isfinite(_number(name, value)) and _number(name, value) >= 0.0):
        raise ValueError(f"{name} must be finite and at least 0, got {value!r}")


def check_positive(name: str, value: object) -> None:
    """A finite number above zero."""
    if not (math.isfinite(_number(name, value)) and _number(name, value) > 0.0):
        raise ValueError(f"{name} must be positive and finite, got {value!r}")


def check_count(name: str, value: object, least: int = 1) -> None:
    """A whole number that is not less."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def check_value(name: str, value: object, choices: tuple[object, ...]) -> None:
    """One of these."""
    if value not in choices:
        *first, last = map(repr, choices)
        raise ValueError(f"{name} must be {', '.join(first)} or {last}, got {value!r}{did_you_mean(value, choices)}")


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)
