"""What ``dubio prune`` needs: the curve of what pruning costs, and the run of a pruned network.

A pruned run is written as a whole or not at all. Its configuration has the shapes of the pruned network, so that
``dubio train --resume`` refuses it instead of building the whole network.
"""

import copy
import dataclasses
import os
import shutil
from pathlib import Path

from rich.console import Console
from torch import nn

from dubio import codec, pruning
from dubio.cli import runs as run_files
from dubio.cli.errors import say
from dubio.cli.terminal import PlainTable
from dubio.data import Examples
from dubio.evaluation import figure
from dubio.io import Identity, save
from dubio.nn import num_trained
from dubio.pruning import Pruning, PruningPoint

RECORD = "pruning.json"
TIMED_ROWS = 128
"""Rows of the example that a forward is timed on."""


def measure(
    model: nn.Module,
    validation: Examples,
    by: pruning.By | None = None,
    what: pruning.What = "weights",
    each_layer: bool = False,
    samples: int = 100,
    seed: int = 0,
) -> Pruning:
    """The record of a network from which nothing is removed, with the curve of what pruning costs."""
    whole = pruning.prune(
        copy.deepcopy(model), 0.0, by=by, what=what, validation=validation, num_samples=samples, seed=seed
    )
    points = pruning.curve(model, validation, by=by, what=what, each_layer=each_layer, num_samples=samples, seed=seed)
    return dataclasses.replace(whole, curve=points)


def save_measured(record: Pruning, line: str, folder: Path, what: pruning.What, quiet: bool) -> None:
    """Save and print what pruning the network of a run costs."""
    network = run_files.network_of(str(folder / run_files.MODEL), folder)
    with_source(record, line, folder.resolve().name, network).save(folder / RECORD)
    Console().print(_table(record.curve, what))
    size = f"{record.num_weights:,} weights, {record.bytes_before:,} bytes"
    say(size if quiet else f"{size}; record: {folder / RECORD}")


def with_source(record: Pruning, line: str, run: str, network: Identity) -> Pruning:
    """A record with the command that made it, its run, and the network that it describes."""
    tensors = {"network": network.tensors} if network.tensors else {}
    return dataclasses.replace(record, made_by={"command": line, "run": run, **tensors})


def check_options(fraction: float | None, max_loss: float | None, what: pruning.What, each_layer: bool) -> None:
    """Raise an error for options that exclude each other."""
    if fraction is not None and max_loss is not None:
        raise ValueError(f"--fraction and --max-loss exclude each other, got {fraction:g} and {max_loss:g}")
    if each_layer and what == "weights":
        raise ValueError("--each-layer goes with --what units, got --what weights, which are ranked together")


def validation_of(folder: Path, data_dir: Path | None) -> Examples:
    """The validation part of the data of a run, which decides what is removed."""
    config = (
        run_files.read_config(folder) if data_dir is None else run_files.read_config(folder, data_dir=str(data_dir))
    )
    validation = run_files.load_splits(config, run_files.read_encoder(folder)).validation
    if validation is None:
        raise ValueError(f"{config.data} has no validation part to measure the loss on; use dubio.prune in Python")
    return run_files.in_rows(validation)


def write_run(model: nn.Module, record: Pruning, line: str, source: Path, folder: Path) -> None:
    """Write the run of a pruned network: its weights and record, and how the network was trained."""
    runs, command = folder.parent, codec.Command(line, source.resolve().name)
    runs.mkdir(parents=True, exist_ok=True)
    codec.remove_unfinished(runs, recursive=False)
    unfinished = runs / f"{codec.UNFINISHED}{os.getpid()}-{folder.name}"
    unfinished.mkdir()
    try:
        for file in (run_files.FILE, run_files.ENCODER, run_files.METRICS):
            if (source / file).is_file():
                shutil.copyfile(source / file, unfinished / file)
        save(model, unfinished / run_files.MODEL)
        network = run_files.network_of(str(unfinished / run_files.MODEL), unfinished)
        with_source(record, command.line, command.run, network).save(unfinished / RECORD)
        # Calibration and other decisions are of the whole network: only its prunings are passed on.
        earlier = (before for before in codec.read_commands(source) if before.kind == "prune")
        codec.write_commands(unfinished, (*earlier, command))
        config = codec.read_object(source / run_files.CONFIG)
        config["parameters"] = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
        config["num_parameters"] = num_trained(model)
        codec.write_atomically(unfinished / run_files.CONFIG, f"{codec.dump_json(config, indent=1)}\n".encode())
        os.rename(unfinished, folder)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    codec.flush(runs)


def _table(points: tuple[PruningPoint, ...], what: str) -> PlainTable:
    scores = list(dict.fromkeys(point.by for point in points))
    has_accuracy = any(point.accuracy is not None for point in points)  # regression has none
    columns = ("accuracy", "NLL") if has_accuracy else ("NLL",)
    table = PlainTable(f"{what} removed", *(f"{column}, by {score}" for score in scores for column in columns))
    for fraction in dict.fromkeys(point.fraction for point in points):
        cells, share = [], fraction
        for score in scores:
            point = next(point for point in points if (point.by, point.fraction) == (score, fraction))
            cells += ["-" if point.accuracy is None else f"{point.accuracy:.4f}"] if has_accuracy else []
            cells.append(figure(point.nll))
            # One unit of each layer always stays, so that fewer units than the fraction may be removed.
            share = fraction if what == "weights" or point.removed is None else point.removed
        table.add_row(f"{share:.0%}", *cells)
    return table
