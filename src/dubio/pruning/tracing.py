"""What a network does, step by step: one run that writes down which module or function read what.

Modules without parts are steps, and so are the functions that are called between them. Of what happens inside a module
only one thing is looked at, as it is of functions: whether it reads parameters that are another module's. Nothing is
left behind on the network.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from dubio._engine import Inputs, Using, arguments, unchanged
from dubio.nn import RESIZABLE_CONVOLUTIONS as CONVOLUTIONS, Source

__all__ = ["Step", "Trace", "in_eval", "is_layer", "run_quietly", "trace"]

FACTS = {
    *("get", "size", "dim", "ndimension", "numel", "nelement", "len", "stride", "element_size", "get_device"),
    *("is_contiguous", "is_floating_point", "is_complex", "is_same_size", "repr", "format", "hash"),
}
"""Functions that tell of a tensor what its values have no part in, where they give no tensor."""


@dataclass(eq=False)
class Step:
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
    users: list["Step"] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What messages call it."""
        if self.module is not None:
            return f"{self.place or 'the network itself'} ({self.kind})"
        return f"{self.kind}() in {self.place or 'the network itself'}"


@dataclass(frozen=True, eq=False)
class Trace:
    """One run of a network."""

    steps: list[Step]
    """In their order."""
    readers: dict[str, str]
    """Modules whose parameters are read from outside of them, each with what reads them."""


def trace(model: nn.Module, example: Inputs) -> Trace:
    """What happens in a run with noise off, in eval mode."""
    with unchanged(model), _Tracer(model) as tracer:
        tracer.finish(run_quietly(model, example))
    return Trace(tracer.steps, tracer.readers)


@torch.no_grad()
def run_quietly(model: nn.Module, example: Inputs) -> Any:
    """What a network gives with noise off, in eval mode."""
    args, kwargs = arguments(example)
    with in_eval(model), Using(mode="off", seed=None):
        return model(*args, **kwargs)


def is_layer(module: nn.Module | None) -> bool:
    """Whether a module has units that could be removed."""
    return isinstance(module, (nn.Linear, *CONVOLUTIONS))


@contextmanager
def in_eval(model: nn.Module) -> Iterator[None]:
    """Eval mode, and every module's own mode again afterwards."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        model.eval()
        for module in training:
            module.training = True


class _Tracer(TorchFunctionMode):
    """Writes down every module without parts of its own, and every function between them, with their tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.readers: dict[str, str] = {}
        self._made_by: dict[int, Step] = {}
        self._kept: list[Any] = []  # identities are those of living tensors
        self._running: list[str] = []
        self._inside: list[str] = []
        self._model = model
        self._owners: dict[int, set[str]] = {}

    def __enter__(self) -> "_Tracer":
        self._handles = []
        for name, module in self._visible():
            if _has_parts(module):
                self._handles.append(module.register_forward_pre_hook(self._enters(name)))
                self._handles.append(module.register_forward_hook(self._leaves, always_call=True))
            else:
                self._handles.append(module.register_forward_pre_hook(self._begins(name)))
                self._handles.append(module.register_forward_hook(self._ends(name), with_kwargs=True))
                for tensor in (*module.parameters(), *module.buffers()):
                    self._owners.setdefault(id(tensor), set()).add(name)
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
        kind = _name(func)
        if kind in FACTS and not _tensors(outputs):
            return outputs
        self._look_for_owners(kind, (args, kwargs))
        if not self._inside:
            place = self._running[-1] if self._running else ""
            step = self._note(kind, place, None, (args, kwargs), outputs)
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

    def _enters(self, name: str) -> Callable[..., None]:
        return lambda module, args: self._running.append(name)

    def _leaves(self, module: nn.Module, args: Any, output: Any) -> None:
        self._running.pop()

    def _begins(self, name: str) -> Callable[..., None]:
        return lambda module, args: self._inside.append(name)

    def _ends(self, name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, kwargs: Any, outputs: Any) -> None:
            self._inside.pop()
            self._note(type(module).__name__, name, module, (args, kwargs), outputs)

        return note

    def _look_for_owners(self, kind: str, inputs: Any) -> None:
        """Write down whose parameters a function reads, where it runs outside of that module."""
        inside = self._inside[-1] if self._inside else None
        place = inside or (self._running[-1] if self._running else "")
        for tensor in _tensors(inputs):
            owners = self._owners.get(id(tensor), set())
            if inside not in owners:
                for owner in owners:
                    self.readers.setdefault(owner, f"{kind}() in {place or 'the network itself'}")

    def _note(self, kind: str, place: str, module: nn.Module | None, inputs: Any, outputs: Any) -> Step:
        read, made = _tensors(inputs), _tensors(outputs)
        shape_in = tuple(read[0].shape) if read else ()
        step = Step(kind, place, module, len(read), shape_in, tuple(made[0].shape) if made else ())
        for tensor in read:
            source = self._made_by.get(id(tensor))
            if source is not None:
                source.users.append(step)
        self._made_by.update({id(tensor): step for tensor in made})
        self._kept += [*read, *made]
        self.steps.append(step)
        return step


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
    if is_layer(module) or isinstance(module, Source):
        return False
    return any(not isinstance(child, Source) for child in module.children())
