"""``prune``: remove weights or units of a network in place, by a share or by a budget.

Invariants (T-11, ``tests/pruning``): removing nothing is the identity; removing all weights leaves the biases; removed
weights are zero in every draw, with noise off, in exports and files, have no part in the divergence, and stay so in
training. It is all or nothing: what is refused leaves the network as it was.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from dubio._engine import Inputs, check_module, check_num_samples
from dubio.calibration import check_unjudged
from dubio.convert import Where, change_spec, check_where, drop_decisions, spec
from dubio.data import batches_from
from dubio.io import file_content
from dubio.nn import removed_from
from dubio.pruning.checks import check_budget, check_what, checked_by, example_for
from dubio.pruning.measuring import BATCH_SIZE, judge, snr_density, step_seconds, with_threshold
from dubio.pruning.trying import Cut, share_within
from dubio.pruning.units import layer_sizes, removed_before, unit_counts
from dubio.pruning.values import By, LayerPruning, Pruning, PruningPoint, Removal, SnrDensity, What
from dubio.pruning.weights import prunable, scores_of, weight_counts

__all__ = ["prune"]


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
