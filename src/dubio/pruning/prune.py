"""``prune``: remove weights or units of a network in place, by a share or by a budget.

Invariants (T-11, ``tests/pruning``): removing nothing is the identity; removing all weights leaves the biases; removed
weights are zero in every draw, with noise off, in exports and files, have no part in the divergence, and stay so in
training. It is all or nothing: what is refused leaves the network as it was.

Trying on copies: how a network does with more and more removed, and how much can go within a budget.

What pruning is judged by: how well a network does, how long a forward takes, and how its signal-to-noise ratios lie.

All tries of one pruning are judged by the same draws, so that they differ by what was removed alone.

What may be asked of pruning, and an example of inputs where nobody gave one.
"""

import copy
import math
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Inputs, Stream, Watch, arguments, check_module, check_num_samples
from dubio.calibration import check_unjudged
from dubio.convert import Where, change_spec, check_where, drop_decisions, spec
from dubio.data import batches_from
from dubio.io import file_content
from dubio.models import sizes_of
from dubio.nn import removed_from
from dubio.pruning.records import By, LayerPruning, Pruning, PruningPoint, Removal, SnrDensity, What
from dubio.pruning.units import in_eval, layer_sizes, prune_units, removed_before, unit_counts
from dubio.pruning.weights import default_by, prunable, prune_weights, scores_of, weight_counts
from dubio.training import validate


def prune(
    model: nn.Module,
    fraction: float | None = None,
    *,
    by: By | None = None,
    what: What = "weights",
    max_loss: float | None = None,
    validation: Any = None,
    where: Where = None,
    biases: bool = False,
    each_layer: bool = False,
    example: Inputs | None = None,
    num_samples: int = 100,
    seed: int = 0,
) -> Pruning:
    """Remove what matters least from a network, in place, without training it again; returns a record of what it did.

    ``copy.deepcopy(model)`` first keeps the network as it is. Removed weights are zero in every draw, cost no
    divergence and stay zero in ``dubio.fit``; a network can be pruned again. What was decided for the network as it was
    (calibration, threshold, sets) is dropped, with a warning, where anything went: its predictions are others now.

    Args:
        model: a converted network.
        fraction: the share to remove, of all weights or units that there ever were together; those removed before
            count.
        by: what ranks weights, from low to high: ``"snr"``, their mean over their standard deviation, or
            ``"magnitude"``. By default the first where there are Gaussian posteriors over weights. A unit ranks by the
            mean over its weights.
        what: ``"weights"``, which saves memory in files, or ``"units"``: outputs of linear layers and channels of
            convolutions, which makes layers smaller and faster. An optimiser is to be made anew after that.
        max_loss: in place of ``fraction``, how much accuracy may fall on ``validation`` (where targets are numbers, how
            much the negative log-likelihood may rise). A share that keeps it is found by bisection: a thousandth more
            does not, though accuracy does not fall evenly, and a much larger share may by chance.
        validation: data as ``dubio.fit`` takes them; with it the record tells how the network does before and after.
        where: which layers; see ``dubio.Where``. All by default.
        biases: whether biases can be removed like weights.
        each_layer: for units, whether the share is one of each layer's units. By default units of all layers are ranked
            together, and a layer may be left with one.
        example: inputs to time a forward with; for units, also to see which layer follows which, which needs none where
            there are validation data or where dubio built the network.
        num_samples: draws that predictions are averaged over, the same in all tries.
        seed: which draws.
    """
    check_module(model)
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    spec(model)  # refuses a network that was not converted
    check_budget(fraction, max_loss, validation)
    check_what(what, biases, each_layer)
    check_where(where)
    check_num_samples(num_samples)
    if max_loss is not None:
        check_unjudged(model, batches_from(validation, BATCH_SIZE, name="validation"), "prune")
    shown = example_for(model, example, validation) if what == "units" else example
    cut = Cut(checked_by(model, by), what, where, biases, each_layer, shown)

    standing = cut.apply(model, 0.0)  # removes nothing, and refuses what cannot be cut before any work is done
    before = _look(model, cut, example, validation, num_samples, seed, 0.0, standing.share)
    tried: list[PruningPoint] = []
    if max_loss is not None:
        assert before.point is not None
        fraction, tried = share_within(cut, model, validation, max_loss, before.point, num_samples, seed)
    assert fraction is not None
    removal = cut.apply(model, fraction)
    _keep(model, removal)
    if removal.share > standing.share:
        drop_decisions(model, "pruning")
    after = _look(model, cut, example, validation, num_samples, seed, fraction, removal.share)
    record = _record(cut, float(fraction), before, after, tried, max_loss)
    return replace(record, removed=removal.share)


def _keep(model: nn.Module, removal: Removal) -> None:
    """Add what was removed to the network's own record."""
    before = removed_before(model)
    shrunk = [*(name for name, _, _ in before.sizes), *removal.shrunk]
    change_spec(model, pruning=removed_from(model, shrunk, {**removal.units, **dict(before.units)}))


@dataclass(frozen=True, eq=False)
class _Look:
    """A network as it is at one moment."""

    layers: dict[str, LayerPruning]
    sizes: dict[str, tuple[int, int]]
    num_bytes: int
    seconds: float | None
    point: PruningPoint | None
    density: SnrDensity | None
    ratios: torch.Tensor
    """Signal-to-noise ratios, where weights are ranked by them; those of removed weights are negative."""


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


