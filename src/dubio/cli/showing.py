"""``dubio demo``: an ordinary network and a Bayesian one, side by side."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from dubio.cli.folders import unused_name
from dubio.cli.judging import ClassScore, score
from dubio.cli.ordering import Order, build_for, load_splits, train_order
from dubio.data import Examples
from dubio.training import Interrupted, fit

__all__ = ["show_demo"]


def show_demo(runs: Path, epochs: int | None) -> None:
    """Train both, and compare them on digits and on noise."""
    order = Order(epochs=epochs)
    splits = load_splits(order)
    train, test = splits.train, splits.test
    assert train is not None
    assert test is not None
    pixels = torch.rand(test.inputs.shape, generator=torch.Generator().manual_seed(0))
    noise = Examples(pixels, test.targets, test.classes, "noise")
    bayes = runs / unused_name("demo-bayes", runs)
    deterministic = runs / unused_name("demo-deterministic", runs)

    def train_plain() -> nn.Module:
        net, _ = build_for(order, train)  # a network without posteriors: what fit minimises is the cross-entropy
        fit(net, train, splits.validation, epochs=epochs, seed=order.seed, folder=deterministic)
        return net

    table = Table(title=f"{len(test)} test digits, and {len(noise)} images of noise", title_justify="left")
    for heading in ("method", "accuracy", "NLL", "entropy", "on noise", "seconds"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    entries: list[tuple[str, Callable[[], nn.Module]]] = [
        ("deterministic", train_plain),
        ("Bayes", lambda: train_order(order, splits, bayes)[0]),
    ]
    for name, make in entries:
        typer.echo(f"training: {name}, {order.model}", err=True)
        began = time.perf_counter()
        try:
            model = make()
        except Interrupted:
            raise KeyboardInterrupt from None  # a demo is not resumed
        seconds = time.perf_counter() - began
        known, strange = score(model, test), score(model, noise)
        assert isinstance(known, ClassScore)
        assert isinstance(strange, ClassScore)
        figures = (known.accuracy, known.nll, known.entropy, strange.entropy)
        table.add_row(name, *(f"{figure:.3f}" for figure in figures), f"{seconds:.1f}")
    Console().print(table)
    typer.echo("Entropy is in nats: 0 is certain, 2.303 is no idea which of the ten digits it is.")
    typer.echo(f"The runs are in {deterministic} and {bayes}.")
    typer.echo(f"Try next: dubio predict {bayes}")
