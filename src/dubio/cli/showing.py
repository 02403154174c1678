"""``dubio demo``: an ordinary network and a Bayesian one, side by side."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from dubio.cli.digits import NUM_PIXELS, load_split, score
from dubio.cli.folders import unused_name
from dubio.cli.ordering import Order, train_order
from dubio.models import build
from dubio.prediction import ClassPredictive, predict
from dubio.training import Interrupted, fit

__all__ = ["show_demo"]


def show_demo(runs: Path, epochs: int | None) -> None:
    """Train both, and compare them on digits and on noise."""
    digits = load_split()
    order = Order(epochs=epochs)
    noise = torch.rand(len(digits.test[0]), NUM_PIXELS, generator=torch.Generator().manual_seed(0))
    bayes = runs / unused_name("demo-bayes", runs)
    deterministic = runs / unused_name("demo-deterministic", runs)

    def train_plain() -> nn.Module:
        torch.manual_seed(order.seed)
        net = build(order.model)  # a network without posteriors: what fit minimises is the cross-entropy
        fit(net, digits.train, digits.validation, epochs=epochs, seed=order.seed, folder=deterministic)
        return net

    table = Table(title=f"{len(noise)} test digits, and {len(noise)} images of noise", title_justify="left")
    for heading in ("method", "accuracy", "NLL", "entropy", "on noise", "seconds"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    entries: list[tuple[str, Callable[[], nn.Module]]] = [
        ("deterministic", train_plain),
        ("Bayes", lambda: train_order(order, digits, bayes)[0]),
    ]
    for name, train in entries:
        typer.echo(f"training: {name}, {order.model}", err=True)
        began = time.perf_counter()
        try:
            model = train()
        except Interrupted:
            raise KeyboardInterrupt from None  # a demo is not resumed
        seconds = time.perf_counter() - began
        known, strange = score(model, digits.test), predict(model, noise, num_samples=100, seed=0)
        assert isinstance(strange, ClassPredictive)
        figures = (known.accuracy, known.nll, known.entropy, strange.entropy.mean().item())
        table.add_row(name, *(f"{figure:.3f}" for figure in figures), f"{seconds:.1f}")
    Console().print(table)
    typer.echo("Entropy is in nats: 0 is certain, 2.303 is no idea which of the ten digits it is.")
    typer.echo(f"The runs are in {deterministic} and {bayes}.")
    typer.echo(f"Try next: dubio predict {bayes}")
