"""The house: what ``import dubio`` costs and brings in, that names are kept, and that every numbered test exists."""

import ast
import json
import os
import re
import statistics
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from beartype.roar import BeartypeCallHintParamViolation

import dubio
from dubio.version import commit_here

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src" / "dubio"
NUMBERED = [*range(1, 72)]
UNWANTED = (
    "sklearn",
    "torchmetrics",
    "matplotlib",
    "typer",
    "torchvision",
    "scipy",
    "torch._dynamo",
    "torch.utils.tensorboard",
)

TIMED_IMPORT = """
import json, sys, time
start = time.perf_counter()
import torch
middle = time.perf_counter()
before = set(sys.modules)
import dubio
dubio.Bayes, dubio.predict
seconds = time.perf_counter() - middle
print(json.dumps({"torch": middle - start, "dubio": seconds, "modules": sorted(set(sys.modules) - before)}))
"""


def timed_import() -> dict[str, object]:
    """Seconds for torch, then for dubio and two of its names, and the modules that came with it, in a fresh process.

    It keeps bytecode, as installed packages have it, wherever this is run.
    """
    keeping = os.environ | {"PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", TIMED_IMPORT]
    finished = subprocess.run(command, check=True, capture_output=True, text=True, env=keeping)
    return json.loads(finished.stdout)  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.feature("import dubio adds at most 0.25 s to import torch")
def test_import_adds_at_most_a_quarter_of_a_second_to_torch(capsys: pytest.CaptureFixture[str]) -> None:
    timed_import()  # writes bytecode where there is none
    runs = [timed_import() for _ in range(5)]
    median = statistics.median(float(str(run["dubio"])) for run in runs)
    with capsys.disabled():
        print(f"\ndubio and its first names add {median:.3f} s to import torch (median of 5)")  # noqa: T201
    assert median <= 0.25


def test_import_brings_in_nothing_but_declared_dependencies() -> None:
    modules = timed_import()["modules"]
    assert isinstance(modules, list)
    assert "dubio.prediction" in modules
    assert [name for name in modules if name.startswith(UNWANTED)] == []
    foreign = {name.partition(".")[0] for name in modules} - set(sys.stdlib_module_names)
    foreign -= {name for name in foreign if "cython" in name}  # what numpy.random was compiled with
    # wadler_lindig is jaxtyping's own dependency.
    assert foreign <= {"dubio", "torch", "numpy", "jaxtyping", "wadler_lindig", "safetensors", "typing_extensions"}


def modules_after(*lines: str) -> set[str]:
    """The modules that are loaded in a fresh process after some lines of Python."""
    program = "\n".join([*lines, "import sys; print(*sys.modules)"])
    finished = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return set(finished.stdout.split())


def test_importing_dubio_alone_imports_nothing_and_a_name_imports_what_it_needs() -> None:
    alone = modules_after("import dubio", "assert 'Bayes' in dir(dubio) and 'models' in dir(dubio)")
    assert {"torch", "numpy", "typer", "dubio.methods"}.isdisjoint(alone)
    used = modules_after("import dubio", "dubio.Normal(0.0, 1.0)")
    assert {"torch", "dubio.priors"} <= used
    assert "dubio.methods" not in used


def test_packages_are_attributes_and_names_survive_star_imports_and_pickling() -> None:
    modules_after(
        "import copy, pickle, dubio",
        "assert dubio.models.build('mlp:2-2') is not None",
        "assert dubio.functional.uncertainty.entropy.__module__ == 'dubio.functional.uncertainty'",
        "from dubio import *",
        "assert predict is dubio.predict and plots is dubio.plots and __version__ == dubio.__version__",
        "assert pickle.loads(pickle.dumps(Bayes(norms=True))) == copy.deepcopy(Bayes(norms=True)) == Bayes(norms=True)",
        "assert not hasattr(dubio, 'predicted')",
    )


def test_the_root_says_where_each_public_name_is_and_none_is_called_like_a_module() -> None:
    modules = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    names = [name for places in dubio.PLACES.values() for name in places]
    assert len(set(names)) == len(names)
    assert set(dubio.PLACES) <= modules
    assert set(names) & modules == set()
    assert set(names) == set(dubio.__all__) - set(dubio.PLACES) - {"__version__"}


@pytest.mark.parametrize("number", NUMBERED)
def test_every_numbered_test_of_the_methods_exists(number: int) -> None:
    folders = (TESTS, TESTS.parent / "lab" / "tests")
    sources = [path.read_text(encoding="utf-8") for folder in folders for path in sorted(folder.rglob("test_*.py"))]
    pattern = re.compile(rf"^def test_t{number:02d}_\w+\(", flags=re.MULTILINE)
    assert any(pattern.search(source) for source in sources), f"T-{number} has no test called test_t{number:02d}_..."


