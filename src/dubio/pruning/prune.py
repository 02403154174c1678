"""``prune``: remove weights or units of a network in place, by a share or by a budget.

A budget is kept by bisection on copies of the network. All copies are evaluated on the same draws, so that they differ
by the removed weights alone.

Invariants (T-11, ``tests/pruning``): removing nothing is the identity; removing all weights leaves the biases; removed
weights are zero in every draw, with noise off, in exports and files, have no part in the divergence, and stay so in
training. A refused pruning leaves the network as it was.
"""

import copy
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Inputs, Stream, Watch, arguments, check_module, check_num_samples, isolated
from dubio.calibration import check_unjudged
from dubio.checks import check_choice, check_not_negative, check_number
from dubio.convert import Where, change_spec, check_where, drop_decisions, spec
from dubio.data import batches_from
from dubio.io import file_content
from dubio.models import sizes_of
from dubio.nn import removed_from
from dubio.pruning.records import By, LayerPruning, Pruning, PruningPoint, Removal, SnrDensity, What
from dubio.pruning.units import layer_sizes, prune_units, removed_before, unit_counts
from dubio.pruning.weights import default_by, prunable, prune_weights, scores_of, weight_counts
from dubio.training import validate

STEPS = 1000
"""Shares within a budget are multiples of a thousandth."""
BATCH_SIZE = 256
WARM_UPS, REPETITIONS = 3, 20
ROWS = 32
"""Rows of an example that is taken from data."""


@dataclass(frozen=True, eq=False)
class _Plan:
    """What is removed, except for its share, and the data that measure the loss."""

    by: By
    what: What
    where: Where
    biases: bool
    each_layer: bool
    example: Inputs | None
    data: Any
    num_samples: int
    seed: int

    def apply(self, model: nn.Module, fraction: float) -> Removal:
        """Remove a share, in place."""
        if self.what == "units":
            assert self.example is not None
            return prune_units(model, fraction, self.by, self.where, self.each_layer, self.example)
        return prune_weights(model, fraction, self.by, self.where, self.biases)

    def try_on_copy(self, model: nn.Module, fraction: float) -> PruningPoint:
        """Accuracy and loss of a copy of the network without that share."""
        trial = copy.deepcopy(model)
        return self.evaluate(trial, fraction, self.apply(trial, fraction).share)

    def evaluate(self, model: nn.Module, fraction: float, removed: float) -> PruningPoint:
        """Accuracy and negative log-likelihood of the mean prediction, as a point of the curve."""
        device = next(model.parameters()).device
        batches = batches_from(self.data, BATCH_SIZE, name="validation", device=device)
        with isolated(model, training=False):
            metrics = validate(model, batches, self.seed, device, self.num_samples)
        return PruningPoint(self.by, fraction, metrics.get("val_accuracy"), metrics["val_nll"], removed)


