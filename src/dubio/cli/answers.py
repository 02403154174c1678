"""How the command line answers: one line for what went wrong, and the exit code that says of which kind it was.

Exit codes: 0 fine, 1 a gate or a part failed, 2 bad arguments (or files, or data), 3 interrupted and resumable, 130
interrupted.
"""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from dubio.training import Interrupted, LostProcessError, Processes, is_raised_by_all

__all__ = ["Answering", "PartlyFailedError", "told_once"]

FAILED = 1
BAD_ARGUMENTS = 2
RESUMABLE = 3
REFUSALS = (ValueError, TypeError, OSError, ImportError, FloatingPointError)


class PartlyFailedError(Exception):
    """A part of what was asked for failed, which was told already; its text says where, for ``--debug``."""


class Answering(TyperGroup):
    """Commands whose errors are one line on stderr; ``--debug`` shows the traceback."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command and leave with its exit code."""
        given = list(sys.argv[1:] if args is None else args) or ["--help"]
        try:
            code = super().main(given, prog_name, complete_var, False, windows_expand_args, **extra)
        except TyperException as error:  # what typer itself refuses, such as an unknown option
            _say("error", error.format_message())
            code = BAD_ARGUMENTS
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; what it refuses becomes a line and an exit code."""
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except (Interrupted, LostProcessError) as interrupted:
                _say("interrupted", interrupted)
                raise typer.Exit(RESUMABLE) from None
            except PartlyFailedError as error:
                if ctx.params.get("debug"):
                    typer.echo(str(error), err=True)
                raise typer.Exit(FAILED) from None
            except BrokenPipeError:  # the reader has gone; typer ends quietly
                raise
            except REFUSALS as error:
                if ctx.params.get("debug"):
                    raise
                _say("error", error)
                raise typer.Exit(BAD_ARGUMENTS) from None


@contextmanager
def told_once(processes: Processes) -> Iterator[None]:
    """What all processes raise alike is told by the first; the others leave quietly, with the same exit code."""
    try:
        yield
    except Interrupted:
        if processes.is_writer:
            raise
        raise typer.Exit(RESUMABLE) from None
    except REFUSALS as error:
        if processes.is_writer or not is_raised_by_all(error):
            raise
        raise typer.Exit(BAD_ARGUMENTS) from None


def _say(kind: str, message: object) -> None:
    typer.echo(f"{kind}: {' '.join(str(message).split())}", err=True)


def _show_warning(message: Warning | str, category: type[Warning], *unused: Any, **unused_too: Any) -> None:
    if not issubclass(category, DeprecationWarning | FutureWarning):  # those are for whoever writes the code
        _say("warning", message)
