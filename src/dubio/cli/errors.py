"""Errors of the command line, each one line on stderr with an exit code, and the commands of other packages.

Exit codes: 0 success, 1 a gate or a part failed, 2 bad arguments (or files, or data), 3 interrupted and resumable, 130
interrupted.

Other packages add commands through the group ``dubio.commands`` of entry points (docs/plugins.md). The metadata of
installed packages name them; their code is imported when a command is called, not when commands are listed
(``tests/end_to_end/test_plugins.py``).
"""

import re
import sys
import warnings
from collections.abc import Container, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_group

from dubio.checks import did_you_mean, listed
from dubio.codec import printable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

FAILED, BAD_ARGUMENTS, RESUMABLE, INTERRUPTED = 1, 2, 3, 130
REFUSALS = (ValueError, TypeError, OSError, ImportError, FloatingPointError)
PRINTED = "printed already"
SOURCE = re.compile(r"\[\S+\.(?:cc|cpp|h|hpp):\d+\] ")
ADVICE = re.compile(r"\. This is typically caused by [^()]*(?=\))")
NO_COMMAND = re.compile(r"No such command '(?P<name>.*?)'\.", re.DOTALL)
NO_CHOICE = re.compile(r"'(?P<value>.*?)' is not one of ", re.DOTALL)
GROUP = "dubio.commands"
HOW_TO_INSTALL = {
    "reproduce": "dubio reproduce is a command of the package dubio_lab, which is not installed; "
    "in a checkout of dubio, pip install ./lab adds it"
}
"""The error for a command whose package is not installed."""


class PartlyFailedError(Exception):
    """A part of a command failed, and its error is printed already; the text says where, for ``--debug``."""


class PluginCommand(TyperCommand):
    """A command of another package in the list of commands, whose code is not imported yet."""

    def __init__(self, entry: "EntryPoint") -> None:
        self.entry, self.package = entry, _package_of(entry)
        super().__init__(entry.name, help=f"A command of the package {self.package}.")

    def load(self) -> Any:
        """Import the command; every error becomes an ImportError of one line."""
        try:
            return _as_command(self.entry.name, self.entry.load())
        except Exception as error:
            name = f"the command {self.entry.name} of the package {self.package}"
            raise ImportError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error


class CommandGroup(TyperGroup):
    """Commands, also of other packages, whose errors are one line on stderr; ``--debug`` shows the traceback."""

    @cached_property
    def plugins(self) -> tuple[dict[str, PluginCommand], list[str]]:
        """The commands that installed packages add, and warnings about those that are ignored."""
        return plugin_commands(self.commands)

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands, those of the library first."""
        return [*super().list_commands(ctx), *self.plugins[0]]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by name; this does not import those of other packages."""
        command = super().get_command(ctx, cmd_name) or self.plugins[0].get(cmd_name)
        if command is not None:
            command.context_class = typer.Context  # which functions declare; by default they get its base class
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called; this imports one of another package."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, PluginCommand) else command, rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, and on stderr which commands of other packages are ignored."""
        super().format_help(ctx, formatter)
        for warning in self.plugins[1]:
            _print_line("warning", warning)

    def main(self, args: Sequence[str] | None = None, **options: Any) -> Any:  # type: ignore[override]
        """Run a command and exit with its code."""
        given = list(sys.argv[1:] if args is None else args) or ["--help"]
        try:
            code = super().main(given, **options | {"standalone_mode": False})
        except TyperException as error:  # raised by typer itself, such as for an unknown option
            _print_line("error", _message(error, [*self.commands, *self.plugins[0]]))
            code = BAD_ARGUMENTS
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an expected error becomes a line and an exit code."""
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except PartlyFailedError as error:
                if ctx.params.get("debug"):
                    say(str(error), err=True)
                raise typer.Exit(FAILED) from None
            except BrokenPipeError:  # the reader of a pipe is gone; typer exits quietly
                raise
            except (Exception, KeyboardInterrupt) as error:
                if not is_expected(error):
                    raise
                if ctx.params.get("debug") and isinstance(error, REFUSALS):
                    raise
                if PRINTED not in getattr(error, "__notes__", ()):
                    print_error(error)
                raise typer.Exit(BAD_ARGUMENTS if isinstance(error, REFUSALS) else RESUMABLE) from None


def is_expected(error: BaseException) -> bool:
    """Whether an error is printed in one line: bad arguments, files or data, and interrupted or broken training."""
    if isinstance(error, REFUSALS):
        return True
    training = sys.modules.get("dubio.training")  # it imports torch; while it is not loaded it has raised nothing
    return training is not None and isinstance(error, training.Interrupted | training.LostProcessError)


def say(text: str, err: bool = False) -> None:
    """Print text; control characters, as in names of files, are shown as escapes and have no effect."""
    typer.echo(printable(text), err=err)


def print_error(error: BaseException, prefix: str = "") -> None:
    """Print an error in one line, without the places in torch's sources and the advice beside them."""
    is_refusal = isinstance(error, REFUSALS)
    text = str(error) if is_refusal else ADVICE.sub("", SOURCE.sub("", str(error)))
    text = getattr(error, "on_command_line", None) or text  # a DataError names arguments of Python otherwise
    _print_line("error" if is_refusal else "interrupted", f"{prefix}{text}")


