"""``dubio attack`` and ``dubio audit``: attacks on the test images of a run, their record, picture and verdict.

The seeds keep three kinds of draws apart: those of the attack, those that select the strongest of several attacks, and
those that score it (``tests/end_to_end/test_attack_command.py``).

The files of ``dubio attack`` are named after attacks, norm, distance and settings. Repeating an attack replaces its own
files and no others. ``dubio audit`` writes ``audit.json``.
"""

import dataclasses
import hashlib
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import typer
from rich.console import Console
from rich.text import Text
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from dubio import attacks
from dubio._engine import device_of
from dubio.attacks import APGD, FGSM, PGD, Attack, AttackResult, RandomNoise, Score, Square, Transfer
from dubio.auditing import Audit, BudgetName, audit
from dubio.checks import did_you_mean
from dubio.cli.errors import say
from dubio.cli.predict import load_to_test
from dubio.cli.runs import folder_of, network_of
from dubio.cli.terminal import PlainTable, print_lines
from dubio.codec import printable, write_atomically
from dubio.data import Examples
from dubio.plots import blank_figure, write
from dubio.prediction import ClassificationPredictive, predict
from dubio.report import AttackRow, RobustnessRecord, ScoreRecord, distance_of
from dubio.training import Interrupted
from dubio.version import hardware_of, versions

KINDS: dict[str, type[Attack]] = {"fgsm": FGSM, "pgd": PGD, "apgd": APGD, "square": Square}
KINDS |= {"random_noise": RandomNoise, "transfer": Transfer}
STRONGEST = "strongest"
NUM_TRIES = 10
SHARED_WITH_TRANSFER = ("norm", "num_samples", "objective", "loss")
"""Fields that a transfer has beside those of the attack that is transferred."""
NUM_SHOWN = 8
"""Images in a picture."""
RIGHT, WRONG = "#1b7837", "#b2182b"
FILE = "audit.json"
GATE_FAILED = 1
"""Exit code where a required property of an audit does not hold."""
WIDTH = 80
STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """The result of one attack at one epsilon."""

    record: AttackRow
    value: Attack | None
    """None for the strongest of several attacks."""
    inputs: Tensor
    score: Score


