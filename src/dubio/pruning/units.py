"""Whole units: outputs of linear layers and channels of convolutions, removed so that layers become smaller.

The score of a unit is the mean score of its weights. Units of all chosen layers are ranked together, or those of each
layer by themselves; every layer keeps its best unit. The layer's outputs, the batch norms behind it and the inputs of
the next layer are cut alike, first in a copy that runs on the example: where the copy fails, the network stays as it
is.

A layer can lose units where its outputs reach exactly one other layer through steps that work on every unit by itself:
activations, batch norms, dropout, pooling of positions, flattening. One traced run of the network shows this. All else
is refused by name, since units would be missing elsewhere: also assignments to some of the units, and other readers of
the parameters that would shrink.

A traced step is a module without parts, or a function that is called between modules. Within such a module the trace
records only whether a function reads parameters of another module. The trace leaves nothing behind on the network.
"""

import copy
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from dubio import functional
from dubio._engine import Inputs, Using, arguments, isolated
from dubio.convert import Where, chooses, spec
from dubio.nn import (
    BATCH_NORMS,
    RESIZABLE_CONVOLUTIONS as CONVOLUTIONS,
    InputMask,
    Members,
    Noised,
    Removed,
    Source,
    gaussian_of,
    keep_units,
)
from dubio.pruning.records import By, LayerPruning, Removal
from dubio.pruning.weights import Prunable, scores_of

ACTIVATIONS = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid),
    *(nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Tanhshrink, nn.Identity),
)
DROPOUTS = (nn.modules.dropout._DropoutNd,)
POOLS: dict[int, tuple[type[nn.Module], ...]] = {
    axes: tuple(getattr(nn, f"{kind}Pool{axes}d") for kind in ("Max", "Avg", "AdaptiveMax", "AdaptiveAvg"))
    for axes in (1, 2, 3)
}
"""By the number of axes that positions have."""
ELEMENTWISE = {
    *("relu", "relu_", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "tanh", "sigmoid"),
    *("softplus", "softsign", "hardtanh", "hardswish", "hardsigmoid", "logsigmoid", "dropout", "contiguous"),
}
POOLED = {f"{kind}_pool{axes}d": axes for kind in ("max", "avg", "adaptive_max", "adaptive_avg") for axes in (1, 2, 3)}
FLATTENED = {"flatten", "view", "reshape"}
FACTS = {
    *("get", "size", "dim", "ndimension", "numel", "nelement", "len", "stride", "element_size", "get_device"),
    *("is_contiguous", "is_floating_point", "is_complex", "is_same_size", "repr", "format", "hash"),
}
"""Functions that tell of a tensor what its values have no part in, where they give no tensor."""


@dataclass(frozen=True)
class _Link:
    """A layer whose units can go, and all that goes with them."""

    layer: str
    norms: tuple[str, ...]
    """Batch norms on the way."""
    following: str
    """The layer that reads the units."""
    repeats: int
    """Inputs of that layer for each unit: the positions of a flattened channel, else 1."""


