"""``dubio attack``: attacks by name on the test images of a run, scored on draws that had no part in them.

Three kinds of draws are kept apart by their seeds: those an attack climbs by, those that choose the strongest of
several attacks, and those that score (``tests/end_to_end/test_attack_command.py``).

Every norm, distance and set of attacks with their settings has files of its own, so that attacks are kept side by
side; repeating one replaces its own files.

The picture of ``dubio attack``: images, what was added to them, and what the network then takes them for.

``dubio audit``: whether the robustness of a run is real, in a table and in ``audit.json``.
"""

import dataclasses
import hashlib
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
from dubio.cli.options import device_for
from dubio.cli.predict import check_fits, test_examples
from dubio.cli.runs import folder_of, load_model, network_of
from dubio.cli.terminal import PlainTable
from dubio.codec import dump_json, printable, write_atomically
from dubio.data import Examples
from dubio.prediction import ClassificationPredictive, predict
from dubio.training import Interrupted
from dubio.version import hardware_of, versions

KINDS: dict[str, type[Attack]] = {
    "fgsm": FGSM,
    "pgd": PGD,
    "apgd": APGD,
    "square": Square,
    "random_noise": RandomNoise,
    "transfer": Transfer,
}


STRONGEST = "strongest"


NUM_TRIES = 10


@dataclass(frozen=True, eq=False)
class Row:
    """What one attack at one epsilon left."""

    attack: str
    epsilon: str
    """As it was given, ``8/255``."""
    value: Attack | None
    """None for the strongest of several."""
    inputs: Tensor
    score: Score
    forwards: int
    backwards: int
    seconds: float

    @property
    def name(self) -> str:
        """What the images are called in the file."""
        return f"{self.attack}@{self.epsilon}"


@dataclass(frozen=True, eq=False)
class AttackReport:
    """All attacks on one network."""

    examples: Examples
    indices: list[int]
    clean: Score
    rows: list[Row]
    seeds: dict[str, int]
    hardware: str

    def by_epsilon(self) -> "list[AttackReport]":
        """One for each epsilon, in order."""
        epsilons = dict.fromkeys(row.epsilon for row in self.rows)
        return [
            dataclasses.replace(self, rows=[row for row in self.rows if row.epsilon == epsilon]) for epsilon in epsilons
        ]

    @property
    def file_name(self) -> str:
        """Without its ending: attacks, norm and epsilon, and settings that are not the defaults.

        ``attack-pgd-linf-0.1`` or ``attack-fgsm+pgd-l2-0.5-steps40``. Draws that score, images and seed are not in it.
        """
        attacks = [row for row in self.rows if row.value is not None]
        (epsilon,) = {_distance(row.epsilon) for row in self.rows}
        norms = sorted({row.value.norm for row in attacks if row.value is not None})
        settings = sorted({setting for row in attacks if row.value is not None for setting in _settings(row.value)})
        return "-".join(("attack", "+".join(row.attack for row in attacks), *norms, f"{epsilon:g}", *settings))

    def save(self, folder: Path, asked: dict[str, Any]) -> list[Path]:
        """Write a record and its images for each epsilon, over those of the same attack; gives the records' paths.

        ``asked`` is what a record says of the command.
        """
        folder.mkdir(parents=True, exist_ok=True)
        return [part._save(folder / part.file_name, asked) for part in self.by_epsilon()]

    def _save(self, path: Path, asked: dict[str, Any]) -> Path:
        clean, targets = self.examples.tensors
        named = {row.name: row.inputs for row in self.rows}
        tensors = {
            name: tensor.cpu().contiguous() for name, tensor in {"clean": clean, "targets": targets, **named}.items()
        }
        content = to_bytes(tensors, {"format": "dubio-attack-1"})
        record = {
            "format": "dubio-attack-1",
            **asked,
            "data": self.examples.name,
            "fingerprint": self.examples.fingerprint,
            "indices": self.indices,
            "seeds": self.seeds,
            "num_draws": self.clean.num_samples,
            "num_tries": self.clean.num_tries,
            "versions": versions(),
            "hardware": self.hardware,
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "clean": _record_score(self.clean),
            "rows": [_record_row(row) for row in self.rows],
            "sha256_of_images": hashlib.sha256(content).hexdigest(),
        }
        record_file = path.with_name(f"{path.name}.json")  # the name itself may hold a point: with_suffix would cut it
        write_atomically(path.with_name(f"{path.name}.safetensors"), content)
        write_atomically(record_file, f"{dump_json(record, indent=1)}\n".encode())
        return record_file


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
    """Distances from ``8/255`` or ``0.1,0.2``, under what was written."""
    found: dict[str, float] = {}
    for part in text.split(","):
        try:
            found[part.strip()] = _distance(part)
        except (ValueError, ZeroDivisionError):
            message = f"--epsilon must be a number or a fraction such as 8/255, or several with commas, got {text!r}"
            raise ValueError(message) from None
    return found