@dataclasses.dataclass(frozen=True, eq=False)
class AttackReport:
    """The results of all attacks on one network."""

    examples: Examples
    indices: list[int]
    clean: Score
    rows: list[Row]
    seeds: dict[str, int]
    hardware: str

    def by_epsilon(self) -> "list[AttackReport]":
        """One report for each epsilon, in order."""
        rows: dict[str, list[Row]] = {}
        for row in self.rows:
            rows.setdefault(row.record.epsilon, []).append(row)
        return [dataclasses.replace(self, rows=group) for group in rows.values()]

    @property
    def file_name(self) -> str:
        """File name without suffix: attacks, norm, epsilon, and settings that are not the defaults.

        ``attack-pgd-linf-0.1`` or ``attack-fgsm+pgd-l2-0.5-steps40``. The name does not hold draws that score, images
        and seed.
        """
        values = {row.record.attack: row.value for row in self.rows if row.value is not None}
        (epsilon,) = {row.record.distance for row in self.rows}
        norms = sorted({value.norm for value in values.values()})
        settings = sorted({setting for value in values.values() for setting in _settings(value)})
        return "-".join(("attack", "+".join(values), *norms, f"{epsilon:g}", *settings))

    def save(self, folder: Path, origin: dict[str, Any]) -> Path:
        """Write the record and the images of one epsilon, and replace those of the same attack.

        Args:
            folder: where files go.
            origin: ``model`` and ``network`` of the record.

        Returns:
            The path of the record.
        """
        folder.mkdir(parents=True, exist_ok=True)
        clean, targets = self.examples.tensors
        attacked = {f"{row.record.attack}@{row.record.epsilon}": row.inputs for row in self.rows}
        tensors = {"clean": clean, "targets": targets, **attacked}
        content = to_bytes(
            {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, {"format": RobustnessRecord.format}
        )
        record = RobustnessRecord(
            **origin,
            data=self.examples.name,
            fingerprint=self.examples.fingerprint,
            indices=tuple(self.indices),
            seeds=self.seeds,
            num_draws=self.clean.num_samples,
            num_tries=self.clean.num_tries,
            versions=versions(),
            hardware=self.hardware,
            when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            clean=ScoreRecord(**_score_fields(self.clean)),
            rows=tuple(row.record for row in self.rows),
            sha256_of_images=hashlib.sha256(content).hexdigest(),
        )
        path = folder / f"{self.file_name}.json"
        write_atomically(folder / f"{self.file_name}.safetensors", content)
        record.save(path)
        return path


def run_attacks(
    model: nn.Module,
    chosen: tuple[Examples, list[int]],
    names: list[str],
    epsilons: dict[str, float],
    fields: dict[str, Any],
    *,
    num_draws: int = 100,
    seed: int = 0,
    progress: bool = True,
) -> AttackReport:
    """Run every attack at every epsilon on the device of the network; several attacks add a row of the strongest.

    Args:
        model: the network.
        chosen: examples and their row numbers.
        names: names of attacks.
        epsilons: distances by their text.
        fields: fields of attacks. Each attack takes the fields that it has; a field that none has raises an error.
        num_draws: draws that score.
        seed: the seed that all others are derived from.
        progress: whether to show progress.
    """
    seeds = {"attack": 3 * seed, "selection": 3 * seed + 1, "scoring": 3 * seed + 2}
    for field in fields:
        if not any(field in _fields_of(name) for name in names):
            raise ValueError(f"--{field.replace('num_', '')} means nothing to {' and '.join(names)}; leave it out")
    values = {
        (name, epsilon): _attack(name, distance, fields, seeds["attack"])
        for name in names
        for epsilon, distance in epsilons.items()
    }
    device = device_of(model) or torch.device("cpu")
    inputs, targets = (tensor.to(device) for tensor in chosen[0].tensors)

    tries = min(NUM_TRIES, num_draws)

    def scored(adversarial: Tensor) -> Score:
        return attacks.score(model, adversarial, targets, num_samples=num_draws, num_tries=tries, seed=seeds["scoring"])

    def row(name: str, value: Attack | None, adversarial: Tensor, results: list[AttackResult]) -> Row:
        fields = None if value is None else {"kind": type(value).__name__, **dataclasses.asdict(value)}
        costs = {
            cost: sum(getattr(result, cost) for result in results) for cost in ("forwards", "backwards", "seconds")
        }
        score = scored(adversarial)
        record = AttackRow(attack=name, epsilon=epsilon, fields=fields, **costs, **_score_fields(score))
        return Row(record, value, adversarial.cpu(), score)

    clean, rows = scored(inputs), []
    for epsilon in epsilons:
        results = []
        for name in names:
            value = values[name, epsilon]
            results.append(value(model, inputs, targets, progress=progress))
            rows.append(row(name, value, results[-1].inputs, results[-1:]))
        if len(names) > 1:
            worst = attacks.strongest(model, results, targets, seed=seeds["selection"])[0]
            rows.append(row(STRONGEST, None, worst, results))
    return AttackReport(*chosen, clean, rows, seeds, hardware_of(device))


def parse_attacks(text: str) -> list[str]:
    """Names of attacks from ``pgd,transfer``."""
    names = text.split(",")
    for name in names:
        if name not in KINDS:
            hint = did_you_mean(name, KINDS)
            raise ValueError(f"--attack must be of {', '.join(KINDS)}, or several with commas, got {name!r}{hint}")
    if len(set(names)) < len(names):
        raise ValueError(f"--attack must name each attack once, got {text!r}")
    return names


def parse_epsilons(text: str) -> dict[str, float]:
    """Distances from ``8/255`` or ``0.1,0.2``, by the text of each."""
    try:
        return {part.strip(): distance_of(part) for part in text.split(",")}
    except (ValueError, ZeroDivisionError):
        message = f"--epsilon must be a number or a fraction such as 8/255, or several with commas, got {text!r}"
        raise ValueError(message) from None


def choose_images(examples: Examples, count: int) -> tuple[Examples, list[int]]:
    """A random subset of the examples, the same in every call, and the row numbers of it."""
    if count < 1:
        raise ValueError(f"--images must be at least 1, got {count}")
    check_images(examples, "dubio attack")
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))
    indices = sorted(order[:count].tolist())
    return examples[indices], indices


