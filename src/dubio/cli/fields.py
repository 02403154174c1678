"""The fields of methods as options: ``--init-std 0.1`` for ``Bayes(init_std=0.1)``.

Nothing is typed twice: names, defaults and meanings are those of the dataclasses in ``dubio.methods``, and a text is
read by the type of its field. A value is written as its name and its numbers (``normal:0,1``, ``planar1d:4``), several
with commas, and a choice of layers as globs. A field whose type no text can stand for is no option.
``tests/end_to_end/test_method_fields.py`` holds that every default is read back from what is shown of it.

What ``dubio methods`` shows: every method, or the options of one; all of it is read from the methods themselves.

What ``dubio data`` shows: the datasets, whether they are there, and where they go.
"""

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rich.console import Console
from torch import nn

from dubio import data
from dubio.checks import check_choice, did_you_mean, listed
from dubio.cli.errors import say
from dubio.cli.options import example
from dubio.cli.terminal import PlainTable
from dubio.codec import printable
from dubio.convert import Where
from dubio.flows import NormalAffine, NormalInvConv, NormalPlanar1d
from dubio.methods import METHODS, Method, Recipe
from dubio.priors import CentredNormal, Normal, ScaleMixture

SPELLINGS: dict[str, type] = {
    "normal": Normal,
    "mixture": ScaleMixture,
    "centred": CentredNormal,
    "affine": NormalAffine,
    "planar1d": NormalPlanar1d,
    "invconv": NormalInvConv,
}
"""What the command line calls the values that a field may hold."""


MANY = "several with commas"


class UnreadableError(Exception):
    """A text that is not written as a type wants it."""


@dataclass(frozen=True)
class FieldReader:
    """One way to write a value: the rule in words, and how it is read."""

    rule: str
    read: Callable[[str], Any]


@dataclass(frozen=True)
class Field:
    """A field of a method, as an option."""

    name: str
    option: str
    readings: tuple[FieldReader, ...]
    """Empty where no text can stand for a value."""
    is_flag: bool
    """Whether it is given as ``--name`` or ``--no-name``, and takes no text."""
    default: Any
    """``dataclasses.MISSING`` where there is none."""
    meaning: str

    @property
    def rule(self) -> str:
        """What may be written."""
        return listed([reading.rule for reading in self.readings])

    def read(self, given: str | bool) -> Any:
        """The value that a text, or a flag, stands for."""
        if isinstance(given, bool):
            return given
        for reading in self.readings:
            try:
                return reading.read(given)
            except UnreadableError:
                continue
        hint = did_you_mean(given.partition(":")[0], [reading.rule.partition(":")[0] for reading in self.readings])
        raise ValueError(f"{self.option} must be {self.rule}, got {given!r}{hint}")


def make_method(name: str, given: dict[str, str | bool]) -> Method:
    """The method of a name, with fields from their texts."""
    check_choice("--method", name, METHODS)
    fields = fields_of(METHODS[name])
    for field in given:
        if field not in fields or not fields[field].readings:
            raise ValueError(_misplaced(field, name))
    for needed in fields.values():
        if needed.default is dataclasses.MISSING and needed.name not in given:
            raise ValueError(f"{needed.option} must be given for {name}; dubio methods {name} says what it means")
    return METHODS[name](**{field: fields[field].read(text) for field, text in given.items()})


def fields_of(kind: type) -> dict[str, Field]:
    """Every field of a method by its name."""
    hints, meanings = get_type_hints(kind, localns={"Where": Where}), _meanings(kind)  # a Where holds its own name
    found = {}
    for field in dataclasses.fields(kind):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found[field.name] = Field(
            name=field.name,
            option=f"--{field.name.replace('_', '-')}",
            readings=tuple(_readings(hints[field.name])),
            is_flag=hints[field.name] is bool,
            default=default,
            meaning=meanings.get(field.name, ""),
        )
    return found


