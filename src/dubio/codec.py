"""JSON in and out, records, files that are written whole or not at all, and text that is safe to show.

Every record of a run is read by ``parse_json``, which is stricter than ``json.loads``: it refuses NaN and infinity,
numbers that a float or a 64-bit integer cannot hold, duplicate keys, deep nesting and huge files. ``read_value`` turns
the result into a frozen value and checks the type of each field. Whatever a file holds, the error is a ``RecordError``
that names the file (``tests/test_codec.py``). Names of classes and fields that earlier versions wrote are read as the
present ones (``tests/io/test_stored_files.py``).

A ``Record`` is a frozen value with a JSON file; its ``format`` says which kind it is. ``metrics.jsonl`` holds metrics
of each epoch. ``commands.jsonl`` holds the commands that changed a run's network after training, oldest first:
``dubio calibrate``, ``abstain`` and ``conformal`` append a line; ``dubio prune`` gives the new run the lines of the run
that it prunes, and its own. Training a run again removes the file.
"""

import contextlib
import functools
import json
import math
import os
import re
import shlex
import shutil
import stat
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
R = TypeVar("R", bound="Record")

COMMANDS = "commands.jsonl"
UNFINISHED = ".unfinished-"
MAX_DEPTH = 64
MAX_BYTES = 128 * 2**20
MAX_SHOWN = 200
"""Characters of a wrong value that a message repeats."""
INTEGERS = range(-(2**63), 2**64)
FORMER_CLASSES = {name.capitalize(): name for name in ("APGD", "DDN", "ELBO", "FGSM", "FMN", "PGD", "PNI", "VIB")}
FORMER_CLASSES |= {"SeSnn": "SESNN", "TargetedFgsm": "TargetedFGSM"}
"""Present names of classes that earlier versions named differently."""
FORMER_FIELDS = {"doubt": "uncertainty", "words": "summary"}
"""Present names of fields that earlier versions named differently."""
KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
KINDS |= dict.fromkeys((stat.S_IFCHR, stat.S_IFBLK), "a device")
_type_hints = functools.cache(get_type_hints)
UNSAFE = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tab and newline, marks that change the direction of text, and surrogates."""


class RecordError(ValueError):
    """A file of dubio that is damaged, forged or of another kind; the message names the file and the defect."""


@dataclass(frozen=True)
class Command:
    """A command, and the run whose network it changed."""

    line: str
    run: str

    @property
    def kind(self) -> str:
        """The command's own name: ``calibrate``, ``prune``."""
        return shlex.split(self.line)[1]


class Record:
    """The base of all records, which are frozen dataclasses of plain values."""

    format: ClassVar[str]
    """The first field of the file."""
    called: ClassVar[str]
    """The name of the record in messages: ``an evaluation``."""

    def to_json(self) -> dict[str, Any]:
        """As JSON."""
        return {"format": self.format, **asdict(self)}  # type: ignore[call-overload]

    @classmethod
    def from_json(cls: type[R], data: Any) -> R:
        """Back from JSON."""
        if not isinstance(data, dict) or data.get("format") != cls.format:
            received = data.get("format") if isinstance(data, dict) else type(data).__name__
            raise RecordError(f"{cls.called} must have format {cls.format!r}, got {received!r}")
        return read_value(cls, {name: value for name, value in data.items() if name != "format"})

    def save(self, path: str | Path) -> None:
        """Write it to a file, whole or not at all."""
        write_atomically(Path(path), f"{dump_json(self.to_json(), indent=1)}\n".encode())

    @classmethod
    def load(cls: type[R], path: str | Path) -> R:
        """Read it from a file."""
        content = read_file(Path(path), MAX_BYTES)
        try:
            return cls.from_json(parse_json(content, "it"))
        except ValueError as error:
            raise RecordError(f"{path} does not hold {cls.called}: {error}") from error


def parse_json(text: str | bytes, source: str) -> Any:
    """The value that JSON text stands for; ``source`` is the name of the file in messages.

    Raises:
        RecordError: the text is no JSON in UTF-8, or has NaN, infinity, a number outside the range of a float or of
            64 bits, a key that occurs twice, more than 64 levels, or more than 128 MiB.
    """
    return _parse(text, f"{source} cannot be read:")