def check_images(examples: Examples, command: str) -> None:
    """Check that examples can be attacked: they have classes, and inputs in [0, 1]."""
    if not examples.classes:
        raise ValueError(f"an attack needs classes to leave, and {examples.name} has numbers for targets")
    inputs = examples.tensors[0]
    if not 0.0 <= inputs.min().item() <= inputs.max().item() <= 1.0:
        raise ValueError(
            f"{command} needs inputs in [0, 1], and {examples.name} has {inputs.min().item():g} to "
            f"{inputs.max().item():g}; in Python bounds=(low, high) says what they lie in"
        )


def tabulate(report: AttackReport) -> PlainTable:
    """One line for each attack and epsilon: accuracies in percent, and below them their 95 % intervals."""
    clean = report.clean
    shares = (f"R_pred\nT = {clean.num_samples}", "R_1", f"R_retry\nm = {clean.num_tries}")
    table = PlainTable("attack", "epsilon", numbers=(*shares, "passes", "s"))
    table.add_row("none", "0", *_shares(clean), "", "")
    for row in report.rows:
        record = row.record
        passes, seconds = f"{record.forwards + record.backwards}", f"{record.seconds:.1f}"
        table.add_row(record.attack, record.epsilon, *_shares(row.score), passes, seconds)
    return table


def summarise(report: AttackReport) -> str:
    """A sentence about the row with the lowest accuracy."""
    worst = min((row.record for row in report.rows), key=lambda record: record.predictive.value)
    clean, left = report.clean.predictive.value, worst.predictive.value
    return (
        f"After {worst.attack} at {worst.epsilon} the mean over {report.clean.num_samples} fresh draws is right on "
        f"{left:.1%} of {len(report.examples)} images, against {clean:.1%} without an attack; a stronger attack may "
        "leave less, so this says how robust the network is at most."
    )


