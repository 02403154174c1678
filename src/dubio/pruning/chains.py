"""Which layer follows which: a network is run once, and what becomes of each layer's outputs is written down.

A layer can lose units where its outputs reach exactly one other layer, and what stands between works on every unit
by itself: activations, batch norms, dropout, pooling of positions, flattening. Everything else is refused by name,
since units would be missing where something else counts on them: assignments to some of the units, and whoever else
reads the parameters that would shrink, as well.
"""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from dubio._engine import Inputs
from dubio.nn import BATCH_NORMS, RESIZABLE_CONVOLUTIONS as CONVOLUTIONS, InputMask, Noised, Source
from dubio.pruning.tracing import Step, Trace, is_layer, trace

__all__ = ["Link", "find_links", "refusal"]

ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid),
    *(nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Tanhshrink, nn.Identity),
)
DROPOUTS = (nn.modules.dropout._DropoutNd,)
POOLS: dict[int, tuple[type[nn.Module], ...]] = {
    1: (nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveMaxPool1d, nn.AdaptiveAvgPool1d),
    2: (nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveMaxPool2d, nn.AdaptiveAvgPool2d),
    3: (nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveMaxPool3d, nn.AdaptiveAvgPool3d),
}
"""By the number of axes that positions have."""
ELEMENTWISE = {
    *("relu", "relu_", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "tanh", "sigmoid"),
    *("softplus", "softsign", "hardtanh", "hardswish", "hardsigmoid", "logsigmoid", "dropout", "contiguous"),
}
POOLED = {
    f"{adaptive}{kind}_pool{axes}d": axes
    for adaptive in ("", "adaptive_")
    for kind in ("max", "avg")
    for axes in (1, 2, 3)
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
    traced = trace(model, example)
    layers = [step for step in traced.steps if is_layer(step.module)]
    calls = Counter(step.place for step in layers)
    links = []
    for step in layers:
        if step.module is None or not chosen(step.place, step.module) or not _leads_to_layer(step):
            continue
        reason = "it is called several times" if calls[step.place] > 1 else _why_not_cut(model, step, traced)
        link = reason or _follow(model, step, calls, traced)
        if isinstance(link, str):
            raise refusal(step.place, link)
        links.append(link)
    return links, list(calls)


def refusal(layer: str, reason: str) -> ValueError:
    """The error that says why a layer cannot lose units, and what to do."""
    return ValueError(
        f"cannot remove units of {layer or 'the network itself'}: {reason}; leave it out with where=..., or remove "
        "single weights with what='weights'"
    )


def _follow(model: nn.Module, first: Step, calls: Counter[str], traced: Trace) -> Link | str:
    """From a layer to the one that reads its units, or why there is no way."""
    norms: list[str] = []
    repeats, step = 1, first
    while True:
        if len(step.users) != 1:
            return f"its units go to several places: {', '.join(user.name for user in step.users)}"
        step = step.users[0]
        if is_layer(step.module):
            reason = "is called several times" if calls[step.place] > 1 else _why_not_fed(model, step, traced)
            return f"{step.name} {reason}" if reason else Link(first.place, tuple(norms), step.place, repeats)
        if isinstance(step.module, BATCH_NORMS):
            norms.append(step.place)
            if repeats > 1:
                return f"{step.name} comes after positions were flattened"
            if step.place in traced.readers:
                return f"the parameters of {step.name} are read by {traced.readers[step.place]}"
        elif not _is_unitwise(step):
            return f"{step.name} does not work on every unit by itself"
        if _flattens(step):
            repeats *= math.prod(step.shape_in[2:])


def _why_not_cut(model: nn.Module, step: Step, traced: Trace) -> str:
    """Why a layer itself cannot lose outputs."""
    if getattr(step.module, "groups", 1) != 1:
        return "it is a grouped convolution"
    if not _reads_rows(step):
        return f"it is applied to inputs of {len(step.shape_in)} axes, which are not rows of features"
    if isinstance(step.module, Noised) and step.module.dubio_noise_name == "output_noise":
        return "it has noise on its outputs"
    return _why_tied(model, step, traced)


def _why_not_fed(model: nn.Module, step: Step, traced: Trace) -> str:
    """Why the next layer cannot lose inputs."""
    if getattr(step.module, "groups", 1) != 1:
        return "is a grouped convolution"
    if isinstance(step.module, Noised) and not isinstance(step.module.dubio_noise, InputMask):
        return "has noise on its inputs, whose parameters belong to them"
    if not _reads_rows(step):
        return f"is applied to inputs of {len(step.shape_in)} axes, which are not rows of features"
    tied = _why_tied(model, step, traced)
    return f"cannot lose inputs: {tied}" if tied else ""


def _reads_rows(step: Step) -> bool:
    """Whether the first axis of a layer's inputs is that of rows, and the second that of units."""
    positions = len(step.module.kernel_size) if isinstance(step.module, CONVOLUTIONS) else 0
    return len(step.shape_in) == 2 + positions


def _why_tied(model: nn.Module, step: Step, traced: Trace) -> str:
    """Whether anything else reads a parameter of this layer."""
    assert step.module is not None
    own = {id(parameter) for parameter in step.module.parameters()}
    for name, module in model.named_modules(remove_duplicate=False):
        inside = name == step.place or name.startswith(f"{step.place}." if step.place else "")
        if not inside and any(id(parameter) in own for parameter in module.parameters(recurse=False)):
            return f"it shares its weights with {name.rpartition('.')[0] if isinstance(module, Source) else name}"
    reader = traced.readers.get(step.place)
    return "" if reader is None else f"its parameters are read by {reader}"


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
    if step.num_tensors != 1:
        return False
    if step.module is not None:
        if isinstance(step.module, DROPOUTS + ACTIVATIONS):
            return step.shape_in == step.shape_out
        return _pools_positions(step) or _flattens(step)
    if step.kind in ELEMENTWISE:
        return step.shape_in == step.shape_out
    averaged = step.kind == "mean" and min(step.axes, default=0) > 1
    return _pools_positions(step) or averaged or _flattens(step)


def _pools_positions(step: Step) -> bool:
    """Whether it is a pool of positions, behind axes for rows and for units; without these it would mix units."""
    if step.module is not None:
        positions = next((axes for axes, kinds in POOLS.items() if isinstance(step.module, kinds)), None)
    else:
        positions = POOLED.get(step.kind)
    return positions is not None and len(step.shape_in) == 2 + positions and step.shape_in[:2] == step.shape_out[:2]


def _flattens(step: Step) -> bool:
    """Whether positions become features of their channel: rows stay, and nothing is mixed."""
    is_kind = isinstance(step.module, nn.Flatten) if step.module is not None else step.kind in FLATTENED
    return is_kind and step.shape_out == (step.shape_in[0], math.prod(step.shape_in[1:]))