@dataclass(frozen=True, eq=False)
class _Measurement:
    """A network before or after pruning."""

    layers: dict[str, LayerPruning]
    sizes: dict[str, tuple[int, int]]
    num_bytes: int
    seconds: float | None
    point: PruningPoint | None
    density: SnrDensity | None
    ratios: Tensor
    """Signal-to-noise ratios, where weights are ranked by them; those of removed weights are negative."""


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
    """Remove the weights or units with the lowest scores, in place and without training; returns a record.

    ``copy.deepcopy(model)`` first keeps the network as it is. Removed weights are zero in every draw, cost no
    divergence and stay zero in ``dubio.fit``; a network can be pruned again. Calibration, threshold and prediction sets
    are dropped, with a warning, if anything was removed: they were fitted to other predictions.

    Args:
        model: a converted network.
        fraction: the share to remove, of all weights or units of the network before any pruning; those removed
            earlier count.
        by: the score of a weight: ``"snr"``, its mean over its standard deviation, or ``"magnitude"``. By default the
            first where there are Gaussian posteriors over weights. The score of a unit is the mean over its weights.
        what: ``"weights"``, which saves memory in files, or ``"units"``: outputs of linear layers and channels of
            convolutions, which makes layers smaller and faster. Build a new optimiser after that.
        max_loss: in place of ``fraction``, how much accuracy may fall on ``validation`` (where targets are numbers, how
            much the negative log-likelihood may rise). Bisection gives a share that keeps it while a thousandth more
            does not. Accuracy does not fall evenly, so that a much larger share may keep it by chance.
        validation: data as ``dubio.fit`` takes them; with it the record holds accuracy and loss before and after.
        where: selects layers; see ``dubio.Where``. All by default.
        biases: whether biases can be removed like weights.
        each_layer: for units, whether the share applies to each layer. By default units of all layers are ranked
            together, and a layer may keep a single one.
        example: inputs to time a forward pass with. For units they also show which layer follows which; without them,
            validation data or the input shape of a network that dubio built serve.
        num_samples: draws that predictions are averaged over, the same for all shares.
        seed: seed of the draws.
    """
    check_module(model)
    model = getattr(model, "_orig_mod", model)  # the module inside of torch.compile's wrapper
    spec(model)  # refuses a network that was not converted
    _check_budget(fraction, max_loss, validation)
    _check_what(what, biases, each_layer)
    check_where(where)
    check_num_samples(num_samples)
    if max_loss is not None:
        check_unjudged(model, batches_from(validation, BATCH_SIZE, name="validation"), "prune")
    inputs = _example_for(model, example, validation) if what == "units" else example
    plan = _Plan(_checked_by(model, by), what, where, biases, each_layer, inputs, validation, num_samples, seed)

    earlier = plan.apply(model, 0.0)  # removes nothing, and refuses a plan that cannot be applied
    before = _measure(model, plan, example, 0.0, earlier.share)
    tried: list[PruningPoint] = []
    if max_loss is not None:
        assert before.point is not None
        fraction, tried = _share_within(plan, model, max_loss, before.point)
    assert fraction is not None
    removal = plan.apply(model, fraction)
    record = removed_before(model)
    shrunk = [*(name for name, _, _ in record.sizes), *removal.shrunk]
    change_spec(model, pruning=removed_from(model, shrunk, {**removal.units, **dict(record.units)}))
    if removal.share > earlier.share:
        drop_decisions(model, "pruning")
    after = _measure(model, plan, example, fraction, removal.share)

    layers = after.layers if what == "weights" else unit_counts(before.sizes, after.sizes)
    ends = [measured.point for measured in (before, after) if measured.point is not None]
    density = before.density
    if density is not None:
        density = _with_threshold(density, before.ratios[(before.ratios >= 0.0) & (after.ratios < 0.0)])
    return Pruning(
        by=plan.by,
        what=what,
        fraction=float(fraction),
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
        removed=removal.share,
    )


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
    """Accuracy and loss of copies of a network with more and more removed, all on the same draws.

    Args:
        model: a converted network.
        data: data to evaluate on, as ``dubio.fit`` takes validation data.
        fractions: shares to remove.
        by: ``"snr"``, ``"magnitude"`` or several; by default both where there are Gaussian posteriors over weights.
        what: ``"weights"`` or ``"units"``.
        where: selects layers; see ``dubio.Where``. All by default.
        biases: whether biases are removed too.
        each_layer: for units, whether the share applies to each layer; see ``dubio.prune``.
        example: inputs that show which layer follows which, for units; see ``dubio.prune``.
        num_samples: draws that predictions are averaged over.
        seed: seed of the draws.
    """
    default: tuple[By, ...] = ("snr", "magnitude") if default_by(model) == "snr" else ("magnitude",)
    scores = [_checked_by(model, score) for score in (default if by is None else (by,) if isinstance(by, str) else by)]
    for fraction in fractions:
        _check_share("fractions", fraction)
    _check_what(what, biases, each_layer)
    inputs = _example_for(model, example, data) if what == "units" else None
    plans = [_Plan(score, what, where, biases, each_layer, inputs, data, num_samples, seed) for score in scores]
    return tuple(plan.try_on_copy(model, float(fraction)) for plan in plans for fraction in fractions)


def snr_density(model: nn.Module, *, where: Where = None, biases: bool = False, num_bins: int = 60) -> SnrDensity:
    """A histogram of the signal-to-noise ratios of all weights with a Gaussian posterior, in decibels.

    Args:
        model: a converted network.
        where: selects layers; see ``dubio.Where``. All by default.
        biases: whether biases count.
        num_bins: number of bins between the smallest and the largest ratio.
    """
    if num_bins < 1:
        raise ValueError(f"num_bins must be at least 1, got {num_bins}")
    parts = prunable(model, "snr", where, biases)
    with torch.no_grad():
        ratios = [scores_of(part, "snr")[part.counted & ~part.removed] for part in parts]
        levels = torch.cat([functional.variational.decibels(ratio).cpu() for ratio in ratios])
    finite = levels[levels.isfinite()]
    low, high = (finite.min().item(), finite.max().item()) if len(finite) else (0.0, 0.0)
    edges = torch.linspace(low, high if high > low else low + 1.0, num_bins + 1, dtype=torch.float64)
    places = torch.bucketize(levels.double(), edges[1:-1], right=True)
    counts = torch.bincount(places, minlength=num_bins)
    return SnrDensity(tuple(edges.tolist()), tuple(counts.tolist()))


