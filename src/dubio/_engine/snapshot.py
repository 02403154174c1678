"""The state that a run changes on a network: put back afterwards, or set to what it was when the run began.

A forward may move buffers (running statistics, the vectors of a spectral norm), keep tensors as attributes, rescale
rows of an embedding and use generators. ``isolated`` undoes what a run has changed and reports which tensors moved;
``Snapshot`` stores these few, so that a run can be repeated from where it began without moving anything a second time.
``TensorSnapshot`` puts them back after a run that failed.

Buffers are copied only where a forward can change them: not masks of removed weights and centres of priors, nor the
statistics of a batch norm in eval mode.
"""

import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn

from dubio._engine.host_rng import LOCK, HostState, Stream, generator_state, may_draw_on_host, redirected
from dubio._engine.settings import STATE

NORMS = (nn.modules.batchnorm._NormBase,)
MOST_STATISTICS = 2**20
"""Bytes up to which a buffer counts as a statistic that training moves."""

Held = dict[str, tuple[dict[str, Any], Tensor]]
"""Tensors of a module by their names, each with the dictionary that holds it."""
_MODES = threading.Lock()
_IN_EVAL: weakref.WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]] = weakref.WeakKeyDictionary()


@contextmanager
def isolated(
    model: object, *, training: bool | None = None, trainable: bool = True, trial: bool = False, host: bool = True
) -> Iterator[list[tuple[str, str]]]:
    """Run a network and leave no trace: modes, buffers, settings and, after a trial, attributes and generators.

    Args:
        model: the network; anything but a module is left alone.
        training: the mode within the block; None leaves every module in its own. Eval mode belongs to the network, so
            that other threads see it meanwhile; the last block to end, in any thread, restores it.
        trainable: whether parameters may require gradients within the block.
        trial: whether the outputs do not count. Draws then come from copies of torch's generators, which other threads
            may use meanwhile; tensors among attributes and rows that an embedding rescales are put back, too. NumPy's
            and Python's generators have no copies: they are put back, under the lock, where the network has code that
            may draw from them.
        host: whether a trial puts NumPy's and Python's generators back.

    Yields:
        A list that holds, in the end, module and name of every tensor that the run has changed.

    Raises:
        RuntimeError: after a trial, where a module keeps a mapped tensor, which would be dead once the map is over.
    """
    if not isinstance(model, nn.Module):
        yield []
        return
    state, moved, rescaled = STATE.own, list[tuple[str, str]](), list[tuple[Tensor, Tensor]]()
    former = state.settings, state.current
    trained = [] if trainable else [parameter for parameter in model.parameters() if parameter.requires_grad]
    with ExitStack() as stack:
        if training is False:
            stack.enter_context(_eval_mode(model))
        before = [(path, module, *_tensors_of(module, trial)) for path, module in model.named_modules()]
        generators, host = None, trial and host and may_draw_on_host(model)
        if trial:
            rescaled = [(each, each.detach().clone()) for each in _rescaled(model)]
            stack.enter_context(LOCK if host else nullcontext())
            stack.enter_context(redirected(Stream(states=_states(model))))
            generators = HostState(model)
        for parameter in trained:
            parameter.requires_grad_(False)
        keeper = None
        try:
            yield moved
        finally:
            state.settings, state.current = former
            for parameter in trained:
                parameter.requires_grad_(True)
            if generators is not None:
                generators.put_back(process=host)
            for path, module, tensors, copies in before:
                if trial and any(torch._C._functorch.is_batchedtensor(each) for _, each in _held(module).values()):
                    keeper = keeper or module
                moved += [(path, name) for name in _put_back(tensors, copies)]
            with torch.no_grad():
                for tensor, value in rescaled:
                    tensor.copy_(value)
    if keeper is not None:
        raise RuntimeError(f"a {type(keeper).__name__} keeps a tensor of the forward on itself")


def same_numbers(model: nn.Module) -> AbstractContextManager[Stream]:
    """A block in which all trial runs of a network draw the same numbers, whatever other threads draw."""
    return Stream(states=_states(model)).in_use()


class TensorSnapshot:
    """The values of some tensors on a network, such as running statistics; ``moving`` names module and tensor of each.

    It holds no reference to the network, so that it may be kept beside it.
    """

    def __init__(self, model: nn.Module, moving: Collection[tuple[str, str]]) -> None:
        places = [(path, name, _holder(model.get_submodule(path), name)) for path, name in moving]
        self._tensors = [(path, name, holder[name]) for path, name, holder in places if holder is not None]
        self._values = [tensor.detach().clone() for _, _, tensor in self._tensors]

    def put_back(self, model: nn.Module) -> None:
        """Undo what a run has moved since."""
        for (path, name, tensor), value in zip(self._tensors, self._values, strict=True):
            tensor.data.copy_(value)  # not a change to graphs of other runs that keep it
            if (holder := _holder(model.get_submodule(path), name)) is not None:
                holder[name] = tensor


