"""What ``dubio evaluate`` needs: out-of-distribution data by name, and the tables and sentences that it prints."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console

from dubio.checks import did_you_mean
from dubio.cli.terminal import PlainTable, print_lines
from dubio.data import OOD_PAIRS, Examples, load_test, load_unseen
from dubio.evaluation import METRICS, SCORE_INFO, Estimate, Evaluation, failures, figure

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
