"""Whole units: outputs of linear layers and channels of convolutions, taken out so that layers really shrink.

A unit's score is the mean score of its weights. Units of all chosen layers are ranked together, or those of each layer
by themselves; the best one of each layer stays in any case. The layer's outputs, the batch norms behind it and the
inputs of the next layer are cut down alike.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from dubio import functional
from dubio.conversion import Removed, chooses, keep_units, spec
from dubio.conversion.choice import Where
from dubio.layers import Members, gaussian_of
from dubio.pruning.chains import Link, find_links
from dubio.pruning.tracing import is_layer
from dubio.pruning.values import By, LayerPruning
from dubio.pruning.weights import Prunable, scores_of
from dubio.sampling import Inputs

__all__ = ["layer_sizes", "prune_units", "shrunk_before", "unit_counts"]


def prune_units(
    model: nn.Module, fraction: float, by: By, where: Where, each_layer: bool, example: Inputs
) -> list[str]:
    """Remove a share of all units, or of each layer's, those with the lowest scores; returns which layers it cut."""
    if any(isinstance(module, Members) for module in model.modules()):
        raise ValueError(
            "what must be 'weights' for an ensemble, whose members keep one shape, got 'units'; or prune each of its "
            ".members by itself"
        )
    links, _ = find_links(model, example, lambda name, module: chooses(where, name, module))
    if not links:
        raise ValueError(f"nothing to prune: where={where!r} chooses no layer with units that another layer reads")
    scores = [_unit_scores(model, link, by) for link in links]
    groups = [[own] for own in scores] if each_layer else [scores]
    counts = [functional.num_removed(sum(map(len, group)), fraction) for group in groups]
    staying = [
        kept for group, count in zip(groups, counts, strict=True) for kept in functional.units_kept(group, count)
    ]
    shrunk: list[str] = []
    for link, kept, own in zip(links, staying, scores, strict=True):
        if len(kept) < len(own):
            _cut(model, link, kept)
            shrunk += [link.layer, *link.norms, link.following]
    return shrunk


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


def shrunk_before(model: nn.Module) -> list[str]:
    """Layers that an earlier pruning cut down."""
    removed = spec(model).pruning
    return [name for name, _, _ in removed.sizes] if isinstance(removed, Removed) else []


def _unit_scores(model: nn.Module, link: Link, by: By) -> Float[Tensor, " unit"]:
    layer = model.get_submodule(link.layer)
    if by == "snr" and gaussian_of(layer, "weight") is None:
        raise ValueError(
            f"by must be 'magnitude' where weights have no Gaussian posterior, got 'snr' at {link.layer}; or leave it "
            "out with where=..."
        )
    return functional.unit_scores(scores_of(Prunable(link.layer, layer, "weight"), by)).cpu()


def _cut(model: nn.Module, link: Link, kept: Int[Tensor, " kept"]) -> None:
    keep_units(model.get_submodule(link.layer), outputs=kept)
    for norm in link.norms:
        keep_units(model.get_submodule(norm), outputs=kept)
    inputs = (kept.unsqueeze(1) * link.repeats + torch.arange(link.repeats)).flatten()
    keep_units(model.get_submodule(link.following), inputs=inputs)
