"""The pages of docs/: what they show runs, links lead somewhere, and tables come from records."""

import importlib.util
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

import dubio
from dubio.cli.commands import app
from dubio.methods import METHODS

pytest.importorskip("sklearn")

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "methods").glob("*.md"))
NAMES = [page.stem for page in PAGES]
OTHERS = sorted([*(ROOT / "docs").glob("*.md"), *(ROOT / "lab").glob("*.md")])
GUIDES = [page for page in OTHERS if "```python" in page.read_text(encoding="utf-8")]


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page that are marked with a language; commands are marked with none."""
    text = page.read_text(encoding="utf-8")
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)
    return [block for marked, block in fenced if marked == language]


def test_every_number_that_the_code_cites_is_on_the_page_of_formulas() -> None:
    page = (ROOT / "docs" / "reference" / "formulas.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| ([ET]-\d+) \|", page, flags=re.MULTILINE))
    files = [
        path for folder in ("src", "tests", "lab/dubio_lab", "lab/tests") for path in (ROOT / folder).rglob("*.py")
    ]
    cited = {number for path in files for number in re.findall(r"\b[ET]-\d+\b", path.read_text(encoding="utf-8"))}
    assert cited
    assert cited <= listed, sorted(cited - listed)
    assert all((ROOT / path).is_file() for path in re.findall(r"\(`((?:lab/)?tests/[^`]+)`\)", page))


def test_every_module_that_keeps_hidden_state_is_on_the_page_of_state_with_a_test() -> None:
    page = (ROOT / "docs" / "internals" / "state.md").read_text(encoding="utf-8")
    state = re.compile(
        r"threading\.(local|R?Lock)\b|WeakKeyDictionary|WeakSet|\.register_forward_|torch\._C\._functorch|custom_op\("
        r"|TorchFunctionMode|__class__ = |signal\.signal\("
    )
    source = ROOT / "src" / "dubio"
    keeping = {
        path.relative_to(source).as_posix() for path in source.rglob("*.py") if state.search(path.read_text("utf-8"))
    }
    assert keeping
    assert keeping <= set(re.findall(r"`([a-z_/]+\.py)`", page)), sorted(keeping)
    assert all((ROOT / path).is_file() for path in re.findall(r"`(tests/[a-z_/]+\.py)`", page))


@pytest.fixture
def one_epoch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``dubio.fit``, which stops after one epoch, whoever calls it."""
    fit = dubio.fit

    def fit_briefly(*args: Any, **options: Any) -> Any:
        return fit(*args, **{**options, "epochs": 1, "progress": False})

    monkeypatch.setattr(dubio, "fit", fit_briefly)
    return fit_briefly


@pytest.fixture
def few_epochs(monkeypatch: pytest.MonkeyPatch, page: Path) -> None:
    """``dubio.fit``, which stops after two epochs, and after twenty where a guide needs a network that has learned."""
    fit = dubio.fit
    most = 20 if page.stem == "deciding" else 2

    def fit_shortly(*args: Any, **options: Any) -> Any:
        return fit(*args, **{**options, "epochs": min(options.get("epochs") or most, most), "progress": False})

    monkeypatch.setattr(dubio, "fit", fit_shortly)


@pytest.mark.feature("The Python and the commands on the page of every method run as they stand there")
@pytest.mark.parametrize("page", PAGES, ids=NAMES)
@pytest.mark.usefixtures("unchecked")
def test_the_python_of_a_page_runs(page: Path, one_epoch: Callable[..., Any]) -> None:
    found = blocks(page, "python")
    assert found
    exec(compile("\n".join(found), str(page), "exec"), {})


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page.stem == "audit" else []) for page in GUIDES],
    ids=[page.stem for page in GUIDES],
)
@pytest.mark.usefixtures("unchecked")
def test_the_python_of_a_guide_runs(
    page: Path, few_epochs: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks(page, "python")), str(page), "exec"), {})
    if page.stem == "pictures":
        assert {path.name for path in tmp_path.iterdir()} == {"regions.png", "bands.png", "votes.png", "embedding.png"}


