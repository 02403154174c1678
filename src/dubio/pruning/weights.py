"""Single weights: which can be removed, their scores, and the removal of the lowest.

Prunable are the weights of all posteriors, whatever the layer, and the plain weights of linear layers and convolutions;
not those of normalisation layers and, by default, no biases. By signal-to-noise ratio only weights with a Gaussian
posterior are ranked and counted: others have no noise.

Invariants: ``tests/pruning/test_weights.py`` (T-11).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dubio import functional
from dubio.convert import Where, chooses, is_norm, visible_modules
from dubio.nn import (
    GaussianPosterior,
    Members,
    drawn_names,
    gaussian_of,
    posterior_of,
    remove_weights,
    removed_of,
    takes_noise,
)
from dubio.pruning.records import By, LayerPruning, Removal


@dataclass(frozen=True, eq=False)
class Prunable:
    """A parameter whose weights can be removed."""

    name: str
    layer: nn.Module
    parameter: str

    @property
    def weight(self) -> Float[Tensor, "*shape"]:
        """Its weights, or their means; zero where removed."""
        posterior = posterior_of(self.layer, self.parameter)
        weight = getattr(self.layer, self.parameter) if posterior is None else posterior.location
        assert isinstance(weight, Tensor)
        return weight.detach()

    @property
    def removed(self) -> Bool[Tensor, "*shape"]:
        """Which of them were removed before."""
        mask = removed_of(self.layer, self.parameter)
        return torch.zeros_like(self.weight, dtype=torch.bool) if mask is None else mask

    @property
    def counted(self) -> Bool[Tensor, "*shape"]:
        """Which of them can be removed at all: constants such as the padding row of an embedding cannot."""
        posterior = gaussian_of(self.layer, self.parameter)
        fixed = None if posterior is None else posterior.fixed
        return torch.ones_like(self.weight, dtype=torch.bool) if fixed is None else ~fixed


def prunable(model: nn.Module, by: By, where: Where, biases: bool) -> list[Prunable]:
    """All parameters whose weights can be removed, each once also where several layers share it."""
    parts: dict[int, Prunable] = {}
    for place, layer in _layers(model):
        if is_norm(layer) or not chooses(where, place, layer):
            continue
        for parameter in _parameters(layer, biases):
            posterior = posterior_of(layer, parameter)
            if by == "snr" and not isinstance(posterior, GaussianPosterior):
                continue
            name = f"{place}.{parameter}".lstrip(".")
            tensor = posterior.mean if posterior is not None else layer._parameters[parameter]
            assert tensor is not None
            parts.setdefault(id(tensor), Prunable(name, layer, parameter))
    if not parts:
        what = "weights with a Gaussian posterior" if by == "snr" else "weights of linear layers or convolutions"
        raise ValueError(f"nothing to prune: where={where!r} chooses no layer that has {what}")
    _refuse_ties(model, list(parts.values()))
    return list(parts.values())


def default_by(model: nn.Module) -> By:
    """Signal-to-noise ratios where the network has Gaussian posteriors over weights, else magnitudes."""
    return "snr" if any(isinstance(module, GaussianPosterior) for module in model.modules()) else "magnitude"


@torch.no_grad()
def scores_of(part: Prunable, by: By) -> Float[Tensor, "*shape"]:
    """The score of each weight, at least 0."""
    if by == "magnitude":
        return part.weight.to(torch.promote_types(part.weight.dtype, torch.float32)).abs()
    posterior = gaussian_of(part.layer, part.parameter)
    assert posterior is not None
    ratio = functional.variational.signal_to_noise(posterior.location, posterior.std)
    return ratio.masked_fill(part.removed, 0.0)


def prune_weights(model: nn.Module, fraction: float, by: By, where: Where, biases: bool) -> Removal:
    """Remove the share of all weights with the lowest scores, ranked together over all layers, in place."""
    parts = prunable(model, by, where, biases)
    counted = [part.counted.flatten().cpu() for part in parts]
    # Weights removed earlier come first, so that a share counts all weights and removed sets are nested.
    scores = [scores_of(part, by).masked_fill(part.removed, -1.0).flatten().cpu() for part in parts]
    joined = torch.cat([score[some] for score, some in zip(scores, counted, strict=True)])
    gone = functional.variational.lowest_scores(joined, functional.variational.num_removed(len(joined), fraction))
    for part, some, lowest in zip(parts, counted, gone.split([int(some.sum()) for some in counted]), strict=True):
        mask = torch.zeros_like(some)
        mask[some] = lowest
        shaped = mask.reshape(part.weight.shape).to(part.weight.device)
        if bool(shaped.any()):
            remove_weights(part.layer, part.parameter, shaped)
    _mask_alike(model)
    return Removal(sum(int(part.removed.sum()) for part in parts) / len(joined))


def weight_counts(parts: list[Prunable]) -> dict[str, LayerPruning]:
    """How many weights each parameter has, and how many were removed."""
    return {part.name: LayerPruning(int(part.counted.sum()), int(part.removed.sum())) for part in parts}


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules of the network itself, and of all members of an ensemble."""
    if not isinstance(model, Members):
        yield from visible_modules(model)
        return
    for number, member in enumerate(model.members):
        yield from ((f"members.{number}.{name}".rstrip("."), layer) for name, layer in visible_modules(member))


def _parameters(layer: nn.Module, biases: bool) -> Iterator[str]:
    """Names of the parameters of a layer whose weights can be removed."""
    plain = ("weight", "bias") if takes_noise(layer) else ()
    for name in dict.fromkeys((*drawn_names(layer), *plain)):
        exists = posterior_of(layer, name) is not None or layer._parameters.get(name) is not None
        if exists and (biases or "bias" not in name):
            yield name


def _refuse_ties(model: nn.Module, parts: list[Prunable]) -> None:
    """Refuse plain weights that another module also reads, without the mask."""
    users = Counter(id(tensor) for module in model.modules() for tensor in module.parameters(recurse=False))
    for part in parts:
        tensor = part.layer._parameters.get(part.parameter)
        if tensor is not None and users[id(tensor)] > 1:
            raise ValueError(
                f"cannot prune {part.name}: it shares its weights with another layer, which would not see that they "
                "are gone; leave it out with where=..., or convert with dubio.Bayes, whose tied weights are one"
            )


def _mask_alike(model: nn.Module) -> None:
    """Give all members of an ensemble a mask where one has it: their tensors are stacked and run as one network."""
    if not isinstance(model, Members):
        return
    masked = {
        (place, parameter)
        for member in model.members
        for place, layer in member.named_modules()
        for parameter in _parameters(layer, True)
        if removed_of(layer, parameter) is not None
    }
    for member in model.members:
        for place, parameter in sorted(masked):
            whole = member.get_submodule(place)._parameters[parameter]
            assert whole is not None
            remove_weights(member.get_submodule(place), parameter, torch.zeros_like(whole, dtype=torch.bool))
