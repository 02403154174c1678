"""Measure how the tree is laid out, and fail where a bar is missed.

    python scripts/house.py

The source is read; dubio is imported for the frames alone. A *satellite* is a short module that one other module
imports and no ``__init__``. An import goes *past a border* when it names a module inside another package instead of the
package. Lines of code are lines that hold a token: no blank lines, comments or docstrings. *Frames* are the most that
dubio has above a module of a user's network, over all calls of it. A bar is the worst value that passes;
an issue that improves a measure lowers its bar.
"""

import ast
import inspect
import io
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "dubio"
LABORATORY = ROOT / "lab" / "dubio_lab"
SHORT = 150
"""Lines below which a module with a single importer counts as a satellite."""
FIELD_NOUNS = {"embedding", "pruning", "scaling", "training", "bootstrapping", "noise_scaling"}
"""Words of the field that end in -ing and may name a module."""
PRIVATE_WORDS = {"found", "told", "wanted", "strange", "known", "whoever", "somebody", "nobody", "asked"}
OPEN_BORDERS = {"functional"}
"""Packages whose modules may be imported from anywhere."""


@dataclass(frozen=True)
class Module:
    """A file, its name with dots, and its syntax tree."""

    path: Path
    name: str
    tree: ast.Module
    text: str

    @property
    def package(self) -> str:
        """The name of the package it lies in; of an ``__init__`` the package itself."""
        return self.name if self.path.stem == "__init__" else self.name.rpartition(".")[0]

    @property
    def modules(self) -> Iterator[str]:
        """Names of the modules between ``from`` and ``import``."""
        yield from (node.module for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom) and node.module)

    @property
    def imports(self) -> Iterator[str]:
        """Names of the modules that it imports from, as they are written."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)


@dataclass(frozen=True)
class Measure:
    """A number of the house, the worst value that passes, and what the number consists of."""

    name: str
    value: float
    bar: float
    parts: tuple[str, ...] = ()
    more_is_better: bool = False

    @property
    def passes(self) -> bool:
        """Whether the bar is met."""
        return self.value >= self.bar if self.more_is_better else self.value <= self.bar


def main() -> int:
    """Print every measure, and the parts of those that miss their bar; return the exit status."""
    verbose = "--verbose" in sys.argv[1:]
    measures = measure(read(SOURCE, "dubio"), read(LABORATORY, "dubio_lab") if LABORATORY.is_dir() else [])
    measures += [Measure(f"frames above a module in {call}", count, bar) for call, count, bar in frames()]
    for item in measures:
        relation = "at least" if item.more_is_better else "at most"
        print(f"{'ok  ' if item.passes else 'FAIL'} {item.name:44s} {item.value:8g}   {relation} {item.bar:g}")
        for part in item.parts if verbose or not item.passes else ():
            print(f"       {part}")
    return int(not all(item.passes for item in measures))


def measure(library: list[Module], laboratory: list[Module]) -> list[Measure]:
    """All measures, in the order in which they are printed."""
    sizes = [module.text.count("\n") for module in library]
    readme = (ROOT / "README.md").read_text(encoding="utf-8").count("\n")
    satellites, twice = satellites_of(library), double_names(library)
    past = past_borders([*library, *laboratory])
    gerunds = [m.name for m in library if m.path.stem.endswith("ing") and m.path.stem not in FIELD_NOUNS]
    words = private_words([*library, *laboratory])
    return [
        Measure("files under src/dubio", len(library), 150),
        Measure("lines of the median file", statistics.median(sizes), 170, more_is_better=True),
        Measure("lines of code under src/dubio", sum(map(lines_of_code, library)), 25700),
        Measure("satellites", len(satellites), 10, tuple(satellites)),
        Measure("modules named by a gerund", len(gerunds), 0, tuple(gerunds)),
        Measure("class names with two meanings", len(twice), 0, tuple(twice)),
        Measure("imports past a border", len(past), 0, tuple(past)),
        Measure("private words as identifiers", sum(words.values()), 0, tuple(map(str, words.most_common()))),
        Measure("lines of README.md", readme, 210),
    ]


def frames() -> list[tuple[str, int, int]]:
    """For calls of dubio, the most of its frames above a module of a user's network, and the bar."""
    import torch

    import dubio

    most = 0

    class User(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal most
            frame, count = inspect.currentframe(), 0
            while frame is not None:
                count += frame.f_globals.get("__name__", "").partition(".")[0] == "dubio"
                frame = frame.f_back
            most = max(most, count)
            outputs: torch.Tensor = self.layer(x)
            return outputs

    torch.manual_seed(0)
    data = torch.rand(40, 6), torch.arange(40) % 3
    methods = (dubio.Bayes(), dubio.Bayes(estimator="weight"), dubio.Dropout(0.2), dubio.Ensemble(3))
    calls: dict[str, tuple[Callable[[torch.nn.Module, int], object], int]] = {
        "fit": (lambda model, s: dubio.fit(model, data, data, epochs=1, num_samples=s, progress=False), 11),
        "predict": (lambda model, s: [dubio.predict(model, torch.rand(rows, 6), s) for rows in (40, 5000)], 11),
        "an attack": (lambda model, s: dubio.attacks.pgd(model, *data, epsilon=0.1, num_samples=s), 13),
    }
    counts = []
    for name, (call, bar) in calls.items():
        most = 0
        for method in methods:
            for num_samples in (3,) if isinstance(method, dubio.Ensemble) else (1, 10):
                call(method.convert(User()), num_samples)
        counts.append((name, most, bar))
    return counts


def read(folder: Path, root: str) -> list[Module]:
    """All modules under a folder."""
    modules = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join([root, *(part for part in parts if part != "__init__")])
        text = path.read_text(encoding="utf-8")
        modules.append(Module(path, name, ast.parse(text), text))
    return modules


def lines_of_code(module: Module) -> int:
    """Lines that hold a token other than a comment or a docstring."""
    docstrings: set[int] = set()
    for node in ast.walk(module.tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            # Also a text below a field describes it.
            match statement:
                case ast.Expr(value=ast.Constant(value=str())):
                    docstrings.update(range(statement.lineno, (statement.end_lineno or statement.lineno) + 1))
    empty = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in empty:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def satellites_of(modules: list[Module]) -> list[str]:
    """Short modules that one other module imports, and no ``__init__``."""
    names = {module.name for module in modules}
    importers: dict[str, set[str]] = defaultdict(set)
    for module in modules:
        for target in set(module.imports) & names:
            if target != module.name:
                importers[target].add(module.name)
    inits = {module.name for module in modules if module.path.stem == "__init__"}
    return [
        f"{module.name} (for {next(iter(importers[module.name]))})"
        for module in modules
        if module.text.count("\n") < SHORT and len(importers[module.name]) == 1 and module.name not in inits
        if not importers[module.name] & inits
    ]


def double_names(modules: list[Module]) -> list[str]:
    """Names that two classes have, one of them public; a leading underscore makes no other name."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{module.name}.{node.name}")
    return [
        f"{name}: {', '.join(where)}"
        for name, where in sorted(places.items())
        if len(where) > 1 and any(place.endswith(f".{name}") for place in where)
    ]


def past_borders(modules: list[Module]) -> list[str]:
    """Imports of a module inside another package, by the module that makes them."""
    names = {module.name for module in modules}
    packages = {module.package for module in modules if module.path.stem == "__init__"}
    # A package may export a function that has the name of its module: ``from dubio.training import fit``.
    exported = {
        f"{module.name}.{alias.asname or alias.name}"
        for module in modules
        if module.name in packages
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module != module.name
        for alias in node.names
    }
    crossings = set()
    for module in modules:
        if module.name == "dubio":
            continue  # it names every public name, and a type checker takes a function for its module otherwise
        for target in set(module.modules) | (set(module.imports) - exported):
            package = target.rpartition(".")[0]
            is_inside = module.package == package or module.package.startswith(f"{package}.")
            if target not in names - packages or is_inside or not package.count("."):
                continue
            if package.split(".")[1] not in OPEN_BORDERS:
                crossings.add(f"{module.name} imports {target}")
    return sorted(crossings)


def private_words(modules: list[Module]) -> Counter[str]:
    """How often each word of ``PRIVATE_WORDS`` is a name, or a part of one: of variables, arguments, functions."""
    words: Counter[str] = Counter()
    for module in modules:
        for node in ast.walk(module.tree):
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            name = node.name if named else node.arg if isinstance(node, ast.arg) else ""  # type: ignore[attr-defined]
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            words.update(PRIVATE_WORDS & set(name.lower().strip("_").split("_")))
    return words


if __name__ == "__main__":
    sys.exit(main())
