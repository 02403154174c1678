"""``dubio demo``: every method on the same network and digits, with an evaluation, an attack and a report."""

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
from dubio.cli.prune import RECORD as PRUNING, measure, with_source
from dubio.cli.runs import TrainConfig, load_splits, network_of, train_network, unused_name
from dubio.cli.terminal import PlainTable, print_lines
from dubio.data import Splits
from dubio.evaluation import Evaluation, evaluate
from dubio.methods import METHODS
from dubio.objectives import Loss
from dubio.report import write_report
from dubio.training import FitResult, Interrupted

EPSILON = 0.1
AUDITED = ("deterministic", "bayes", "flow")
HOPELESS = 0.3
"""An epsilon at which the accuracy of a network without adversarial training is about zero."""
LEVEL = 0.03
"""A difference of mean NLL that another seed may reverse, on so few digits."""
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
    """None for the epochs of the method."""
    num_draws: int = 20
    num_attacked: int = 128
    attack: dict[str, Any] = field(default_factory=lambda: {"steps": 10, "num_samples": 10})
    has_audits: bool = True
    """Whether some networks are audited, and one is pruned."""


TINY = Size(("deterministic", "bayes", "ensemble"), 1, 4, 8, {"steps": 2, "num_samples": 2}, has_audits=False)


@dataclass(frozen=True, eq=False)
class MethodResult:
    """A row of the table."""

    method: str
    run: str
    """The name of its run."""
    evaluation: Evaluation
    attacked: attacks.Score
    audit: Audit | None = None


def show_demo(
    runs: Path, methods: str | None = None, epochs: int | None = None, *, tiny: bool = False, quiet: bool = False
) -> None:
    """Train a network by each method, compare the uncertainty on digits and on noise, and attack each network."""
    size = TINY if tiny else Size()
    names = list(size.methods) if methods is None and size.methods is not None else parse_methods(methods)
    size = size if epochs is None else replace(size, epochs=epochs)
    splits = load_splits(TrainConfig())
    with _progress(len(names), quiet) as progress:
        results = [_try_method(name, number, splits, runs, size, progress) for number, name in enumerate(names)]
    assert splits.test is not None
    console = Console(highlight=False)
    console.print(_table(results, len(splits.test), size))
    if not quiet:
        print_lines(console, _explanation(results, runs, size))
    if tiny:
        console.print("This was a tiny demo, to check that everything runs: its numbers mean nothing.")
    report = _write_report([runs / row.run for row in results], runs)
    if not quiet:
        say("\n".join([report, "Try next:", *(f"  {command}" for command in _next_commands(results, runs))]))


def parse_methods(text: str | None) -> list[str]:
    """Names of methods from ``bayes,dropout``; without a text all of them, the deterministic network first."""
    if text is None:
        return sorted(METHODS, key=lambda name: name != "deterministic")
    names = text.split(",")
    wrong = [name for name in names if name not in METHODS]
    if wrong or len(set(names)) < len(names):
        got = f"{wrong[0]!r}{did_you_mean(wrong[0], METHODS)}" if wrong else repr(text)
        raise ValueError(f"--methods must name some of {listed(list(METHODS), 'and')}, each once, got {got}")
    return names


class _EpochBar:
    """Moves the bar after each epoch of one network."""

    def __init__(self, progress: Progress, number: int, text: str, epochs: int) -> None:
        self.epochs = epochs
        self._progress, self._number = progress, number
        self.say(text)

    def say(self, text: str) -> None:
        self._progress.update(self._progress.task_ids[0], description=text)

    def on_epoch(self, metrics: dict[str, float]) -> None:
        done = self._number + 0.9 * metrics["epoch"] / self.epochs  # the rest is evaluation and attack
        self._progress.update(self._progress.task_ids[0], completed=done)

    def on_step(self, step: int, loss: Loss) -> None:
        pass

    def on_end(self, run: FitResult) -> None:
        pass


def _try_method(name: str, number: int, splits: Splits, runs: Path, size: Size, progress: Progress) -> MethodResult:
    """Train, evaluate and attack one network."""
    run, test = unused_name(f"demo-{name}", runs), splits.test
    assert test is not None
    folder = runs / run
    epoch_bar = _EpochBar(progress, number, f"training {name}", size.epochs or METHODS[name]().recipe.epochs)
    began = time.perf_counter()
    try:
        config = TrainConfig(method=name, epochs=size.epochs)
        model, _ = train_network(config, splits, folder, callbacks=(epoch_bar,), progress=False)
    except Interrupted:
        raise KeyboardInterrupt from None  # a demo is not resumed
    seconds = time.perf_counter() - began
    epoch_bar.say(f"evaluating {name}")
    evaluation = evaluate(model, test, ood={"noise": noise_like(test)}, num_samples=size.num_draws)
    network = network_of(run, runs)
    made_by = {"command": f"dubio evaluate {run} --samples {size.num_draws}", "network": network.network}
    evaluation = replace(evaluation, made_by=evaluation.made_by | made_by)
    evaluation.save(folder / EVALUATION)
    epoch_bar.say(f"attacking {name}")
    chosen, epsilons = choose_images(test, size.num_attacked), {f"{EPSILON:g}": EPSILON}
    report = run_attacks(model, chosen, ["pgd"], epsilons, size.attack, num_draws=size.num_draws, progress=False)
    report.save(folder, {"model": run, "network": network.tensors})
    audited = _audit_and_prune(model, name, folder, splits, epoch_bar) if size.has_audits else None
    line = f"{name:<13}  {epoch_bar.epochs} epochs in {seconds:.1f} s, {headline(evaluation)}"
    progress.console.print(line, highlight=False)
    return MethodResult(name, run, evaluation, report.rows[0].score, audited)


