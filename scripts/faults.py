"""Plant one fault at a time in a copy of the tree and see that the named tests notice it.

The faults stand in ``tests/faults.toml``; its header describes the format. A fault is *caught* when one of
its tests fails, and has *survived* when all of them pass. Anything else is an error of the entry, not a
result: text that does not occur exactly once, tests that cannot be collected, a replacement that does not
even compile or import.

A test process starts as a copy of one that has loaded torch and all else that is foreign, which would take most of the
time; dubio and its tests are loaded anew, from the copy of the tree.

Exit status: 0 all caught, 1 some survived, 2 the faults or their tests are not in order.
"""

import argparse
import importlib.util
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("src", "dubio")
LIST = Path("tests", "faults.toml")
LEFT_BEHIND = (".git", ".venv*", "__pycache__", "*_cache", ".hypothesis", "*.egg-info", "build", "dist")
LOADED_BEFORE = ["torch._dynamo", "beartype", "numpy", "safetensors.torch", "scipy.stats", "rich", "typer", "pytest"]
KEYS = {"file": str, "find": str, "replace": str, "claim": str, "tests": list}
SECONDS_PER_FAULT = 900
FOREIGN = 70  # the exit status of a test process that would not test the copy of the tree


@dataclass(frozen=True)
class Fault:
    """One entry of the list."""

    number: int
    file: str
    find: str
    replace: str
    claim: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of a fault: ``verdict`` is caught, SURVIVED or error; ``detail`` says by what, or why."""

    fault: Fault
    verdict: str
    detail: str
    seconds: float


def main() -> int:
    """Run the faults asked for and return the exit status."""
    options = _parse()
    faults = _read(ROOT / LIST)
    for fault in faults:  # check all of them, whichever are tried
        _planted(fault, ROOT)
    if options.only:
        _check_numbers(options.only, len(faults))
        faults = [fault for fault in faults if fault.number in options.only]
    if options.list:
        for fault in faults:
            print(f"{fault.number:3d}  {fault.file}: {fault.claim}")
        return 0

    _prepare()
    with tempfile.TemporaryDirectory(prefix="dubio-faults-") as folder:
        num_workers = min(options.workers, len(faults))
        trees = [_copy(Path(folder, f"tree{index}")) for index in range(num_workers)]
        if not options.passing:
            _check_sound(faults, trees[0], num_workers)
        outcomes = _try_all(faults, trees)

    counts = {v: sum(o.verdict == v for o in outcomes) for v in ("caught", "SURVIVED", "error")}
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()), f"of {len(faults)} faults")
    return 2 if counts["error"] else 1 if counts["SURVIVED"] else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Plant faults in a copy of dubio; a test must notice each.")
    parser.add_argument("--only", type=int, nargs="+", metavar="N", help="try these faults only (see --list)")
    parser.add_argument("--list", action="store_true", help="print the faults, if all can be planted, and stop")
    parser.add_argument("--passing", action="store_true", help="assume that the tests pass without a fault")
    parser.add_argument("--workers", type=int, default=2, help="faults tried at a time (default 2)")
    options = parser.parse_args()
    if options.workers < 1:
        parser.error(f"--workers must be at least 1, got {options.workers}")
    return options


def _read(path: Path) -> list[Fault]:
    """Read the list; every entry has exactly the known keys, of the right types."""
    with path.open("rb") as file:
        entries = tomllib.load(file).get("fault", [])
    if not entries:
        _refuse(f"{LIST} lists no fault")
    return [_fault(number, entry) for number, entry in enumerate(entries, start=1)]


def _fault(number: int, entry: dict[str, Any]) -> Fault:
    if entry.keys() != KEYS.keys():
        _refuse(f"fault {number} must have the keys {sorted(KEYS)}, got {sorted(entry)}")
    for key, kind in KEYS.items():
        if not isinstance(entry[key], kind) or (key != "replace" and not entry[key]):
            _refuse(f"fault {number}: {key} must be a {kind.__name__} that is not empty, got {entry[key]!r}")
    if entry["find"] == entry["replace"]:
        _refuse(f"fault {number}: find and replace are the same")
    return Fault(**{**entry, "number": number, "tests": tuple(entry["tests"])})


def _check_numbers(numbers: Iterable[int], count: int) -> None:
    for number in numbers:
        if not 1 <= number <= count:
            _refuse(f"--only must name faults from 1 to {count}, got {number}")


def _planted(fault: Fault, root: Path) -> str:
    """Return the text of the file with the fault in it; refuse what does not apply or does not compile."""
    path = root / PACKAGE / fault.file
    if not path.is_file():
        _refuse(f"fault {fault.number}: there is no {PACKAGE / fault.file}")
    text = path.read_text(encoding="utf-8")
    if (count := text.count(fault.find)) != 1:
        _refuse(f"fault {fault.number}: {fault.find!r} must occur once in {fault.file}, occurs {count} times")
    planted = text.replace(fault.find, fault.replace)
    try:
        compile(planted, fault.file, "exec")
    except SyntaxError as error:
        _refuse(f"fault {fault.number}: {fault.file} does not compile with the fault in it: {error}")
    return planted


def _copy(tree: Path) -> Path:
    shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
    return tree


def _prepare() -> None:
    """Have processes start as copies of one that has loaded what is foreign, with one thread each."""
    os.environ.update({"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"})
    multiprocessing.set_start_method("forkserver")
    multiprocessing.set_forkserver_preload(LOADED_BEFORE)


def _pytest(tree: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest in this tree; return its exit status and what it wrote."""
    output = tree.with_suffix(".out")
    process = multiprocessing.Process(target=_be_pytest, args=(tree, arguments, output))
    process.start()
    process.join(SECONDS_PER_FAULT)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError
    return process.exitcode, output.read_text(encoding="utf-8", errors="replace")