def read_json(path: Path) -> Any:
    """The value in a JSON file."""
    return parse_json(read_file(path, MAX_BYTES), str(path))


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise RecordError(f"{path} must hold an object, got a {type(value).__name__}")
    return value


def read_json_lines(
    path: Path, count: int | None = None, whole: bool = False, nan_is_null: bool = False
) -> list[dict[str, Any]]:
    """The objects in a file with one per line.

    Args:
        path: the file.
        count: how many lines to read; by default all.
        whole: read a last line without a newline too; by default it is skipped, since it is being written.
        nan_is_null: read NaN and infinity, which older versions wrote, as None.
    """
    *lines, last = read_file(path, MAX_BYTES).split(b"\n")
    values = []
    for number, line in enumerate([*lines, *([last] if whole and last else [])][:count], start=1):
        value = _parse(line, f"{path} cannot be read: line {number}:", nan_is_null)
        if not isinstance(value, dict):
            raise RecordError(f"{path} must hold objects, got a {type(value).__name__} in line {number}")
        values.append(value)
    return values


def check_fields(data: dict[str, Any], kinds: Mapping[str, Any], source: str) -> None:
    """Refuse an object whose fields, as far as it has them, are not of these types."""
    for name, kind in kinds.items():
        if name in data and not fits(kind, data[name]):
            raise RecordError(f"{source} must have {name} of type {_type_name(kind)}, got {_shown(data[name])}")


