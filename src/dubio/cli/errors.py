"""How the command line answers: one line for what went wrong, and the exit code that says of which kind it was.

Exit codes: 0 fine, 1 a gate or a part failed, 2 bad arguments (or files, or data), 3 interrupted and resumable, 130
interrupted.

Commands that other packages add, through the group ``dubio.commands`` of entry points (docs/plugins.md).

The metadata of installed packages name them. Their code is imported when a command is called, not when commands are
listed (``tests/end_to_end/test_plugins.py``).
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


FAILED = 1


BAD_ARGUMENTS = 2


RESUMABLE = 3


INTERRUPTED = 130


REFUSALS = (ValueError, TypeError, OSError, ImportError, FloatingPointError)


TOLD = "told already"


SOURCE = re.compile(r"\[\S+\.(?:cc|cpp|h|hpp):\d+\] ")


NO_COMMAND = re.compile(r"No such command '(?P<name>.*?)'\.", re.DOTALL)


NO_CHOICE = re.compile(r"'(?P<value>.*?)' is not one of ", re.DOTALL)


ADVICE = re.compile(r"\. This is typically caused by [^()]*(?=\))")


class PartlyFailedError(Exception):
    """A part of what was asked for failed, which was told already; its text says where, for ``--debug``."""


class PluginCommand(TyperCommand):
    """A command of another package, as it stands in the list of commands: its code is not imported yet."""

    def __init__(self, entry: "EntryPoint") -> None:
        self.entry, self.package = entry, _package_of(entry)
        super().__init__(entry.name, help=f"A command of the package {self.package}.")

    def load(self) -> Any:
        """Import the command; whatever fails is an ImportError of one line."""
        try:
            return _as_command(self.entry.name, self.entry.load())
        except Exception as error:
            raise ImportError(
                f"the command {self.entry.name} of the package {self.package} cannot be loaded: "
                f"{type(error).__name__}: {error}"
            ) from error


class Answering(TyperGroup):
    """Commands whose errors are one line on stderr; ``--debug`` shows the traceback. Other packages may add some."""

    @cached_property
    def plugins(self) -> tuple[dict[str, PluginCommand], list[str]]:
        """The commands that installed packages add, and warnings about those that are ignored."""
        return plugin_commands(self.commands)

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of all commands, the library's own first."""
        return [*super().list_commands(ctx), *self.plugins[0]]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by name; one of another package is not imported by this."""
        command = super().get_command(ctx, cmd_name)
        return self.plugins[0].get(cmd_name) if command is None else command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that is called; one of another package is imported now."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, PluginCommand) else command, rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help, and on stderr which commands of other packages are ignored."""
        super().format_help(ctx, formatter)
        for warning in self.plugins[1]:
            _say("warning", warning)

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
            _say("error", _message(error, [*self.commands, *self.plugins[0]]))
            code = BAD_ARGUMENTS
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; what it refuses becomes a line and an exit code."""
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except PartlyFailedError as error:
                if ctx.params.get("debug"):
                    say(str(error), err=True)
                raise typer.Exit(FAILED) from None
            except BrokenPipeError:  # the reader has gone; typer ends quietly
                raise
            except (Exception, KeyboardInterrupt) as error:
                if not is_answered(error):
                    raise
                if ctx.params.get("debug") and isinstance(error, REFUSALS):
                    raise
                if TOLD not in getattr(error, "__notes__", ()):
                    answer(error)
                raise typer.Exit(BAD_ARGUMENTS if isinstance(error, REFUSALS) else RESUMABLE) from None


def is_answered(error: BaseException) -> bool:
    """Whether an error is answered in one line: bad arguments, files or data, and what a run can be resumed from."""
    if isinstance(error, REFUSALS):
        return True
    training = sys.modules.get("dubio.training")  # it imports torch; where it is not loaded it has raised nothing
    return training is not None and isinstance(error, training.Interrupted | training.LostProcessError)


def say(text: str, err: bool = False) -> None:
    """Print text; control characters in names from files and folders are shown as escapes and take no effect."""
    typer.echo(printable(text), err=err)


def answer(error: BaseException, teller: str = "") -> None:
    """Tell in one line what went wrong, and who tells it where that matters."""
    kind = "error" if isinstance(error, REFUSALS) else "interrupted"
    _say(kind, f"{teller}{_plain(error)}")


def leave_quietly(error: BaseException) -> None:
    """Let an error that is told already end the command without a word, with its exit code."""
    error.add_note(TOLD)


def _plain(error: BaseException) -> str:
    """What an error says, without the places in torch's own sources and the advice that stands beside them."""
    options = getattr(error, "on_command_line", None)  # of a DataError, which speaks of arguments otherwise
    if isinstance(options, str):
        return options
    return str(error) if isinstance(error, REFUSALS) else ADVICE.sub("", SOURCE.sub("", str(error)))


def _message(error: TyperException, commands: Iterable[str]) -> str:
    """What typer refuses, with the choices that resemble what was given."""
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


def _say(kind: str, message: object) -> None:
    say(f"{kind}: {' '.join(str(message).split())}", err=True)


def _show_warning(message: Warning | str, category: type[Warning], *unused: Any, **unused_too: Any) -> None:
    if not issubclass(category, DeprecationWarning | FutureWarning):  # those are for whoever writes the code
        _say("warning", message)


GROUP = "dubio.commands"


HOW_TO_INSTALL = {
    "reproduce": "dubio reproduce is a command of the package dubio_lab, which is not installed; "
    "in a checkout of dubio, pip install ./lab adds it"
}
"""What is said of a command whose package is known but not installed."""


def plugin_commands(taken: Container[str]) -> tuple[dict[str, PluginCommand], list[str]]:
    """The commands of installed packages by name, and a warning for each that is ignored because its name is taken."""
    from importlib.metadata import entry_points  # takes a twentieth of a second, and most commands need none of it

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