def picture(model: nn.Module, report: AttackReport, path: Path) -> str:
    """Draw images of the last row of a report, first those that are wrong only after the attack.

    Returns:
        A line that says where the picture is, or why there is none.
    """
    shape = report.examples.shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        return f"no picture: inputs of shape {shape} are not images"
    row = report.rows[-1]
    turned = report.clean.predictive_per_example & ~row.score.predictive_per_example
    shown = (~turned).int().argsort(stable=True)[:NUM_SHOWN].cpu()
    before, targets = (tensor[shown] for tensor in report.examples.tensors)
    after = row.inputs[shown]
    scale = 1.0 / (after - before).abs().max().clamp_min(1e-6).item()

    try:
        figure = blank_figure(1.25 * max(len(shown), 4) + 0.4, 4.7)
    except ImportError:
        return "no picture: it needs matplotlib, pip install 'dubio[plots]'"
    axes = figure.subplots(3, len(shown), squeeze=False)
    names = tuple(map(printable, report.examples.classes))
    for images, row_axes in zip((before, 0.5 + 0.5 * scale * (after - before), after), axes, strict=True):
        for image, panel in zip(images, row_axes, strict=True):
            pixels = image.detach().cpu().clamp(0.0, 1.0).permute(1, 2, 0).squeeze(-1)
            panel.imshow(pixels.numpy(), cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
            panel.set(xticks=[], yticks=[])
    for images, row_axes in ((before, axes[0]), (after, axes[2])):
        pred = predict(  # with the draws that scored the attack
            model, images, num_samples=report.clean.num_samples, seed=report.seeds["scoring"], decisions=False
        )
        assert isinstance(pred, ClassificationPredictive)
        labels = zip(pred.label.tolist(), pred.confidence.tolist(), targets.tolist(), row_axes, strict=True)
        for label, confidence, target, panel in labels:
            color = RIGHT if names[label] == names[target] else WRONG
            panel.set_title(f"{names[label]}  {confidence:.0%}", fontsize="small", color=color, parse_math=False)
    for panel, text in zip(axes[:, 0], ("clean", f"added, x {scale:.3g}", "adversarial"), strict=True):
        panel.set_ylabel(text)
    figure.suptitle(
        f"{row.record.attack}, epsilon {row.record.epsilon}: images that it turns come first", fontsize="medium"
    )
    write(figure, path)
    return f"picture: {path}"


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
    """Audit a network, write ``audit.json`` and print the verdict."""
    distances = list(parse_epsilons(epsilon).values())
    if len(distances) != 1:
        raise ValueError(f"--epsilon must be one distance for an audit, got {epsilon!r}")
    if min_accuracy is not None and not 0.0 <= min_accuracy <= 1.0:
        raise ValueError(f"--min-accuracy must be in [0, 1], got {min_accuracy}")
    model, examples = load_to_test(named, runs, device, data, data_dir)
    check_images(examples, "dubio audit")
    folder = out or folder_of(named, runs)
    options = _changed(
        norm=(norm, "linf"), budget=(budget, "quick"), images=(images, None), data=(data, None), seed=(seed, 0)
    )
    command = ["dubio", "audit", named, "--epsilon", epsilon, *options]
    with _resumable([*command, *_changed(data_dir=(data_dir, None), out=(out, None), runs=(runs, Path("runs")))]):
        result = audit(
            model,
            examples,
            norm=norm,
            epsilon=distances[0],
            budget=budget,
            num_images=images,
            seed=seed,
            folder=folder,
            progress=not quiet,
        )
    origin = {"command": shlex.join(command), "network": network_of(named, runs).tensors or ""}
    result = dataclasses.replace(result, made_by={**result.made_by, **origin})
    result.save(folder / FILE)
    console = Console(highlight=False)
    console.print(tabulate_audit(result))
    print_lines(console, summary(result))
    if not quiet:
        say(f"record: {folder / FILE}")
    failed = gates_failed(result, require, min_accuracy)
    for line in failed:
        say(f"gate failed: {line}", err=True)
    if failed:
        raise typer.Exit(GATE_FAILED)


def tabulate_audit(result: Audit) -> PlainTable:
    """The checks, in the order of their numbers."""
    table = PlainTable(width=WIDTH)
    table.add_column("check", no_wrap=True)
    table.add_column("question", width=20)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what was found")
    for check in result.checks:
        mark = f"{check.id}{'*' if check.required else ''}"
        table.add_row(mark, check.name, Text(check.status, STYLES[check.status]), Text(check.summary))
    return table


def summary(result: Audit) -> list[str]:
    """The headline, the accuracies beside it, and the meaning of the status."""
    threat, headline = result.threat, result.headline
    attack, share = max(headline.shares.items(), key=lambda item: item[1])
    frozen = "-" if result.r_frozen is None else f"{result.r_frozen:.1%}"
    accuracies = (
        (f"R_pred({headline.num_draws})", result.r_pred, "the headline: the mean over draws"),
        ("R_1", result.r_1, "one draw"),
        ("R_retry(10)", result.r_retry, "ten draws in a row"),
        ("R_frozen", frozen, "the attacker knows the draws"),
        ("clean", result.clean, "without an attack"),
    )
    return [
        f"{threat.norm} {threat.epsilon:.4g}, {headline.num_images} images of {result.data}, budget {threat.budget}: "
        f"a change below {100.0 * threat.resolution:.0f} points counts as none.",
        *(f"{name:13}{accuracy!s:26}{meaning}" for name, accuracy, meaning in accuracies),
        f"The worst attack most often: {attack} ({share:.0%} of the images).",
        f"{result.status}: {_meaning(result)}",
    ]


def gates_failed(result: Audit, require: str | None, min_accuracy: float | None) -> list[str]:
    """The requirements that an audit does not meet. The lower end of the interval must reach the accuracy."""
    failed = []
    if require is not None and result.status != require:
        reason = f", because of {', '.join(check.id for check in result.failed)}" if result.failed else ""
        failed.append(f"--require {require}, but the audit is {result.status}{reason}")
    if min_accuracy is not None and result.headline.low < min_accuracy:
        low = f"{result.headline.low:.4f}"
        failed.append(f"--min-accuracy {min_accuracy:g}, but the lower bound of the headline is {low}")
    return failed


def _settings(value: Attack) -> list[str]:
    """Fields of an attack that differ from their defaults and are not in the name of its files already."""
    inner = value.attack if isinstance(value, Transfer) else value
    return [
        f"{field.name.removeprefix('num_')}{getattr(inner, field.name)}"
        for field in dataclasses.fields(inner)
        if field.name not in ("norm", "epsilon", "seed") and getattr(inner, field.name) != field.default
    ]


def _attack(name: str, epsilon: float, fields: dict[str, Any], seed: int) -> Attack:
    options = {field: value for field, value in fields.items() if field in _fields_of(name)}
    if name != "transfer":
        return KINDS[name](epsilon=epsilon, seed=seed, **options)
    shared = {field: options[field] for field in SHARED_WITH_TRANSFER if field in options}
    return Transfer(attack=PGD(epsilon=epsilon, seed=seed, **options), seed=seed, **shared)


def _fields_of(name: str) -> set[str]:
    """Fields that an attack takes from the command line; a transfer takes those of the attack that is transferred."""
    if name == "transfer":
        return {field.name for field in dataclasses.fields(PGD)} - {"noise"}
    return {field.name for field in dataclasses.fields(KINDS[name])}


def _shares(score: Score) -> list[str]:
    shares = (score.predictive, score.single, score.retry)
    return [f"{share.value:.1%}\n{100 * share.low:.1f}-{100 * share.high:.1f}" for share in shares]


def _score_fields(score: Score) -> dict[str, Any]:
    """Fields of a ``ScoreRecord``."""
    return {
        "predictive": score.predictive,
        "single": score.single,
        "retry": score.retry,
        "predictive_per_example": tuple(score.predictive_per_example.int().tolist()),
        "single_per_example": tuple(round(share, 4) for share in score.single_per_example.tolist()),
    }


def _meaning(result: Audit) -> str:
    few = f" Reservation: {result.too_few}." if result.too_few else ""
    if result.status == "UPPER BOUND ONLY":
        failed = ", ".join(check.id for check in result.failed)
        return f"required checks did not pass ({failed}), so a better attack may leave less.{few}"
    if result.status == "EXTRAORDINARY":
        return f"every required check passed, and the headline is beyond all that is published: look again.{few}"
    if result.caveats:
        return f"every required check (*) passed, with reservations: {'; '.join(result.caveats)}."
    return "every required check (*) passed; the headline can be believed as far as these attacks go."


def _changed(**options: tuple[object, object]) -> list[str]:
    """Options as they are typed, from their values and defaults; those with the default are left out."""
    return [
        part
        for name, (value, default) in options.items()
        if value != default
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]


@contextmanager
def _resumable(command: list[str]) -> Iterator[None]:
    """Turn Ctrl-C into an error that names the command that continues."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"finished attacks are kept; go on with: {shlex.join(command)}") from None
