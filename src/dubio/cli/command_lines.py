"""Command lines as they were given, but for what is the default anyway: records keep them, so that reports can."""

import shlex
from collections.abc import Mapping
from typing import Any

__all__ = ["command_line"]


def command_line(command: str, run: str, options: Mapping[str, tuple[Any, Any]]) -> str:
    """A command on a run, with those options, by name, whose value is not the default beside it."""
    words = ["dubio", command, run]
    for name, (value, default) in options.items():
        if value == default:
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(words)
