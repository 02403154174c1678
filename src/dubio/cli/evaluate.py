"""``dubio evaluate``: how far a run can be trusted on its test data, in tables and in ``evaluation.json``."""

import dataclasses
import shlex
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console

from dubio.checks import did_you_mean
from dubio.cli.errors import say
from dubio.cli.options import Precision, device_for
from dubio.cli.predict import check_fits, order_of, test_examples
from dubio.cli.runs import folder_of, load_model, network_of, parse_resize
from dubio.cli.terminal import PlainTable
from dubio.codec import printable
from dubio.data import CORRUPTIONS, OOD_PAIRS, Examples, load_test, load_unseen
from dubio.evaluation import METRICS, SCORE_INFO, Estimate, Evaluation, evaluate, failures, figure

FILE = "evaluation.json"
NOISE = "noise"
EXTRA = ("confidence", "expected_entropy", "aleatoric_std", "epistemic_std", "classwise_ece", "adaptive_ece", "mae")
"""Metrics that the file has and the table leaves out."""


def evaluate_run(
    named: str,
    ood: str | None,
    corruptions: str,
    samples: int,
    resamples: int,
    data: str | None,
    data_dir: Path | None,
    seed: int,
    device: str | None,
    precision: Precision,
    out: Path | None,
    quiet: bool,
    runs: Path,
) -> None:
    """Evaluate a network, write ``evaluation.json`` and print its tables."""
    model = load_model(named, runs).to(device_for(device))
    examples = test_examples(named, runs, data, data_dir)
    check_fits(model, examples)
    wanted = parse_names(corruptions, "--corruptions", list(CORRUPTIONS))
    unseen = (
        unseen_sets(ood, examples, data_dir, parse_resize(order_of(named, runs).resize)) if examples.classes else {}
    )
    found = evaluate(
        model,
        examples,
        ood=unseen,
        corruptions=wanted,
        num_samples=samples,
        num_resamples=resamples,
        precision=precision,
        seed=seed,
    )
    given = {"--ood": ood, "--corruptions": None if corruptions == "none" else corruptions, "--data": data}
    others: dict[str, tuple[object, object]] = {
        "--samples": (samples, 100),
        "--resamples": (resamples, 300),
        "--seed": (seed, 0),
        "--precision": (precision, "fp32"),
    }
    command = ["dubio", "evaluate", named]
    command += [part for option, value in given.items() if value is not None for part in (option, value)]
    command += [part for option, (own, usual) in others.items() if own != usual for part in (option, str(own))]
    told = {"command": shlex.join(command), "network": network_of(named, runs).network}
    found = dataclasses.replace(found, made_by=found.made_by | told)
    folder = out or folder_of(named, runs)
    folder.mkdir(parents=True, exist_ok=True)
    found.save(folder / FILE)
    console = Console(highlight=False)
    for line in failures(found, named):
        console.print(printable(line), markup=False)
    for table in tables(found):
        console.print(table)
    if quiet:
        return
    for line in sentences(found):
        console.print(printable(line), markup=False)
    say(f"record: {folder / FILE}")


def parse_names(text: str, option: str, known: list[str]) -> list[str]:
    """Names with commas between them; ``all`` and ``none`` are those."""
    if text in ("all", "none"):
        return known if text == "all" else []
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        hint = did_you_mean(unknown[0], [*known, "all", "none"])
        raise ValueError(f"{option} must name some of {', '.join(known)}, or be all or none, got {unknown[0]!r}{hint}")
    return names


def unseen_sets(
    text: str | None, examples: Examples, data_dir: Path | None, resize: tuple[int, int] | None = None
) -> dict[str, Examples]:
    """Data that a network has never seen, by name: those asked for, else noise and the known pairs that are here."""
    if text == "none":
        return {}
    if text is not None:
        return {
            name: noise_like(examples)
            if name == NOISE
            else load_unseen(name, folder=data_dir, like=examples, resize=resize)
            for name in text.split(",")
        }
    found = {}
    for name in OOD_PAIRS.get(examples.name, ()):
        try:
            found[name] = load_test(name, folder=data_dir)
        except (OSError, ValueError):  # not on this machine; asked for by name, it would be refused
            continue
    return {**found, NOISE: noise_like(examples)}