def _be_pytest(tree: Path, arguments: Sequence[str], output: Path) -> None:
    """Become ``python -m pytest`` in this tree, where its packages win over installed ones."""
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(tree)
    sources = [str(tree / "src"), str(tree / "lab")]
    os.environ.update({"PYTHONPATH": os.pathsep.join(sources), "TMPDIR": str(tree.parent)})
    tempfile.tempdir = None  # asked for anew
    sys.path[:0] = [*sources, str(tree)]
    for name in ("dubio", "dubio_lab"):
        origin = importlib.util.find_spec(name)
        if name in sys.modules or origin is None or not Path(str(origin.origin)).is_relative_to(tree):
            print(
                f"the tests would import {name} from {origin and origin.origin}, not from the copy {tree}", flush=True
            )
            raise SystemExit(FOREIGN)
    import pytest

    raise SystemExit(int(pytest.main(["-q", "-p", "no:cacheprovider", *arguments])))


def _check_sound(faults: Sequence[Fault], tree: Path, num_workers: int) -> None:
    """Run all named tests without a fault: a test that fails anyway catches nothing."""
    tests = sorted({test for fault in faults for test in fault.tests})
    print(f"running the named tests ({len(tests)}) without a fault ...", flush=True)
    status, output = _pytest(tree, "-n", str(num_workers), *tests)
    if status != 0:
        print(output)
        _refuse(f"the named tests must pass without a fault; pytest ended with {status}")


def _try_all(faults: Sequence[Fault], trees: Sequence[Path]) -> list[Outcome]:
    """Try each fault in a tree that is free, reporting as results come in."""
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def attempt(fault: Fault) -> Outcome:
        tree = free.get()
        try:
            return _try(fault, tree)
        finally:
            free.put(tree)

    outcomes = []
    with ThreadPoolExecutor(len(trees)) as pool:
        for done in as_completed([pool.submit(attempt, fault) for fault in faults]):
            outcome = done.result()
            outcomes.append(outcome)
            _report(outcome, len(outcomes), len(faults))
    return outcomes


def _try(fault: Fault, tree: Path) -> Outcome:
    path = tree / PACKAGE / fault.file
    whole, written = path.read_text(encoding="utf-8"), int(path.stat().st_mtime)
    start = time.monotonic()
    try:
        # Python matches bytecode to its source by size and whole seconds: each fault has a second of its own.
        _write(path, _planted(fault, tree), written + fault.number)
        verdict, detail = _judge(*_pytest(tree, "-x", "-n", "0", *fault.tests))
    except TimeoutError:
        verdict, detail = "error", f"its tests took longer than {SECONDS_PER_FAULT} s"
    finally:
        _write(path, whole, written)
    return Outcome(fault, verdict, detail, time.monotonic() - start)


def _write(path: Path, text: str, second: int) -> None:
    path.write_text(text, encoding="utf-8")
    os.utime(path, (second, second))


def _judge(status: int, output: str) -> tuple[str, str]:
    """Return the verdict and its detail for pytest's exit status and output."""
    if status == 0:
        return "SURVIVED", "all its tests passed"
    failed = re.findall(r"^(?:FAILED|ERROR) ((?:lab/)?tests/\S+)", output, flags=re.MULTILINE)
    if status == 1 and failed:
        return "caught", f"by {failed[0]}"
    last = "\n".join(output.strip().splitlines()[-15:])
    return "error", f"pytest ended with {status} and no test failed:\n{last}"


def _report(outcome: Outcome, done: int, total: int) -> None:
    fault = outcome.fault
    print(f"[{done}/{total}] {outcome.verdict} #{fault.number} {fault.file}: {fault.claim}")
    print(f"      {outcome.detail} ({outcome.seconds:.1f} s)", flush=True)


def _refuse(message: str) -> NoReturn:
    print(f"faults: {message}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main())
