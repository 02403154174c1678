"""``dubio audit``: whether the robustness of a run is real, in a table and in ``audit.json``."""

import dataclasses
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import typer
from rich.console import Console
from rich.text import Text

from dubio.auditing import Audit, BudgetName, audit
from dubio.cli.answers import say
from dubio.cli.arguments import device_for
from dubio.cli.attacking import check_images, parse_epsilons
from dubio.cli.folders import folder_of, load_model, network_of
from dubio.cli.predicting import check_fits, test_examples
from dubio.cli.terminal import PlainTable
from dubio.codec import printable
from dubio.training import Interrupted

__all__ = ["FILE", "audit_run", "gates_failed", "summary", "tabulate"]

FILE = "audit.json"
GATE_FAILED = 1
WIDTH = 80
STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}


def audit_run(
    named: str,
    epsilon: str,
    norm: Literal["linf", "l2"],
    budget: BudgetName,
    images: int | None,
    require: Literal["VALID"] | None,
    min_accuracy: float | None,
    data: str | None,
    data_dir: Path | None,
    seed: int,
    device: str | None,
    out: Path | None,
    quiet: bool,
    runs: Path,
) -> None:
    """Audit a network, write ``audit.json`` and print what holds."""
    distance = _parse_epsilon(epsilon)
    if min_accuracy is not None and not 0.0 <= min_accuracy <= 1.0:
        raise ValueError(f"--min-accuracy must be in [0, 1], got {min_accuracy}")
    model = load_model(named, runs).to(device_for(device))
    examples = test_examples(named, runs, data, data_dir)
    check_fits(model, examples)
    check_images(examples, "dubio audit")
    folder = out or folder_of(named, runs)
    asked: dict[str, tuple[object, object]] = {
        "--norm": (norm, "linf"),
        "--budget": (budget, "quick"),
        "--images": (images, None),
        "--data": (data, None),
        "--seed": (seed, 0),
    }
    places = {"--data-dir": (data_dir, None), "--out": (out, None), "--runs": (runs, Path("runs"))}
    command = ["dubio", "audit", named, "--epsilon", epsilon, *_spelled(asked)]
    with _resumable([*command, *_spelled(places)]):
        found = audit(
            model,
            examples,
            norm=norm,
            epsilon=distance,
            budget=budget,
            num_images=images,
            seed=seed,
            folder=folder,
            progress=not quiet,
        )
    told = {**found.made_by, "command": shlex.join(command), "network": network_of(named, runs).tensors or ""}
    found = dataclasses.replace(found, made_by=told)
    found.save(folder / FILE)
    _show(found)
    if not quiet:
        say(f"record: {folder / FILE}")
    failed = gates_failed(found, require, min_accuracy)
    for line in failed:
        say(f"gate failed: {line}", err=True)
    if failed:
        raise typer.Exit(GATE_FAILED)


def tabulate(found: Audit) -> PlainTable:
    """The checks, in the order of their numbers."""
    table = PlainTable(width=WIDTH)
    table.add_column("check", no_wrap=True)
    table.add_column("question", width=20)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what was found")
    for check in found.checks:
        mark = f"{check.id}{'*' if check.required else ''}"
        table.add_row(mark, check.name, Text(check.status, STYLES[check.status]), Text(check.words))
    return table


def summary(found: Audit) -> list[str]:
    """The headline and what stands beside it, and what the status means."""
    threat, headline = found.threat, found.headline
    worst = max(headline.shares.items(), key=lambda item: item[1])
    frozen = "-" if found.r_frozen is None else f"{found.r_frozen:.1%}"
    return [
        f"{threat.norm} {threat.epsilon:.4g}, {headline.num_images} images of {found.data}, budget {threat.budget}: "
        f"a change below {100.0 * threat.resolution:.0f} points counts as none.",
        f"{f'R_pred({headline.num_draws})':13}{found.r_pred!s:26}the headline: the mean over draws",
        f"{'R_1':13}{found.r_1!s:26}one draw",
        f"{'R_retry(10)':13}{found.r_retry!s:26}ten draws in a row",
        f"{'R_frozen':13}{frozen:26}the attacker knows the draws",
        f"{'clean':13}{found.clean!s:26}without an attack",
        f"The worst attack most often: {worst[0]} ({worst[1]:.0%} of the images).",
        f"{found.status}: {_meaning(found)}",
    ]


def gates_failed(found: Audit, require: str | None, min_accuracy: float | None) -> list[str]:
    """What was asked of the audit and does not hold. An accuracy is held by the lower end of its interval."""
    failed = []
    if require is not None and found.status != require:
        why = f", because of {', '.join(check.id for check in found.failed)}" if found.failed else ""
        failed.append(f"--require {require}, but the audit is {found.status}{why}")
    if min_accuracy is not None and found.headline.low < min_accuracy:
        failed.append(
            f"--min-accuracy {min_accuracy:g}, but the lower bound of the headline is {found.headline.low:.4f}"
        )
    return failed


def _meaning(found: Audit) -> str:
    few = f" Reservation: {found.too_few}." if found.too_few else ""
    if found.status == "UPPER BOUND ONLY":
        failed = ", ".join(check.id for check in found.failed)
        return f"required checks did not pass ({failed}), so a better attack may leave less.{few}"
    if found.status == "EXTRAORDINARY":
        return f"every required check passed, and the headline is beyond all that is published: look again.{few}"
    if found.caveats:
        return f"every required check (*) passed, with reservations: {'; '.join(found.caveats)}."
    return "every required check (*) passed; the headline can be believed as far as these attacks go."


def _parse_epsilon(text: str) -> float:
    found = parse_epsilons(text)
    if len(found) != 1:
        raise ValueError(f"--epsilon must be one distance for an audit, got {text!r}")
    return next(iter(found.values()))


def _spelled(options: Mapping[str, tuple[object, object]]) -> list[str]:
    """Options as they are typed, without those that have their usual value."""
    return [part for option, (own, usual) in options.items() if own != usual for part in (option, str(own))]


@contextmanager
def _resumable(command: list[str]) -> Iterator[None]:
    """Ctrl-C says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"finished attacks are kept; go on with: {shlex.join(command)}") from None


def _show(found: Audit) -> None:
    console = Console(highlight=False)
    console.print(tabulate(found))
    for line in summary(found):
        console.print(printable(line), markup=False)