def choose_images(examples: Examples, count: int) -> tuple[Examples, list[int]]:
    """Some of the examples at random, always the same ones, and their row numbers."""
    if count < 1:
        raise ValueError(f"--images must be at least 1, got {count}")
    check_images(examples, "dubio attack")
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))
    indices = sorted(order[:count].tolist())
    return examples[indices], indices


def check_images(examples: Examples, command: str) -> None:
    """Refuse what a command cannot attack: numbers for targets, and inputs that are not in [0, 1]."""
    if not examples.classes:
        raise ValueError(f"an attack needs classes to leave, and {examples.name} has numbers for targets")
    inputs = examples.tensors[0]
    if not 0.0 <= inputs.min().item() <= inputs.max().item() <= 1.0:
        raise ValueError(
            f"{command} needs inputs in [0, 1], and {examples.name} has {inputs.min().item():g} to "
            f"{inputs.max().item():g}; in Python bounds=(low, high) says what they lie in"
        )


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
    """Attack a network, where it is, by each name at each epsilon, and where there are several by the strongest.

    ``fields`` are those of attacks; each attack takes those it has, and one that none has is refused.
    """
    seeds = {"attack": 3 * seed, "selection": 3 * seed + 1, "scoring": 3 * seed + 2}
    _check_fields(names, fields)
    values = {
        (name, epsilon): _attack(name, distance, fields, seeds["attack"])
        for name in names
        for epsilon, distance in epsilons.items()
    }
    device = device_of(model) or torch.device("cpu")
    inputs, targets = (tensor.to(device) for tensor in chosen[0].tensors)

    def scored(adversarial: Tensor) -> Score:
        tries = min(NUM_TRIES, num_draws)
        return attacks.score(model, adversarial, targets, num_samples=num_draws, num_tries=tries, seed=seeds["scoring"])

    clean, rows = scored(inputs), []
    for epsilon in epsilons:
        results = []
        for name in names:
            value = values[name, epsilon]
            result = value(model, inputs, targets, progress=progress)
            results.append(result)
            cost = (result.forwards, result.backwards, result.seconds)
            rows.append(Row(name, epsilon, value, result.inputs.cpu(), scored(result.inputs), *cost))
        if len(names) > 1:
            worst = attacks.strongest(model, results, targets, seed=seeds["selection"])[0]
            rows.append(Row(STRONGEST, epsilon, None, worst.cpu(), scored(worst), *_total_cost(results)))
    return AttackReport(*chosen, clean, rows, seeds, hardware_of(device))


def tabulate(assault: AttackReport) -> PlainTable:
    """One line for each attack and epsilon, intervals at 95 % below the shares, in percent."""
    clean = assault.clean
    table = PlainTable("attack", "epsilon")
    shares = (f"R_pred\nT = {clean.num_samples}", "R_1", f"R_retry\nm = {clean.num_tries}")
    for heading in (*shares, "passes", "s"):
        table.add_column(heading, justify="right")
    table.add_row("none", "0", *_shares(clean), "", "")
    for row in assault.rows:
        passes = f"{row.forwards + row.backwards}"
        table.add_row(row.attack, row.epsilon, *_shares(row.score), passes, f"{row.seconds:.1f}")
    return table


def summarise(assault: AttackReport) -> str:
    """What the numbers mean, in a sentence about the row that leaves least."""
    worst = min(assault.rows, key=lambda row: row.score.predictive.value)
    clean, left = assault.clean.predictive.value, worst.score.predictive.value
    return (
        f"After {worst.attack} at {worst.epsilon} the mean over {worst.score.num_samples} fresh draws is right on "
        f"{left:.1%} of {len(assault.examples)} images, against {clean:.1%} without an attack; a stronger attack may "
        "leave less, so this says how robust the network is at most."
    )


def _distance(epsilon: str) -> float:
    above, stroke, below = epsilon.partition("/")
    return float(above) / float(below) if stroke else float(above)


def _settings(value: Attack) -> list[str]:
    """What of an attack is not as by default, beside what names its file already."""
    inner = value.attack if isinstance(value, Transfer) else value
    changed = [
        (field.name.removeprefix("num_"), getattr(inner, field.name))
        for field in dataclasses.fields(inner)
        if field.name not in ("norm", "epsilon", "seed") and getattr(inner, field.name) != field.default
    ]
    return [f"{name}{setting}" for name, setting in changed]


def _attack(name: str, epsilon: float, fields: dict[str, Any], seed: int) -> Attack:
    own = {field: value for field, value in fields.items() if field in _fields_of(name)}
    if name != "transfer":
        return KINDS[name](epsilon=epsilon, seed=seed, **own)
    shared = {field: own[field] for field in ("norm", "num_samples", "objective", "loss") if field in own}
    return Transfer(attack=PGD(epsilon=epsilon, seed=seed, **own), seed=seed, **shared)


def _fields_of(name: str) -> set[str]:
    kind = PGD if name == "transfer" else KINDS[name]  # what is transferred
    fields = {field.name for field in dataclasses.fields(kind)}
    return fields - {"noise"} if name == "transfer" else fields


