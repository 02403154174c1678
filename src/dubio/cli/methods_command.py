"""What ``dubio methods`` shows: every method, or the options of one; all of it is read from the methods themselves."""

import dataclasses
import inspect
import re
import sys

from rich.console import Console

from dubio.cli.answers import say
from dubio.cli.fields import Field, fields_of, spell
from dubio.cli.method_options import example
from dubio.cli.terminal import PlainTable
from dubio.codec import printable
from dubio.methods import METHODS, Recipe

__all__ = ["show_method", "show_methods"]

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
