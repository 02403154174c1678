"""Whole units: outputs of linear layers and channels of convolutions, taken out so that layers really shrink.

A unit's score is the mean score of its weights. Units of all chosen layers are ranked together, or those of each layer
by themselves; the best one of each layer stays in any case. The layer's outputs, the batch norms behind it and the
inputs of the next layer are cut down alike, first in a copy that is run on the example: where the copy cannot run, the
network stays as it is.
"""

import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio import functional
from dubio._engine import Inputs
from dubio.convert import Where, chooses, spec
from dubio.nn import Members, Removed, gaussian_of, keep_units
from dubio.pruning.chains import Link, find_links, refusal
from dubio.pruning.tracing import is_layer, run_quietly
from dubio.pruning.values import By, LayerPruning, Removal
from dubio.pruning.weights import Prunable, scores_of

__all__ = ["layer_sizes", "prune_units", "removed_before", "unit_counts"]


def prune_units(model: nn.Module, fraction: float, by: By, where: Where, each_layer: bool, example: Inputs) -> Removal:
    """Remove a share of all units that there ever were, or of each layer's, those with the lowest scores, in place."""
    if any(isinstance(module, Members) for module in model.modules()):
        raise ValueError(
            "what must be 'weights' for an ensemble, whose members keep one shape, got 'units'; or prune each of its "
            ".members by itself"
        )
    links, _ = find_links(model, example, lambda name, module: chooses(where, name, module))
    if not links:
        raise ValueError(f"nothing to prune: where={where!r} chooses no layer with units that another layer reads")
    scores = [_unit_scores(model, link, by) for link in links]
    known = dict(removed_before(model).units)
    at_first = {link.layer: known.get(link.layer, len(own)) for link, own in zip(links, scores, strict=True)}
    staying = _staying(scores, list(at_first.values()), fraction, each_layer)
    cuts = [(link, kept) for link, kept, own in zip(links, staying, scores, strict=True) if len(kept) < len(own)]
    _prove(model, cuts, example)
    for link, kept in cuts:
        _cut(model, link, kept)
    shrunk = tuple(name for link, _ in cuts for name in (link.layer, *link.norms, link.following))
    share = 1.0 - sum(map(len, staying)) / sum(at_first.values())
    return Removal(share, shrunk, {link.layer: at_first[link.layer] for link, _ in cuts})


def layer_sizes(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Units and weights of each linear layer and convolution."""
    found = {}
    for name, module in model.named_modules():
        if is_layer(module):
            weight = Prunable(name, module, "weight").weight
            found[name] = len(weight), weight.numel()
    return found


def unit_counts(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> dict[str, LayerPruning]:
    """What became of each layer."""
    return {
        name: LayerPruning(weights, weights - after[name][1], units, after[name][0])
        for name, (units, weights) in before.items()
    }


def removed_before(model: nn.Module) -> Removed:
    """What an earlier pruning removed."""
    removed = spec(model).pruning
    return removed if isinstance(removed, Removed) else Removed()


def _staying(
    scores: list[Float[Tensor, " _"]], at_first: list[int], fraction: float, each_layer: bool
) -> list[Int[Tensor, " _"]]:
    """Which units of each layer stay when a share of those that there were at first is to be gone."""
    pairs = list(zip(scores, at_first, strict=True))
    staying = []
    for group in [[pair] for pair in pairs] if each_layer else [pairs]:
        own = [part for part, _ in group]
        first = sum(count for _, count in group)
        gone = first - sum(map(len, own))
        staying += functional.variational.units_kept(
            own, max(functional.variational.num_removed(first, fraction) - gone, 0)
        )
    return staying


def _prove(model: nn.Module, cuts: list[tuple[Link, Int[Tensor, " _"]]], example: Inputs) -> None:
    """Cut a copy and run it; where that fails, refuse by the name of a layer that cannot be cut even by itself."""
    if not cuts or _why_it_fails(model, cuts, example) is None:
        return
    alone = {link.layer: _why_it_fails(model, [(link, kept)], example) for link, kept in cuts}
    layer, reason = next(
        ((name, why) for name, why in alone.items() if why is not None),
        (cuts[-1][0].layer, _why_it_fails(model, cuts, example)),
    )
    raise refusal(
        layer,
        f"the network does not run without them ({reason}); a view of a fixed size, such as x.view(-1, 128), is likely "
        "the reason, and x.flatten(1) would do",
    )


def _why_it_fails(model: nn.Module, cuts: list[tuple[Link, Int[Tensor, " _"]]], example: Inputs) -> str | None:
    """What a copy with these cuts runs into; None where it gives outputs of the same shapes."""
    trial = copy.deepcopy(model)
    before = _shapes(run_quietly(trial, example))
    for link, kept in cuts:
        _cut(trial, link, kept)
    try:
        after = _shapes(run_quietly(trial, example))
    except Exception as error:  # a network may check its shapes in any way
        return " ".join(str(error).split()) or type(error).__name__
    return None if after == before else f"outputs of shape {after} in place of {before}"


def _shapes(outputs: object) -> list[tuple[int, ...]]:
    return [tuple(leaf.shape) for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]


def _unit_scores(model: nn.Module, link: Link, by: By) -> Float[Tensor, " unit"]:
    layer = model.get_submodule(link.layer)
    if by == "snr" and gaussian_of(layer, "weight") is None:
        raise ValueError(
            f"by must be 'magnitude' where weights have no Gaussian posterior, got 'snr' at {link.layer}; or leave it "
            "out with where=..."
        )
    return functional.variational.unit_scores(scores_of(Prunable(link.layer, layer, "weight"), by)).cpu()


def _cut(model: nn.Module, link: Link, kept: Int[Tensor, " kept"]) -> None:
    keep_units(model.get_submodule(link.layer), outputs=kept)
    for norm in link.norms:
        keep_units(model.get_submodule(norm), outputs=kept)
    inputs = (kept.unsqueeze(1) * link.repeats + torch.arange(link.repeats)).flatten()
    keep_units(model.get_submodule(link.following), inputs=inputs)