def dump_json(value: Any, indent: int | None = None) -> str:
    """JSON text that ``parse_json`` reads; NaN and infinity, which JSON cannot express, become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def read_value(kind: type[T], data: Any, name: str = "") -> T:
    """The value of type ``kind`` that JSON stands for; what does not fit is refused, with the name of the field.

    Args:
        kind: a dataclass.
        data: what JSON holds.
        name: what messages call the value; by default the name of its type.
    """
    value: T = _read(kind, data, name or kind.__name__)
    return value


def current_names(data: Any) -> Any:
    """JSON with former names of classes, alone or before their fields in brackets, replaced by the present ones."""
    if isinstance(data, dict):
        return {name: current_names(value) for name, value in data.items()}
    if isinstance(data, list):
        return [current_names(part) for part in data]
    if isinstance(data, str):
        name, bracket, rest = data.partition("(")
        return FORMER_CLASSES.get(name, name) + bracket + rest
    return data


def fits(kind: Any, value: Any) -> bool:
    """Whether a value made from JSON has a type, as stated by a field of a dataclass."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind in (Any, object) or isinstance(kind, str | TypeVar) or type(kind).__name__ == "ForwardRef":
        return True
    if kind is None or kind is types.NoneType:
        return value is None
    if origin in (Union, types.UnionType):
        return any(fits(part, value) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False
        if parts[1:] == (...,):
            return all(fits(parts[0], part) for part in value)
        return len(value) == len(parts) and all(map(fits, parts, value))
    if origin is dict:
        return isinstance(value, dict) and all(fits(parts[1], part) for part in value.values())
    if kind is float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and bool(abs(value) <= sys.float_info.max)  # a number of NumPy gives a bool of its own
    if kind is int:
        return type(value) is int
    if origin is type or origin is Callable or "collections.abc.Callable" in str(origin):
        return False  # a file never holds a class or a function
    return not isinstance(kind, type) or isinstance(value, kind)


def read_file(path: Path, limit: int | None = None, error: type[ValueError] = RecordError) -> bytes:
    """The bytes of a regular file; FIFOs, devices and folders are refused, and what has more than ``limit`` bytes."""
    with open_regular(path, error) as file:
        if limit is None:
            return file.read()
        content = file.read(limit + 1)
    if len(content) > limit:
        raise error(f"{path} must have at most {limit} bytes, got more")
    return content


def open_regular(path: Path, error: type[ValueError] = RecordError) -> BinaryIO:
    """Open a regular file for reading; a FIFO, device or folder raises ``error`` and never blocks."""
    check_regular(path, error)
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _check_mode(path, os.fstat(descriptor).st_mode, error)  # the file may have been replaced meanwhile
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_regular(path: Path, error: type[ValueError] = RecordError) -> None:
    """Refuse a path that is no regular file: reading it could block, or never end."""
    _check_mode(path, os.stat(path).st_mode, error)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file such that readers see the old one or the new one, never a part.

    Unfinished files of killed processes in the same folder are removed.
    """
    remove_unfinished(path.parent, recursive=False)
    with unfinished_file(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        file.close()
        os.replace(file.name, path)
    flush(path.parent)


@contextlib.contextmanager
def unfinished_file(path: Path) -> Iterator[BinaryIO]:
    """A new file beside ``path``, to be renamed to it; without a rename it is removed at the end.

    Its name holds the process number, which distinguishes the file of a killed process from one that is being written.
    The name cannot be guessed, and an existing file or link is never opened.
    """
    unfinished = path.with_name(f"{UNFINISHED}{os.getpid()}-{os.urandom(8).hex()}")
    with unfinished.open("xb") as file:
        try:
            yield file
        finally:
            unfinished.unlink(missing_ok=True)


def remove_unfinished(folder: Path, recursive: bool = True) -> None:
    """Remove unfinished files of killed processes, but not those of running ones."""
    for path in list((folder.rglob if recursive else folder.glob)(f"{UNFINISHED}*")):
        number = path.name.removeprefix(UNFINISHED).partition("-")[0]
        if number.isdigit() and _is_running(int(number)):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def flush(path: Path) -> None:
    """Make the system write a file or folder to disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def printable(text: str) -> str:
    r"""Text for terminals and pages: control characters are shown as ``\x1b``, so that none takes effect.

    So are marks that change the direction of text, and bytes of file names that are not UTF-8.
    """
    return UNSAFE.sub(_escaped, text)


def read_history(file: Path) -> tuple[dict[str, Any], ...]:
    """The metrics of all epochs in ``metrics.jsonl``; none where there is no file."""
    history = tuple(read_json_lines(file, nan_is_null=True)) if file.exists() else ()
    for number, metrics in enumerate(history, start=1):
        if not fits(int, metrics.get("epoch")):
            raise RecordError(f"{file} must have an epoch in every line; was it written by dubio train?")
        check_fields(metrics, dict.fromkeys(metrics, float | None), f"line {number} of {file}")
    return history


def read_commands(folder: Path) -> tuple[Command, ...]:
    """The commands of a run; none where it has no such file."""
    file = folder / COMMANDS
    if not file.exists():
        return ()
    try:
        commands = tuple(read_value(Command, line) for line in read_json_lines(file, whole=True))
        if not all(shlex.split(command.line)[:1] == ["dubio"] and command.kind for command in commands):
            raise ValueError("every line must hold a command of dubio")
    except (ValueError, IndexError) as error:
        reason = str(error).removeprefix(f"{file} cannot be read: ")
        raise RecordError(f"{file} cannot be read: {reason}; without it, reports leave these commands out") from error
    return commands


def write_commands(folder: Path, commands: tuple[Command, ...]) -> None:
    """Write the commands of a run, in place of those in the file."""
    write_atomically(folder / COMMANDS, "".join(f"{dump_json(asdict(command))}\n" for command in commands).encode())


def forget_commands(folder: Path) -> None:
    """Remove the file of a run that was trained again."""
    (folder / COMMANDS).unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    if os.name != "posix":
        return False
    try:
        os.kill(process, 0)  # signal 0 only checks that the process exists
    except (OSError, OverflowError) as error:  # OverflowError: a number too large for a process
        return isinstance(error, PermissionError)  # another user's process
    return True


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is no UTF-8, as Python keeps it in the name of a file
        code -= 0xDC00
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _parse(text: str | bytes, prefix: str, nan_is_null: bool = False) -> Any:
    """The value of JSON text; messages begin with ``prefix``."""
    try:
        if len(text) > MAX_BYTES:
            raise RecordError(f"JSON must have at most {MAX_BYTES} bytes, got {len(text)}")
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        constant = (lambda text: None) if nan_is_null else _refuse_constant
        value = json.loads(
            text,
            parse_constant=constant,
            parse_float=_parse_float,
            parse_int=_parse_int,
            object_pairs_hook=_parse_object,
        )
        _check_depth(value)
    except RecursionError:
        raise RecordError(f"{prefix} JSON must have at most {MAX_DEPTH} levels") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError and those of the functions below
        raise RecordError(f"{prefix} {_short(str(error))}") from None
    return value


def _refuse_constant(text: str) -> NoReturn:
    raise RecordError(f"numbers must be finite, got {text}")


def _parse_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise RecordError(f"numbers must be within the range of a float, got {text[:40]}")
    return value


def _parse_int(text: str) -> int:
    value = int(text) if len(text) <= 20 else None
    if value is None or value not in INTEGERS:
        raise RecordError(f"whole numbers must have at most 64 bits, got {text[:40]}")
    return value


def _parse_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise RecordError(f"each key must occur once, got {_short(repr(twice))} twice")
    return value


def _check_depth(value: Any) -> None:
    parts: Iterable[Any] = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [part for part in parts if isinstance(part, dict | list)]
        if not level:
            return
        parts = (
            part for container in level for part in (container.values() if isinstance(container, dict) else container)
        )
    raise RecordError(f"JSON must have at most {MAX_DEPTH} levels")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value


def _read(kind: Any, data: Any, place: str) -> Any:
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if data is None and types.NoneType in parts:
            return None
        members = [part for part in parts if part is not types.NoneType]
        if len(members) > 1:  # none of them a dataclass
            members = [part for part in members if fits(part, data)]
        _checked(bool(members), data, place)
        return _read(members[0], data, place)
    if origin is tuple:
        _checked(isinstance(data, list | tuple), data, place)
        kinds = parts[:1] * len(data) if parts[1:] == (...,) else parts
        _checked(len(data) == len(kinds), data, place)
        return tuple(_read(kind, data[number], f"{place}[{number}]") for number, kind in enumerate(kinds))
    if origin is dict:
        _checked(isinstance(data, dict), data, place)
        return {name: _read(parts[1], part, f"{place}.{_short(name)}") for name, part in data.items()}
    if is_dataclass(kind):
        return _read_fields(kind, data, place)
    _checked(fits(kind, data), data, place)
    return float(data) if kind is float else data


def _read_fields(kind: Any, data: Any, place: str) -> Any:
    _checked(isinstance(data, dict), data, place)
    hints = _type_hints(kind)
    names = {field.name for field in fields(kind)}
    data = {FORMER_FIELDS.get(name, name) if name not in names else name: value for name, value in data.items()}
    unknown = sorted(set(data) - names)
    if unknown:
        received = _short(str(unknown))
        raise RecordError(f"{place} has unknown fields {received}; was the file written by a newer version?")
    values = {name: _read(hints[name], value, f"{place}.{name}") for name, value in data.items()}
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise RecordError(f"{place} cannot be read: {error}") from error


def _checked(is_right: bool, data: Any, place: str) -> None:
    if not is_right:
        raise RecordError(f"{place} has a value of the wrong kind, {_shown(data)}")


def _type_name(kind: Any) -> str:
    return kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind).replace("typing.", "")


def _shown(data: Any) -> str:
    """A wrong value for a message; printing a long list or a number with millions of digits would take long."""
    if isinstance(data, int) and data not in INTEGERS:
        return "a whole number of more than 64 bits"
    if isinstance(data, list | tuple | dict) and len(data) > 10:
        return f"a {type(data).__name__} of {len(data)} entries"
    return _short(repr(data))


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _check_mode(path: Path, mode: int, error: type[ValueError]) -> None:
    if not stat.S_ISREG(mode):
        raise error(f"{path} must be a regular file, got {KINDS.get(stat.S_IFMT(mode), 'something else')}")
