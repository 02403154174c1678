"""Write ``docs/promises.md`` from the tests.

A test that carries ``@pytest.mark.feature("text")`` holds the promise ``text``. Each promise is a row of the table
between the two markers of the page, with the tests that hold it, in the order in which pytest collects them; the cases
of a parametrised test count once. With ``--check`` nothing is written, and the exit status is 1 when the page is out
of date.
"""

import argparse
import contextlib
import io
import sys
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "promises.md"
BEGIN = "<!-- promises:begin -->"
END = "<!-- promises:end -->"


class Collector:
    """A pytest plugin that keeps the promises it sees: text -> the tests that hold it."""

    def __init__(self) -> None:
        self.features: dict[str, list[str]] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Read the marks of every collected test."""
        for item in session.items:
            test = item.nodeid.partition("[")[0]
            for mark in item.iter_markers("feature"):
                if len(mark.args) != 1 or not isinstance(mark.args[0], str) or mark.kwargs:
                    raise pytest.UsageError(f"{test}: feature takes one text, got {mark.args} {mark.kwargs}")
                tests = self.features.setdefault(mark.args[0], [])
                if test not in tests:
                    tests.append(test)


def main() -> int:
    """Write the table, or with ``--check`` compare it, and return the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/promises.md from the tests.")
    parser.add_argument("--check", action="store_true", help="only say whether the table is up to date")
    check = parser.parse_args().check

    features = collect()
    before = PAGE.read_text(encoding="utf-8")
    after = fill(before, table(features))

    if before == after:
        print(f"the table in docs/promises.md is up to date ({len(features)} promises)")
        return 0
    if check:
        print("the table in docs/promises.md is out of date; run `make table`", file=sys.stderr)
        return 1
    PAGE.write_text(after, encoding="utf-8")
    print(f"wrote the table in docs/promises.md ({len(features)} promises)")
    return 0


def collect() -> dict[str, list[str]]:
    """Return the promises and their tests, without running a test."""
    collector = Collector()
    output = io.StringIO()
    folders = (str(ROOT / "tests"), str(ROOT / "lab" / "tests"))
    arguments = ["--collect-only", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *folders]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(arguments, plugins=[collector])
    if status != pytest.ExitCode.OK:
        print(output.getvalue())
        _refuse(f"pytest could not collect the tests and ended with {int(status)}")
    return collector.features


def table(features: dict[str, list[str]]) -> str:
    """Return the promises as a Markdown table."""
    rows = ["| feature | held by |", "|---|---|"]
    for text, tests in features.items():
        cell = text.replace("|", r"\|")
        rows.append(f"| {cell} | {'<br>'.join(f'`{test}`' for test in tests)} |")
    return "\n".join(rows)


def fill(page: str, content: str) -> str:
    """Return the page with ``content`` between the two markers."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        _refuse(f"docs/promises.md must contain {BEGIN} once and, after it, {END} once")
    head, _, rest = page.partition(BEGIN)
    tail = rest.partition(END)[2]
    return f"{head}{BEGIN}\n{content}\n{END}{tail}"


def _refuse(message: str) -> NoReturn:
    print(f"promises: {message}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main())
