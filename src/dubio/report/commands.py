"""Commands that reproduce the numbers of a report, rebuilt from the files of each run.

A command is put together again from its parsed options, so that nothing in a file reaches a shell unparsed
(``tests/end_to_end/test_hostile_files.py``).
"""

import re
import shlex
from collections.abc import Sequence
from typing import Any, get_type_hints

from dubio.codec import printable
from dubio.methods import METHODS
from dubio.report.elements import Commands, Section
from dubio.report.runs import RobustnessRecord, RunRecord

DEFAULTS = {"data": "digits", "model": "fc:100-100", "schedule": "constant", "batch_size": 128, "precision": "fp32"}
ATTACK_FIELDS = ("norm", "steps", "restarts", "num_samples", "objective", "loss", "noise")
"""Fields of attacks that are options of ``dubio attack``, there without ``num_``."""
DECISIONS = {"calibrate": "calibration", "abstain": "threshold", "conformal": "sets"}
NO_OPTIONS = ("fields", "seed", "method", "standardise_targets")
"""Fields of ``command.json`` that are no options, or that are added separately."""
OPTIONS: dict[str, dict[str, type | None]] = {
    "train": {
        **dict.fromkeys(("data", "data-dir", "target", "task", "drop", "delimiter", "label-noise", "model"), str),
        **dict.fromkeys(("method", "schedule", "precision", "memory", "resize", "likelihood"), str),
        **dict.fromkeys(("lr", "noise-lr"), float),
        **dict.fromkeys(("epochs", "batch-size", "samples", "seed"), int),
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
        **dict.fromkeys(("fraction", "max-loss"), float),
        **dict.fromkeys(("samples", "seed"), int),
        "each-layer": None,
    },
}
"""The options of each command that records may hold, and the type of their values; None for flags."""
METHOD_OPTIONS = {name.replace("_", "-") for kind in METHODS.values() for name in get_type_hints(kind)}
SHELL = re.compile(r"[;&|<>$`\\\n!#\"'(){}]")
"""Characters with a meaning in a shell; no option of dubio needs them."""
LEFT_OUT = "# a command of this run is not shown: its record holds no command of dubio as dubio writes it"
NO_VERSIONS = ("command", "network")
"""Fields of ``Evaluation.made_by`` that are no versions."""


def reproduction(records: Sequence[RunRecord]) -> Section:
    """Commands, seeds, fingerprints and versions of every run."""
    about = (
        "The commands that made the numbers, rebuilt from the files of each run; they write to folders of the same "
        "names, so run them in another place or with another --runs. A fingerprint tells whether the data are the "
        "same. With the same versions and seed the numbers are the same on the same hardware, and nearly the same "
        "elsewhere."
    )
    return Section("reproduce", "How to make each number again", about, tuple(map(_commands, records)))


def checked(line: str) -> str:
    """A command of dubio, rebuilt from its parsed options; a comment if the line is anything else.

    Records may come from elsewhere, and commands in a report are made to be copied into a shell.
    """
    try:
        program, command, run, *rest = shlex.split(line)
        if program != "dubio" or run.startswith("-") or not _is_plain(run):
            return LEFT_OUT
        types = OPTIONS[command]
        rebuilt = [program, command, run]
        while rest:
            option = rest.pop(0)
            if not option.startswith("--"):
                return LEFT_OUT
            rebuilt.append(option)
            if command == "train" and _is_method_flag(option, rest):
                continue
            name = option.removeprefix("--")
            kind = str if command == "train" and name in METHOD_OPTIONS else types[name]
            if kind is not None:
                rebuilt.append(rest.pop(0))
                kind(rebuilt[-1])
            if not _is_plain(rebuilt[-1]):
                return LEFT_OUT
    except (KeyError, IndexError, ValueError):
        return LEFT_OUT
    return shlex.join(rebuilt)


def train_command(run: RunRecord) -> str | None:
    """``dubio train`` with the options of a run; None for a network trained in Python."""
    if not run.order:
        return None
    order = {name: value for name, value in run.order.items() if name not in NO_OPTIONS}
    if order.pop("fast", None) is not None:
        order["fast" if run.order["fast"] else "eager"] = True
    if order.pop("standardise", True) is False:
        order["as-is"] = True
    changed = {name: value for name, value in order.items() if value not in (None, False, DEFAULTS.get(name))}
    fields = run.order.get("fields") or {}
    options: dict[str, Any] = {"method": run.method, **changed, **fields, "seed": run.order.get("seed", 0)}
    return _command_line("train", _trained_name(run), options)