def _look(
    model: nn.Module,
    cut: Cut,
    example: Inputs | None,
    validation: Any,
    num_samples: int,
    seed: int,
    fraction: float,
    removed: float,
) -> _Look:
    parts = prunable(model, cut.by, cut.where, cut.biases) if cut.what == "weights" else []
    ratios = torch.zeros(0)
    if cut.by == "snr" and parts:
        scores = [scores_of(part, "snr").masked_fill(part.removed, -1.0)[part.counted] for part in parts]
        ratios = torch.cat([own.cpu() for own in scores])
    return _Look(
        weight_counts(parts),
        layer_sizes(model),
        len(file_content(model)),
        None if example is None else step_seconds(model, example),
        None if validation is None else judge(model, validation, cut.by, fraction, removed, num_samples, seed),
        snr_density(model, where=cut.where, biases=cut.biases) if cut.by == "snr" else None,
        ratios,
    )


def _record(
    cut: Cut, fraction: float, before: _Look, after: _Look, tried: list[PruningPoint], max_loss: float | None
) -> Pruning:
    layers = after.layers if cut.what == "weights" else unit_counts(before.sizes, after.sizes)
    ends = [look.point for look in (before, after) if look.point is not None]
    density = before.density
    if density is not None:
        density = with_threshold(density, before.ratios[(before.ratios >= 0.0) & (after.ratios < 0.0)])
    return Pruning(
        by=cut.by,
        what=cut.what,
        fraction=fraction,
        num_weights=sum(layer.num_weights for layer in layers.values()),
        num_removed=sum(layer.num_removed for layer in layers.values()),
        per_layer=layers,
        bytes_before=before.num_bytes,
        bytes_after=after.num_bytes,
        step_seconds_before=before.seconds,
        step_seconds_after=after.seconds,
        density=density,
        curve=tuple(sorted([*ends[:1], *(tried or ends[1:])], key=lambda point: point.fraction)),
        max_loss=max_loss,
        accuracy_before=None if before.point is None else before.point.accuracy,
        accuracy_after=None if after.point is None else after.point.accuracy,
        nll_before=None if before.point is None else before.point.nll,
        nll_after=None if after.point is None else after.point.nll,
    )


STEPS = 1000
"""How finely a budget is spent: shares are tried in thousandths."""


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


BATCH_SIZE = 256


WARM_UPS, REPETITIONS = 3, 20


def judge(
    model: nn.Module, data: Any, by: By, fraction: float, removed: float, num_samples: int, seed: int
) -> PruningPoint:
    """Accuracy and negative log-likelihood of the mean prediction, as a point of the curve."""
    device = next(model.parameters()).device
    batches = batches_from(data, BATCH_SIZE, name="validation", device=device)
    with in_eval(model):
        found = validate(model, batches, seed, device, num_samples)
    return PruningPoint(by, fraction, found.get("val_accuracy"), found["val_nll"], removed)


@torch.no_grad()
def step_seconds(model: nn.Module, example: Inputs) -> float:
    """Median time of a forward with one draw, in eval mode; the process's generators are left alone."""
    args, kwargs = arguments(example)
    device = next(model.parameters()).device
    seconds: list[float] = []

    def run(times: int) -> None:
        for _ in range(times):
            began = time.perf_counter()
            model(*args, **kwargs)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - began)

    with in_eval(model), Stream().in_use() as stream:
        with Watch() as watch:
            run(WARM_UPS)
        with stream.lent(device) if watch.itself else nullcontext():
            run(REPETITIONS)
    return statistics.median(seconds[WARM_UPS:])


def snr_density(model: nn.Module, *, where: Where = None, biases: bool = False, num_bins: int = 60) -> SnrDensity:
    """A histogram of the signal-to-noise ratios of all weights with a Gaussian posterior, in decibels.

    Args:
        model: a converted network.
        where: which layers; see ``dubio.Where``. All by default.
        biases: whether biases count.
        num_bins: bins between the least and the largest ratio.
    """
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1, got {num_bins}")
    levels = _levels(model, where, biases)
    finite = levels[levels.isfinite()]
    low, high = (finite.min().item(), finite.max().item()) if len(finite) else (0.0, 0.0)
    edges = torch.linspace(low, high if high > low else low + 1.0, num_bins + 1, dtype=torch.float64)
    places = torch.bucketize(levels.double(), edges[1:-1], right=True)
    counts = torch.bincount(places, minlength=num_bins)
    return SnrDensity(tuple(edges.tolist()), tuple(counts.tolist()))


def with_threshold(density: SnrDensity, removed: Tensor) -> SnrDensity:
    """The density with the highest of the ratios that were removed."""
    if not len(removed):
        return density
    highest = functional.variational.decibels(removed.max()).item()
    return SnrDensity(density.edges, density.counts, min(max(highest, density.edges[0]), density.edges[-1]))


@torch.no_grad()
def _levels(model: nn.Module, where: Where, biases: bool) -> Tensor:
    parts = prunable(model, "snr", where, biases)
    return torch.cat(
        [functional.variational.decibels(scores_of(part, "snr")[part.counted & ~part.removed]).cpu() for part in parts]
    )


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
