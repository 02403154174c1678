"""A run as its folder tells it: what it was asked for, how it learned, and what judged it. No network is loaded.

Every file but ``config.json`` may be missing. One that is there and cannot be read is refused, with what would write it
anew (``tests/report/test_reading.py``).

What the files of a run say of attacks and pruning, as far as a report shows it.

Fields that a report has no use for are left out, so that a file of a later version can still be read.
"""

import dataclasses
import math
import shlex
import types
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from dubio.auditing import Audit
from dubio.codec import (
    Command,
    RecordError,
    check_fields,
    current_names,
    read_commands,
    read_history,
    read_object,
    read_value,
)
from dubio.evaluation import Estimate, Evaluation
from dubio.io import Identity, identity_of

T = TypeVar("T")


CONFIG: dict[str, Any] = {
    "method": str,
    "likelihood": str,
    "epochs": int,
    "seed": int | None,
    "num_parameters": int,
    "parameters": dict[str, tuple[int, ...]],
}
"""Types of those fields of ``config.json`` that are read here."""


ORDER = {"data": str, "method": str, "model": str, "fields": dict[str, str | bool], "seed": int}
"""Of ``command.json``, whose other values are single texts, numbers and flags."""


MASK = "removed"
"""How the names of masks end: ``1.weight_posterior.removed``, ``1.weight_removed``."""


@dataclass(frozen=True)
class Shares:
    """How often a network is right, in three ways."""

    predictive: Estimate
    """The mean over draws: R_pred."""
    single: Estimate
    """One draw: R_1."""
    retry: Estimate
    """All of several draws: R_retry."""
    predictive_per_example: tuple[int, ...] = ()


@dataclass(frozen=True)
class AttackRow(Shares):
    """What one attack at one distance left."""

    attack: str = ""
    epsilon: str = "0"
    fields: dict[str, Any] | None = None
    """None for the strongest of several."""

    def __post_init__(self) -> None:
        try:
            distance = self.distance
        except (ValueError, ZeroDivisionError, OverflowError):
            distance = math.nan
        if not math.isfinite(distance):
            raise ValueError(f"epsilon must be a number or a fraction such as 8/255, got {self.epsilon[:40]!r}")

    @property
    def distance(self) -> float:
        """Epsilon as a number: 8/255 is 0.0314."""
        above, stroke, below = self.epsilon.partition("/")
        return float(above) / float(below) if stroke else float(above)

    @property
    def settings(self) -> dict[str, Any]:
        """The attack's own fields; where one is passed on, those of the one inside."""
        fields = self.fields or {}
        inner = fields.get("attack")
        return inner if isinstance(inner, dict) else fields


@dataclass(frozen=True)
class ReportedAttack:
    """``attack-*.json``: attacks at one distance; ``attack.json`` of earlier versions may hold several."""

    clean: Shares
    rows: tuple[AttackRow, ...]
    num_draws: int
    data: str = ""
    fingerprint: str = ""
    indices: tuple[int, ...] = ()
    seeds: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    when: str = ""
    sha256_of_images: str = ""
    network: str | None = None
    """The tensors that were attacked; see ``dubio.io.Identity``."""
    file_name: str = "attack"
    """Of the record and of its images, without ending."""

    def shared_fields(self) -> dict[str, Any]:
        """Fields that all attacks which have them agree about."""
        found: dict[str, list[Any]] = {}
        for row in self.rows:
            for name, value in row.settings.items():
                found.setdefault(name, []).append(value)
        return {name: values[0] for name, values in found.items() if all(value == values[0] for value in values)}

    @property
    def norm(self) -> str:
        """How distance was measured."""
        return str(self.shared_fields().get("norm", "linf"))

    def distance_text(self) -> str:
        """Its largest distance as it was asked for, with the norm where that is not the largest change."""
        epsilon = max(self.rows, key=lambda row: row.distance).epsilon
        return epsilon if self.norm == "linf" else f"{self.norm} {epsilon}"

    def at(self, distance: float) -> "ReportedAttack":
        """What was tried at this distance alone."""
        return replace(self, rows=tuple(row for row in self.rows if row.distance == distance))

    def setting(self) -> str:
        """Which attacks were tried how far, with which settings, images and draws: the same text where they compare."""
        tried = [
            (row.attack, row.distance, {name: value for name, value in row.settings.items() if name != "seed"})
            for row in self.rows
        ]
        return repr((self.fingerprint, self.indices, self.num_draws, tried))

    def weakest(self) -> dict[float, AttackRow]:
        """By distance, the row that leaves least."""
        least: dict[float, AttackRow] = {}
        for row in self.rows:
            known = least.get(row.distance)
            if known is None or row.predictive.value < known.predictive.value:
                least[row.distance] = row
        return dict(sorted(least.items()))


