"""Layers with fewer units: linear layers, convolutions and batch norms cut down in place, and cut down again on load.

``Removed`` is what a network's record keeps of its pruning: with it, and the network as it was converted, ``rebuild``
gives a network of the right shapes and masks for the tensors of a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor, nn

from dubio.layers import masked_tensors, posterior_of, remove_weights

__all__ = ["BATCH_NORMS", "CONVOLUTIONS", "Removed", "keep_units", "rebuild", "removed_from"]

BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Removed:
    """What was removed from a network."""

    weights: tuple[str, ...] = ()
    """Parameters of which some weights were removed."""
    sizes: tuple[tuple[str, int, int], ...] = ()
    """Layers that were cut down, with the inputs and outputs that they have now."""
    units: tuple[tuple[str, int], ...] = ()
    """Layers that lost outputs, with as many as they had at first."""

    def __post_init__(self) -> None:
        if not all(isinstance(name, str) for name in self.weights):
            raise ValueError(f"weights must be names of parameters, got {self.weights!r}")
        if not all(tuple(map(type, size)) == (str, int, int) for size in self.sizes):
            raise ValueError(f"sizes must be names of layers with their inputs and outputs, got {self.sizes!r}")
        if not all(tuple(map(type, own)) == (str, int) for own in self.units):
            raise ValueError(f"units must be names of layers with their first number of outputs, got {self.units!r}")


def removed_from(
    model: nn.Module, shrunk: Sequence[str] = (), units: Mapping[str, int] | None = None
) -> Removed | None:
    """What was removed from a network, where the named layers were cut down; None where nothing was.

    ``units`` tells how many outputs layers had at first.
    """
    weights = tuple(name for name, _, _ in masked_tensors(model))
    found = {name: _sizes(model.get_submodule(name)) for name in sorted(set(shrunk))}
    sizes = tuple((name, *size) for name, size in found.items() if size is not None)
    return Removed(weights, sizes, tuple(sorted((units or {}).items()))) if weights or sizes else None


def rebuild(model: nn.Module, removed: Removed) -> None:
    """Cut a network down, and give it masks that remove nothing yet, so that the tensors of a pruned one fit."""
    for name, inputs, outputs in removed.sizes:
        layer = _part(model, name)
        found = _sizes(layer)
        if found is None or not (0 < inputs <= found[0] and 0 < outputs <= found[1]):
            raise ValueError(f"{name} was cut down to {inputs} inputs and {outputs} outputs, which it cannot be here")
        keep_units(layer, outputs=torch.arange(outputs), inputs=torch.arange(inputs))
    for name in removed.weights:
        place, _, parameter = name.rpartition(".")
        layer = _part(model, place)
        posterior = posterior_of(layer, parameter)
        whole = posterior.mean if posterior is not None else layer._parameters.get(parameter)
        if whole is None:
            raise ValueError(f"weights of {name} were removed, which this network has not")
        remove_weights(layer, parameter, torch.zeros_like(whole, dtype=torch.bool))


def keep_units(
    layer: nn.Module, *, outputs: Int[Tensor, " output"] | None = None, inputs: Int[Tensor, " input"] | None = None
) -> None:
    """Keep some outputs and some inputs of a linear layer or a convolution, or some features of a batch norm, in place.

    Parameters are other objects afterwards, since theirs is another shape: an optimiser is to be made anew.
    """
    if outputs is not None:
        for name in ("weight", "bias"):
            _select(layer, name, 0, outputs)
        for name in ("running_mean", "running_var"):
            buffer = layer._buffers.get(name)
            if buffer is not None:
                layer._buffers[name] = buffer[outputs.to(buffer.device)].clone()
    if inputs is not None and not isinstance(layer, BATCH_NORMS):
        _select(layer, "weight", 1, inputs)
    attributes = {"num_features": outputs, "out_features": outputs, "out_channels": outputs}
    attributes |= {"in_features": inputs, "in_channels": inputs}
    for attribute, kept in attributes.items():
        if kept is not None and hasattr(layer, attribute):
            setattr(layer, attribute, len(kept))


def _select(layer: nn.Module, name: str, axis: int, kept: Int[Tensor, " kept"]) -> None:
    """Keep some entries of a parameter along an axis, with all that goes along with it: scales, masks, centres."""
    posterior = posterior_of(layer, name)
    holder = layer if posterior is None else posterior
    whole = layer._parameters.get(name) if posterior is None else posterior.mean
    if whole is None:
        return
    size = whole.shape[axis]
    wanted = {name, f"{name}_removed"} if posterior is None else {*holder._parameters, *holder._buffers}
    for store in (holder._parameters, holder._buffers):
        for key in [key for key in store if key in wanted]:
            tensor = store[key]
            if tensor is None or tensor.dim() <= axis or tensor.shape[axis] != size:
                continue
            part = tensor.detach().index_select(axis, kept.to(tensor.device))
            is_parameter = isinstance(tensor, nn.Parameter)
            store[key] = nn.Parameter(part, requires_grad=tensor.requires_grad) if is_parameter else part  # type: ignore[assignment]


def _sizes(layer: nn.Module) -> tuple[int, int] | None:
    """Inputs and outputs of a layer; None where it is none that can be cut down."""
    if isinstance(layer, BATCH_NORMS):
        return layer.num_features, layer.num_features
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return (layer.in_channels, layer.out_channels) if isinstance(layer, CONVOLUTIONS) else None


def _part(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise ValueError(f"{name} was pruned, which this network has not") from None
