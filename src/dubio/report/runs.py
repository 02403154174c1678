"""The record of a run, read from the files in its folder; no network is loaded.

Every file but ``config.json`` may be missing. A file that exists and cannot be read raises an error that names the
command that writes it again (``tests/report/test_reading.py``).

``RobustnessRecord`` is the file of ``dubio attack``. It is written and read by this one class.
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from dubio.attacks import Accuracy
from dubio.auditing import Audit
from dubio.codec import (
    Command,
    Record,
    RecordError,
    check_fields,
    current_names,
    read_commands,
    read_history,
    read_object,
)
from dubio.evaluation import Evaluation
from dubio.io import Identity, identity_of
from dubio.pruning import Pruning

R = TypeVar("R", bound=Record)

CONFIG_TYPES: dict[str, Any] = {
    **dict.fromkeys(("method", "likelihood"), str),
    **dict.fromkeys(("epochs", "num_parameters"), int),
    "seed": int | None,
    "parameters": dict[str, tuple[int, ...]],
}
"""Types of the fields of ``config.json`` that a report reads."""
ORDER_TYPES = {"data": str, "method": str, "model": str, "fields": dict[str, str | bool], "seed": int}
"""Types of fields of ``command.json``; its other values are strings, numbers and flags."""
MASK = "removed"
"""Suffix of the names of masks: ``1.weight_posterior.removed``, ``1.weight_removed``."""


@dataclass(frozen=True, kw_only=True)
class ScoreRecord:
    """The accuracy of a network, measured in three ways."""

    predictive: Accuracy
    """R_pred: accuracy of the mean over draws."""
    single: Accuracy
    """R_1: accuracy of a single draw."""
    retry: Accuracy
    """R_retry: share of examples that several draws all get right."""
    predictive_per_example: tuple[int, ...] = ()
    single_per_example: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class AttackRow(ScoreRecord):
    """The accuracy after one attack at one distance."""

    attack: str = ""
    epsilon: str = "0"
    """As given on the command line, such as ``8/255``."""
    fields: dict[str, Any] | None = None
    """Fields of the attack and its class as ``kind``; None for the strongest of several attacks."""
    forwards: int = 0
    backwards: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        try:
            distance = self.distance
        except (ValueError, ZeroDivisionError, OverflowError):
            distance = math.nan
        if not math.isfinite(distance):
            raise ValueError(f"epsilon must be a number or a fraction such as 8/255, got {self.epsilon[:40]!r}")

    @property
    def distance(self) -> float:
        """Epsilon as a number."""
        return distance_of(self.epsilon)

    @property
    def settings(self) -> dict[str, Any]:
        """Fields of the attack; for a transfer, those of the attack that is transferred."""
        fields = self.fields or {}
        inner = fields.get("attack")
        return inner if isinstance(inner, dict) else fields


@dataclass(frozen=True, kw_only=True)
class RobustnessRecord(Record):
    """``attack-*.json``: attacks at one distance. ``attack.json`` of earlier versions may hold several distances."""

    format: ClassVar = "dubio-attack-1"
    called: ClassVar = "an attack"

    model: str = ""
    network: str | None = None
    """Hash of the tensors that were attacked; see ``dubio.io.Identity``."""
    data: str = ""
    fingerprint: str = ""
    indices: tuple[int, ...] = ()
    seeds: dict[str, int] = field(default_factory=dict)
    num_draws: int
    num_tries: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    hardware: str = ""
    when: str = ""
    clean: ScoreRecord
    rows: tuple[AttackRow, ...]
    sha256_of_images: str = ""
    file_name: str = "attack"
    """Name of the record and of its images, without suffix; not written to the file."""

    def to_json(self) -> dict[str, Any]:
        """As JSON, without the name of the file."""
        return {name: value for name, value in super().to_json().items() if name != "file_name"}

    @classmethod
    def from_json(cls, data: Any) -> "RobustnessRecord":
        """From JSON, where attacks may have the class names of earlier versions."""
        return super().from_json(current_names(data))

    def shared_fields(self) -> dict[str, Any]:
        """The fields that have the same value in all attacks that have them."""
        values: dict[str, list[Any]] = {}
        for row in self.rows:
            for name, value in row.settings.items():
                values.setdefault(name, []).append(value)
        return {name: first for name, (first, *rest) in values.items() if all(value == first for value in rest)}

    @property
    def norm(self) -> str:
        """The norm that distances are measured in."""
        return str(self.shared_fields().get("norm", "linf"))

    @property
    def least(self) -> float:
        """The lowest accuracy of all rows."""
        return min(row.predictive.value for row in self.rows)

    def distance_text(self) -> str:
        """The largest distance as given on the command line, with the norm unless that is ``linf``."""
        epsilon = max(self.rows, key=lambda row: row.distance).epsilon
        return epsilon if self.norm == "linf" else f"{self.norm} {epsilon}"

    def at(self, distance: float) -> "RobustnessRecord":
        """The record with only the rows of one distance."""
        return replace(self, rows=tuple(row for row in self.rows if row.distance == distance))

    def setting(self) -> str:
        """A key for the attacks, distances, settings, images and draws; records with equal keys are comparable."""
        attacks = [
            (row.attack, row.distance, {name: value for name, value in row.settings.items() if name != "seed"})
            for row in self.rows
        ]
        return repr((self.fingerprint, self.indices, self.num_draws, attacks))

    def weakest(self) -> dict[float, AttackRow]:
        """The row with the lowest accuracy for each distance, in increasing order."""
        return {
            distance: min(self.at(distance).rows, key=lambda row: row.predictive.value)
            for distance in sorted({row.distance for row in self.rows})
        }


@dataclass(frozen=True, eq=False)
class RunRecord:
    """Everything that a report needs of a run."""

    name: str
    folder: Path
    config: dict[str, Any]
    order: dict[str, Any]
    """Options of ``dubio train``; empty for a network trained in Python."""
    history: tuple[dict[str, Any], ...] = ()
    """Metrics of each epoch."""
    evaluation: Evaluation | None = None
    attacks: tuple[RobustnessRecord, ...] = ()
    """Sorted by norm and distance."""
    pruning: Pruning | None = None
    audit: Audit | None = None
    commands: tuple[Command, ...] = ()
    """Commands that changed the network after training."""
    identity: Identity | None = None
    """The network that the run holds now."""
    num_bytes: int | None = None
    """Size of the file of the network."""

    @property
    def attack(self) -> RobustnessRecord | None:
        """The record with the lowest accuracy; None without attacks."""
        return min((record for record in self.attacks if record.rows), key=lambda record: record.least, default=None)

    @property
    def method(self) -> str:
        """The method by its name on the command line, else by its class."""
        plain = str(self.config["method"]).partition("(")[0]
        return str(self.order.get("method") or ("Deterministic" if plain == "None" else plain))

    @property
    def data(self) -> str:
        """The data of the evaluation, else of the training."""
        if self.evaluation is not None:
            return self.evaluation.data.name
        return str(self.order.get("data") or (self.attack.data if self.attack else "") or "unknown data")

    @property
    def kind(self) -> Literal["classification", "regression"]:
        """Whether the network predicts classes or numbers."""
        if self.evaluation is not None:
            return self.evaluation.kind
        is_real = str(self.config.get("likelihood", "")).startswith("Gaussian")
        return "regression" if is_real else "classification"

    @property
    def num_parameters(self) -> int | None:
        """Trained parameters that were not removed."""
        count, shapes = self.config.get("num_parameters"), self.config.get("parameters")
        if isinstance(count, int) or not isinstance(shapes, dict):
            return count
        return sum(math.prod(shape) for name, shape in shapes.items() if not name.endswith(MASK))

    @property
    def stale(self) -> tuple[str, ...]:
        """Results that are older than the network, each with the command that measures them again."""
        if self.identity is None:
            return ()
        network, tensors, run = self.identity.network, self.identity.tensors, shlex.quote(self.folder.resolve().name)
        measured = (
            ("judged", "evaluate", self.evaluation and self.evaluation.made_by.get("network"), network),
            *(("attacked", "attack", record.network, tensors) for record in self.attacks),
            ("audited", "audit", self.audit and self.audit.made_by.get("network"), tensors),
            ("measured for pruning", "prune", self.pruning and self.pruning.made_by.get("network"), tensors),
        )
        sentences = (
            f"{done} before the network changed; dubio {command} {run}"
            for done, command, before, now in measured
            if before and now and before != now
        )
        return tuple(dict.fromkeys(sentences))


def read_runs(folders: Sequence[str | Path]) -> list[RunRecord]:
    """Read several runs; runs in folders of the same name get the parent folder as a prefix."""
    if not folders:
        raise ValueError("folders must be at least one run, got none")
    paths = [Path(folder) for folder in folders]
    real = [path.resolve() for path in paths]
    if twice := next((path for number, path in enumerate(paths) if real[number] in real[:number]), None):
        raise ValueError(f"each run may be named once, got {twice} twice")
    records = [read_run(path) for path in paths]
    names = [record.name for record in records]
    return [
        record if names.count(record.name) == 1 else replace(record, name=f"{path.parent.name}/{record.name}")
        for record, path in zip(records, real, strict=True)
    ]


def read_run(folder: str | Path) -> RunRecord:
    """Read a run from its folder."""
    folder = Path(folder)
    name = folder.resolve().name
    config_file, order_file, model = (folder / file for file in ("config.json", "command.json", "model.safetensors"))
    if not config_file.exists():
        raise FileNotFoundError(f"{folder} is not the folder of a run: it has no config.json; dubio runs lists runs")
    config = current_names(read_object(config_file))
    if "method" not in config:
        raise RecordError(f"{config_file} is not the configuration of a run: it names no method")
    check_fields(config, CONFIG_TYPES, str(config_file))
    order = read_object(order_file) if order_file.exists() else {}
    check_fields(order, dict.fromkeys(order, str | float | bool | None) | ORDER_TYPES, str(order_file))
    return RunRecord(
        name=name,
        folder=folder,
        config=config,
        order=order,
        history=read_history(folder / "metrics.jsonl"),
        evaluation=_load(Evaluation, folder / "evaluation.json", f"dubio evaluate {name}"),
        attacks=_load_attacks(folder, f"dubio attack {name}"),
        pruning=_load(Pruning, folder / "pruning.json", f"dubio prune {name}"),
        audit=_load(Audit, folder / "audit.json", f"dubio audit {name} --epsilon ..."),
        commands=read_commands(folder),
        identity=identity_of(model),
        num_bytes=model.stat().st_size if model.is_file() else None,
    )


def distance_of(epsilon: str) -> float:
    """A number or a fraction as a number: ``8/255`` is 0.0314."""
    above, slash, below = epsilon.partition("/")
    return float(above) / float(below) if slash else float(above)


def _load_attacks(folder: Path, command: str) -> tuple[RobustnessRecord, ...]:
    files = (folder / "attack.json", *folder.glob("attack-*.json"))
    loaded = ((file.stem, _load(RobustnessRecord, file, command)) for file in files)
    records = (replace(record, file_name=stem) for stem, record in loaded if record)
    return tuple(sorted(records, key=lambda part: (part.norm, min(part.weakest(), default=0.0), part.file_name)))


def _load(kind: type[R], file: Path, command: str) -> R | None:
    """The record in a file; None if there is no file."""
    try:
        return kind.load(file) if file.exists() else None
    except ValueError as error:
        raise RecordError(f"{error}; write it anew: {command}") from error
