"""Random numbers of the process: which code draws from its global generators, and how a run does without them.

A run that has a seed draws from its own generators (``Stream``), one for each device, which belong to the thread that
runs. The global generators of the process - torch's, NumPy's and Python's - are neither seeded nor forked nor rewound,
so that other threads may draw from them meanwhile.

A network may draw from a global generator itself, as ordinary dropout does:

- ``Watch`` notices it, and gives such a network the numbers of a stream in place of torch's global ones. It is a torch
  dispatch mode: it sees the operators of its own thread only, so that draws of other threads cannot mislead it. It
  costs as much as a small operator, and is therefore used where a network is probed, not where it works.
- Once it is noticed, a seeded run of the network holds ``LOCK`` and lends its numbers to the global generators
  (``Stream.lent``, ``seeded``). Runs that hold the lock take turns. What other threads draw from global generators
  meanwhile comes from the run's numbers; this is the one case in which they are not protected.

No interface tells which thread has moved NumPy's and Python's generators. So whether a network draws from them is
inferred from its outputs (``follows_host``), and they are put back only where a network's code may draw from them
(``may_draw_on_host``).
"""

import functools
import os
import pickle
import random
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dubio._engine.memory import tensors_in
from dubio._engine.settings import STATE

LOCK = threading.RLock()
"""Held while a global generator is seeded or put back."""

CPU = torch.device("cpu")
NUMPY, PYTHON, TORCH = "numpy.random", "Python's random", "torch's global generator"
HOST = "NumPy's or Python's global generator"
LARGEST_OF_NUMPY = 2**32
RUNS_TO_COMPARE = 8
RANDOM = torch.Tag.nondeterministic_seeded
SWITCHES = ("dropout_p", "train", "training")
"""Arguments of random operators for which zero or false means that nothing is drawn."""

T = TypeVar("T")


def _forget_run() -> None:
    """Leave the run of the parent in a forked process, such as a worker of a loader: it does not use its numbers."""
    STATE.own.stream = STATE.own.watch = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_run)


_NOTICED: weakref.WeakKeyDictionary[nn.Module, dict[str, None]] = weakref.WeakKeyDictionary()


def notice(model: object, what: str) -> None:
    """Remember that a network draws from a global generator, and which, for ``describe``."""
    if isinstance(model, nn.Module):
        _NOTICED.setdefault(model, {})[what] = None


def noticed(model: nn.Module) -> tuple[str, ...]:
    """Global generators from which a network was noticed to draw itself."""
    return tuple(_NOTICED.get(model, {}))


def default_generator(device: torch.device) -> torch.Generator:
    """The global generator of a device."""
    if device.type == "cuda":
        return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
    return torch.mps._get_default_mps_generator() if device.type == "mps" else torch.default_generator


class Stream:
    """Random numbers of one run: a generator for each device, none of which is global.

    Args:
        seed: seeds every generator, as ``torch.manual_seed`` seeds the global ones.
        states: the state of generators, for a run that is repeated.
    """

    def __init__(self, seed: int = 0, states: Mapping[torch.device, Tensor] | None = None) -> None:
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}
        self.is_lent = False
        """Whether the global generators give this run's numbers at the moment."""
        for device, state in (states or {}).items():
            self.generator(device).set_state(state)

    def generator(self, device: torch.device) -> torch.Generator:
        """The generator of a device."""
        device = _numbered(device)
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]

    @contextmanager
    def in_use(self) -> Iterator["Stream"]:
        """A block in which noise of this thread comes from here."""
        state = STATE.own
        former, state.stream = state.stream, self
        try:
            yield self
        finally:
            state.stream = former

    @contextmanager
    def lent(self, *devices: torch.device) -> Iterator[None]:
        """A block in which the global generators give this run's numbers, for code that draws from them."""
        if self.is_lent:
            yield
            return
        with LOCK:
            pairs = [(default_generator(device), self.generator(device)) for device in {CPU, *map(_numbered, devices)}]
            states = [default.get_state() for default, _ in pairs]
            for default, private in pairs:
                default.set_state(private.get_state())
            self.is_lent = True
            try:
                yield
            finally:
                self.is_lent = False
                for (default, private), state in zip(pairs, states, strict=True):
                    private.set_state(default.get_state())
                    default.set_state(state)


