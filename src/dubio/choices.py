"""Names to choose from: how a list of them reads, and which one a misspelled name probably means."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

__all__ = ["check_choice", "did_you_mean", "listed"]


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
