"""What ``dubio evaluate``, ``calibrate``, ``abstain`` and ``conformal`` need.

For ``evaluate``: out-of-distribution data by name, and the tables and sentences that it prints. For the others: a
locked run, its validation data, and the result. They decide by the validation data of the run alone; the data that it
was evaluated on are passed on with the network, so that the library can refuse to decide by them.
"""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn
from typer import Context

import dubio
from dubio.checks import did_you_mean
from dubio.cli.errors import say
from dubio.cli.options import command_line
from dubio.cli.runs import MODEL, find_run, load_model, load_splits, read_config, read_encoder
from dubio.cli.terminal import PlainTable, print_lines
from dubio.codec import Command, read_commands, write_commands
from dubio.convert import change_spec
from dubio.data import OOD_PAIRS, Examples, load_test, load_unseen
from dubio.evaluation import METRICS, SCORE_INFO, Estimate, Evaluation, failures, figure
from dubio.functional.calibration import bin_sums, calibration_error, class_nll
from dubio.io import locked
from dubio.prediction import ClassificationPredictive

FILE = "evaluation.json"
NOISE = "noise"
EXTRA = ("confidence", "expected_entropy", "aleatoric_std", "epistemic_std", "classwise_ece", "adaptive_ece", "mae")
"""Metrics that the file has and the table leaves out."""


def show(evaluation: Evaluation, named: str, quiet: bool) -> None:
    """Print the tables of an evaluation, and unless quiet what they mean."""
    console = Console(highlight=False)
    print_lines(console, failures(evaluation, named))
    for table in tables(evaluation):
        console.print(table)
    print_lines(console, () if quiet else sentences(evaluation))


def parse_names(text: str, option: str, choices: list[str]) -> list[str]:
    """Names separated by commas, or ``all`` or ``none``."""
    if text in ("all", "none"):
        return choices if text == "all" else []
    names = text.split(",")
    for name in names:
        if name not in choices:
            hint = did_you_mean(name, [*choices, "all", "none"])
            raise ValueError(f"{option} must name some of {', '.join(choices)}, or be all or none, got {name!r}{hint}")
    return names


def ood_sets(
    text: str | None, examples: Examples, data_dir: Path | None, resize: tuple[int, int] | None = None
) -> dict[str, Examples]:
    """Out-of-distribution data by name: the given ones, else noise and the usual pairs that are on this machine."""
    if text == "none":
        return {}
    sets = {}
    for name in OOD_PAIRS.get(examples.name, ()) if text is None else text.split(","):
        try:
            if name == NOISE:
                sets[name] = noise_like(examples)
            elif text is None:
                sets[name] = load_test(name, folder=data_dir)
            else:
                sets[name] = load_unseen(name, folder=data_dir, like=examples, resize=resize)
        except (OSError, ValueError):
            if text is not None:  # a set that is given by name must load
                raise
    return sets if text is not None else {**sets, NOISE: noise_like(examples)}


def noise_like(examples: Examples) -> Examples:
    """As many inputs of noise: uniform on [0, 1] for images, else Gaussian with mean and std of each feature."""
    inputs, _ = examples.tensors
    generator = torch.Generator().manual_seed(0)
    if inputs.dim() == 4:
        pixels = torch.rand(inputs.shape, generator=generator)
    else:
        pixels = inputs.mean(dim=0) + inputs.std(dim=0) * torch.randn(inputs.shape, generator=generator)
    return dataclasses.replace(examples, inputs=pixels, name=NOISE)


def headline(evaluation: Evaluation) -> str:
    """The two main metrics."""
    first = "accuracy" if evaluation.kind == "classification" else "rmse"
    return "  ".join(f"{METRICS[name].label} {figure(evaluation.metrics[name].value)}" for name in (first, "nll"))


def tables(evaluation: Evaluation) -> Iterator[PlainTable]:
    """The metrics of an evaluation, and tables of intervals, out-of-distribution data and corruptions."""
    title = f"{evaluation.data.name}, {evaluation.data.num_examples} examples"
    table = PlainTable(title, numbers=("value", "95 % interval", "over draws"))
    for name, estimate in evaluation.metrics.items():
        if name not in EXTRA:
            low, high = estimate.low, estimate.high
            interval = "" if low is None or high is None else f"{figure(low)} to {figure(high)}"
            error = "" if estimate.draw_error is None else f"+- {figure(estimate.draw_error)}"
            table.add_row(METRICS[name].label, figure(estimate.value), interval, error)
    yield table
    if evaluation.intervals:
        table = PlainTable("level of intervals", numbers=("coverage", "width"))
        for row in evaluation.intervals:
            low, high = row.coverage.low, row.coverage.high or 0.0
            interval = "" if low is None else f" ({100 * low:.0f}-{100 * high:.0f})"
            table.add_row(f"{row.level:.0%}", f"{row.coverage.value:.1%}{interval}", _with_interval(row.width))
        yield table
    for name, unseen in evaluation.unseen.items():
        table = PlainTable(f"{name} (never seen) by", numbers=("AUROC", "AUPR", "FPR at 95 %"))
        for score, areas in unseen.scores.items():
            cells = f"{areas.aupr.value:.3f}", f"{areas.fpr95.value:.3f}"
            table.add_row(SCORE_INFO[score], _with_interval(areas.auroc), *cells)
        yield table
    for name, points in evaluation.corruptions.items():
        table = PlainTable(f"{name}, strength", numbers=("accuracy", "NLL", "ECE", "entropy", "mutual inf."))
        for point in points:
            values = (point.accuracy, point.nll, point.ece, point.entropy, point.mutual_information)
            table.add_row(str(point.strength), *(f"{value:.3f}" for value in values))
        yield table