@pytest.mark.slow
@pytest.mark.parametrize("page", [ROOT / "docs" / "pruning.md"], ids=lambda page: page.stem)
def test_the_commands_of_a_guide_run(page: Path, tmp_path: Path) -> None:
    for command in [shlex.split(line) for block in blocks(page, "") for line in block.splitlines()]:
        assert command[0] == "dubio"
        briefly = ["--epochs", "1"] if command[1] == "train" else []
        done = CliRunner().invoke(app, [*command[1:], *briefly, "--runs", str(tmp_path)], catch_exceptions=False)
        assert done.exit_code == 0, done.output


@pytest.mark.slow
@pytest.mark.feature("The Python and the commands on the page of every method run as they stand there")
@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_the_commands_of_a_page_run(page: Path, tmp_path: Path) -> None:
    commands = [shlex.split(line) for block in blocks(page, "") for line in block.splitlines()]
    assert any(command[:2] == ["dubio", "train"] for command in commands)
    for command in commands:
        assert command[0] == "dubio"
        briefly = ["--epochs", "1", "--runs", str(tmp_path)] if command[1] == "train" else []
        done = CliRunner().invoke(app, [*command[1:], *briefly], catch_exceptions=False)
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_a_page_is_of_a_method_and_the_first_page_leads_to_it(page: Path) -> None:
    if page.stem == "README":
        return
    assert page.stem in METHODS
    text = page.read_text(encoding="utf-8")
    assert f"<!-- figures: fields:{page.stem} -->" in text
    assert f"[{page.stem}]({page.name})" in (page.parent / "README.md").read_text(encoding="utf-8")


def test_every_method_has_a_page() -> None:
    assert set(METHODS) | {"README"} == set(NAMES)