def spell(value: Any) -> str:
    """A value as it is written on the command line; in Python's way where it cannot be written there."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | str):
        return str(value)
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, tuple):
        return ",".join(map(spell, value))
    for name, kind in SPELLINGS.items():
        if type(value) is kind:
            numbers = [spell(getattr(value, field.name)) for field in dataclasses.fields(kind)]
            return f"{name}:{','.join(numbers)}" if numbers else name
    return repr(value)


def _readings(hint: Any) -> Iterator[FieldReader]:
    """How a value of a type is written."""
    if get_origin(hint) in (Union, UnionType) and type[nn.Module] in get_args(hint):  # a ``Where``
        yield FieldReader(f"a glob of layers' names, {MANY}", _read_globs)
        yield FieldReader("none", _read_none)
    elif get_origin(hint) in (Union, UnionType):
        members = sorted(get_args(hint), key=lambda member: (member is str, member is NoneType))  # text takes all
        rules: list[str] = []
        for reading in (reading for member in members for reading in _readings(member)):
            known = rules and reading.rule == f"{listed(rules)}, {MANY}"
            rules.append(MANY if known else reading.rule)
            yield FieldReader(rules[-1], reading.read)
    elif get_origin(hint) is Literal:
        for choice in get_args(hint):
            yield FieldReader(spell(choice), _reader_of_choice(choice))
    elif get_origin(hint) is tuple and get_args(hint)[1:] == (...,):
        inner = tuple(_readings(get_args(hint)[0]))
        if inner:
            yield FieldReader(f"{listed([reading.rule for reading in inner])}, {MANY}", _reader_of_many(inner))
    elif hint is NoneType:
        yield FieldReader("none", _read_none)
    elif hint is bool:
        yield from (FieldReader(spell(choice), _reader_of_choice(choice)) for choice in (True, False))
    elif hint in (int, float):
        yield FieldReader("a whole number" if hint is int else "a number", _reader_of_number(hint))
    elif hint is str:
        yield FieldReader("a text", str)
    elif hint in SPELLINGS.values():
        name = next(name for name, kind in SPELLINGS.items() if kind is hint)
        numbers = ",".join(field.name.upper() for field in dataclasses.fields(hint))
        yield FieldReader(f"{name}:{numbers}" if numbers else name, _reader_of_value(name, hint))


def _read_none(text: str) -> None:
    if text != "none":
        raise UnreadableError


def _read_globs(text: str) -> Any:
    if text == "none":
        return None
    globs = tuple(text.split(","))
    if not all(globs):
        raise UnreadableError
    return globs if len(globs) > 1 else text


def _reader_of_number(kind: type) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise UnreadableError from None

    return read


def _reader_of_choice(choice: Any) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if text != spell(choice):
            raise UnreadableError
        return choice

    return read


def _reader_of_value(name: str, kind: type) -> Callable[[str], Any]:
    """Reads ``name`` or ``name:1,2``, with all of the value's numbers or none."""
    hints = get_type_hints(kind)
    readers = [_reader_of_number(hints[field.name]) for field in dataclasses.fields(kind)]

    def read(text: str) -> Any:
        word, _, rest = text.partition(":")
        numbers = rest.split(",") if rest else []
        if word != name or len(numbers) not in (0, len(readers)):
            raise UnreadableError
        values = [read_one(number) for read_one, number in zip(readers, numbers, strict=False)]
        return kind(*values)

    return read


def _reader_of_many(inner: tuple[FieldReader, ...]) -> Callable[[str], Any]:
    """Reads ``affine,invconv:2,3``; where values have numbers, a comma before a digit lies inside one."""
    comma = r",(?=[A-Za-z])" if any(":" in reading.rule for reading in inner) else ","

    def read_one(text: str) -> Any:
        for reading in inner:
            try:
                return reading.read(text)
            except UnreadableError:
                continue
        raise UnreadableError

    return lambda text: tuple(read_one(part) for part in re.split(comma, text))


def _misplaced(field: str, name: str) -> str:
    option = f"--{field.replace('_', '-')}"
    owners = [other for other, kind in METHODS.items() if field in fields_of(kind) and fields_of(kind)[field].readings]
    if not owners:
        return f"{option} is an option of no method; dubio methods {name} lists those of it"
    return f"{option} is an option of {listed(owners, 'and')}, not of {name}"


def _meanings(kind: type) -> dict[str, str]:
    """What the ``Args:`` section of a docstring says of each field, without marks."""
    section = (inspect.getdoc(kind) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, flags=re.MULTILINE)
    return {name: re.sub(r'``"?([^`"]*)"?``', r"\1", " ".join(text.split())) for name, text in entries}


