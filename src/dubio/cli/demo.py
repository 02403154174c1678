"""``dubio demo``: every method with the same network and the same digits, and what an attack leaves of each."""

import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import nn

from dubio import attacks
from dubio.auditing import Audit, audit
from dubio.checks import did_you_mean, listed
from dubio.cli.attack import FILE as AUDIT, choose_images, run_attacks
from dubio.cli.errors import say
from dubio.cli.evaluate import FILE as EVALUATION, headline, noise_like
from dubio.cli.prune import RECORD as PRUNING, measure, told_of
from dubio.cli.runs import TrainConfig, load_splits, network_of, train_order, unused_name
from dubio.cli.terminal import PlainTable
from dubio.codec import printable
from dubio.data import Splits
from dubio.evaluation import Evaluation, evaluate
from dubio.methods import METHODS
from dubio.objectives import Loss
from dubio.report import write_report
from dubio.training import FitResult, Interrupted

EPSILON = 0.1
AUDITED = ("deterministic", "bayes", "flow")
HOPELESS = 0.3
"""An epsilon at which nothing is left of a network that was not trained against attacks."""
LEVEL = 0.03
"""A difference of mean NLL on so few digits that another seed may well turn round."""
WHY_WORSE = {
    "wasserstein": "its head, new in the place of the classifier, has more to learn from so few digits",
    "dropout": "each draw lacks a part of a network that is small already",
}


@dataclass(frozen=True)
class Size:
    """How much a demo does."""

    methods: tuple[str, ...] | None = None
    """None for all of them."""
    epochs: int | None = None
    """None for the method's own."""
    num_draws: int = 20
    num_attacked: int = 128
    attack: dict[str, Any] = field(default_factory=lambda: {"steps": 10, "num_samples": 10})
    looks_further: bool = True
    """Whether some networks are audited, and one is pruned."""


TINY = Size(("deterministic", "bayes", "ensemble"), 1, 4, 8, {"steps": 2, "num_samples": 2}, looks_further=False)


@dataclass(frozen=True, eq=False)
class Shown:
    """A method's line of the table."""

    method: str
    run: str
    """The name of its run."""
    evaluation: Evaluation
    attacked: attacks.Score
    audit: Audit | None = None
    """Of the networks that are audited."""


def show_demo(
    runs: Path, methods: str | None = None, epochs: int | None = None, *, tiny: bool = False, quiet: bool = False
) -> None:
    """Train a network by each method, compare their doubt on digits and on noise, and attack them."""
    size = TINY if tiny else Size()
    names = list(size.methods) if methods is None and size.methods is not None else parse_methods(methods)
    size = size if epochs is None else replace(size, epochs=epochs)
    splits = load_splits(TrainConfig())
    with _progress(len(names), quiet) as progress:
        shown = [_try(name, number, splits, runs, size, progress) for number, name in enumerate(names)]
    assert splits.test is not None
    console = Console(highlight=False)
    console.print(_table(shown, len(splits.test), size))
    if not quiet:
        for line in _explanation(shown, runs, size):
            console.print(printable(line), markup=False)
    if tiny:
        console.print("This was a tiny demo, to see that everything runs: its numbers mean nothing.")
    told = _report([runs / row.run for row in shown], runs)
    if quiet:
        return
    say(told)
    say("Try next:")
    for command in _next_commands(shown, runs):
        say(f"  {command}")


def parse_methods(text: str | None) -> list[str]:
    """Names of methods from ``bayes,dropout``; without a text all of them, the ordinary network first."""
    if text is None:
        return sorted(METHODS, key=lambda name: name != "deterministic")
    names = text.split(",")
    wrong = [name for name in names if name not in METHODS]
    if wrong or len(set(names)) < len(names):
        got = f"{wrong[0]!r}{did_you_mean(wrong[0], METHODS)}" if wrong else repr(text)
        raise ValueError(f"--methods must name some of {listed(list(METHODS), 'and')}, each once, got {got}")
    return names