class Watch(TorchDispatchMode):
    """Notices what this thread draws; numbers from a global generator come from a stream instead, where there is one.

    Args:
        stream: gives the numbers; by default the stream in use in this thread, unless it is lent.
    """

    def __init__(self, stream: Stream | None = None) -> None:
        super().__init__()
        self._stream = STATE.own.private_stream if stream is None else stream
        self._process = os.getpid()
        self.devices: set[str] = set()
        """Kinds of the devices on which anything was drawn."""
        self.itself = False
        """Whether anything but the engine has drawn from a global generator."""

    def __enter__(self) -> "Watch":
        self._former, STATE.own.watch = STATE.own.watch, self
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        STATE.own.watch = self._former
        if self._former is not None:  # it has seen numbers of a stream only
            self._former.itself |= self.itself
            self._former.devices |= self.devices

    default_generator = staticmethod(default_generator)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # A process that was forked meanwhile, such as a loader's worker, has its own generators.
        if not _is_random(func) or os.getpid() != self._process or not _draws(func, args, kwargs):
            return func(*args, **kwargs)
        generator = next((value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)), None)
        device = _device_of(args, kwargs) if generator is None else generator.device
        self.devices.add(device.type)
        is_global = generator is None
        if self._stream is not None and generator is not None:
            # Compared by address: an operator sees another object for the same generator.
            is_global = generator._cdata == default_generator(device)._cdata  # type: ignore[attr-defined]
        self.itself |= is_global
        if self._stream is None or not is_global:
            return func(*args, **kwargs)
        if generator is not None:
            args = tuple(arg for arg in args if arg is not generator)
        target = _with_generator(func)
        if target is None:  # it takes no generator, such as fused dropout on a GPU
            with self._stream.lent(device):
                return func(*args, **kwargs)
        return target(*args, **{**kwargs, "generator": self._stream.generator(device)})


@contextmanager
def redirected(stream: Stream) -> Iterator[Watch]:
    """A block in which everything that this thread draws comes from a stream, including draws of torch itself."""
    with stream.in_use(), Watch(stream) as watch:
        yield watch


def generator_state(device: torch.device) -> Tensor:
    """The state of the generator that this thread draws from on a device."""
    stream = STATE.own.private_stream
    if stream is None and device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    return (default_generator(device) if stream is None else stream.generator(device)).get_state()


def set_generator_state(device: torch.device, state: Tensor) -> None:
    """Set the state of the generator that this thread draws from on a device, for a run that is resumed."""
    stream = STATE.own.private_stream
    if stream is None and device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        (default_generator(device) if stream is None else stream.generator(device)).set_state(state)


@contextmanager
def seeded(seed: int | None, device: torch.device, lend: bool = False) -> Iterator[None]:
    """A block whose random numbers follow from a seed; without one, from the present state of generators.

    ``lend`` is for code that draws from global generators: they give numbers of the seed, under the lock, and have
    their former state back when the block is left.
    """
    if seed is None:
        yield
        return
    stream = Stream(seed)
    with stream.in_use():
        if not lend:
            yield
            return
        with LOCK, stream.lent(device):
            host = HostState()
            random.seed(seed)
            np.random.seed(seed % LARGEST_OF_NUMPY)  # noqa: NPY002 - the one that networks use
            try:
                yield
            finally:
                host.put_back()


@contextmanager
def seeded_step(seed: int | None, device: torch.device, compiled: bool) -> Iterator[None]:
    """``seeded``, for a part of a run; watches the network unless the run has noticed whether it draws itself."""
    outer = STATE.own.stream
    lend = compiled or (outer is not None and outer.is_lent)
    is_settled = lend or seed is None or (outer is not None and STATE.own.watch is None)
    with seeded(seed, device, lend), nullcontext() if is_settled else Watch():
        yield


def has_numbers_of_its_own() -> bool:
    """Whether this thread does without the global generators at the moment."""
    return STATE.own.private_stream is not None


class _Generator(NamedTuple):
    name: str
    get: Callable[[], Any]
    set: Callable[[Any], None]


_PROCESS = (
    _Generator(NUMPY, np.random.get_state, np.random.set_state),
    _Generator(PYTHON, random.getstate, random.setstate),
)


