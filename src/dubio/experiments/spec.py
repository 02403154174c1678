"""What an experiment is: a file of plain values, fixed before it runs.

A spec names a protocol, what the source documents fix about it, the cells of its table, and the numbers that were
published for them. Its digest stands in every record, so that a number can be traced to the values it was made with;
what a tiny run changes is no part of it.
"""

import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from typing import Any

from dubio.persistence.reading import read_value

__all__ = ["Cell", "Spec", "load_spec", "spec_names"]

FOLDER = files("dubio.experiments") / "specs"


@dataclass(frozen=True)
class Cell:
    """One cell, row or curve of a table or figure."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    """What is other in this cell."""
    published: dict[str, float] = field(default_factory=dict)
    """What the source says, by metric."""


@dataclass(frozen=True)
class Spec:
    """A table or figure to reproduce."""

    name: str
    title: str
    source: str
    """Where it was published."""
    protocol: str
    """How it is made: one of ``PROTOCOLS``."""
    metrics: dict[str, str]
    """What is measured, in words, by name."""
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    """What all cells share; everything that the source fixes, and every choice that it leaves open."""
    tiny: dict[str, Any] = field(default_factory=dict)
    """What a run changes that only shows that everything runs."""

    def __post_init__(self) -> None:
        names = [cell.name for cell in self.cells]
        if not names or len({*names}) < len(names):
            raise ValueError(f"spec {self.name} must have cells, each with a name of its own, got {names}")
        if not self.seeds:
            raise ValueError(f"spec {self.name} must have one seed or more")
        for cell in self.cells:
            unknown = [metric for metric in cell.published if metric not in self.metrics]
            if unknown:
                raise ValueError(f"spec {self.name} must say in words what {unknown[0]} of {cell.name} is")

    def settings_of(self, cell: Cell, tiny: bool = False) -> dict[str, Any]:
        """All settings of a cell."""
        return {**self.settings, **cell.settings, **(self.tiny if tiny else {})}

    @property
    def digest(self) -> str:
        """A hash of everything but what a tiny run changes."""
        content = {name: value for name, value in asdict(self).items() if name != "tiny"}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def spec_names() -> list[str]:
    """The names of all specs."""
    return sorted(file.name.removesuffix(".toml") for file in FOLDER.iterdir() if file.name.endswith(".toml"))


def load_spec(name: str) -> Spec:
    """A spec by its name."""
    if name not in spec_names():
        raise ValueError(f"an experiment must be one of {', '.join(spec_names())}, got {name!r}")
    content = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    try:
        return read_value(Spec, {"name": name, "cells": content.pop("cell"), **content})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the spec {name} cannot be read: {error}") from error