@dataclass(eq=False)
class _TracedCall:
    """A module or function that was called."""

    kind: str
    """The name of a function; of a module that of its class."""
    place: str
    """The name of the module, or of the one whose code calls the function."""
    module: nn.Module | None
    num_tensors: int
    shape_in: tuple[int, ...]
    shape_out: tuple[int, ...]
    """Empty where it gives no tensor, as an assignment to parts of one."""
    axes: tuple[int, ...] = ()
    """Which axes a mean is taken over, counted from the first."""
    users: list["_TracedCall"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What messages call it."""
        if self.module is not None:
            return f"{self.place or 'the network itself'} ({self.kind})"
        return f"{self.kind}() in {self.place or 'the network itself'}"


def prune_units(model: nn.Module, fraction: float, by: By, where: Where, each_layer: bool, example: Inputs) -> Removal:
    """Remove the units with the lowest scores, in place: a share of all original units, or of each layer's."""
    if any(isinstance(module, Members) for module in model.modules()):
        raise ValueError(
            "what must be 'weights' for an ensemble, whose members keep one shape, got 'units'; or prune each of its "
            ".members by itself"
        )
    links = _find_links(model, example, lambda name, module: chooses(where, name, module))
    if not links:
        raise ValueError(f"nothing to prune: where={where!r} chooses no layer with units that another layer reads")
    scores = [_unit_scores(model, link, by) for link in links]
    earlier = dict(removed_before(model).units)
    at_first = {link.layer: earlier.get(link.layer, len(unit)) for link, unit in zip(links, scores, strict=True)}
    staying = _staying(scores, list(at_first.values()), fraction, each_layer)
    cuts = [(link, kept) for link, kept, unit in zip(links, staying, scores, strict=True) if len(kept) < len(unit)]
    _prove(model, cuts, example)
    for link, kept in cuts:
        _cut(model, link, kept)
    shrunk = tuple(name for link, _ in cuts for name in (link.layer, *link.norms, link.following))
    share = 1.0 - sum(map(len, staying)) / sum(at_first.values())
    return Removal(share, shrunk, {link.layer: at_first[link.layer] for link, _ in cuts})


def layer_sizes(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Units and weights of each linear layer and convolution."""
    layers = {name: module for name, module in model.named_modules() if _is_layer(module)}
    weights = {name: Prunable(name, layer, "weight").weight for name, layer in layers.items()}
    return {name: (len(weight), weight.numel()) for name, weight in weights.items()}


def unit_counts(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> dict[str, LayerPruning]:
    """Weights and units of each layer before and after."""
    return {
        name: LayerPruning(weights, weights - after[name][1], units, after[name][0])
        for name, (units, weights) in before.items()
    }


def removed_before(model: nn.Module) -> Removed:
    """The record of earlier pruning."""
    removed = spec(model).pruning
    return removed if isinstance(removed, Removed) else Removed()


def _find_links(model: nn.Module, example: Inputs, chosen: Callable[[str, nn.Module], bool]) -> list[_Link]:
    """The chosen layers that can lose units.

    Layers without a following layer keep their outputs; any other chosen layer that cannot lose units is refused.
    """
    with isolated(model, trial=True), _Tracer(model) as traced:
        outputs = _outputs(model, example)
        traced.note("output", "", None, outputs, outputs)
    layers = [step for step in traced.steps if _is_layer(step.module)]
    calls = Counter(step.place for step in layers)
    links = []
    for step in layers:
        if step.module is None or not chosen(step.place, step.module) or not _leads_to_layer(step):
            continue
        reason = "it is called several times" if calls[step.place] > 1 else _why_not_cut(model, step, traced)
        link = reason or _follow(model, step, calls, traced)
        if isinstance(link, str):
            raise _refusal(step.place, link)
        links.append(link)
    return links


def _refusal(layer: str, reason: str) -> ValueError:
    """The error with the reason why a layer cannot lose units, and advice."""
    return ValueError(
        f"cannot remove units of {layer or 'the network itself'}: {reason}; leave it out with where=..., or remove "
        "single weights with what='weights'"
    )


def _staying(
    scores: list[Float[Tensor, " _"]], at_first: list[int], fraction: float, each_layer: bool
) -> list[Int[Tensor, " _"]]:
    """Which units of each layer stay when a share of the original units is removed."""
    staying = []
    groups = [slice(i, i + 1) for i in range(len(scores))] if each_layer else [slice(None)]
    for group in groups:
        original = sum(at_first[group])
        num_left = original - functional.variational.num_removed(original, fraction)
        count = max(sum(map(len, scores[group])) - num_left, 0)
        staying += functional.variational.units_kept(scores[group], count)
    return staying


def _prove(model: nn.Module, cuts: list[tuple[_Link, Int[Tensor, " _"]]], example: Inputs) -> None:
    """Cut a copy and run it; refuse by the name of a layer that cannot be cut by itself."""
    if not cuts or _why_it_fails(model, cuts, example) is None:
        return
    alone = {link.layer: _why_it_fails(model, [(link, kept)], example) for link, kept in cuts}
    layer, reason = next(
        ((name, why) for name, why in alone.items() if why is not None),
        (cuts[-1][0].layer, _why_it_fails(model, cuts, example)),
    )
    raise _refusal(
        layer,
        f"the network does not run without them ({reason}); a view of a fixed size, such as x.view(-1, 128), is likely "
        "the reason, and x.flatten(1) would do",
    )


def _why_it_fails(model: nn.Module, cuts: list[tuple[_Link, Int[Tensor, " _"]]], example: Inputs) -> str | None:
    """The error of a copy with these cuts; None where it gives outputs of the same shapes."""
    trial = copy.deepcopy(model)
    before = _shapes(_outputs(trial, example))
    for link, kept in cuts:
        _cut(trial, link, kept)
    try:
        after = _shapes(_outputs(trial, example))
    except Exception as error:  # a network may check its shapes in any way
        return " ".join(str(error).split()) or type(error).__name__
    return None if after == before else f"outputs of shape {after} in place of {before}"


def _shapes(outputs: object) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in _tensors(outputs)]


def _unit_scores(model: nn.Module, link: _Link, by: By) -> Float[Tensor, " unit"]:
    layer = model.get_submodule(link.layer)
    if by == "snr" and gaussian_of(layer, "weight") is None:
        raise ValueError(
            f"by must be 'magnitude' where weights have no Gaussian posterior, got 'snr' at {link.layer}; or leave it "
            "out with where=..."
        )
    return functional.variational.unit_scores(scores_of(Prunable(link.layer, layer, "weight"), by)).cpu()


def _cut(model: nn.Module, link: _Link, kept: Int[Tensor, " kept"]) -> None:
    keep_units(model.get_submodule(link.layer), outputs=kept)
    for norm in link.norms:
        keep_units(model.get_submodule(norm), outputs=kept)
    inputs = (kept.unsqueeze(1) * link.repeats + torch.arange(link.repeats)).flatten()
    keep_units(model.get_submodule(link.following), inputs=inputs)


def _follow(model: nn.Module, first: _TracedCall, calls: Counter[str], traced: "_Tracer") -> _Link | str:
    """The link from a layer to the one that reads its units, or why there is none."""
    norms: list[str] = []
    repeats, step = 1, first
    while True:
        if len(step.users) != 1:
            return f"its units go to several places: {', '.join(user.name for user in step.users)}"
        step = step.users[0]
        if _is_layer(step.module):
            reason = "is called several times" if calls[step.place] > 1 else _why_not_fed(model, step, traced)
            return f"{step.name} {reason}" if reason else _Link(first.place, tuple(norms), step.place, repeats)
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


def _why_not_cut(model: nn.Module, step: _TracedCall, traced: "_Tracer") -> str:
    """Why a layer itself cannot lose outputs."""
    if getattr(step.module, "groups", 1) != 1:
        return "it is a grouped convolution"
    if not _reads_rows(step):
        return f"it is applied to inputs of {len(step.shape_in)} axes, which are not rows of features"
    if isinstance(step.module, Noised) and step.module.dubio_noise_name == "output_noise":
        return "it has noise on its outputs"
    return _why_tied(model, step, traced)


def _why_not_fed(model: nn.Module, step: _TracedCall, traced: "_Tracer") -> str:
    """Why the next layer cannot lose inputs."""
    if getattr(step.module, "groups", 1) != 1:
        return "is a grouped convolution"
    if isinstance(step.module, Noised) and not isinstance(step.module.dubio_noise, InputMask):
        return "has noise on its inputs, whose parameters belong to them"
    if not _reads_rows(step):
        return f"is applied to inputs of {len(step.shape_in)} axes, which are not rows of features"
    tied = _why_tied(model, step, traced)
    return f"cannot lose inputs: {tied}" if tied else ""


def _reads_rows(step: _TracedCall) -> bool:
    """Whether the first axis of a layer's inputs is that of rows, and the second that of units."""
    positions = len(step.module.kernel_size) if isinstance(step.module, CONVOLUTIONS) else 0
    return len(step.shape_in) == 2 + positions


def _why_tied(model: nn.Module, step: _TracedCall, traced: "_Tracer") -> str:
    """Whether anything else reads a parameter of this layer."""
    assert step.module is not None
    params = {id(parameter) for parameter in step.module.parameters()}
    for name, module in model.named_modules(remove_duplicate=False):
        inside = name == step.place or name.startswith(f"{step.place}." if step.place else "")
        if not inside and any(id(parameter) in params for parameter in module.parameters(recurse=False)):
            return f"it shares its weights with {name.rpartition('.')[0] if isinstance(module, Source) else name}"
    reader = traced.readers.get(step.place)
    return "" if reader is None else f"its parameters are read by {reader}"


def _leads_to_layer(step: _TracedCall) -> bool:
    """Whether another layer follows."""
    waiting, seen = list(step.users), {step}
    while waiting:
        step = waiting.pop()
        if _is_layer(step.module):
            return True
        if step not in seen:
            seen.add(step)
            waiting += step.users
    return False


def _is_unitwise(step: _TracedCall) -> bool:
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


def _pools_positions(step: _TracedCall) -> bool:
    """Whether it pools positions, behind axes for rows and for units; without these axes it would mix units."""
    if step.module is not None:
        positions = next((axes for axes, kinds in POOLS.items() if isinstance(step.module, kinds)), None)
    else:
        positions = POOLED.get(step.kind)
    return positions is not None and len(step.shape_in) == 2 + positions and step.shape_in[:2] == step.shape_out[:2]


def _flattens(step: _TracedCall) -> bool:
    """Whether positions become features of their channel, without mixing of units."""
    is_kind = isinstance(step.module, nn.Flatten) if step.module is not None else step.kind in FLATTENED
    return is_kind and step.shape_out == (step.shape_in[0], math.prod(step.shape_in[1:]))


@torch.no_grad()
def _outputs(model: nn.Module, example: Inputs) -> Any:
    """Outputs with noise off, in eval mode."""
    args, kwargs = arguments(example)
    with isolated(model, training=False), Using(mode="off", seed=None):
        return model(*args, **kwargs)


def _is_layer(module: nn.Module | None) -> bool:
    """Whether a module has units that could be removed."""
    return isinstance(module, (nn.Linear, *CONVOLUTIONS))


class _Tracer(TorchFunctionMode):
    """Records every module without parts, and every function between modules, with the tensors that they read."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.steps: list[_TracedCall] = []
        self.readers: dict[str, str] = {}
        self._made_by: dict[int, _TracedCall] = {}
        self._kept: list[Any] = []  # identities are those of living tensors
        self._running: list[str] = []
        self._inside: list[str] = []
        self._model = model
        self._owners: dict[int, set[str]] = {}

    def __enter__(self) -> "_Tracer":
        self._handles = []
        for name, module in self._visible():
            if _has_parts(module):
                self._handles.append(module.register_forward_pre_hook(_pushes(self._running, name)))
                self._handles.append(module.register_forward_hook(self._leaves, always_call=True))
            else:
                self._handles.append(module.register_forward_pre_hook(_pushes(self._inside, name)))
                self._handles.append(module.register_forward_hook(self._ends(name), with_kwargs=True))
                for tensor in (*module.parameters(), *module.buffers()):
                    self._owners.setdefault(id(tensor), set()).add(name)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        kind = _name(func)
        if kind in FACTS and not _tensors(outputs):
            return outputs
        self._note_readers(kind, (args, kwargs))
        if not self._inside:
            place = self._running[-1] if self._running else ""
            step = self.note(kind, place, None, (args, kwargs), outputs)
            if step.kind == "mean":
                step.axes = _axes(len(step.shape_in), args, kwargs or {})
        return outputs

    def _visible(self) -> Iterator[tuple[str, nn.Module]]:
        hidden: tuple[str, ...] = ()
        for name, module in self._model.named_modules():
            if hidden and name.startswith(hidden):
                continue
            if not _has_parts(module):
                hidden = (*hidden, f"{name}." if name else "")
            yield name, module

    def _leaves(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running.pop()

    def _ends(self, name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
            self._inside.pop()
            self.note(type(module).__name__, name, module, (args, kwargs), outputs)

        return note

    def _note_readers(self, kind: str, inputs: Any) -> None:
        """Record modules whose parameters a function reads outside of them."""
        inside = self._inside[-1] if self._inside else None
        place = inside or (self._running[-1] if self._running else "")
        for tensor in _tensors(inputs):
            owners = self._owners.get(id(tensor), set())
            if inside not in owners:
                for owner in owners:
                    self.readers.setdefault(owner, f"{kind}() in {place or 'the network itself'}")

    def note(self, kind: str, place: str, module: nn.Module | None, inputs: Any, outputs: Any) -> _TracedCall:
        read, made = _tensors(inputs), _tensors(outputs)
        shape_in = tuple(read[0].shape) if read else ()
        step = _TracedCall(kind, place, module, len(read), shape_in, tuple(made[0].shape) if made else ())
        for tensor in read:
            source = self._made_by.get(id(tensor))
            if source is not None:
                source.users.append(step)
        self._made_by.update({id(tensor): step for tensor in made})
        self._kept += [*read, *made]
        self.steps.append(step)
        return step


def _pushes(stack: list[str], name: str) -> Callable[..., None]:
    return lambda module, args: stack.append(name)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _name(func: Any) -> str:
    """What a function is called; special methods without their underscores."""
    name = str(getattr(func, "__name__", func))
    return name.strip("_") if name.startswith("__") else name.lstrip("_")


def _axes(num_axes: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """The axes of a mean, counted from the first; all of them where none is named."""
    named = kwargs.get("dim", args[1] if len(args) > 1 else None)
    axes = range(num_axes) if named is None else (named,) if isinstance(named, int) else named
    return tuple(axis % num_axes for axis in axes)


def _has_parts(module: nn.Module) -> bool:
    """Whether a module is made of others; noise and posteriors are no parts."""
    if _is_layer(module) or isinstance(module, Source):
        return False
    return any(not isinstance(child, Source) for child in module.children())