NOISE_OFF = {"source": "the plain network", "own mean": "its own mean", "none": "-"}


def show_methods(quiet: bool = False) -> None:
    """One line for each method."""
    table = PlainTable("method", "what is random", "with noise off", "reference")
    for name, kind in METHODS.items():
        table.add_row(name, _summary(kind), _noise_off(kind), "\n".join(_authors(kind)))
    Console().print(table)
    if not quiet:
        say("dubio methods NAME lists a method's own options.")


def show_method(name: str, quiet: bool = False) -> None:
    """A method's options with their meanings and defaults, how it is trained, and an example."""
    kind = METHODS[name]
    fields = fields_of(kind)
    table = PlainTable("option", "default", "what it is", show_lines=True)
    for field in fields.values():
        table.add_row(_option(field), _default(field), _told(field))
    console = Console()
    console.print(printable(f"{name}: {_summary(kind)}"), markup=False, highlight=False)
    console.print(printable(f"With noise off: {_noise_off(kind)}. {_reference(kind)}"), markup=False, highlight=False)
    console.print(table)
    if quiet:
        return
    if any(":" in field.rule for field in fields.values()):
        console.print("Numbers after a colon may be left out.", highlight=False)
    if _can_be_bare(fields):
        console.print(_training(kind().recipe), highlight=False)
    console.print(example(name, name), markup=False, highlight=False)


def _summary(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0].rstrip(".")


def _noise_off(kind: type) -> str:
    return NOISE_OFF[getattr(kind, "noise_off", "none")]


def _reference(kind: type) -> str:
    """What the method's file says that it is from."""
    found = re.search(r"^References?: .*?(?=\n\n|\Z)", sys.modules[kind.__module__].__doc__ or "", re.DOTALL | re.M)
    return " ".join(found.group().split()) if found else ""


def _authors(kind: type) -> list[str]:
    """Names and years of the references."""
    name = r"[A-Z][\w-]+"
    return re.findall(rf"{name}(?:(?:, | and ){name})*(?: et al\.)? \d{{4}}", _reference(kind))


def _option(field: Field) -> str:
    if not field.readings:
        return f"{field.name}="
    both = f"{field.option}\n--no-{field.option.removeprefix('--')}"  # where the flag alone would change nothing
    return both if field.is_flag and field.default is True else field.option


def _default(field: Field) -> str:
    return "must be given" if field.default is dataclasses.MISSING else spell(field.default)


def _told(field: Field) -> str:
    meaning = field.meaning[:1].upper() + field.meaning[1:]
    if not field.readings:
        return f"{meaning}\n(in Python alone)"
    return meaning if field.is_flag else f"{meaning}\nTakes {field.rule}."


def _can_be_bare(fields: dict[str, Field]) -> bool:
    return all(field.default is not dataclasses.MISSING for field in fields.values())


def _training(recipe: Recipe) -> str:
    draws = "1 draw" if recipe.num_samples == 1 else f"{recipe.num_samples} draws"
    noise = "" if recipe.noise_ratio == 1.0 else f", {recipe.noise_ratio:g} times that for the noise (--noise-lr)"
    return (
        f"Trained by default for {recipe.epochs} epochs (--epochs) at a rate of {recipe.lr:g} (--lr){noise}, "
        f"with {draws} for each step (--samples)."
    )


def show_data(folder: Path | None, download: str | None, quiet: bool = False) -> None:
    """Download a dataset, where one is named, and list all of them."""
    if download is not None:
        data.fetch(download, folder, progress=not quiet)
    rows = data.status(folder)
    table = PlainTable("name", "what", "state", "where")
    for row in rows:
        table.add_row(row.name, row.what, row.state, row.place or "-")
    say(f"in {data.data_folder(folder)}:")
    Console().print(table)
    for row in rows:
        if row.state == "incomplete":
            say(f"{row.name} lacks {', '.join(Path(file).name for file in row.missing)}")
    if not quiet and any(row.state == "missing" for row in rows):
        say("fetch what is missing with: dubio data --download NAME")