@dataclass(frozen=True)
class ReportedPruningPoint:
    """How a network does without a fraction of its weights."""

    by: str
    fraction: float
    accuracy: float | None = None
    nll: float | None = None
    removed: float | None = None
    """The share that was really gone."""


@dataclass(frozen=True)
class Density:
    """How the signal-to-noise ratios of weights are distributed, in decibels."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    threshold_db: float | None = None


@dataclass(frozen=True)
class PruningRecord:
    """``pruning.json``."""

    by: str = ""
    what: str = ""
    fraction: float | None = None
    num_weights: int | None = None
    num_removed: int | None = None
    bytes_before: int | None = None
    bytes_after: int | None = None
    step_seconds_before: float | None = None
    step_seconds_after: float | None = None
    density: Density | None = None
    curve: tuple[ReportedPruningPoint, ...] = ()
    made_by: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class RunRecord:
    """All that a report needs of a run."""

    name: str
    folder: Path
    config: dict[str, Any]
    order: dict[str, Any]
    """The options of ``dubio train``; empty where a network was trained in Python."""
    history: tuple[dict[str, Any], ...] = ()
    """Metrics, epoch by epoch."""
    evaluation: Evaluation | None = None
    attacks: tuple[ReportedAttack, ...] = ()
    """By norm and distance."""
    pruning: PruningRecord | None = None
    audit: Audit | None = None
    commands: tuple[Command, ...] = ()
    """What made the network what it is, beside training."""
    identity: Identity | None = None
    """Which network the run holds now."""
    num_bytes: int | None = None
    """Of the network's file."""

    @property
    def attack(self) -> ReportedAttack | None:
        """The attacks that left least; None where there are none."""
        tried = [record for record in self.attacks if record.rows]
        return min(tried, key=lambda record: min(row.predictive.value for row in record.rows), default=None)

    @property
    def method(self) -> str:
        """By its name on the command line, else by its class."""
        plain = str(self.config["method"]).partition("(")[0]
        return str(self.order.get("method") or ("Deterministic" if plain == "None" else plain))

    @property
    def data(self) -> str:
        """What it was judged on, else trained on."""
        if self.evaluation is not None:
            return self.evaluation.data.name
        return str(self.order.get("data") or (self.attack.data if self.attack else "") or "unknown data")

    @property
    def kind(self) -> Literal["classification", "regression"]:
        """Whether it predicts classes or numbers."""
        if self.evaluation is not None:
            return self.evaluation.kind
        real = str(self.config.get("likelihood", "")).startswith("Gaussian")
        return "regression" if real else "classification"

    @property
    def num_parameters(self) -> int | None:
        """Numbers that were trained and not removed."""
        count, shapes = self.config.get("num_parameters"), self.config.get("parameters")
        if isinstance(count, int):
            return count
        if not isinstance(shapes, dict):
            return None
        return sum(math.prod(shape) for name, shape in shapes.items() if not name.endswith(MASK))

    @property
    def stale(self) -> tuple[str, ...]:
        """What was measured before the network changed, with the command that does it anew."""
        if self.identity is None:
            return ()
        now, tensors, run = self.identity.network, self.identity.tensors, shlex.quote(self.folder.resolve().name)
        known = (
            ("judged", "evaluate", self.evaluation and self.evaluation.made_by.get("network"), now),
            *(("attacked", "attack", record.network, tensors) for record in self.attacks),
            ("audited", "audit", self.audit and self.audit.made_by.get("network"), tensors),
            ("measured for pruning", "prune", self.pruning and self.pruning.made_by.get("network"), tensors),
        )
        told = (
            f"{done} before the network changed; dubio {command} {run}"
            for done, command, then, current in known
            if then and current and then != current
        )
        return tuple(dict.fromkeys(told))


