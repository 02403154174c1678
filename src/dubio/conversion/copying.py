"""Copies of networks, made ready to become random, and what is random in them already.

Modules change their class in place, inside the copy: so shared submodules stay shared, hooks and attributes stay where
they are, and a bare layer converts like a whole network.
"""

import copy
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from dubio.nn import MAPPABLE, Drawn, Head, Masked, Members, Noised, RandomDropout, Source

__all__ = [
    "copy_of",
    "exchange",
    "is_norm",
    "is_random",
    "make_mappable",
    "own_parameters",
    "plain_copy",
    "random_names",
    "visible_modules",
]

NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def plain_copy(net: nn.Module) -> nn.Module:
    """A copy of a network that can be converted; refuses what cannot."""
    _check_source(net)
    return copy_of(net)


def copy_of(net: nn.Module) -> nn.Module:
    """A copy, or why there is none."""
    try:
        return copy.deepcopy(net)
    except RuntimeError as error:  # a tensor that is not a leaf, kept on a module
        keeper = next((f"{name}.{key}".lstrip(".") for name, key in _computed_tensors(net)), None)
        kept = f": {keeper} keeps a tensor that forward computed" if keeper else ""
        raise ValueError(
            f"the network must be copyable, but copy.deepcopy fails on it{kept}; remove it, or where it comes from "
            "torch.nn.utils.weight_norm or spectral_norm, use those of torch.nn.utils.parametrizations"
        ) from error


def make_mappable(model: nn.Module) -> None:
    """Put layers that can be mapped over draws in the place of those that cannot."""
    for module in model.modules():
        module.__class__ = MAPPABLE.get(type(module), type(module))


def exchange(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Put a module wherever another one stands; returns the network, which may be the new one itself."""
    if model is old:
        return new
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child is old:
                parent._modules[name] = new
    return model


def is_random(module: nn.Module) -> bool:
    """Whether conversion made this very module random."""
    return isinstance(module, Drawn | Head | Members | Noised | RandomDropout)


def random_names(model: nn.Module) -> tuple[str, ...]:
    """Names of the modules that conversion made random."""
    return tuple(name for name, module in model.named_modules() if is_random(module))


def visible_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Names and modules of the network itself: all but the inside of its noise."""
    hidden: tuple[str, ...] = ()
    for name, module in model.named_modules():
        if name.startswith(hidden):
            continue
        if isinstance(module, Source):
            hidden = (*hidden, f"{name}." if name else "")
            if not is_random(module):
                continue
        yield name, module


def own_parameters(module: nn.Module) -> list[str]:
    """Names of the parameters that a module holds itself."""
    return [name for name, parameter in module._parameters.items() if parameter is not None]


def is_norm(module: nn.Module) -> bool:
    """Whether a module normalises: its scales stay deterministic unless asked for."""
    return isinstance(module, NORMS)


def _computed_tensors(net: nn.Module) -> Iterator[tuple[str, str]]:
    """Modules that keep tensors with a history, and under which name."""
    for name, module in net.named_modules():
        for key, value in vars(module).items():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                yield name, key


def _check_source(net: nn.Module) -> None:
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    for name, module in net.named_modules():
        if is_random(module) or isinstance(module, Source):
            raise ValueError(
                f"net is stochastic already: {name or 'it'} is a random {type(module).__name__}; "
                "dubio.to_mean(net) makes it plain again"
            )
        if isinstance(module, Masked):
            raise ValueError(
                f"net is pruned: weights of {name or 'it'} were removed and would come back; dubio.to_mean(net) makes "
                "them zeros that training may move"
            )
    if not any(True for _ in net.parameters()):
        raise ValueError(f"net must have parameters to make random, got a {type(net).__name__} without any")
    lazy = [name for name, parameter in net.named_parameters() if is_lazy(parameter)]
    if lazy:
        raise ValueError(
            f"net must be initialised, got lazy parameters {lazy}; run it once on an example before converting"
        )
