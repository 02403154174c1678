"""Trying on copies: how a network does with more and more removed, and how much can go within a budget."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from dubio._engine import Inputs
from dubio.convert import Where
from dubio.pruning.checks import check_amount, check_what, checked_by, example_for
from dubio.pruning.measuring import judge
from dubio.pruning.units import prune_units
from dubio.pruning.values import By, PruningPoint, Removal, What
from dubio.pruning.weights import default_by, prune_weights

__all__ = ["Cut", "curve", "share_within"]

STEPS = 1000
"""How finely a budget is spent: shares are tried in thousandths."""


@dataclass(frozen=True, eq=False)
class Cut:
    """What is to be removed, but for how much."""

    by: By
    what: What
    where: Where
    biases: bool
    each_layer: bool
    example: Inputs | None

    def apply(self, model: nn.Module, fraction: float) -> Removal:
        """Remove a share, in place."""
        if self.what == "units":
            assert self.example is not None
            return prune_units(model, fraction, self.by, self.where, self.each_layer, self.example)
        return prune_weights(model, fraction, self.by, self.where, self.biases)

    def try_out(self, model: nn.Module, data: Any, fraction: float, num_samples: int, seed: int) -> PruningPoint:
        """How a copy of the network does without that share."""
        trial = copy.deepcopy(model)
        removed = self.apply(trial, fraction).share
        return judge(trial, data, self.by, fraction, removed, num_samples, seed)


def curve(
    model: nn.Module,
    data: Any,
    fractions: Sequence[float] = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98),
    by: By | Sequence[By] | None = None,
    *,
    what: What = "weights",
    where: Where = None,
    biases: bool = False,
    each_layer: bool = False,
    example: Inputs | None = None,
    num_samples: int = 100,
    seed: int = 0,
) -> tuple[PruningPoint, ...]:
    """How a network does with more and more removed; it is not changed itself, and all points are of the same draws.

    Args:
        model: a converted network.
        data: what it is judged on, as ``dubio.fit`` takes validation data.
        fractions: shares to remove.
        by: ``"snr"``, ``"magnitude"`` or several; by default both where there are Gaussian posteriors over weights.
        what: ``"weights"`` or ``"units"``.
        where: which layers; see ``dubio.Where``. All by default.
        biases: whether biases are removed too.
        each_layer: for units, whether the share is one of each layer; see ``dubio.prune``.
        example: inputs that show which layer follows which, for units; see ``dubio.prune``.
        num_samples: draws that predictions are averaged over.
        seed: which draws.
    """
    both: tuple[By, ...] = ("snr", "magnitude") if default_by(model) == "snr" else ("magnitude",)
    asked = both if by is None else (by,) if isinstance(by, str) else by
    ways = [checked_by(model, way) for way in asked]
    for fraction in fractions:
        check_amount("fractions", fraction)
    check_what(what, biases, each_layer)
    shown = example_for(model, example, data) if what == "units" else None
    return tuple(
        Cut(way, what, where, biases, each_layer, shown).try_out(model, data, float(fraction), num_samples, seed)
        for way in ways
        for fraction in fractions
    )


def share_within(
    cut: Cut, model: nn.Module, data: Any, max_loss: float, before: PruningPoint, num_samples: int, seed: int
) -> tuple[float, list[PruningPoint]]:
    """A share that costs at most ``max_loss``, found by bisection, and all that was tried.

    A thousandth more costs too much. A still larger share may cost less again, since accuracy does not fall evenly; it
    is not looked for.
    """
    tried: list[PruningPoint] = []
    kept, lost = 0, STEPS + 1
    while lost - kept > 1:
        middle = STEPS if not tried else (kept + lost) // 2  # perhaps everything can go
        tried.append(cut.try_out(model, data, middle / STEPS, num_samples, seed))
        if loss_between(before, tried[-1]) <= max_loss + 1e-9:
            kept = middle
        else:
            lost = middle
    return kept / STEPS, sorted(tried, key=lambda point: point.fraction)


def loss_between(before: PruningPoint, after: PruningPoint) -> float:
    """How much accuracy fell or, where targets are numbers, how much the negative log-likelihood rose."""
    if before.accuracy is None or after.accuracy is None:
        return after.nll - before.nll
    return before.accuracy - after.accuracy
