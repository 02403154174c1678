"""``dubio prune``: measure what a run could do without, or write a run without it."""

import copy
import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from torch import nn

from dubio import pruning
from dubio.cli.errors import say
from dubio.cli.runs import (
    CONFIG,
    ENCODER,
    FILE,
    METRICS,
    MODEL,
    check_name,
    find_run,
    in_rows,
    load_model,
    load_splits,
    network_of,
    read_encoder,
    read_order,
)
from dubio.cli.terminal import PlainTable, command_line
from dubio.codec import (
    UNFINISHED,
    Command,
    dump_json,
    flush,
    read_commands,
    read_object,
    remove_unfinished,
    write_atomically,
    write_commands,
)
from dubio.data import Examples
from dubio.evaluation import figure
from dubio.io import Identity, save
from dubio.nn import num_trained
from dubio.pruning import Pruning, PruningPoint

RECORD = "pruning.json"
TIMED_ROWS = 128
"""Rows of the example that a forward is timed on."""


def prune(
    named: str,
    fraction: float | None,
    max_loss: float | None,
    by: Literal["snr", "magnitude"] | None,
    what: Literal["weights", "units"],
    each_layer: bool,
    samples: int,
    seed: int,
    out: str | None,
    data_dir: Path | None,
    quiet: bool,
    runs: Path,
) -> None:
    """Measure what a run could do without, or write the pruned run."""
    _check_asked(fraction, max_loss, what, each_layer)
    folder = find_run(named, runs)
    name = out or f"{folder.name}-pruned"
    check_name(name)
    if (fraction is not None or max_loss is not None) and (runs / name).exists():
        raise FileExistsError(f"{runs / name} is there already; choose another name with --out NAME")
    model = load_model(named, runs)
    validation = _validation(folder, data_dir)
    own = folder.resolve().name
    options: dict[str, tuple[Any, Any]] = {
        "fraction": (fraction, None),
        "max-loss": (max_loss, None),
        "by": (by, None),
        "what": (what, "weights"),
        "each-layer": (each_layer, False),
        "samples": (samples, 100),
        "seed": (seed, 0),
    }
    if fraction is None and max_loss is None:
        measured = measure(model, validation, by, what, each_layer, samples, seed)
        told = told_of(command_line("prune", own, options), own, network_of(named, runs))
        dataclasses.replace(measured, made_by=told).save(folder / RECORD)
        Console().print(_table(measured.curve, what))
        size = f"{measured.num_weights:,} weights, {measured.bytes_before:,} bytes"
        say(size if quiet else f"{size}; record: {folder / RECORD}")
        return
    record = pruning.prune(
        model,
        fraction,
        by=by,
        what=what,
        max_loss=max_loss,
        validation=validation,
        each_layer=each_layer,
        example=validation.tensors[0][:TIMED_ROWS],
        num_samples=samples,
        seed=seed,
    )
    command = Command(command_line("prune", own, {**options, "out": (name, None)}), own)
    _write_run(model, record, command, folder, runs / name)
    say(str(record))
    if not quiet:
        say(f"{runs / name}: try dubio describe {name}")


def _check_asked(fraction: float | None, max_loss: float | None, what: pruning.What, each_layer: bool) -> None:
    if fraction is not None and max_loss is not None:
        raise ValueError(f"--fraction and --max-loss exclude each other, got {fraction:g} and {max_loss:g}")
    if each_layer and what == "weights":
        raise ValueError("--each-layer goes with --what units, got --what weights, which are ranked together")


def _validation(folder: Path, data_dir: Path | None) -> Examples:
    """The part of a run's data that may decide what is removed."""
    changed: dict[str, Any] = {} if data_dir is None else {"data_dir": str(data_dir)}
    order = read_order(folder, **changed)
    validation = load_splits(order, read_encoder(folder)).validation
    if validation is None:
        raise ValueError(f"{order.data} has no validation part to judge by; use dubio.prune in Python")
    return in_rows(validation)


def measure(
    model: nn.Module,
    validation: Examples,
    by: pruning.By | None = None,
    what: pruning.What = "weights",
    each_layer: bool = False,
    samples: int = 100,
    seed: int = 0,
) -> Pruning:
    """A record of a network that nothing was removed from, with the curve of what would happen."""
    whole = pruning.prune(
        copy.deepcopy(model), 0.0, by=by, what=what, validation=validation, num_samples=samples, seed=seed
    )
    points = pruning.curve(model, validation, by=by, what=what, each_layer=each_layer, num_samples=samples, seed=seed)
    return dataclasses.replace(whole, curve=points)


def _table(points: tuple[PruningPoint, ...], what: str) -> PlainTable:
    ways = list(dict.fromkeys(point.by for point in points))
    has_accuracy = any(point.accuracy is not None for point in points)  # numbers are never exactly right
    columns = ("accuracy", "NLL") if has_accuracy else ("NLL",)
    table = PlainTable(f"{what} removed", *(f"{column}, by {way}" for way in ways for column in columns))
    for fraction in dict.fromkeys(point.fraction for point in points):
        cells, share = [], fraction
        for way in ways:
            point = next(point for point in points if (point.by, point.fraction) == (way, fraction))
            cells += ["-" if point.accuracy is None else f"{point.accuracy:.4f}"] if has_accuracy else []
            cells.append(figure(point.nll))
            share = fraction if what == "weights" or point.removed is None else point.removed  # a unit of each stays
        table.add_row(f"{share:.0%}", *cells)
    return table


def told_of(command: str, run: str, network: Identity) -> dict[str, str]:
    """What a record says of the command that made it, and of the network that it is about."""
    return {"command": command, "run": run, **({"network": network.tensors} if network.tensors else {})}


def _write_run(model: nn.Module, record: Pruning, command: Command, source: Path, folder: Path) -> None:
    """A run of the pruned network: its own weights and record, and how it was trained. It is whole or not there."""
    runs = folder.parent
    runs.mkdir(parents=True, exist_ok=True)
    remove_unfinished(runs, recursive=False)
    unfinished = runs / f"{UNFINISHED}{os.getpid()}-{folder.name}"
    unfinished.mkdir()
    try:
        _write_files(model, record, command, source, unfinished)
        os.rename(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    flush(runs)


def _write_files(model: nn.Module, record: Pruning, command: Command, source: Path, folder: Path) -> None:
    for file in (FILE, ENCODER, METRICS):
        if (source / file).is_file():
            shutil.copyfile(source / file, folder / file)
    save(model, folder / MODEL)
    told = told_of(command.line, command.run, network_of(str(folder / MODEL), folder))
    dataclasses.replace(record, made_by=told).save(folder / RECORD)
    before = [known for known in read_commands(source) if known.kind == "prune"]  # what was decided is dropped
    write_commands(folder, (*before, command))
    # Its own shapes: training would build the whole network, and must not go on here as if nothing had happened.
    config = read_object(source / CONFIG)
    config["parameters"] = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    config["num_parameters"] = num_trained(model)
    write_atomically(folder / CONFIG, f"{dump_json(config, indent=1)}\n".encode())
