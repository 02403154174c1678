"""Which layer follows which: a network is run once, and what becomes of each layer's outputs is written down.

A layer can lose units where its outputs reach exactly one other layer, and what stands between works on every unit
by itself: activations, batch norms, dropout, pooling, flattening. Everything else is refused by name, since units
would be missing where something else counts on them.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from dubio.conversion.shrinking import BATCH_NORMS, CONVOLUTIONS
from dubio.layers import InputMask, Noised, Source
from dubio.sampling import Inputs, Using, arguments
from dubio.sampling.planning import unchanged

__all__ = ["Link", "find_links", "is_layer"]

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


@dataclass(eq=False)
class _Step:
    """A module or function that was called."""

    kind: str
    """The name of a function; of a module that of its class."""
    place: str
    """The name of the module, or of the one whose code calls the function."""
    module: nn.Module | None
    num_tensors: int
    shape_in: tuple[int, ...]
    shape_out: tuple[int, ...]
    axes: tuple[int, ...] = ()
    """Which axes a mean is taken over, counted from the first."""
    users: list["_Step"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What messages call it."""
        if self.module is not None:
            return f"{self.place or 'the network itself'} ({self.kind})"
        return f"{self.kind}() in {self.place or 'the network itself'}"


def is_layer(module: nn.Module | None) -> bool:
    """Whether a module has units that could be removed."""
    return isinstance(module, (nn.Linear, *CONVOLUTIONS))


def find_links(
    model: nn.Module, example: Inputs, chosen: Callable[[str, nn.Module], bool]
) -> tuple[list[Link], list[str]]:
    """The chosen layers that can lose units, and the names of all layers in the order they run in.

    Layers behind which no other comes keep their outputs; any other chosen layer that cannot lose units is refused.
    """
    steps = _trace(model, example)
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


def _follow(model: nn.Module, first: _Step, calls: Counter[str]) -> Link | str:
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


def _why_not_cut(model: nn.Module, step: _Step) -> str:
    """Why a layer itself cannot lose outputs."""
    if getattr(step.module, "groups", 1) != 1:
        return "it is a grouped convolution"
    if isinstance(step.module, nn.Linear) and len(step.shape_out) != 2:
        return f"it is applied to inputs of {len(step.shape_in)} axes, which are not rows of features"
    if isinstance(step.module, Noised) and step.module.dubio_noise_name == "output_noise":
        return "it has noise on its outputs"
    return _why_tied(model, step)


def _why_not_fed(model: nn.Module, step: _Step, repeats: int) -> str:
    """Why the next layer cannot lose inputs."""
    if getattr(step.module, "groups", 1) != 1:
        return "is a grouped convolution"
    if isinstance(step.module, Noised) and not isinstance(step.module.dubio_noise, InputMask):
        return "has noise on its inputs, whose parameters belong to them"
    if isinstance(step.module, nn.Linear) and len(step.shape_in) != 2:
        return f"is applied to inputs of {len(step.shape_in)} axes, which are not rows of features"
    tied = _why_tied(model, step)
    return f"cannot lose inputs: {tied}" if tied else ""


def _why_tied(model: nn.Module, step: _Step) -> str:
    """Whether another layer reads a parameter of this one."""
    assert step.module is not None
    own = {id(parameter) for parameter in step.module.parameters()}
    for name, module in model.named_modules(remove_duplicate=False):
        inside = name == step.place or name.startswith(f"{step.place}." if step.place else "")
        if not inside and any(id(parameter) in own for parameter in module.parameters(recurse=False)):
            return f"it shares its weights with {name.rpartition('.')[0] if isinstance(module, Source) else name}"
    return ""


def _leads_to_layer(step: _Step) -> bool:
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


def _is_unitwise(step: _Step) -> bool:
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


def _flattens(step: _Step) -> bool:
    """Whether positions become features of their channel: rows stay, and nothing is mixed."""
    is_kind = isinstance(step.module, nn.Flatten) if step.module is not None else step.kind in FLATTENED
    return is_kind and step.shape_out == (step.shape_in[0], math.prod(step.shape_in[1:]))


def _trace(model: nn.Module, example: Inputs) -> list[_Step]:
    args, kwargs = arguments(example)
    with torch.no_grad(), unchanged(model), _in_eval(model), Using(mode="off", seed=None), _Tracer(model) as tracer:
        tracer.finish(model(*args, **kwargs))
    return tracer.steps


@contextmanager
def _in_eval(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


class _Tracer(TorchFunctionMode):
    """Writes down every module without parts of its own, and every function between them, with their tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.steps: list[_Step] = []
        self._made_by: dict[int, _Step] = {}
        self._kept: list[Any] = []  # identities are those of living tensors
        self._running: list[str] = []
        self._inside = 0
        self._model = model

    def __enter__(self) -> "_Tracer":
        self._handles = []
        for name, module in self._visible():
            if _has_parts(module):
                self._handles.append(module.register_forward_pre_hook(self._enters(name)))
                self._handles.append(module.register_forward_hook(self._leaves, always_call=True))
            else:
                self._handles.append(module.register_forward_pre_hook(self._begins))
                self._handles.append(module.register_forward_hook(self._ends(name), with_kwargs=True))
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()

    def finish(self, outputs: Any) -> None:
        """What the network gives is read by whoever called it."""
        self._note("output", "", None, outputs, outputs)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if not self._inside:
            place = self._running[-1] if self._running else ""
            step = self._note(getattr(func, "__name__", str(func)).lstrip("_"), place, None, (args, kwargs), outputs)
            if step is not None and step.kind == "mean":
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

    def _enters(self, name: str) -> Callable[..., None]:
        return lambda module, args: self._running.append(name)

    def _leaves(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running.pop()

    def _begins(self, module: nn.Module, args: Any) -> None:
        self._inside += 1

    def _ends(self, name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
            self._inside -= 1
            self._note(type(module).__name__, name, module, (args, kwargs), outputs)

        return note

    def _note(self, kind: str, place: str, module: nn.Module | None, inputs: Any, outputs: Any) -> _Step | None:
        read = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]
        made = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
        if not made:
            return None
        shape_in = tuple(read[0].shape) if read else ()
        step = _Step(kind, place, module, len(read), shape_in, tuple(made[0].shape))
        for tensor in read:
            source = self._made_by.get(id(tensor))
            if source is not None:
                source.users.append(step)
        self._made_by.update({id(tensor): step for tensor in made})
        self._kept += [*read, *made]
        self.steps.append(step)
        return step


def _axes(num_axes: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """The axes of a mean, counted from the first; all of them where none is named."""
    named = kwargs.get("dim", args[1] if len(args) > 1 else None)
    axes = range(num_axes) if named is None else (named,) if isinstance(named, int) else named
    return tuple(axis % num_axes for axis in axes)


def _has_parts(module: nn.Module) -> bool:
    """Whether a module is made of others; noise and posteriors are no parts."""
    if is_layer(module) or isinstance(module, Source):
        return False
    return any(not isinstance(child, Source) for child in module.children())