def _try(name: str, number: int, splits: Splits, runs: Path, size: Size, progress: Progress) -> Shown:
    """Train, evaluate and attack one network."""
    order = TrainConfig(method=name, epochs=size.epochs)
    run = unused_name(f"demo-{name}", runs)
    epoch_bar = _EpochBar(progress, number, f"training {name}", size.epochs or METHODS[name]().recipe.epochs)
    began = time.perf_counter()
    try:
        model, _ = train_order(order, splits, runs / run, callbacks=(epoch_bar,), progress=False)
    except Interrupted:
        raise KeyboardInterrupt from None  # a demo is not resumed
    seconds = time.perf_counter() - began
    test = splits.test
    assert test is not None
    epoch_bar.say(f"evaluating {name}")
    evaluation = evaluate(model, test, ood={"noise": noise_like(test)}, num_samples=size.num_draws)
    network = network_of(run, runs)
    told = {"command": f"dubio evaluate {run} --samples {size.num_draws}", "network": network.network}
    evaluation = replace(evaluation, made_by=evaluation.made_by | told)
    evaluation.save(runs / run / EVALUATION)
    epoch_bar.say(f"attacking {name}")
    chosen, epsilons = choose_images(test, size.num_attacked), {f"{EPSILON:g}": EPSILON}
    assault = run_attacks(model, chosen, ["pgd"], epsilons, size.attack, num_draws=size.num_draws, progress=False)
    assault.save(runs / run, {"model": run, "network": network.tensors})
    audited = _look_further(model, name, run, splits, runs, epoch_bar) if size.looks_further else None
    progress.console.print(
        f"{name:<13}  {epoch_bar.epochs} epochs in {seconds:.1f} s, {headline(evaluation)}", highlight=False
    )
    return Shown(name, run, evaluation, assault.rows[0].score, audited)


def _look_further(
    model: nn.Module, name: str, run: str, splits: Splits, runs: Path, epoch_bar: "_EpochBar"
) -> Audit | None:
    """Audit some of the networks, and see what the Bayesian one could do without."""
    audited = None
    network = network_of(run, runs)
    assert splits.test is not None
    assert splits.validation is not None
    if name in AUDITED:
        epoch_bar.say(f"auditing {name}")
        found = audit(model, splits.test, epsilon=EPSILON, budget="tiny", progress=False)
        command = f"dubio audit {run} --epsilon {EPSILON:g} --budget tiny"
        told = {**found.made_by, "command": command, "network": network.tensors or ""}
        audited = replace(found, made_by=told)
        audited.save(runs / run / AUDIT)
    if name == "bayes":
        measured = measure(model, splits.validation)
        replace(measured, made_by=told_of(f"dubio prune {run}", run, network)).save(runs / run / PRUNING)
    return audited


def _report(folders: Sequence[Path], runs: Path) -> str:
    """Write the report on all runs; says where it is, or why there is none."""
    path = runs / f"{unused_name('demo-report', runs, '.html')}.html"
    try:
        write_report(folders, path, title="dubio demo: ten ways to doubt, on digits" if len(folders) == 10 else None)
    except ImportError as error:
        return f"no report: {error}"
    return f"The report, with figures, examples and how to make each number again:\n  {path.resolve().as_uri()}\n"


def _table(shown: Sequence[Shown], count: int, size: Size) -> PlainTable:
    table = PlainTable(
        title=f"{count} test digits, as many images of noise, and {size.num_attacked} digits under attack"
    )
    table.title_justify = "left"
    table.add_column("method", vertical="bottom")
    for heading in ("accuracy", "NLL", "ECE", "entropy", "on\nnoise", "R_pred", "R_1"):
        table.add_column(heading, justify="right", vertical="bottom")
    for row in shown:
        metrics, uncertainty = row.evaluation.metrics, row.evaluation.uncertainty
        figures = (
            *(metrics[name].value for name in ("accuracy", "nll", "ece", "entropy")),
            uncertainty["noise"].entropy,
        )
        left = (row.attacked.predictive.value, row.attacked.single.value)
        table.add_row(row.method, *(f"{figure:.3f}" for figure in (*figures, *left)))
    return table