def read_runs(folders: Sequence[str | Path]) -> list[RunRecord]:
    """Several runs, each under a name of its own."""
    if not folders:
        raise ValueError("folders must be at least one run, got none")
    paths = [Path(folder) for folder in folders]
    real = [path.resolve() for path in paths]
    if twice := next((path for number, path in enumerate(paths) if real[number] in real[:number]), None):
        raise ValueError(f"each run may be named once, got {twice} twice")
    records = [read_run(path) for path in paths]
    names = [record.name for record in records]
    return [
        record
        if names.count(record.name) == 1
        else dataclasses.replace(record, name=f"{path.parent.name}/{record.name}")
        for record, path in zip(records, real, strict=True)
    ]


def read_run(folder: str | Path) -> RunRecord:
    """A run from its folder."""
    folder = Path(folder)
    name = folder.resolve().name
    config = current_names(_object(folder / "config.json"))
    if config is None:
        raise FileNotFoundError(f"{folder} is not the folder of a run: it has no config.json; dubio runs lists runs")
    if "method" not in config:
        raise RecordError(f"{folder / 'config.json'} is not the configuration of a run: it names no method")
    check_fields(config, CONFIG, str(folder / "config.json"))
    order = _object(folder / "command.json") or {}
    check_fields(order, dict.fromkeys(order, str | float | bool | None) | ORDER, str(folder / "command.json"))
    model = folder / "model.safetensors"
    return RunRecord(
        name=name,
        folder=folder,
        config=config,
        order=order,
        history=read_history(folder / "metrics.jsonl"),
        evaluation=_evaluation(folder / "evaluation.json", f"dubio evaluate {name}"),
        attacks=_attacks(folder, f"dubio attack {name}"),
        pruning=_record(PruningRecord, folder / "pruning.json", "dubio-pruning-1", f"dubio prune {name}"),
        audit=_audit(folder / "audit.json", f"dubio audit {name}"),
        commands=read_commands(folder),
        identity=identity_of(model),
        num_bytes=model.stat().st_size if model.is_file() else None,
    )


def _object(file: Path) -> dict[str, Any] | None:
    """What a file of JSON holds; None where there is no file."""
    return read_object(file) if file.exists() else None


def _evaluation(file: Path, command: str) -> Evaluation | None:
    try:
        return Evaluation.load(file) if file.exists() else None
    except ValueError as error:
        raise RecordError(f"{error}; write it anew: {command}") from error


def _attacks(folder: Path, command: str) -> tuple[ReportedAttack, ...]:
    """All that ``dubio attack`` kept, and the one file that earlier versions kept."""
    files = [folder / "attack.json", *folder.glob("attack-*.json")]
    read = {file.stem: _record(ReportedAttack, file, "dubio-attack-1", command) for file in files}
    named = [dataclasses.replace(record, file_name=stem) for stem, record in read.items() if record is not None]
    return tuple(sorted(named, key=lambda record: (record.norm, min(record.weakest(), default=0.0), record.file_name)))


def _audit(file: Path, command: str) -> Audit | None:
    if not file.exists():
        return None
    try:
        return Audit.load(file)
    except ValueError as error:
        raise RecordError(f"{error}; write it anew: {command} --epsilon ...") from error


def _record(kind: type[T], file: Path, format: str | None, command: str) -> T | None:
    found = _object(file)
    if found is None:
        return None
    if format is not None and found.get("format") != format:
        raise RecordError(f"{file} must have format {format!r}, got {found.get('format')!r}; write it anew: {command}")
    try:
        return read_value(kind, current_names(_known(kind, found)))
    except ValueError as error:
        raise RecordError(f"{file} cannot be read: {error}; write it anew: {command}") from error


def _known(kind: Any, data: Any) -> Any:
    """What of some JSON has a field to go to."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _known(next(part for part in parts if part is not type(None)), data)
    if origin is tuple and isinstance(data, list):
        return [_known(parts[0], part) for part in data]
    if dataclasses.is_dataclass(kind) and isinstance(data, dict):
        return {name: _known(hint, data[name]) for name, hint in get_type_hints(kind).items() if name in data}
    return data