@pytest.mark.parametrize(
    "page", [*PAGES, *OTHERS, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem
)
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script that writes tables, with pages and records of its own."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    spec = importlib.util.spec_from_file_location("figures", ROOT / "scripts" / "figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("ROOT", "PAGES", "RESULTS"):
        monkeypatch.setattr(module, name, tmp_path)
    score = {"entropy": 0.5, "entropy_on_noise": 1.5, "seconds": 2.0}
    stored = {
        "commit": "0123456789",
        "hardware": "CPU",
        "versions": {"torch": "2"},
        "records": {
            "methods": {
                "settings": {"num_test": 449, "test_draws": 100, "alpha_draws": 10},
                "defaults": [
                    {"method": "bayes", "seed": 0, "accuracy": 0.9, "nll": 0.2, **score},
                    {"method": "bayes", "seed": 1, "accuracy": 1.0, "nll": 0.4, **score, "seconds": 3.0},
                    {"method": "flow", "seed": 0, "accuracy": 0.1, "nll": 2.0, **score},
                ],
                "alpha": [{"alpha": 0.5, "accuracy": 0.9, "nll": nll, **score} for nll in (0.1, 0.3)],
            }
        },
    }
    (tmp_path / "methods.json").write_text(json.dumps(stored))
    return module


def test_a_table_is_the_mean_over_seeds_and_the_slowest_of_them(figures: ModuleType) -> None:
    page = "before\n<!-- figures: digits:bayes -->\nstale\n<!-- end -->\nafter\n"
    filled = figures.fill(page, "page.md")
    assert "| bayes | 0.950 | 0.300 | 0.500 | 1.500 | 3.0 |\n" in filled
    assert "Means over 2 seeds; 449 test digits, 100 draws." in filled
    assert "commit 0123456:" in filled
    assert "stale" not in filled
    assert "flow" not in filled
    assert filled.startswith("before\n<!-- figures: digits:bayes -->\n| method |")
    assert filled.endswith("\n<!-- end -->\nafter\n")
    assert figures.fill(filled, "page.md") == filled


def test_what_was_not_measured_is_told_instead_of_figures(figures: ModuleType) -> None:
    told = "; `benchmarks/run.py methods` does it."
    assert figures.table("digits:pni", "page.md") == f"Not measured yet: pni{told}"
    some = figures.table("digits:flow,pni", "page.md").splitlines()
    assert some[2].startswith("| flow |")
    assert some[-1] == f"Not measured yet: pni{told}"
    every = figures.table("digits", "page.md")
    assert every.index("| bayes |") < every.index("| flow |") < every.index("Not measured yet: dropout, input-noise")
    assert "Not measured" not in figures.table("digits:bayes,flow", "page.md")


def test_claims_of_a_paper_and_how_many_have_which_verdict_are_told(figures: ModuleType) -> None:
    head = "| statement | published | ours, with interval | seeds | verdict |\n"
    assert figures.table("claims:iwe", "page.md").startswith(head)
    counts = (
        r"(\d+) published statements: 0 reproduced, 0 partly, 0 not reproduced, 0 opposite, 0 undecided, \1 not run"
    )
    assert re.search(rf"\n{counts}: \[which, and why\]\(lab/FINDINGS\.md\)\.$", figures.table("results", "README.md"))
    table = figures.table("counts", "page.md")
    assert re.match(rf"{counts}\.\n\n\| paper \| statements \| reproduced \|", table)
    assert table.endswith("\n\nNo records yet.")


def test_the_error_of_a_mean_is_the_standard_error(figures: ModuleType) -> None:
    assert "| 0.5 | -0.2000 +- 0.1000 | 0.900 | 1.500 |" in figures.table("alpha", "page.md")


def test_two_tables_on_a_page_are_filled_apart(figures: ModuleType) -> None:
    place = "<!-- figures: digits:{} -->\n<!-- end -->\n"
    filled = figures.fill(f"{place.format('bayes')}between\n{place.format('flow')}", "page.md")
    first, _, second = filled.partition("\nbetween\n")
    assert "| bayes |" in first
    assert "| flow |" not in first
    assert "| flow |" in second


def test_a_stale_page_is_told_and_then_mended(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: digits -->\n<!-- end -->\n")
    monkeypatch.setattr("sys.argv", ["figures.py", "--check"])
    assert figures.main() == 1
    assert "page.md are out of date; run `make table`" in capsys.readouterr().err
    assert page.read_text() == "<!-- figures: digits -->\n<!-- end -->\n"
    monkeypatch.setattr("sys.argv", ["figures.py"])
    assert figures.main() == 0
    monkeypatch.setattr("sys.argv", ["figures.py", "--check"])
    assert figures.main() == 0


@pytest.mark.parametrize(
    ("page", "told"),
    [
        ("<!-- figures: nothing -->\n<!-- end -->\n", "figures must be one of fields, digits, .*, got 'nothing'"),
        ("<!-- figures: digits -->\n", "must be followed by its own <!-- end -->"),
        ("<!-- figures: digits -->\n<!-- figures: alpha -->\n<!-- end -->\n", "must be followed by its own"),
        (
            "<!-- figures: digits -->\n<!-- figures: alpha -->\n<!-- end -->\n<!-- end -->\n",
            "must be followed by its own",
        ),
        ("<!-- figures: steps -->\n<!-- end -->\n", "noise_h200.json is missing"),
        ("<!-- figures: digits:magic -->\n<!-- end -->\n", "digits must be of methods among bayes, .*, got 'magic'"),
        ("<!-- figures: fields:digits -->\n<!-- end -->\n", "fields must be those of one of bayes, .*, got 'digits'"),
        ("<!-- figures: claims:all -->\n<!-- end -->\n", "claims must be those of one of bws, .*, got 'all'"),
    ],
)
def test_a_page_that_cannot_be_filled_is_refused(
    figures: ModuleType, page: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        figures.fill(page, "page.md")
    assert stopped.value.code == 2
    assert re.search(told, capsys.readouterr().err)
