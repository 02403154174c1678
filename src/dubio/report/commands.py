"""How each number of a report can be made again: commands rebuilt from what the run's files say."""

import re
import shlex
from collections.abc import Sequence
from typing import Any, get_type_hints

from dubio.codec import printable
from dubio.methods import METHODS
from dubio.report.elements import Commands, Section
from dubio.report.runs import PruningRecord, ReportedAttack, RunRecord

DEFAULTS = {"data": "digits", "model": "fc:100-100", "schedule": "constant", "batch_size": 128, "precision": "fp32"}
ATTACK_OPTIONS = {
    "norm": "norm",
    "steps": "steps",
    "restarts": "restarts",
    "num_samples": "samples",
    "objective": "objective",
    "loss": "loss",
    "noise": "noise",
}
DECIDED = {"calibrate": "calibration", "abstain": "threshold", "conformal": "sets"}
NO_OPTIONS = ("fields", "seed", "method", "standardise_targets")
"""What a run keeps of its command under names that are no options, or that come in a place of their own."""
OPTIONS: dict[str, dict[str, type | None]] = {
    "train": {
        **dict.fromkeys(("data", "data-dir", "target", "task", "drop", "delimiter", "label-noise", "model"), str),
        **dict.fromkeys(("method", "schedule", "precision", "memory", "resize", "likelihood"), str),
        "epochs": int,
        "lr": float,
        "noise-lr": float,
        "batch-size": int,
        "samples": int,
        "seed": int,
        **dict.fromkeys(("augment", "fast", "eager", "standardise", "as-is"), None),
    },
    "evaluate": {
        **dict.fromkeys(("ood", "corruptions", "data", "precision"), str),
        **dict.fromkeys(("samples", "resamples", "seed"), int),
    },
    "calibrate": {"kind": str, "per-draw": None, "samples": int, "seed": int},
    "abstain": {"error": float, "coverage": float, "score": str, "level": float, "samples": int, "seed": int},
    "conformal": {"coverage": float, "kind": str, "allow-empty": None, "samples": int, "seed": int},
    "attack": {
        **dict.fromkeys(("attack", "epsilon", "norm", "objective", "loss", "noise", "data"), str),
        **dict.fromkeys(("steps", "restarts", "samples", "draws", "images", "seed"), int),
    },
    "audit": {**dict.fromkeys(("epsilon", "norm", "budget", "data"), str), "images": int, "seed": int},
    "prune": {
        **dict.fromkeys(("by", "what", "out"), str),
        "fraction": float,
        "max-loss": float,
        "each-layer": None,
        "samples": int,
        "seed": int,
    },
}
"""The options of each command that stand in records, and what each takes; None for flags."""
METHOD_OPTIONS = {name.replace("_", "-") for kind in METHODS.values() for name in get_type_hints(kind)}
SHELL = re.compile(r"[;&|<>$`\\\n!#\"'(){}]")
"""What means something to a shell and stands in no option of dubio."""
LEFT_OUT = "# a command of this run is not shown: its record holds no command of dubio as dubio writes it"
TOLD = ("command", "network")
"""What an evaluation says of how it was made, beside versions."""


def checked(line: str) -> str:
    """A command of dubio, put together again from its parsed options; a sentence where a record holds anything else.

    Records are files that may come from elsewhere, and commands in a report are made to be copied into a shell.
    """
    try:
        program, command, run, *waiting = shlex.split(line)
    except ValueError:
        return LEFT_OUT
    if program != "dubio" or command not in OPTIONS or run.startswith("-") or not _is_plain(run):
        return LEFT_OUT
    rebuilt = [program, command, run]
    while waiting:
        option = waiting.pop(0)
        rebuilt.append(option)
        if not option.startswith("--"):
            return LEFT_OUT
        if command == "train" and _is_flag_of_method(option, waiting):
            continue
        try:
            kind = _kind(command, option)
            if kind is not None:
                rebuilt.append(waiting.pop(0))
                kind(rebuilt[-1])
        except (KeyError, IndexError, ValueError):
            return LEFT_OUT
        if not _is_plain(rebuilt[-1]):
            return LEFT_OUT
    return shlex.join(rebuilt)


def _kind(command: str, option: str) -> type | None:
    """What an option takes; None for a flag, and a KeyError where the command has no such option."""
    name = option.removeprefix("--")
    return str if command == "train" and name in METHOD_OPTIONS else OPTIONS[command][name]


def _is_flag_of_method(option: str, following: Sequence[str]) -> bool:
    """Whether it is an option of ``dubio train`` for a field that is True or False, which has no value."""
    name = option.removeprefix("--")
    if name.removeprefix("no-") not in METHOD_OPTIONS:
        return False
    return name.startswith("no-") or not following or following[0].startswith("--")


def _is_plain(word: str) -> bool:
    return not SHELL.search(word) and printable(word) == word


def reproduction(records: Sequence[RunRecord]) -> Section:
    """Commands, seeds, fingerprints and versions of every run."""
    about = (
        "The commands that made the numbers, rebuilt from the files of each run; they write to folders of the same "
        "names, so run them in another place or with another --runs. A fingerprint tells whether the data are the "
        "same. With the same versions and seed the numbers are the same on the same hardware, and nearly the same "
        "elsewhere."
    )
    return Section("reproduce", "How to make each number again", about, tuple(_commands(record) for record in records))