def _check_fields(names: list[str], fields: dict[str, Any]) -> None:
    for field in fields:
        if not any(field in _fields_of(name) for name in names):
            raise ValueError(f"--{field.replace('num_', '')} means nothing to {' and '.join(names)}; leave it out")


def _total_cost(results: list[AttackResult]) -> tuple[int, int, float]:
    return (
        sum(result.forwards for result in results),
        sum(result.backwards for result in results),
        sum(result.seconds for result in results),
    )


def _shares(score: Score) -> list[str]:
    found = (score.predictive, score.single, score.retry)
    return [f"{share.value:.1%}\n{100 * share.low:.1f}-{100 * share.high:.1f}" for share in found]


def _record_score(score: Score) -> dict[str, Any]:
    shares = {name: dataclasses.asdict(getattr(score, name)) for name in ("predictive", "single", "retry")}
    per_example = {
        "predictive_per_example": score.predictive_per_example.int().tolist(),
        "single_per_example": [round(share, 4) for share in score.single_per_example.tolist()],
    }
    return shares | per_example


def _record_row(row: Row) -> dict[str, Any]:
    fields = None if row.value is None else {"kind": type(row.value).__name__, **dataclasses.asdict(row.value)}
    cost = {"forwards": row.forwards, "backwards": row.backwards, "seconds": row.seconds}
    return {"attack": row.attack, "epsilon": row.epsilon, "fields": fields, **cost, **_record_score(row.score)}


MOST = 8


RIGHT, WRONG = "#1b7837", "#b2182b"


def picture(model: nn.Module, assault: AttackReport, path: Path) -> str:
    """Draw some images of the last row of an assault; says where the picture is, or why there is none."""
    shape = assault.examples.shape
    if len(shape) != 3 or shape[0] not in (1, 3):
        return f"no picture: inputs of shape {shape} are not images"
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no picture: it needs matplotlib, pip install 'dubio[plots]'"
    row = assault.rows[-1]
    shown = _choose(assault, row)
    before, targets = (tensor[shown] for tensor in assault.examples.tensors)
    after = row.inputs[shown]
    magnified = 1.0 / (after - before).abs().max().clamp_min(1e-6).item()

    figure = Figure(figsize=(1.25 * max(len(shown), 4) + 0.4, 4.7), layout="constrained")
    axes = figure.subplots(3, len(shown), squeeze=False)
    names = tuple(map(printable, assault.examples.classes))
    truths = [names[target] for target in targets.tolist()]
    found = [_labels(model, inputs, names, assault) for inputs in (before, after)]
    for column, truth in enumerate(truths):
        _draw(axes[0][column], before[column], found[0][column], truth)
        _draw(axes[1][column], 0.5 + 0.5 * magnified * (after - before)[column], None, truth)
        _draw(axes[2][column], after[column], found[1][column], truth)
    for side, text in zip(axes[:, 0], ("clean", f"added, x {magnified:.3g}", "adversarial"), strict=True):
        side.set_ylabel(text)
    figure.suptitle(f"{row.attack}, epsilon {row.epsilon}: images that it turns come first", fontsize="medium")
    figure.savefig(path, dpi=110)
    return f"picture: {path}"


def _choose(assault: AttackReport, row: Row) -> Tensor:
    """Images that were right and are wrong now, then the others, each in their order."""
    turned = assault.clean.predictive_per_example & ~row.score.predictive_per_example
    return (~turned).int().argsort(stable=True)[:MOST].cpu()


def _labels(model: nn.Module, inputs: Tensor, names: tuple[str, ...], assault: AttackReport) -> list[tuple[str, float]]:
    found = predict(  # as the attack saw and scored them
        model, inputs, num_samples=assault.clean.num_samples, seed=assault.seeds["scoring"], decisions=False
    )
    assert isinstance(found, ClassificationPredictive)
    return [(names[label], sure) for label, sure in zip(found.label.tolist(), found.confidence.tolist(), strict=True)]


def _draw(axes: Any, image: Tensor, found: tuple[str, float] | None, truth: str) -> None:
    pixels = image.detach().cpu().clamp(0.0, 1.0).permute(1, 2, 0)
    axes.imshow(pixels.squeeze(-1).numpy(), cmap="gray", vmin=0.0, vmax=1.0, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    if found is not None:
        label, sure = found
        axes.set_title(
            f"{label}  {sure:.0%}", fontsize="small", color=RIGHT if label == truth else WRONG, parse_math=False
        )


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


def tabulate_audit(found: Audit) -> PlainTable:
    """The checks, in the order of their numbers."""
    table = PlainTable(width=WIDTH)
    table.add_column("check", no_wrap=True)
    table.add_column("question", width=20)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what was found")
    for check in found.checks:
        mark = f"{check.id}{'*' if check.required else ''}"
        table.add_row(mark, check.name, Text(check.status, STYLES[check.status]), Text(check.summary))
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
    console.print(tabulate_audit(found))
    for line in summary(found):
        console.print(printable(line), markup=False)