def mark_as_printed(error: BaseException) -> None:
    """Let an error that is printed already end the command with its exit code and no output."""
    error.add_note(PRINTED)


def plugin_commands(taken: Container[str]) -> tuple[dict[str, PluginCommand], list[str]]:
    """The commands of installed packages by name, and a warning for each that is ignored because its name is taken."""
    from importlib.metadata import entry_points  # takes 0.05 s, and most commands do not need it

    commands: dict[str, PluginCommand] = {}
    warnings = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: (entry.name, _package_of(entry))):
        if entry.name in taken:
            owner = "a command of dubio"
        elif entry.name in commands:
            owner = f"one of the package {commands[entry.name].package}"
        else:
            commands[entry.name] = PluginCommand(entry)
            continue
        warnings.append(
            f"the command {entry.name} of the package {_package_of(entry)} is ignored, since {owner} has that name"
        )
    return commands, warnings


def _message(error: TyperException, commands: Iterable[str]) -> str:
    """The text of an error of typer, with the choices that resemble the given value."""
    wrong_command = NO_COMMAND.match(error.message)
    if wrong_command is not None:
        name = wrong_command["name"]
        if name in HOW_TO_INSTALL:
            return HOW_TO_INSTALL[name]
        return f"no such command {name!r}{did_you_mean(name, commands) or '; dubio --help lists them'}"
    option, possibilities = getattr(error, "option_name", None), getattr(error, "possibilities", None)
    if option is not None and possibilities is not None:  # no such option
        return f"{error.message}{did_you_mean(option, possibilities)}"
    param: Any = getattr(error, "param", None)
    choices = getattr(getattr(param, "type", None), "choices", ())
    given = NO_CHOICE.match(error.message)
    if choices and given is not None:
        name = max(param.opts, key=len) if param.param_type_name == "option" else param.human_readable_name
        value, names = given["value"], [str(choice) for choice in choices]
        return f"{name} must be {listed(names)}, got {value!r}{did_you_mean(value, names)}"
    return error.format_message()


def _print_line(kind: str, message: object) -> None:
    say(f"{kind}: {' '.join(str(message).split())}", err=True)


def _show_warning(message: Warning | str, category: type[Warning], *unused: Any, **unused_too: Any) -> None:
    if not issubclass(category, DeprecationWarning | FutureWarning):  # for developers
        _print_line("warning", message)


def _package_of(entry: "EntryPoint") -> str:
    return entry.module.partition(".")[0] if entry.dist is None else entry.dist.name


def _as_command(name: str, target: Any) -> Any:
    """A function with typer's annotations, or a whole typer app, as a command of this name."""
    holder = typer.Typer(add_completion=False)
    if isinstance(target, typer.Typer):
        holder.add_typer(target, name=name)
    elif callable(target):
        holder.command(name)(target)
    else:
        raise TypeError(f"{target!r} is neither a function nor a typer.Typer")
    group: TyperGroup = get_group(holder)
    return group.commands[name]