def noise_like(examples: Examples) -> Examples:
    """As many inputs of noise: even on [0, 1] for images, else Gaussian with the mean and spread of each feature."""
    inputs, _ = examples.tensors
    generator = torch.Generator().manual_seed(0)
    if inputs.dim() == 4:
        pixels = torch.rand(inputs.shape, generator=generator)
    else:
        pixels = inputs.mean(dim=0) + inputs.std(dim=0) * torch.randn(inputs.shape, generator=generator)
    return dataclasses.replace(examples, inputs=pixels, name=NOISE)


def headline(found: Evaluation) -> str:
    """The two numbers that come first."""
    first = "accuracy" if found.kind == "classification" else "rmse"
    shown = ((METRICS[name].label, found.metrics[name].value) for name in (first, "nll"))
    return "  ".join(f"{label} {figure(value)}" for label, value in shown)


def tables(found: Evaluation) -> Iterator[PlainTable]:
    """The numbers of an evaluation, a few at a time."""
    yield _metrics_table(found)
    if found.intervals:
        table = _table("intervals that should hold", "they hold", "width")
        for row in found.intervals:
            table.add_row(f"{row.level:.0%}", _percent(row.coverage), _number(row.width))
        yield table
    for name, unseen in found.unseen.items():
        table = _table(f"{name} (never seen) by", "AUROC", "AUPR", "FPR at 95 %")
        for score, measured in unseen.scores.items():
            cells = f"{measured.aupr.value:.3f}", f"{measured.fpr95.value:.3f}"
            table.add_row(SCORE_INFO[score], _number(measured.auroc), *cells)
        yield table
    for name, points in found.corruptions.items():
        table = _table(f"{name}, strength", "accuracy", "NLL", "ECE", "entropy", "mutual inf.")
        for point in points:
            figures = (point.accuracy, point.nll, point.ece, point.entropy, point.mutual_information)
            table.add_row(str(point.strength), *(f"{figure:.3f}" for figure in figures))
        yield table


def sentences(found: Evaluation) -> Iterator[str]:
    """What the numbers mean, in words."""
    if found.draws is not None:
        change = f"from {found.num_samples} to {2 * found.num_samples} draws {found.draws.metric} moves by "
        verdict = "enough" if found.draws.enough else "too few; add --samples"
        yield f"The draws are {verdict}: {change}{found.draws.change:+.4g}, more than any other number, for its size."
    confidence, accuracy = found.metrics.get("confidence"), found.metrics.get("accuracy")
    if confidence is not None and accuracy is not None:
        gap = confidence.value - accuracy.value
        sure = (
            "as sure as it is right" if abs(gap) < 0.01 else f"{'surer' if gap > 0 else 'less sure'} than it is right"
        )
        yield f"On the whole it is {sure}: mean confidence {confidence.value:.1%}, accuracy {accuracy.value:.1%}."
    if found.unseen:
        yield (
            "AUROC is the chance that something never seen gets more doubt than test data: 0.5 tells nothing, 1 tells "
            "all. FPR at 95 % is the share of test data doubted where 95 % of the unseen are."
        )


def _metrics_table(found: Evaluation) -> PlainTable:
    table = _table(f"{found.data.name}, {found.data.num_examples} examples", "value", "95 % interval", "over draws")
    for name, estimate in found.metrics.items():
        if name not in EXTRA:
            low, high = estimate.low, estimate.high
            interval = "" if low is None or high is None else f"{figure(low)} to {figure(high)}"
            error = "" if estimate.draw_error is None else f"+- {figure(estimate.draw_error)}"
            table.add_row(METRICS[name].label, figure(estimate.value), interval, error)
    return table


def _table(first: str, *others: str) -> PlainTable:
    table = PlainTable(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def _number(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return figure(estimate.value, 3)
    return f"{figure(estimate.value, 3)} ({figure(estimate.low, 3)}-{figure(estimate.high, 3)})"


def _percent(estimate: Estimate) -> str:
    interval = "" if estimate.low is None else f" ({100 * estimate.low:.0f}-{100 * (estimate.high or 0.0):.0f})"
    return f"{estimate.value:.1%}{interval}"
