"""The fields of methods as options, ``--init-std 0.1`` for ``Bayes(init_std=0.1)``; and ``dubio methods`` and ``data``.

Names, defaults and meanings of options are those of the dataclasses in ``dubio.methods``, and a text is read by the
type of its field. A value is written as its name and its numbers (``normal:0,1``, ``planar1d:4``), several are
separated by commas, and a choice of layers is a glob. A field whose type has no text form is not an option.
``tests/end_to_end/test_method_fields.py`` holds that the shown form of every default reads back as the default.
"""

import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rich.console import Console
from torch import nn

from dubio import data
from dubio.checks import check_choice, did_you_mean, listed
from dubio.cli.errors import say
from dubio.cli.options import example
from dubio.cli.terminal import PlainTable, print_lines
from dubio.convert import Where
from dubio.flows import NormalAffine, NormalInvConv, NormalPlanar1d
from dubio.methods import METHODS, Method
from dubio.priors import CentredNormal, Normal, ScaleMixture

SPELLINGS: dict[str, type] = {"normal": Normal, "mixture": ScaleMixture, "centred": CentredNormal}
SPELLINGS |= {"affine": NormalAffine, "planar1d": NormalPlanar1d, "invconv": NormalInvConv}
"""The names of the values that a field may hold."""
MANY = "several with commas"
NOISE_OFF = {"source": "the plain network", "own mean": "its own mean", "none": "-"}


class UnreadableError(Exception):
    """A text that is not of the form of a type."""


@dataclasses.dataclass(frozen=True)
class FieldReader:
    """One form of a value: the rule in words, and the function that reads it."""

    rule: str
    read: Callable[[str], Any]


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a method, as an option."""

    name: str
    readings: tuple[FieldReader, ...]
    """Empty where the type has no text form."""
    is_flag: bool
    """Whether it is given as ``--name`` or ``--no-name``, without a text."""
    default: Any
    """``dataclasses.MISSING`` where there is none."""
    meaning: str

    @property
    def option(self) -> str:
        """The name of the option."""
        return _option(self.name)

    @property
    def rule(self) -> str:
        """What may be written."""
        return listed([reading.rule for reading in self.readings])

    def read(self, given: str | bool) -> Any:
        """The value of a text or a flag."""
        if isinstance(given, bool):
            return given
        try:
            return _read_first(self.readings, given)
        except UnreadableError:
            names = [reading.rule.partition(":")[0] for reading in self.readings]
            hint = did_you_mean(given.partition(":")[0], names)
            raise ValueError(f"{self.option} must be {self.rule}, got {given!r}{hint}") from None


def make_method(name: str, given: dict[str, str | bool]) -> Method:
    """The method of a name, with fields from their texts."""
    check_choice("--method", name, METHODS)
    fields = fields_of(METHODS[name])
    for option in given:
        if option not in fields or not fields[option].readings:
            raise ValueError(_misplaced(option, name))
    for field in fields.values():
        if field.default is dataclasses.MISSING and field.name not in given:
            raise ValueError(f"{field.option} must be given for {name}; dubio methods {name} explains it")
    return METHODS[name](**{field: fields[field].read(text) for field, text in given.items()})


def fields_of(kind: type) -> dict[str, Field]:
    """Every field of a method by its name."""
    hints, meanings = get_type_hints(kind, localns={"Where": Where}), _meanings(kind)  # Where is recursive
    return {
        field.name: Field(
            name=field.name,
            readings=tuple(_readings(hints[field.name])),
            is_flag=hints[field.name] is bool,
            default=field.default if field.default_factory is dataclasses.MISSING else field.default_factory(),
            meaning=meanings.get(field.name, ""),
        )
        for field in dataclasses.fields(kind)
    }


def spell(value: Any) -> str:
    """A value as it is written on the command line; its ``repr`` where it cannot be written there."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case int() | str():
            return str(value)
        case float():
            return f"{value:g}" if float(f"{value:g}") == value else repr(value)
        case tuple():
            return ",".join(map(spell, value))
    for name, kind in SPELLINGS.items():
        if type(value) is kind:
            numbers = [spell(getattr(value, field.name)) for field in dataclasses.fields(kind)]
            return f"{name}:{','.join(numbers)}" if numbers else name
    return repr(value)


def show_methods(quiet: bool = False) -> None:
    """Print one line for each method."""
    table = PlainTable("method", "what is random", "with noise off", "reference")
    for name, kind in METHODS.items():
        table.add_row(name, _summary(kind), _noise_off(kind), "\n".join(_authors(kind)))
    Console().print(table)
    if not quiet:
        say("dubio methods NAME lists a method's own options.")