def train_command(record: RunRecord) -> str | None:
    """``dubio train`` with the options of a run; None where it was trained in Python."""
    if not record.order:
        return None
    own = {name: value for name, value in record.order.items() if name not in NO_OPTIONS}
    if own.pop("fast", None) is not None:
        own["fast" if record.order["fast"] else "eager"] = True
    if own.pop("standardise", True) is False:
        own["as-is"] = True
    given = {name: value for name, value in own.items() if value not in (None, False, DEFAULTS.get(name))}
    fields = record.order.get("fields") or {}
    chosen: dict[str, Any] = {"method": record.method, **given, **fields, "seed": record.order.get("seed", 0)}
    return shlex.join(["dubio", "train", _trained_name(record), *_options(chosen)])


def attack_command(name: str, found: ReportedAttack) -> str:
    """``dubio attack`` with the options that a record tells of."""
    attacks = dict.fromkeys(row.attack for row in found.rows if row.fields)
    epsilons = dict.fromkeys(row.epsilon for row in found.rows)
    fields = found.shared_fields()
    chosen: dict[str, Any] = {
        "attack": ",".join(attacks) or None,
        "epsilon": ",".join(epsilons),
        **{option: fields.get(field) for field, option in ATTACK_OPTIONS.items()},
        "draws": found.num_draws,
        "images": len(found.indices) or None,
        "data": found.data or None,
        "seed": found.seeds.get("attack", 0) // 3,
    }
    return shlex.join(
        ["dubio", "attack", name, *_options({key: value for key, value in chosen.items() if value is not None})]
    )


def prune_commands(record: RunRecord) -> list[str]:
    """``dubio prune``: what made a run from the one that was trained, step by step, and what measured it."""
    lines = [command.line for command in record.commands if command.kind == "prune"]
    if record.pruning is not None:
        lines.append(record.pruning.made_by.get("command") or _rebuilt(record, record.pruning))
    return list(dict.fromkeys(lines))


def decision_commands(record: RunRecord) -> dict[str, str]:
    """``dubio calibrate``, ``abstain`` and ``conformal``, by what they decide, as far as it still holds."""
    found: dict[str, str] = {}
    for command in record.commands:
        if command.kind == "calibrate":  # which drops the others
            found = {}
        if command.kind in DECIDED:
            found.pop(DECIDED[command.kind], None)
            found[DECIDED[command.kind]] = command.line
    return found


def _rebuilt(record: RunRecord, found: PruningRecord) -> str:
    """``dubio prune`` from what an older record tells of it."""
    name = record.folder.resolve().name
    chosen: dict[str, Any] = {"what": found.what} if found.what not in ("", "weights") else {}
    if found.num_removed:
        chosen |= {"fraction": found.fraction, **({"by": found.by} if found.by else {}), "out": name}
    return shlex.join(["dubio", "prune", _trained_name(record), *_options(chosen)])


def _trained_name(record: RunRecord) -> str:
    """What the run was called when it was trained: a pruned one is a run of its own, made from another."""
    name = record.folder.resolve().name
    pruned = [command for command in record.commands if command.kind == "prune"]
    if pruned:
        return pruned[0].run
    if record.pruning is None or not record.pruning.num_removed:
        return name
    if "run" in record.pruning.made_by:
        return record.pruning.made_by["run"]
    return name.removesuffix("-pruned") if name.endswith("-pruned") else f"{name}-whole"


def _options(chosen: dict[str, Any]) -> list[str]:
    words = []
    for name, value in chosen.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += [option] if value else [f"--no-{option[2:]}"]
        else:
            words += [option, str(value)]
    return words


def _commands(record: RunRecord) -> Commands:
    name = record.folder.resolve().name
    lines = [
        train_command(record) or f"# {' '.join(record.name.split())} was trained in Python; its config.json says how"
    ]
    facts = {"method": str(record.config["method"]), "seed of training": str(record.config.get("seed", "unknown"))}
    lines += prune_commands(record)
    decisions = decision_commands(record)
    if record.evaluation is not None:
        found = record.evaluation
        lines += [decisions.pop(what) for what in list(decisions) if what in found.decided]
        lines.append(found.made_by.get("command", f"dubio evaluate {shlex.quote(name)}"))
        facts["judged on"] = (
            f"{found.data.name}, {found.data.num_examples} examples, fingerprint {found.data.fingerprint}"
        )
        facts["draws"] = f"{found.num_samples}, seed {found.seed}"
        facts["versions of the evaluation"] = _pairs({k: v for k, v in found.made_by.items() if k not in TOLD})
        facts.update(
            {f"unseen data: {other}": f"fingerprint {part.fingerprint}" for other, part in found.unseen.items()}
        )
    lines += decisions.values()  # decided after it was judged
    lines += [attack_command(name, attack) for attack in record.attacks]
    for number, attack in enumerate(record.attacks, start=1):
        which = f" {number}" if len(record.attacks) > 1 else ""
        facts[f"attacked{which}"] = f"{attack.data}, fingerprint {attack.fingerprint}, {attack.when}"
        facts[f"seeds of attack{which}"] = _pairs(attack.seeds)
        facts[f"versions of attack{which}"] = _pairs(attack.versions)
    if record.audit is not None:
        threat = record.audit.threat
        asked = f"--epsilon {threat.epsilon:g} --norm {threat.norm} --budget {threat.budget}"
        plain = f"dubio audit {shlex.quote(name)} {asked}"
        lines.append(record.audit.made_by.get("command", plain))
        facts["audited"] = f"{record.audit.data}, fingerprint {record.audit.fingerprint}, seed {threat.seed}"
    lines = [line if line.startswith("# ") else checked(line) for line in lines]
    return Commands(record.name, tuple(dict.fromkeys(lines)), {key: value for key, value in facts.items() if value})


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