def _measure(model: nn.Module, plan: _Plan, example: Inputs | None, fraction: float, removed: float) -> _Measurement:
    parts = prunable(model, plan.by, plan.where, plan.biases) if plan.what == "weights" else []
    ratios = torch.zeros(0)
    if plan.by == "snr" and parts:
        scores = (scores_of(part, "snr").masked_fill(part.removed, -1.0)[part.counted] for part in parts)
        ratios = torch.cat([score.cpu() for score in scores])
    return _Measurement(
        weight_counts(parts),
        layer_sizes(model),
        len(file_content(model)),
        None if example is None else _step_seconds(model, example),
        None if plan.data is None else plan.evaluate(model, fraction, removed),
        snr_density(model, where=plan.where, biases=plan.biases) if plan.by == "snr" else None,
        ratios,
    )


def _share_within(
    plan: _Plan, model: nn.Module, max_loss: float, before: PruningPoint
) -> tuple[float, list[PruningPoint]]:
    """A share that costs at most ``max_loss``, by bisection, and all points tried.

    A thousandth more costs too much. A still larger share may cost less again, since accuracy does not fall evenly;
    bisection does not search for it.
    """
    tried: list[PruningPoint] = []
    kept, lost = 0, STEPS + 1
    while lost - kept > 1:
        middle = STEPS if not tried else (kept + lost) // 2  # perhaps everything can be removed
        tried.append(point := plan.try_on_copy(model, middle / STEPS))
        # Accuracy falls or, where targets are numbers, the negative log-likelihood rises.
        if before.accuracy is None or point.accuracy is None:
            loss = point.nll - before.nll
        else:
            loss = before.accuracy - point.accuracy
        if loss <= max_loss + 1e-9:
            kept = middle
        else:
            lost = middle
    return kept / STEPS, sorted(tried, key=lambda point: point.fraction)


@torch.no_grad()
def _step_seconds(model: nn.Module, example: Inputs) -> float:
    """Median time of a forward pass with one draw, in eval mode, without use of the global generators."""
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

    with isolated(model, training=False), Stream().in_use() as stream:
        with Watch() as watch:
            run(WARM_UPS)
        with stream.lent(device) if watch.itself else nullcontext():
            run(REPETITIONS)
    return statistics.median(seconds[WARM_UPS:])


def _with_threshold(density: SnrDensity, removed: Tensor) -> SnrDensity:
    """The density with the highest ratio that was removed."""
    if not len(removed):
        return density
    highest = functional.variational.decibels(removed.max()).item()
    return SnrDensity(density.edges, density.counts, min(max(highest, density.edges[0]), density.edges[-1]))


def _check_share(name: str, value: object) -> None:
    if not 0.0 <= check_number(name, value) <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], a share of what is there, got {value!r}")


def _check_budget(fraction: object, max_loss: object, validation: object) -> None:
    """Refuse a call without share and budget, with both, or without data to measure the budget on."""
    if (fraction is None) == (max_loss is None):
        given = "neither" if fraction is None else f"fraction={fraction!r} and max_loss={max_loss!r}"
        raise ValueError(f"exactly one of fraction and max_loss must be given, got {given}")
    if fraction is not None:
        _check_share("fraction", fraction)
        return
    check_not_negative("max_loss", max_loss)
    if validation is None:
        raise ValueError("validation must be given with max_loss: the loss is measured on it; got None")


def _check_what(what: object, biases: bool, each_layer: bool) -> None:
    check_choice("what", what, ("weights", "units"))
    if what == "units" and biases:
        raise ValueError("biases must be False for what='units': a unit's bias goes with it, got True")
    if what == "weights" and each_layer:
        raise ValueError("each_layer must be False for what='weights': weights are ranked together, got True")


def _checked_by(model: nn.Module, by: By | None) -> By:
    """The score that ranks weights; None is the network's default."""
    if by is None:
        return default_by(model)
    check_choice("by", by, ("snr", "magnitude"))
    if by == "snr" and default_by(model) != "snr":
        raise ValueError("by must be 'magnitude' for a network without Gaussian posteriors over weights, got 'snr'")
    return by


def _example_for(model: nn.Module, example: Inputs | None, data: Any) -> Inputs:
    """Inputs to run a network on: the example, some of the data, or zeros of the shape that its name implies."""
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
