"""Which layer follows which: a network is run once, and what becomes of each layer's outputs is written down.

A layer can lose units where its outputs reach exactly one other layer, and what stands between works on every unit
by itself: activations, batch norms, dropout, pooling, flattening. Everything else is refused by name, since units
would be missing where something else counts on them.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from dubio.conversion.shrinking import BATCH_NORMS
from dubio.layers import InputMask, Noised, Source
from dubio.pruning.tracing import Step, is_layer, trace
from dubio.sampling import Inputs

__all__ = ["Link", "find_links"]

ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid),
    *(nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Tanhshrink, nn.Identity),
)
DROPOUTS = (nn.modules.dropout._DropoutNd,)
POOLS = (
    *(nn.modules.pooling._MaxPoolNd, nn.modules.pooling._AvgPoolNd),
    *(nn.modules.pooling._AdaptiveAvgPoolNd, nn.modules.pooling._AdaptiveMaxPoolNd),
)
ELEMENTWISE = {
    *("relu", "relu_", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "tanh", "sigmoid"),
    *("softplus", "softsign", "hardtanh", "hardswish", "hardsigmoid", "logsigmoid", "dropout", "contiguous"),
}
POOLED = {
    f"{adaptive}{kind}_pool{axes}d" for adaptive in ("", "adaptive_") for kind in ("max", "avg") for axes in (1, 2, 3)
}
FLATTENED = {"flatten", "view", "reshape"}


@dataclass(frozen=True)
class Link:
    """A layer whose units can go, and all that goes with them."""

    layer: str
    norms: tuple[str, ...]
    """Batch norms on the way."""
    following: str
    """The layer that reads the units."""
    repeats: int
    """How many inputs of it each unit is: the positions of a channel that was flattened, else 1."""


def find_links(
    model: nn.Module, example: Inputs, chosen: Callable[[str, nn.Module], bool]
) -> tuple[list[Link], list[str]]:
    """The chosen layers that can lose units, and the names of all layers in the order they run in.

    Layers behind which no other comes keep their outputs; any other chosen layer that cannot lose units is refused.
    """
    steps = trace(model, example)
    layers = [step for step in steps if is_layer(step.module)]
    calls = Counter(step.place for step in layers)
    links = []
    for step in layers:
        if step.module is None or not chosen(step.place, step.module) or not _leads_to_layer(step):
            continue
        reason = "it is called several times" if calls[step.place] > 1 else _why_not_cut(model, step)
        link = reason or _follow(model, step, calls)
        if isinstance(link, str):
            raise ValueError(
                f"cannot remove units of {step.place or 'the network itself'}: {link}; leave it out with where=..., "
                "or remove single weights with what='weights'"
            )
        links.append(link)
    return links, list(calls)


def _follow(model: nn.Module, first: Step, calls: Counter[str]) -> Link | str:
    """From a layer to the one that reads its units, or why there is no way."""
    norms: list[str] = []
    repeats, step = 1, first
    while True:
        if len(step.users) != 1:
            return f"its units go to several places: {', '.join(user.name for user in step.users)}"
        step = step.users[0]
        if is_layer(step.module):
            reason = "is called several times" if calls[step.place] > 1 else _why_not_fed(model, step, repeats)
            return f"{step.name} {reason}" if reason else Link(first.place, tuple(norms), step.place, repeats)
        if isinstance(step.module, BATCH_NORMS):
            norms.append(step.place)
            if repeats > 1:
                return f"{step.name} comes after positions were flattened"
        elif not _is_unitwise(step):
            return f"{step.name} does not work on every unit by itself"
        if _flattens(step):
            repeats *= math.prod(step.shape_in[2:])


def _why_not_cut(model: nn.Module, step: Step) -> str:
    """Why a layer itself cannot lose outputs."""
    if getattr(step.module, "groups", 1) != 1:
        return "it is a grouped convolution"
    if isinstance(step.module, nn.Linear) and len(step.shape_out) != 2:
        return f"it is applied to inputs of {len(step.shape_in)} axes, which are not rows of features"
    if isinstance(step.module, Noised) and step.module.dubio_noise_name == "output_noise":
        return "it has noise on its outputs"
    return _why_tied(model, step)


def _why_not_fed(model: nn.Module, step: Step, repeats: int) -> str:
    """Why the next layer cannot lose inputs."""
    if getattr(step.module, "groups", 1) != 1:
        return "is a grouped convolution"
    if isinstance(step.module, Noised) and not isinstance(step.module.dubio_noise, InputMask):
        return "has noise on its inputs, whose parameters belong to them"
    if isinstance(step.module, nn.Linear) and len(step.shape_in) != 2:
        return f"is applied to inputs of {len(step.shape_in)} axes, which are not rows of features"
    tied = _why_tied(model, step)
    return f"cannot lose inputs: {tied}" if tied else ""


def _why_tied(model: nn.Module, step: Step) -> str:
    """Whether another layer reads a parameter of this one."""
    assert step.module is not None
    own = {id(parameter) for parameter in step.module.parameters()}
    for name, module in model.named_modules(remove_duplicate=False):
        inside = name == step.place or name.startswith(f"{step.place}." if step.place else "")
        if not inside and any(id(parameter) in own for parameter in module.parameters(recurse=False)):
            return f"it shares its weights with {name.rpartition('.')[0] if isinstance(module, Source) else name}"
    return ""


def _leads_to_layer(step: Step) -> bool:
    """Whether any other layer comes behind this one."""
    waiting, seen = list(step.users), {step}
    while waiting:
        step = waiting.pop()
        if is_layer(step.module):
            return True
        if step not in seen:
            seen.add(step)
            waiting += step.users
    return False


def _is_unitwise(step: Step) -> bool:
    """Whether every unit of the outputs is computed from the same unit of the inputs alone."""
    kept = step.shape_in[:2] == step.shape_out[:2]
    if step.num_tensors != 1:
        return False
    if step.module is not None:
        if isinstance(step.module, DROPOUTS + ACTIVATIONS):
            return step.shape_in == step.shape_out
        return (isinstance(step.module, POOLS) and kept) or _flattens(step)
    if step.kind in ELEMENTWISE:
        return step.shape_in == step.shape_out
    averaged = step.kind == "mean" and min(step.axes, default=0) > 1
    return (step.kind in POOLED and kept) or averaged or _flattens(step)


def _flattens(step: Step) -> bool:
    """Whether positions become features of their channel: rows stay, and nothing is mixed."""
    is_kind = isinstance(step.module, nn.Flatten) if step.module is not None else step.kind in FLATTENED
    return is_kind and step.shape_out == (step.shape_in[0], math.prod(step.shape_in[1:]))
