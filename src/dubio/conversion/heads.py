"""Which layer is a network's classifier, and putting something in its place."""

from collections.abc import Callable

import torch
from torch import nn

from dubio._engine import Inputs, arguments, attach, unchanged
from dubio.conversion.choice import Where, chooses
from dubio.conversion.copying import exchange, is_norm, make_mappable, own_parameters, plain_copy
from dubio.conversion.replacement import refuse_unconvertible
from dubio.nn import UNCALLED, ActivationNoise, Head, noise_input, noise_output, takes_noise

__all__ = ["classifier_of", "replace_head", "with_activation_noise"]


def classifier_of(net: nn.Module, where: Where, example: Inputs | None) -> Where:
    """Which layer is the classifier where nobody chose: the linear layer called last, if an example shows it.

    None is the last one that the network registered, which needs no example.
    """
    if where is not None or example is None or not isinstance(net, nn.Module):
        return where
    linear = {module: name for name, module in net.named_modules() if isinstance(module, nn.Linear)}
    called: list[str] = []
    handles = [module.register_forward_pre_hook(lambda own, _: called.append(linear[own])) for module in linear]
    args, kwargs = arguments(example)
    try:
        with torch.no_grad(), unchanged(net):
            net(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return None if not called or called[-1] == list(linear.values())[-1] else called[-1]


def replace_head(
    net: nn.Module, make_head: Callable[[nn.Linear], Head], where: Where, strict: bool = True
) -> nn.Module:
    """A copy of ``net`` with a head in the place of its classifier: the linear layer chosen, by default the last."""
    model = plain_copy(net)
    chosen = _linear_layers(model, where, strict)
    if len(chosen) > 1:
        raise ValueError(f"where must choose one linear layer to put the head in its place, got {', '.join(chosen)}")
    make_mappable(model)
    layer = next(iter(chosen.values()))
    head = make_head(layer).to(layer.weight).train(layer.training)
    return attach(exchange(model, layer, head))


def with_activation_noise(
    net: nn.Module,
    make_noise: Callable[[int, int], ActivationNoise],
    where: Where,
    behind: bool,
    strict: bool = True,
) -> nn.Module:
    """A copy of ``net`` with noise before, or behind, its chosen linear layers, by default the last."""
    model = plain_copy(net)
    chosen = _linear_layers(model, where, strict)
    make_mappable(model)
    for layer in chosen.values():
        width = layer.out_features if behind else layer.in_features
        noise = make_noise(layer.in_features, width).to(layer.weight).train(layer.training)
        if behind:
            noise_output(layer, noise)
        else:
            noise_input(layer, noise)
    return attach(model)


def _linear_layers(model: nn.Module, where: Where, strict: bool) -> dict[str, nn.Linear]:
    """The linear layers that ``where`` chooses; with ``strict``, refuse other modules with parameters but norms."""
    linear = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear) and takes_noise(m)}
    if not linear:
        raise ValueError("nothing to convert: the network has no linear layer, which its classifier must be")
    if where is None:
        last = list(linear)[-1]
        return {last: linear[last]}
    chosen = {name: module for name, module in linear.items() if chooses(where, name, module)}
    others = {
        name: f"{type(module).__name__} is no linear layer"
        for name, module in model.named_modules()
        if name not in chosen
        and own_parameters(module)
        and not is_norm(module)
        and not isinstance(module, UNCALLED)
        and chooses(where, name, module)
    }
    if strict:
        refuse_unconvertible(others)
    if not chosen:
        listed = ", ".join(name or "the network itself" for name in linear)
        raise ValueError(f"nothing to convert: where={where!r} chooses no layer that is linear; it could be {listed}")
    return chosen