class Snapshot:
    """The state in which a run of a network begins: modes, generators, and the tensors that it moves.

    ``draws_itself`` says whether the network may draw from torch's global generator.
    """

    def __init__(self, model: nn.Module, moving: Collection[tuple[str, str]], draws_itself: bool = True) -> None:
        self._model, self._draws_itself = model, draws_itself
        self._training = [module.training for module in model.modules()]
        self._generators, self._host = _states(model), HostState(model)
        places = [(_holder(model.get_submodule(path), name), name) for path, name in moving]
        self._tensors = [(holder, name) for holder, name in places if holder is not None]
        self._values = [holder[name].detach().clone() for holder, name in self._tensors]

    @contextmanager
    def again(self) -> Iterator[None]:
        """The network as it was, for a run that leaves no trace."""
        modules = list(self._model.modules())
        training = [module.training for module in modules]
        now, draws_on_host = [holder[name] for holder, name in self._tensors], may_draw_on_host(self._model)
        stream = Stream(states=self._generators)
        numbers = redirected(stream) if self._draws_itself else stream.in_use()
        with LOCK if draws_on_host else nullcontext(), numbers:
            host = HostState(self._model)
            self._host.put_back(process=draws_on_host)
            self._set(self._training, [value.clone() for value in self._values])
            try:
                yield
            finally:
                self._set(training, now)
                host.put_back(process=draws_on_host)

    def _set(self, training: Collection[bool], tensors: Collection[Tensor]) -> None:
        for module, mode in zip(self._model.modules(), training, strict=True):
            module.training = mode
        for (holder, name), tensor in zip(self._tensors, tensors, strict=True):
            holder[name] = tensor


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    with _MODES:
        count, training = _IN_EVAL.get(model, (0, []))
        training = training or [module for module in model.modules() if module.training]
        for module in training:
            module.training = False
        _IN_EVAL[model] = (count + 1, training)
    try:
        yield
    finally:
        with _MODES:
            count, training = _IN_EVAL.pop(model)
            if count > 1:
                _IN_EVAL[model] = (count - 1, training)
            else:
                for module in training:
                    module.training = True


def statistics_of(model: nn.Module) -> tuple[tuple[str, str], ...]:
    """Buffers that a forward may move, without a probe: small dense ones, of modules in training mode."""
    return tuple(
        (path, name)
        for path, module in model.named_modules()
        if module.training
        for name, buffer in module._buffers.items()
        if buffer is not None and buffer.layout == torch.strided and buffer.nbytes <= MOST_STATISTICS
    )


def _holder(module: nn.Module, name: str) -> dict[str, Any] | None:
    """The dict in which a module keeps a tensor of this name, if any; a tensor that a map has left there is dead."""
    for holder in (module._buffers, module.__dict__):
        tensor = holder.get(name)
        if isinstance(tensor, Tensor):
            return None if torch._C._functorch.is_batchedtensor(tensor) else holder
    return None


def _states(model: nn.Module) -> dict[torch.device, Tensor]:
    """The states of the generators that a run of the network may draw from."""
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    return {device: generator_state(device) for device in {torch.device("cpu"), *devices}}


def _held(module: nn.Module) -> Held:
    """Buffers of a module and tensors among its attributes, with the dict that holds each."""
    holders: tuple[dict[str, Any], ...] = (module.__dict__, module._buffers)
    return {name: (holder, value) for holder in holders for name, value in holder.items() if isinstance(value, Tensor)}


def _tensors_of(module: nn.Module, attributes: bool) -> tuple[Held, dict[str, tuple[Tensor, int]]]:
    """The tensors of a module that a forward may replace; copies of those it may change, with version counters."""
    if not attributes and not module._buffers:
        return {}, {}
    constant: tuple[str, ...] = getattr(module, "dubio_constant_buffers", ())
    is_norm = (
        isinstance(module, NORMS)
        and not module.training
        and type(module).__module__.partition(".")[0] in ("torch", "dubio")
    )
    values = {
        name: (buffer.clone(), 0 if buffer.is_inference() else buffer._version)
        for name, buffer in module._buffers.items()
        if not (buffer is None or is_norm or name in constant or buffer.is_meta)
    }
    tensors = _held(module) if attributes else {name: (module._buffers, module._buffers[name]) for name in values}
    return cast(Held, tensors), values


def _rescaled(model: nn.Module) -> list[nn.Parameter]:
    """Parameters whose rows a forward rescales."""
    modules = (module for module in model.modules() if getattr(module, "max_norm", None) is not None)
    return [parameter for module in modules for parameter in module.parameters()]


@torch.no_grad()
def _put_back(tensors: Held, copies: dict[str, tuple[Tensor, int]]) -> list[str]:
    """Put tensors and their values back; returns the names of those that had changed."""
    moved = [name for name, (holder, tensor) in tensors.items() if holder.get(name) is not tensor]
    for name, (holder, tensor) in tensors.items():
        holder[name] = tensor
        if name not in copies:
            continue
        value, version = copies[name]
        if tensor.is_cuda and not tensor.is_inference():  # to compare values would wait for the device
            is_changed = tensor._version != version
        else:
            is_changed = not torch.equal(tensor, value)
        if is_changed:  # to write an unchanged one would spoil a graph
            moved += [] if name in moved else [name]
            if tensor.is_inference() and not torch.is_inference_mode_enabled():
                holder[name] = value
            else:
                tensor.copy_(value)
    return moved