@pytest.mark.parametrize("name", dubio.__all__)
def test_every_public_name_exists_and_is_described(name: str) -> None:
    value = getattr(dubio, name)
    if name in ("__version__", "Where"):  # a text, and a union of types
        return
    assert value.__doc__
    assert not value.__doc__.startswith(f"{name}(")  # the docstring that a dataclass gets for nothing


def test_the_promised_names_are_public() -> None:
    promised = {"Bayes", "Normal", "predict", "sample", "divergence", "describe", "noise_off", "frozen", "spec"}
    assert promised <= set(dubio.__all__)
    assert len(set(dubio.__all__)) == len(dubio.__all__)


def test_the_version_is_that_of_the_project() -> None:
    with (TESTS.parent / "pyproject.toml").open("rb") as file:
        assert tomllib.load(file)["project"]["version"] == dubio.__version__


def test_a_commit_is_told_only_of_files_that_a_repository_tracks(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        author = ("-c", "user.name=nobody", "-c", "user.email=nobody@nowhere")
        subprocess.run(["git", *author, *words], cwd=tmp_path, check=True, capture_output=True)

    file, other = tmp_path / "tracked.py", tmp_path / "environment.py"
    file.touch()
    other.touch()
    assert commit_here(file) is None
    git("init")
    git("add", file.name)
    git("commit", "-m", "one")
    commit = commit_here(file)
    assert commit is not None
    assert re.fullmatch("[0-9a-f]{40}", commit)
    assert commit_here(other) is None
    file.write_text("changed")
    assert commit_here(file) == f"{commit}-dirty"


def test_no_file_is_named_after_nothing() -> None:
    names = {path.stem.lower().strip("_") for path in SOURCE.rglob("*.py")}
    assert len(names) > 20
    assert not names & {"utils", "util", "helpers", "helper", "common", "misc"}


def test_signatures_are_checked_while_tests_run() -> None:
    """Axes by jaxtyping, all else by beartype, values that are made as well as functions that are called."""
    with pytest.raises(BeartypeCallHintParamViolation, match="entropy"):
        dubio.functional.uncertainty.entropy(torch.tensor([1, 0]))
    with pytest.raises(BeartypeCallHintParamViolation, match="attack_loss"):
        dubio.functional.adversarial.attack_loss(torch.rand(3, 2), torch.zeros(4, dtype=torch.long), "margin")
    with pytest.raises(BeartypeCallHintParamViolation, match="num_removed"):
        dubio.functional.variational.num_removed("ten", 0.5)
    with pytest.raises(BeartypeCallHintParamViolation, match="std"):
        dubio.priors.Normal(std="wide")


def private_symbols(path: Path) -> set[str]:
    """The names of torch with a leading underscore that a file uses, by their full names."""
    tree, names, symbols = ast.parse(path.read_text(encoding="utf-8")), {"torch": "torch", "nn": "torch.nn"}, set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            symbols |= {f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        parts, inner = [], node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if parts and isinstance(inner, ast.Name) and inner.id in names:
            symbols.add(".".join([names[inner.id], *reversed(parts)]))
    text = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    symbols |= {value for value in text if re.fullmatch(r"torch(\.\w+)+", value)}
    symbols = {symbol.removesuffix(".default") for symbol in symbols if re.search(r"\._(?!_)", symbol)}
    inner_parts = {symbol.rpartition(".")[0] for symbol in symbols}
    return {symbol for symbol in symbols if symbol not in inner_parts}


@pytest.mark.feature("Every private symbol of torch in the code is on a page, with the test that guards it")
def test_every_private_symbol_of_torch_is_on_the_page_of_such_symbols() -> None:
    page = (TESTS.parent / "docs" / "internals" / "torch.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"`(torch(?:\.\w+)+)`", page))
    used = set[str]().union(*(private_symbols(path) for path in SOURCE.rglob("*.py")))
    covered = {symbol for symbol in used if any(symbol == name or symbol.startswith(f"{name}.") for name in listed)}
    assert used
    assert used == covered, sorted(used - covered)
    unused = {name for name in listed if "._" in name and not any(symbol.startswith(name) for symbol in used)}
    assert not unused, sorted(unused)
    assert all((TESTS.parent / path).is_file() for path in re.findall(r"`(tests/[a-z_/]+\.py)`", page))