def _explanation(shown: Sequence[Shown], runs: Path, size: Size) -> Iterator[str]:
    """What a newcomer needs to read the table."""
    yield "NLL: what the true digits cost in nats at the probabilities given; less is better, sure but wrong is worst."
    yield "ECE: how far confidence and accuracy lie apart; 0 is calibrated."
    yield (
        "Entropy: doubt in nats; 0 is certain, 2.303 is no idea which of the ten digits it is. "
        "It should be small on digits and large on noise, which is no digit at all."
    )
    yield (
        f"R_pred and R_1: accuracy after an attack (PGD) that moves each pixel of 0 to 1 by at most {EPSILON:g}, along "
        f"gradients averaged over {size.attack['num_samples']} draws. R_pred is that of the mean over "
        f"{size.num_draws} fresh draws, R_1 that of one draw; without noise they are the same."
    )
    yield (
        f"No network was trained against attacks: at {HOPELESS:g} next to nothing is left of any, and a longer attack "
        f"may leave less at {EPSILON:g} too. {size.num_attacked} images tell an accuracy to about "
        f"{98 / size.num_attacked**0.5:.0f} points: differences of a few points are chance."
    )
    if size.looks_further:
        yield from _comparison({row.method: row.evaluation.metrics["nll"].value for row in shown})
    audited = [f"{row.method} {row.audit.status}" for row in shown if row.audit]
    if audited:
        yield (
            f"Audits, which ask whether what is left at {EPSILON:g} is real, conclude: {'; '.join(audited)}. The "
            "report lists their checks."
        )
    yield f"\nThe runs are in {runs}: {', '.join(row.run for row in shown)}."


def _comparison(nll: dict[str, float]) -> Iterator[str]:
    """Why methods are worse than the plain network, where they are."""
    if "deterministic" not in nll:
        return
    worse = [method for method in nll if nll[method] > nll["deterministic"] + LEVEL]
    for method in worse:
        why = WHY_WORSE.get(method, "its noise costs more likelihood on so few digits than it gains")
        yield f"NLL of {method} is worse than that of the plain network: {why} (docs/methods/{method}.md)."


def _next_commands(shown: Sequence[Shown], runs: Path) -> Iterator[str]:
    elsewhere = [] if runs == Path("runs") else ["--runs", str(runs)]
    first = min(shown, key=lambda row: (row.method != "bayes", row.method == "deterministic"))
    yield shlex.join(["dubio", "predict", first.run, *elsewhere])
    yield shlex.join(["dubio", "describe", first.run, *elsewhere])
    yield shlex.join(["dubio", "attack", first.run, "--epsilon", f"{HOPELESS:g}", *elsewhere])
    if len(shown) > 1:
        yield shlex.join(["dubio", "compare", *(row.run for row in shown[:3]), *elsewhere])
    yield f"dubio methods {first.method}"


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Progress]:
    """A bar over all networks, on a terminal; the lines that it prints are seen anywhere, unless it is quiet."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeElapsedColumn())
    console = Console(stderr=True, quiet=quiet)
    bar = Progress(*columns, console=console, transient=True, disable=quiet or not sys.stderr.isatty())
    with bar:
        bar.add_task("starting", total=total)
        yield bar


class _EpochBar:
    """Moves the bar after each epoch of one network."""

    def __init__(self, progress: Progress, number: int, text: str, epochs: int) -> None:
        self.epochs = epochs
        self._progress, self._number = progress, number
        self.say(text)

    def say(self, text: str) -> None:
        self._progress.update(self._progress.task_ids[0], description=text)

    def on_step(self, step: int, loss: Loss) -> None:
        pass

    def on_epoch(self, metrics: dict[str, float]) -> None:
        done = self._number + 0.9 * metrics["epoch"] / self.epochs  # the rest is evaluation and attack
        self._progress.update(self._progress.task_ids[0], completed=done)

    def on_end(self, run: FitResult) -> None:
        pass