def attack_command(name: str, record: RobustnessRecord) -> str:
    """``dubio attack`` with the options of a record."""
    fields = record.shared_fields()
    options: dict[str, Any] = {
        "attack": ",".join(dict.fromkeys(row.attack for row in record.rows if row.fields)) or None,
        "epsilon": ",".join(dict.fromkeys(row.epsilon for row in record.rows)),
        **{field.removeprefix("num_"): fields.get(field) for field in ATTACK_FIELDS},
        "draws": record.num_draws,
        "images": len(record.indices) or None,
        "data": record.data or None,
        "seed": record.seeds.get("attack", 0) // 3,
    }
    return _command_line("attack", name, {option: value for option, value in options.items() if value is not None})


def prune_commands(run: RunRecord) -> list[str]:
    """``dubio prune``: the commands that made a run from the trained one, and the command that measured it."""
    lines = [command.line for command in run.commands if command.kind == "prune"]
    if record := run.pruning:
        options: dict[str, Any] = {"what": record.what} if record.what != "weights" else {}
        if record.num_removed:
            options |= {"fraction": record.fraction, "by": record.by, "out": run.folder.resolve().name}
        lines.append(record.made_by.get("command") or _command_line("prune", _trained_name(run), options))
    return list(dict.fromkeys(lines))


def decision_commands(run: RunRecord) -> dict[str, str]:
    """The last ``dubio calibrate``, ``abstain`` and ``conformal`` that still hold, by what they decide."""
    lines: dict[str, str] = {}
    for command in run.commands:
        if command.kind == "calibrate":  # a calibration resets the other decisions
            lines = {}
        if what := DECISIONS.get(command.kind):
            lines.pop(what, None)
            lines[what] = command.line
    return lines


def _commands(run: RunRecord) -> Commands:
    name = run.folder.resolve().name
    lines = [train_command(run) or f"# {' '.join(run.name.split())} was trained in Python; its config.json says how"]
    facts = {"method": str(run.config["method"]), "seed of training": str(run.config.get("seed", "unknown"))}
    lines += prune_commands(run)
    decisions = decision_commands(run)
    if evaluation := run.evaluation:
        lines += [decisions.pop(what) for what in list(decisions) if what in evaluation.decided]
        lines.append(evaluation.made_by.get("command", f"dubio evaluate {shlex.quote(name)}"))
        data, made_by = evaluation.data, evaluation.made_by
        facts["judged on"] = f"{data.name}, {data.num_examples} examples, fingerprint {data.fingerprint}"
        facts["draws"] = f"{evaluation.num_samples}, seed {evaluation.seed}"
        facts["versions of the evaluation"] = _pairs({k: v for k, v in made_by.items() if k not in NO_VERSIONS})
        for other, dataset in evaluation.unseen.items():
            facts[f"unseen data: {other}"] = f"fingerprint {dataset.fingerprint}"
    lines += decisions.values()  # decisions after the evaluation
    for place, attack in enumerate(run.attacks, start=1):
        lines.append(attack_command(name, attack))
        which = f" {place}" if len(run.attacks) > 1 else ""
        facts[f"attacked{which}"] = f"{attack.data}, fingerprint {attack.fingerprint}, {attack.when}"
        facts[f"seeds of attack{which}"] = _pairs(attack.seeds)
        facts[f"versions of attack{which}"] = _pairs(attack.versions)
    if audit := run.audit:
        threat = audit.threat
        options = {"epsilon": f"{threat.epsilon:g}", "norm": threat.norm, "budget": threat.budget}
        lines.append(audit.made_by.get("command", _command_line("audit", name, options)))
        facts["audited"] = f"{audit.data}, fingerprint {audit.fingerprint}, seed {threat.seed}"
    lines = [line if line.startswith("# ") else checked(line) for line in lines]
    return Commands(run.name, tuple(dict.fromkeys(lines)), {key: value for key, value in facts.items() if value})


def _trained_name(run: RunRecord) -> str:
    """The name of the run that was trained; pruning makes a new run of it."""
    name = run.folder.resolve().name
    if pruned := [command for command in run.commands if command.kind == "prune"]:
        return pruned[0].run
    if run.pruning is None or not run.pruning.num_removed:
        return name
    if "run" in run.pruning.made_by:
        return run.pruning.made_by["run"]
    return name.removesuffix("-pruned") if name.endswith("-pruned") else f"{name}-whole"


def _command_line(command: str, run: str, options: dict[str, Any]) -> str:
    words = ["dubio", command, run]
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            words += [f"--{option}", str(value)]
    return shlex.join(words)


def _is_method_flag(option: str, rest: Sequence[str]) -> bool:
    """Whether an option of ``dubio train`` stands for a field of a method that is True or False, without a value."""
    name = option.removeprefix("--")
    if name.removeprefix("no-") not in METHOD_OPTIONS:
        return False
    return name.startswith("no-") or not rest or rest[0].startswith("--")


def _is_plain(word: str) -> bool:
    return not SHELL.search(word) and printable(word) == word


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
