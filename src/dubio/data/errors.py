"""What the readers raise when a file does not hold what it should, and what they warn of."""

import re

__all__ = ["DataError", "DataWarning", "TableWarning"]

OPTION = re.compile(r"\{(target|task|drop|delimiter)(?:=([^{}]*))?\}")


class DataError(ValueError):
    """A file that is damaged, foreign or not what its name says; the message names it and what is wrong.

    Args:
        problem: what is wrong.
        advice: what to do. An option is written ``{task=regression}`` or ``{target}``: the message has it as an
            argument, ``task='regression'``, and ``on_command_line`` as an option, ``--task regression``.
    """

    def __init__(self, problem: str, advice: str = "") -> None:
        texts = [OPTION.sub(spell, advice) for spell in (_as_argument, _as_option)]
        self.on_command_line = f"{problem}; {texts[1]}" if advice else problem
        super().__init__(f"{problem}; {texts[0]}" if advice else problem)


class DataWarning(UserWarning):
    """Data that were changed while they were read; the message says what and how."""


class TableWarning(UserWarning):
    """Rows of a table hold what the rows that its encoder was fitted on did not."""


def _as_argument(match: re.Match[str]) -> str:
    name, value = match.groups()
    if value is None:
        return name
    return f"{name}={[value]!r}" if name == "drop" else f"{name}={value!r}"


def _as_option(match: re.Match[str]) -> str:
    name, value = match.groups()
    return f"--{name}" if value is None else f"--{name} {value}"
