"""Generate mutants of one package or module and list those that no test notices.

cosmic-ray makes the mutants: it replaces operators, numbers and conditions one at a time. It works on a copy of the
tree and lives in an environment of its own, ``.venv-mutants``, which borrows torch and pytest from the one that runs
this script. A mutant that survives is a line that no test holds, or an equivalent program; read it before you write a
test. A package of a few hundred lines has a thousand mutants, so ``--sample`` tries some of them.

    make mutants ARGS="functional/uncertainty.py"
    make mutants ARGS="attacks --sample 50"

Exit status: 0 when the run was completed, whatever survived; 2 when it could not start.
"""

import argparse
import json
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from environments import ROOT, make_environment, reason

ENVIRONMENT = ROOT / ".venv-mutants"
PACKAGES = (
    *("cosmic-ray", "anybadge", "decorator", "exit-codes", "GitPython", "gitdb", "smmap"),
    *("parso", "SQLAlchemy", "stevedore", "toml", "yattag"),
)
SOURCE = Path("src", "dubio")
LEFT_BEHIND = (".git", ".venv*", "__pycache__", "*_cache", ".hypothesis", "*.egg-info", "build", "dist", "runs")
SECONDS_PER_MUTANT = 120


def main() -> int:
    """Generate the mutants, run the tests on each, and print the survivors."""
    options = _parse()
    tests = options.tests or _tests_of(options.target)
    try:
        python = make_environment(ENVIRONMENT, PACKAGES, "cosmic_ray, pytest, torch")
    except (OSError, subprocess.SubprocessError) as error:
        _refuse(f"the environment could not be made: {reason(error)}")
    with tempfile.TemporaryDirectory(prefix="dubio-mutants-") as folder:
        tree = Path(folder, "tree")
        shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
        config, session = Path(folder, "config.toml"), Path(folder, "session.sqlite")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow"]
        # json.dumps quotes as TOML's basic strings do.
        config.write_text(
            "[cosmic-ray]\n"
            f"module-path = {json.dumps(str(SOURCE / options.target))}\n"
            f"timeout = {SECONDS_PER_MUTANT}.0\n"
            "excluded-modules = []\n"
            f"test-command = {json.dumps(shlex.join([*command, *tests]))}\n"
            "[cosmic-ray.distributor]\n"
            'name = "local"\n',
            encoding="utf-8",
        )
        settings = os.environ | {
            "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
            "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip

        def cosmic_ray(*arguments: str) -> None:
            subprocess.run([str(python.with_name("cosmic-ray")), *arguments], cwd=tree, env=settings, check=True)

        try:
            print(f"running {' '.join(tests)} without a mutant ...", flush=True)
            cosmic_ray("baseline", str(config))
            cosmic_ray("init", str(config), str(session))
            inside = [str(python), str(Path(__file__).resolve()), "--session", str(session)]
            if options.sample:
                subprocess.run([*inside, "--sample", str(options.sample), "--seed", str(options.seed)], check=True)
            cosmic_ray("exec", str(config), str(session))
            subprocess.run(inside, check=True)
        except subprocess.CalledProcessError as error:
            _refuse(f"{error}; the tests must pass without a mutant")
    return 0


def leave_out(session: Path, count: int, seed: int) -> None:
    """Mark all but ``count`` mutants of a session as skipped."""
    from cosmic_ray.work_db import use_db  # type: ignore[import-not-found]
    from cosmic_ray.work_item import WorkerOutcome, WorkResult  # type: ignore[import-not-found]

    with use_db(str(session)) as database:
        jobs = [item.job_id for item in database.work_items]
        kept = set(random.Random(seed).sample(jobs, min(count, len(jobs))))
        print(f"trying {len(kept)} of {len(jobs)} mutants", flush=True)
        for job in jobs:
            if job not in kept:
                database.set_result(job, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))


def report(session: Path) -> None:
    """Print each surviving mutant as a diff, and the counts."""
    from cosmic_ray.work_db import use_db
    from cosmic_ray.work_item import TestOutcome

    counts: dict[str, int] = {}
    with use_db(str(session)) as database:
        for item, result in database.completed_work_items:
            if result.test_outcome is None:
                continue
            counts[result.test_outcome.value] = counts.get(result.test_outcome.value, 0) + 1
            if result.test_outcome == TestOutcome.SURVIVED:
                mutation = item.mutations[0]
                print(f"\nsurvived: {mutation.module_path}:{mutation.start_pos[0]} ({mutation.operator_name})")
                print(result.diff)
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())) or "no mutant was tried")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Generate mutants of a package and list those that survive its tests.")
    parser.add_argument("target", nargs="?", help="a package or module of dubio, such as functional/uncertainty.py")
    parser.add_argument("--tests", nargs="+", help="tests to run; by default those at the same place under tests/")
    parser.add_argument("--sample", type=int, metavar="N", help="try N mutants chosen at random")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default 0)")
    parser.add_argument("--session", type=Path, help=argparse.SUPPRESS)  # inside the environment of cosmic-ray
    options = parser.parse_args()
    if options.sample is not None and options.sample < 1:
        parser.error(f"--sample must be at least 1, got {options.sample}")
    if options.session is not None:
        if options.sample:
            leave_out(options.session, options.sample, options.seed)
        else:
            report(options.session)
        raise SystemExit(0)
    if options.target is None:
        parser.error('name a package or module under src/dubio, as in make mutants ARGS="functional/uncertainty.py"')
    if not (ROOT / SOURCE / options.target).exists():
        parser.error(f"there is no {SOURCE / options.target}")
    return options


def _tests_of(target: str) -> list[str]:
    """The tests at the same place: ``tests/functional/test_uncertainty.py`` for ``functional/uncertainty.py``."""
    path = Path("tests", target)
    if path.suffix == ".py":
        path = path.with_name(f"test_{path.name}")
    if not (ROOT / path).exists():
        path = path.parent
    if path == Path("tests") or not (ROOT / path).exists():
        _refuse(f"there are no tests at {path} that belong to {target} alone; name some with --tests")
    return [str(path)]


def _refuse(message: str) -> NoReturn:
    print(f"mutants: {message}", file=sys.stderr)
    raise SystemExit(2)


if __name__ == "__main__":
    sys.exit(main())
