"""What may be asked of pruning, and an example of inputs where nobody gave one."""

import math
from typing import Any

import torch
from torch import nn

from dubio._engine import Inputs
from dubio.data import batches_from
from dubio.models import sizes_of
from dubio.pruning.values import By
from dubio.pruning.weights import default_by

__all__ = ["check_amount", "check_budget", "check_choice", "check_what", "checked_by", "example_for"]

ROWS = 32
"""Rows of an example that is taken from data."""


def check_amount(name: str, value: object) -> None:
    """A share from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], a share of what is there, got {value!r}")


def check_budget(fraction: object, max_loss: object, validation: object) -> None:
    """One of a share and a budget, and data to measure the budget on."""
    if (fraction is None) == (max_loss is None):
        given = "neither" if fraction is None else f"fraction={fraction!r} and max_loss={max_loss!r}"
        raise ValueError(f"exactly one of fraction and max_loss must be given, got {given}")
    if fraction is not None:
        check_amount("fraction", fraction)
        return
    if isinstance(max_loss, bool) or not isinstance(max_loss, int | float):
        raise TypeError(f"max_loss must be a number, got {max_loss!r}")
    if not (math.isfinite(max_loss) and max_loss >= 0.0):
        raise ValueError(f"max_loss must be finite and at least 0, got {max_loss!r}")
    if validation is None:
        raise ValueError("validation must be given with max_loss: the loss is measured on it; got None")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """One of these."""
    if value not in choices:
        raise ValueError(f"{name} must be {' or '.join(map(repr, choices))}, got {value!r}")


def check_what(what: object, biases: bool, each_layer: bool) -> None:
    """Weights or units, and options that go with them."""
    check_choice("what", what, ("weights", "units"))
    if what == "units" and biases:
        raise ValueError("biases must be False for what='units': a unit's bias goes with it, got True")
    if what == "weights" and each_layer:
        raise ValueError("each_layer must be False for what='weights': weights are ranked together, got True")


def checked_by(model: nn.Module, by: By | None) -> By:
    """What weights are ranked by; None is the network's default."""
    if by is None:
        return default_by(model)
    check_choice("by", by, ("snr", "magnitude"))
    if by == "snr" and default_by(model) != "snr":
        raise ValueError("by must be 'magnitude' for a network without Gaussian posteriors over weights, got 'snr'")
    return by


def example_for(model: nn.Module, example: Inputs | None, data: Any) -> Inputs:
    """Inputs to run a network on: those given, some of the data, or zeros of the shape that its name tells."""
    if example is not None:
        return example
    device = next(model.parameters()).device
    if data is not None:
        inputs: Inputs = next(batches_from(data, ROWS, name="validation", device=device).epoch(0)).to(device).inputs
        return inputs
    sizes = sizes_of(model)
    if sizes is None or sizes.inputs is None:
        raise ValueError(
            "example must be given to remove units of a network that dubio did not build: inputs show which layer "
            "follows which, got None"
        )
    return torch.zeros(2, *sizes.inputs, device=device)