class HostState:
    """The state of generators outside of torch: NumPy's, Python's, and those that modules hold."""

    def __init__(self, model: nn.Module | None = None) -> None:
        held = [] if model is None else list(_held(model))
        self._generators = [_PROCESS[0], *held, _PROCESS[1]]  # Python's last: ``moved`` names the first that moved
        self._states = [generator.get() for generator in self._generators]

    def put_back(self, process: bool = True) -> None:
        """Set all of them to their former state, under the lock; the global ones only with ``process``."""
        for generator, state in zip(self._generators, self._states, strict=True):
            if process or generator not in _PROCESS:
                generator.set(state)

    def moved(self) -> str:
        """The name of a generator that was drawn from since; empty where none was."""
        pairs = zip(self._generators, self._states, strict=True)
        return next((held.name for held, state in pairs if pickle.dumps(held.get()) != pickle.dumps(state)), "")


def follows_host(outputs: Callable[[], Any]) -> bool:
    """Whether outputs change with NumPy's and Python's numbers; everything else must be the same at every call.

    Nothing is seeded, since other threads may draw from these generators: each call continues where the last ended.
    """
    with LOCK:
        host = HostState()
        first = tensors_in(outputs())
        for _ in range(RUNS_TO_COMPARE - 1):
            if any(not torch.equal(*pair) for pair in zip(first, tensors_in(outputs()), strict=True)):
                host.put_back()
                return True
    return False


def may_draw_on_host(model: object) -> bool:
    """Whether a network has code outside of torch and dubio, in a file that imports ``random`` or ``numpy``.

    A function that is no module may draw.
    """
    if not isinstance(model, nn.Module):
        return True
    scopes = {id(scope): scope for module in model.modules() for scope in _scopes(module)}
    return any(_imports_random(scope) for scope in scopes.values())


def _scopes(module: nn.Module) -> Iterator[dict[str, Any]]:
    """The global names of code that a module runs, outside of torch and dubio."""
    for kind in type(module).__mro__:
        if kind.__module__ in sys.modules and not _is_ours(kind.__module__):
            yield vars(sys.modules[kind.__module__])
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    for value in (*vars(module).values(), *hooks):
        if isinstance(value, functools.partial):
            value = value.func
        if isinstance(value, MethodType):
            value = value.__func__
        if isinstance(value, FunctionType) and not _is_ours(value.__module__ or ""):
            yield value.__globals__


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in ("torch", "dubio", "builtins", "typing")


def _imports_random(scope: Mapping[str, Any]) -> bool:
    for value in list(scope.values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str) and (name in ("random", "numpy") or name.startswith("numpy.random")):
            return True
        if isinstance(getattr(value, "__self__", None), random.Random | np.random.RandomState):
            return True
    return False


def _held(model: nn.Module) -> Iterator[_Generator]:
    for path, module in model.named_modules():
        for attribute, value in module.__dict__.items():
            name = f"{path}.{attribute}".lstrip(".")
            if isinstance(value, random.Random):
                yield _Generator(name, value.getstate, value.setstate)
            elif isinstance(value, np.random.RandomState):
                yield _Generator(name, value.get_state, value.set_state)
            elif isinstance(value, np.random.Generator):
                get, set_ = (functools.partial(act, value.bit_generator, "state") for act in (getattr, setattr))
                yield _Generator(name, get, set_)


def _numbered(device: torch.device) -> torch.device:
    """A device with its index: ``cuda`` is the current one."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return CPU if device.type == "cpu" else device


@functools.cache
def _is_random(func: Any) -> bool:
    return RANDOM in func.tags


def _draws(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether a random operator draws: dropout of an attention in eval mode does not."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name in SWITCHES:
            value = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            if value is not None and not value:
                return False
    return True


def _device_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    return next((tensor.device for tensor in tensors_in((args, dict(kwargs)))), CPU)


@functools.cache
def _with_generator(func: Any) -> Any:
    """The overload of a random operator that takes a generator; None where there is none."""
    if any(argument.name == "generator" for argument in func._schema.arguments):
        return func
    name = func._overloadname
    forms = {"default": "generator", "low_dtype": "low_generator_dtype", "out": "generator_out"}
    form = getattr(func.overloadpacket, forms.get(name, f"{name}_generator"), None)
    return form if form is not None and RANDOM in form.tags else None