def show_method(name: str, quiet: bool = False) -> None:
    """Print the options of a method with their meanings and defaults, its training recipe, and an example."""
    kind = METHODS[name]
    fields = fields_of(kind).values()
    table = PlainTable("option", "default", "what it is", show_lines=True)
    for field in fields:
        option = field.option if field.readings else f"{field.name}="
        if field.is_flag and field.default is True:  # the flag alone would change nothing
            option = f"{option}\n--no-{option.removeprefix('--')}"
        default = "must be given" if field.default is dataclasses.MISSING else spell(field.default)
        rule = "" if field.is_flag else f"\nTakes {field.rule}." if field.readings else "\n(only in Python)"
        table.add_row(option, default, f"{field.meaning[:1].upper()}{field.meaning[1:]}{rule}")
    console = Console(highlight=False)
    print_lines(console, (f"{name}: {_summary(kind)}", f"With noise off: {_noise_off(kind)}. {_reference(kind)}"))
    console.print(table)
    if quiet:
        return
    if any(":" in field.rule for field in fields):
        console.print("Numbers after a colon may be left out.")
    if all(field.default is not dataclasses.MISSING for field in fields):
        recipe = kind().recipe
        draws = "1 draw" if recipe.num_samples == 1 else f"{recipe.num_samples} draws"
        noise = "" if recipe.noise_ratio == 1.0 else f", {recipe.noise_ratio:g} times that for the noise (--noise-lr)"
        console.print(
            f"Default training: {recipe.epochs} epochs (--epochs) at a learning rate of {recipe.lr:g} (--lr){noise}, "
            f"with {draws} for each step (--samples)."
        )
    console.print(example(name, name), markup=False)


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


def _readings(hint: Any) -> Iterator[FieldReader]:
    """The forms of a value of a type."""
    args = get_args(hint)
    is_union = get_origin(hint) in (Union, UnionType)
    if is_union and type[nn.Module] in args:  # a ``Where``
        yield FieldReader(f"a glob of layers' names, {MANY}", _read_globs)
        yield from _readings(NoneType)
    elif is_union:
        members = sorted(args, key=lambda member: (member is str, member is NoneType))  # any text is a str
        rules: list[str] = []
        for reading in (reading for member in members for reading in _readings(member)):
            is_repeated = rules and reading.rule == f"{listed(rules)}, {MANY}"
            rules.append(MANY if is_repeated else reading.rule)
            yield FieldReader(rules[-1], reading.read)
    elif get_origin(hint) is tuple and args[1:] == (...,):
        inner = tuple(_readings(args[0]))
        if inner:
            yield FieldReader(f"{listed([reading.rule for reading in inner])}, {MANY}", _reader_of_many(inner))
    elif get_origin(hint) is Literal or hint in (bool, NoneType):
        for choice in args or ((True, False) if hint is bool else (None,)):
            yield FieldReader(spell(choice), partial(_read_choice, choice))
    elif hint in (int, float):
        yield FieldReader("a whole number" if hint is int else "a number", partial(_read_number, hint))
    elif hint is str:
        yield FieldReader("a text", str)
    for name, kind in SPELLINGS.items():
        if hint is kind:
            numbers = ",".join(field.name.upper() for field in dataclasses.fields(kind))
            yield FieldReader(f"{name}:{numbers}" if numbers else name, partial(_read_named, name, kind))


def _read_first(readings: Sequence[FieldReader], text: str) -> Any:
    """The value by the first form that the text has."""
    for reading in readings:
        try:
            return reading.read(text)
        except UnreadableError:
            continue
    raise UnreadableError


def _read_globs(text: str) -> Any:
    globs = tuple(text.split(","))
    if text == "none" or not all(globs):
        raise UnreadableError
    return globs if len(globs) > 1 else text


def _read_number(kind: type, text: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise UnreadableError from None


def _read_choice(choice: Any, text: str) -> Any:
    if text != spell(choice):
        raise UnreadableError
    return choice


def _read_named(name: str, kind: type, text: str) -> Any:
    """The value of ``name`` or ``name:1,2``, with all numbers of the value or none."""
    hints, (word, _, rest) = get_type_hints(kind), text.partition(":")
    types, numbers = [hints[field.name] for field in dataclasses.fields(kind)], rest.split(",") if rest else []
    if word != name or len(numbers) not in (0, len(types)):
        raise UnreadableError
    return kind(*map(_read_number, types, numbers))


def _reader_of_many(inner: tuple[FieldReader, ...]) -> Callable[[str], Any]:
    """Reads ``affine,invconv:2,3``; where values have numbers, a comma before a digit lies inside one."""
    comma = r",(?=[A-Za-z])" if any(":" in reading.rule for reading in inner) else ","
    return lambda text: tuple(_read_first(inner, part) for part in re.split(comma, text))


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _misplaced(field: str, name: str) -> str:
    owners = [other for other, kind in METHODS.items() if field in fields_of(kind) and fields_of(kind)[field].readings]
    if not owners:
        return f"{_option(field)} is an option of no method; dubio methods {name} lists those of it"
    return f"{_option(field)} is an option of {listed(owners, 'and')}, not of {name}"


def _meanings(kind: type) -> dict[str, str]:
    """The meaning of each field from the ``Args:`` section of a docstring, without marks."""
    section = (inspect.getdoc(kind) or "").partition("\nArgs:\n")[2].partition("\n\n")[0]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", section, flags=re.MULTILINE)
    return {name: re.sub(r'``"?([^`"]*)"?``', r"\1", " ".join(text.split())) for name, text in entries}


def _summary(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0].rstrip(".")


def _noise_off(kind: type) -> str:
    return NOISE_OFF[getattr(kind, "noise_off", "none")]


def _reference(kind: type) -> str:
    """The reference in the docstring of the method's file."""
    match = re.search(r"^References?: .*?(?=\n\n|\Z)", sys.modules[kind.__module__].__doc__ or "", re.DOTALL | re.M)
    return " ".join(match.group().split()) if match else ""


def _authors(kind: type) -> list[str]:
    """Names and years of the references."""
    name = r"[A-Z][\w-]+"
    return re.findall(rf"{name}(?:(?:, | and ){name})*(?: et al\.)? \d{{4}}", _reference(kind))
