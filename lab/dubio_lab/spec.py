"""What an experiment is: a file of plain values, fixed before it runs.

A spec names a protocol, what the source documents fix about it, the cells of its table, and the numbers that were
published for them. A digest of a cell's settings stands in its records, so that a number can be traced to the values it
was made with.
"""

import hashlib
import json
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Literal

from dubio.checks import did_you_mean
from dubio.codec import read_value

__all__ = ["Cell", "ExperimentSpec", "Variant", "load_spec", "spec_names"]

Variant = Literal["full", "digits", "tiny"]
"""The experiment itself; the same on small images that need no files; and a run that only shows that it runs."""

FOLDER = files("dubio_lab") / "specs"


@dataclass(frozen=True)
class Cell:
    """One cell, row or curve of a table or figure."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    """What is other in this cell."""
    published: dict[str, float] = field(default_factory=dict)
    """What the source says, by metric."""
    said: dict[str, str] = field(default_factory=dict)
    """What it says in words, where it gives no number: ``below 10``."""


@dataclass(frozen=True)
class ExperimentSpec:
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
    curves: dict[str, str] = field(default_factory=dict)
    """What is measured along an axis, in words, by name."""
    digits: dict[str, Any] = field(default_factory=dict)
    """What a run on scikit-learn's digits changes, which need no files; empty where that makes no sense."""
    alone: bool = False
    """Whether its cells are timed, and must not run beside others."""
    searched_in: tuple[str, ...] = ()
    """Specs in which its settings were searched, before it was run; no number depends on them."""
    not_run: str = ""
    """Why it has no records here, in words, such as what it needs; empty where it has some, or is running."""
    tiny: dict[str, Any] = field(default_factory=dict)
    """What a run changes that only shows that everything runs; on digits where they will do."""

    def __post_init__(self) -> None:
        names = [cell.name for cell in self.cells]
        if not names or len({*names}) < len(names):
            raise ValueError(f"spec {self.name} must have cells, each with a name of its own, got {names}")
        if not self.seeds:
            raise ValueError(f"spec {self.name} must have one seed or more")
        for cell in self.cells:
            unknown = [metric for metric in (*cell.published, *cell.said) if metric not in self.metrics]
            if unknown:
                raise ValueError(f"spec {self.name} must say in words what {unknown[0]} of {cell.name} is")

    def settings_of(self, cell: Cell, variant: Variant = "full") -> dict[str, Any]:
        """All settings of a cell."""
        if variant == "digits" and not self.digits:
            raise ValueError(f"{self.name} cannot be run on digits")
        changed = {"full": {}, "digits": self.digits, "tiny": {**self.digits, **self.tiny}}[variant]
        merged = {**self.settings, **cell.settings, **changed}
        if "networks" in merged:  # of which a cell has one, and does not depend on the others
            merged["networks"] = {merged["network"]: merged["networks"][merged["network"]]}
        return merged

    def digest_of(self, cell: Cell, variant: Variant = "full") -> str:
        """A hash of all that a cell's numbers depend on but the seed: the protocol, and its settings."""
        content = {"protocol": self.protocol, "settings": self.settings_of(cell, variant)}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def spec_names() -> list[str]:
    """The names of all specs."""
    return sorted(file.name.removesuffix(".toml") for file in FOLDER.iterdir() if file.name.endswith(".toml"))


def load_spec(name: str) -> ExperimentSpec:
    """A spec by its name."""
    if name not in spec_names():
        hint = did_you_mean(name, spec_names())
        raise ValueError(f"an experiment must be one of {', '.join(spec_names())}, got {name!r}{hint}")
    content = tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    try:
        spec = read_value(ExperimentSpec, {"name": name, "cells": content.pop("cell"), **content})
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the spec {name} cannot be read: {error}") from error
    unknown = [search for search in spec.searched_in if search not in spec_names()]
    if unknown:
        raise ValueError(f"searched_in of {name} must name specs, got {unknown[0]!r}; dubio reproduce --list has them")
    return spec