def _audit_and_prune(model: nn.Module, name: str, folder: Path, splits: Splits, epoch_bar: _EpochBar) -> Audit | None:
    """Audit some of the networks, and measure what pruning the Bayesian one costs."""
    audited, network = None, network_of(folder.name, folder.parent)
    assert splits.test is not None
    assert splits.validation is not None
    if name in AUDITED:
        epoch_bar.say(f"auditing {name}")
        audited = audit(model, splits.test, epsilon=EPSILON, budget="tiny", progress=False)
        command = f"dubio audit {folder.name} --epsilon {EPSILON:g} --budget tiny"
        made_by = {**audited.made_by, "command": command, "network": network.tensors or ""}
        audited = replace(audited, made_by=made_by)
        audited.save(folder / AUDIT)
    if name == "bayes":
        record = measure(model, splits.validation)
        with_source(record, f"dubio prune {folder.name}", folder.name, network).save(folder / PRUNING)
    return audited


def _write_report(folders: Sequence[Path], runs: Path) -> str:
    """Write the report on all runs; return a text that says where it is, or why there is none."""
    path = runs / f"{unused_name('demo-report', runs, '.html')}.html"
    try:
        write_report(folders, path, title="dubio demo: ten methods on digits" if len(folders) == 10 else None)
    except ImportError as error:
        return f"no report: {error}"
    return f"The report, with figures, examples and commands to reproduce it:\n  {path.resolve().as_uri()}\n"


def _table(results: Sequence[MethodResult], count: int, size: Size) -> PlainTable:
    title = f"{count} test digits, as many images of noise, and {size.num_attacked} digits under attack"
    columns = ("accuracy", "NLL", "ECE", "entropy", "on\nnoise", "R_pred", "R_1")
    table = PlainTable("method", numbers=columns, title=title, title_justify="left")
    for column in table.columns:
        column.vertical = "bottom"
    for row in results:
        metrics = [row.evaluation.metrics[name].value for name in ("accuracy", "nll", "ece", "entropy")]
        robust = (row.attacked.predictive.value, row.attacked.single.value)
        values = (*metrics, row.evaluation.uncertainty["noise"].entropy, *robust)
        table.add_row(row.method, *(f"{value:.3f}" for value in values))
    return table


def _explanation(results: Sequence[MethodResult], runs: Path, size: Size) -> Iterator[str]:
    """What a newcomer needs to read the table."""
    yield "NLL: what the true digits cost in nats at the predicted probabilities; less is better."
    yield "ECE: the gap between confidence and accuracy; 0 is calibrated."
    yield (
        "Entropy: uncertainty in nats; 0 is certain, 2.303 is uniform over the ten digits. "
        "It should be small on digits and large on noise, which contains no digit."
    )
    yield (
        f"R_pred and R_1: accuracy under an attack (PGD) that moves each pixel of 0 to 1 by at most {EPSILON:g}, along "
        f"gradients averaged over {size.attack['num_samples']} draws. R_pred is that of the mean over "
        f"{size.num_draws} fresh draws, R_1 that of one draw; without noise they are the same."
    )
    yield (
        f"No network was trained against attacks: at epsilon {HOPELESS:g} the accuracy of each is about zero, and a "
        f"longer attack may lower it at {EPSILON:g} too. With {size.num_attacked} images an accuracy is known to about "
        f"{98 / size.num_attacked**0.5:.0f} points: differences of a few points are chance."
    )
    if size.has_audits:
        yield from _comparison({row.method: row.evaluation.metrics["nll"].value for row in results})
    audited = [f"{row.method} {row.audit.status}" for row in results if row.audit]
    if audited:
        yield (
            f"Audits check whether the accuracy under attack at {EPSILON:g} can be trusted: {'; '.join(audited)}. The "
            "report lists their checks."
        )
    yield f"\nThe runs are in {runs}: {', '.join(row.run for row in results)}."


def _comparison(nll: dict[str, float]) -> Iterator[str]:
    """Why methods are worse than the deterministic network, where they are."""
    limit = nll.get("deterministic", float("inf")) + LEVEL
    for method in (method for method in nll if nll[method] > limit):
        why = WHY_WORSE.get(method, "its noise costs more likelihood on so few digits than it gains")
        yield f"NLL of {method} is worse than that of the plain network: {why} (docs/methods/{method}.md)."


def _next_commands(results: Sequence[MethodResult], runs: Path) -> Iterator[str]:
    runs_option = [] if runs == Path("runs") else ["--runs", str(runs)]
    first = min(results, key=lambda row: (row.method != "bayes", row.method == "deterministic"))
    several = [["compare", *(row.run for row in results[:3])]] if len(results) > 1 else []
    attack = ["attack", first.run, "--epsilon", f"{HOPELESS:g}"]
    for words in (["predict", first.run], ["describe", first.run], attack, *several):
        yield shlex.join(["dubio", *words, *runs_option])
    yield f"dubio methods {first.method}"


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Progress]:
    """A bar over all networks on a terminal; its console also prints lines elsewhere, unless quiet."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeElapsedColumn())
    console = Console(stderr=True, quiet=quiet)
    with Progress(*columns, console=console, transient=True, disable=quiet or not sys.stderr.isatty()) as bar:
        bar.add_task("starting", total=total)
        yield bar