def sentences(evaluation: Evaluation) -> Iterator[str]:
    """What the metrics mean, in words."""
    if evaluation.draws is not None:
        draws = evaluation.draws
        verdict = "enough" if draws.enough else "too few; add --samples"
        yield (
            f"The draws are {verdict}: from {evaluation.num_samples} to {2 * evaluation.num_samples} draws "
            f"{draws.metric} changes by {draws.change:+.4g}, the largest relative change of all metrics."
        )
    confidence, accuracy = evaluation.metrics.get("confidence"), evaluation.metrics.get("accuracy")
    if confidence is not None and accuracy is not None:
        gap = confidence.value - accuracy.value
        verdict = "calibrated" if abs(gap) < 0.01 else "overconfident" if gap > 0 else "underconfident"
        yield (f"On the whole it is {verdict}: mean confidence {confidence.value:.1%}, accuracy {accuracy.value:.1%}.")
    if evaluation.unseen:
        yield (
            "AUROC is the probability that an out-of-distribution input has a higher uncertainty than a test input: "
            "0.5 is chance, 1 is perfect. FPR at 95 % is the share of test inputs above the threshold that detects "
            "95 % of the out-of-distribution inputs."
        )


def _with_interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return figure(estimate.value, 3)
    return f"{figure(estimate.value, 3)} ({figure(estimate.low, 3)}-{figure(estimate.high, 3)})"


@dataclass(frozen=True, eq=False)
class OpenRun:
    """A run whose network gets a decision."""

    folder: Path
    model: nn.Module
    validation: Examples
    remark: str
    """A warning about the validation data; empty where there is none."""
    quiet: bool

    def decide(self, ctx: Context, function: Callable[..., object], **options: Any) -> None:
        """Call ``calibrate``, ``abstain`` or ``conformal``; save the network and the command, and print the decision.

        Args:
            ctx: the context of the command, which also has the options for the number and the seed of draws.
            function: the function of the library.
            options: its options; the command has options of the same names.
        """
        draws = {"num_samples": ctx.params["samples"], "seed": ctx.params["seed"]}
        decision = function(self.model, self.validation, **options, **draws)
        dubio.save(self.model, self.folder / MODEL)
        name = self.folder.resolve().name
        command = Command(command_line(ctx, name, *options, "samples", "seed"), name)
        write_commands(self.folder, (*read_commands(self.folder), command))
        say(str(decision) if self.quiet else f"{decision}; kept in {self.folder / MODEL}")
        if self.remark:
            say(f"warning: {self.remark}" if self.quiet else self.remark, err=self.quiet)

    def calibration_gain(self, samples: int, seed: int) -> str:
        """Negative log-likelihood and calibration error on the validation data before and after calibration."""
        targets, values = self.validation.targets, []
        for decisions in (False, True):
            pred = self._predict(samples, seed, decisions)
            error = calibration_error(bin_sums(pred.confidence, pred.label == targets))
            values.append((class_nll(pred.log_probs, targets).item(), error.item()))
        before, after = values
        return (
            f"on the {len(self.validation)} validation examples it was fitted on: "
            f"NLL {before[0]:.4f} -> {after[0]:.4f}, calibration error {before[1]:.4f} -> {after[1]:.4f}"
        )

    def set_sizes(self, samples: int, seed: int) -> str:
        """The mean and largest size of the prediction sets on the validation data."""
        sizes = self._predict(samples, seed, decisions=True).sets.sum(dim=-1).double()
        return (
            f"sets hold {sizes.mean():.2f} classes on average on the {len(self.validation)} validation examples, "
            f"{int(sizes.max())} at most"
        )

    def _predict(self, samples: int, seed: int, decisions: bool) -> ClassificationPredictive:
        pred = dubio.predict(self.model, self.validation, samples, seed=seed, keep_samples=False, decisions=decisions)
        assert isinstance(pred, ClassificationPredictive)
        return pred


@contextmanager
def open_run(named: str, runs: Path, data_dir: Path | None, quiet: bool) -> Iterator[OpenRun]:
    """A run with its network and validation data, locked against other writers."""
    folder = find_run(named, runs)
    config = read_config(folder) if data_dir is None else read_config(folder, data_dir=str(data_dir))
    with locked(folder):
        model = load_model(named, runs)
        if isinstance(dubio.spec(model).likelihood, dubio.Gaussian):
            raise ValueError(
                f"run {named!r} predicts numbers, and calibrate, abstain and conformal are for classes; "
                f"dubio evaluate {named} measures whether its intervals hold"
            )
        validation = load_splits(config, read_encoder(folder)).validation
        if validation is None:
            raise ValueError(f"{config.data}, which run {named!r} was trained on, has no validation part to decide by")
        if (folder / FILE).is_file():
            evaluated = Evaluation.load(folder / FILE).data.fingerprint
            change_spec(model, evaluated=tuple(dict.fromkeys((*dubio.spec(model).evaluated, evaluated))))
        noisy = f"validation labels have the noise of the training labels ({config.label_noise})"
        yield OpenRun(folder, model, validation, noisy if config.label_noise is not None else "", quiet)
