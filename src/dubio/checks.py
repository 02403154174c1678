"""Checks of options, with one wording for all: the option, the rule, the value received, and what it may have meant.

``name`` is what messages call the option: ``"epsilon"``, ``"init_std of Planar"``, ``"--method"``. What is no
number or flag raises a ``TypeError``, any other wrong value a ``ValueError``.
"""

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def listed(parts: Sequence[str], last: str = "or") -> str:
    """Words in a row: ``a, b or c``."""
    return f" {last} ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def did_you_mean(value: object, choices: Iterable[object]) -> str:
    """The choice nearest to a value, as the end of a message: ``; did you mean 'bayes'?``; empty without any."""
    names = [choice for choice in choices if isinstance(choice, str)]
    close = get_close_matches(value, names, n=1) if isinstance(value, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Refuse a value that is not one of the choices."""
    choices = tuple(choices)
    if value not in choices:
        rule = listed([repr(choice) for choice in choices])
        raise ValueError(f"{name} must be {rule}, got {value!r}{did_you_mean(value, choices)}")


def check_number(name: str, value: object) -> float:
    """Refuse what is no real number, True and False included; return the number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    return float(value)


def check_finite(name: str, value: object) -> None:
    """Refuse what is no finite number."""
    if not math.isfinite(check_number(name, value)):
        raise ValueError(f"{name} must be finite, got {value!r}")


def check_not_negative(name: str, value: object) -> None:
    """Refuse what is no finite number of at least zero."""
    if not 0.0 <= check_number(name, value) < math.inf:
        raise ValueError(f"{name} must be finite and at least 0, got {value!r}")


def check_positive(name: str, value: object) -> None:
    """Refuse what is no finite number above zero."""
    if not 0.0 < check_number(name, value) < math.inf:
        raise ValueError(f"{name} must be positive and finite, got {value!r}")


def check_count(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
