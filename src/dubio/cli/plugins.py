"""Commands that other packages add, through the group ``dubio.commands`` of entry points (docs/plugins.md).

The metadata of installed packages name them. Their code is imported when a command is called, not when commands are
listed (``tests/end_to_end/test_plugins.py``).
"""

from collections.abc import Container
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "HOW_TO_INSTALL", "PluginCommand", "plugin_commands"]

GROUP = "dubio.commands"
HOW_TO_INSTALL = {
    "reproduce": "dubio reproduce is a command of the package dubio_lab, which is not installed; "
    "in a checkout of dubio, pip install ./lab adds it",
}
"""What is said of a command whose package is known but not installed."""


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
