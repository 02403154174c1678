"""Commands that made a run's network what it is, beside training: they stand in ``commands.jsonl``, oldest first.

``dubio calibrate``, ``abstain`` and ``conformal`` add a line to their run. ``dubio prune`` gives the new run those that
pruned its source, and its own. Training anew forgets them, since it begins with the network as it was trained.
"""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path

from dubio.codec import RecordError, dump_json, read_json_lines, read_value, write_atomically

__all__ = ["Command", "forget_commands", "read_commands", "write_commands"]

FILE = "commands.jsonl"


@dataclass(frozen=True)
class Command:
    """A command, and the run whose network it began with."""

    line: str
    run: str

    @property
    def kind(self) -> str:
        """The command's own name: ``calibrate``, ``prune``."""
        return shlex.split(self.line)[1]


def read_commands(folder: Path) -> tuple[Command, ...]:
    """The commands of a run; none where it has no such file."""
    file = folder / FILE
    if not file.exists():
        return ()
    try:
        found = tuple(read_value(Command, line) for line in read_json_lines(file, whole=True))
        if not all(shlex.split(command.line)[:1] == ["dubio"] and command.kind for command in found):
            raise ValueError("every line must hold a command of dubio")
    except (ValueError, IndexError) as error:
        reason = str(error).removeprefix(f"{file} cannot be read: ")
        raise RecordError(f"{file} cannot be read: {reason}; without it, reports leave these commands out") from error
    return found


def write_commands(folder: Path, commands: tuple[Command, ...]) -> None:
    """Keep the commands of a run, in the place of those that are there."""
    write_atomically(folder / FILE, "".join(f"{dump_json(asdict(command))}\n" for command in commands).encode())


def forget_commands(folder: Path) -> None:
    """Remove the file of a run whose network is another now."""
    (folder / FILE).unlink(missing_ok=True)
