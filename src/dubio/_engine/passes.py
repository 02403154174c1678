"""The pass: everything random about one forward of one draw.

A stochastic layer takes its noise from the running pass and computes; it calls no random function and keeps nothing.
The pass is opened by an executor for many draws, or by the network's own hooks for a plain ``model(inputs)``, and ends
when the forward returns.

Invariants: a draw belongs to a posterior, so tied weights and layers called twice see one draw in each pass
(``test_tied_weights_share_one_posterior_and_its_draw``); two passes in one setting draw new noise unless frozen; a pass
never outlives its forward, even when that raises (``test_traps.py``).
"""

import inspect
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from dubio._engine.host_rng import Stream, generator_state, redirected
from dubio._engine.memory import tensors_in
from dubio._engine.noise import Kind, fresh_noise, noise_in_pass, noise_key
from dubio._engine.settings import STATE, Settings

_WARNED: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()
"""Networks that were reported as not random."""
_WARNED_LOCK = threading.Lock()


@runtime_checkable
class PerturbationSource(Protocol):
    """A source of perturbations that were drawn before their posterior draws them (``WeightPrefetcher``)."""

    def perturbation(self, source: Any, run: "Pass") -> Tensor | None:
        """The perturbation of a posterior in a pass; None where it must draw it itself."""


class Pass:
    """The noise of one draw, and the terms that its forward collects."""

    def __init__(
        self,
        settings: Settings,
        draw: Tensor | None = None,
        drawn: dict[int, Tensor] | None = None,
        collecting: Collection[str] = (),
        owner: nn.Module | None = None,
        mapped: bool = False,
        ahead: PerturbationSource | None = None,
    ) -> None:
        self.settings, self.draw, self.mapped = settings, draw, mapped
        """Whether the forward runs under the executor's ``vmap``, ``draw`` standing for many."""
        self.drawn: dict[int, Tensor] = {} if drawn is None else drawn
        """What posteriors drew in this pass, by identity of their means; of ensembles, by identity of the module."""
        self.ahead = ahead
        self.noise: dict[int, Tensor] = {}
        """The noise of perturbations that were drawn without gradients."""
        self.calls: dict[int, int] = {}
        self.collecting = frozenset(collecting)
        """Kinds of terms to collect: ``divergence``, ``entropy``, ``penalty``."""
        self.terms: dict[str, list[Tensor]] = {}
        self.alone = False
        """Whether each draw is a separate network now, which shares no batch statistics with the others."""
        self.moved: dict[int, dict[str, Tensor]] = {}
        """Buffers that mapped draws of separate networks have changed, by identity of the module that accepts them."""
        self.owner = owner
        self.depth = 0
        """Number of nested calls of the owner."""

    @property
    def off(self) -> bool:
        """Whether the mean network is computed."""
        return self.settings.mode == "off" or STATE.own.settings.mode == "off"

    def noise_for_weights(self, source: nn.Module, like: Tensor, kind: Kind = "normal") -> Tensor:
        """Noise that belongs to a posterior, which keeps its perturbation in ``drawn``."""
        return self._noise(source, 0, like.shape, kind, like.dtype, like.device)

    def noise_for_activations(
        self, source: nn.Module, shape: Sequence[int], dtype: torch.dtype, device: torch.device, kind: Kind = "normal"
    ) -> Tensor:
        """Noise that belongs to this call of a layer; the first axis of ``shape`` counts rows."""
        call = self.calls.get(id(source), 0) + 1
        self.calls[id(source)] = call
        return self._noise(source, call, shape, kind, dtype, device)

    def collect(self, name: str, value: Tensor) -> None:
        """Collect a term that depends on the noise drawn; terms of one name are summed.

        ``divergence`` and ``entropy`` belong to all data together; a term of any other name is added to the loss as it
        is. Layers check ``collecting`` first, so that no unused term is computed.
        """
        self.terms.setdefault(name, []).append(value)

    def _noise(
        self, source: nn.Module, call: int, shape: Sequence[int], kind: Kind, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Noise by rows for a call of a layer, counted from 1; without rows for weights, with call 0."""
        settings = self.settings
        if settings.seed is None:
            return fresh_noise(shape, kind, dtype, device)
        if (key := getattr(source, "dubio_noise_key", None)) is None:
            raise RuntimeError(
                f"a {type(source).__name__} has no name to draw frozen noise for; convert the whole network, or call "
                "dubio._engine.attach(network) once it is complete"
            )
        draw = torch.zeros((), dtype=torch.int64, device="cpu") if self.draw is None else self.draw
        options = key, call, list(shape), kind, dtype, device, settings.antithetic, call > 0
        return noise_in_pass(settings.seed, draw, *options, _first_row(settings, shape))


def is_mapped(*values: Any) -> bool:
    """Whether any tensor among the values stands for several draws."""
    return any(torch._C._functorch.is_batchedtensor(tensor) for tensor in tensors_in(values))


def is_transformed() -> bool:
    """Whether a ``vmap``, ``grad`` or other transform of ``torch.func`` is active."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def current_pass() -> Pass | None:
    """The pass running in this thread, if any."""
    return STATE.own.current


class Joined:
    """The running pass or, for a layer called by itself, a pass for this call only."""

    def __enter__(self) -> Pass:
        running = STATE.own.current
        self._opened = running is None
        if running is None:
            _refuse_recomputation()
            running = STATE.own.current = Pass(STATE.own.settings)
        return running

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        # An interrupt (not an Exception) skips the hooks that would close the network's own pass.
        if self._opened or (kind is not None and not issubclass(kind, Exception)):
            STATE.own.current = None


def joined_pass() -> Joined:
    """``with joined_pass() as run:`` inside a layer's forward."""
    return Joined()


@contextmanager
def outside_passes() -> Iterator[None]:
    """A block in which no pass runs: parameters are their means."""
    running, STATE.own.current = STATE.own.current, None
    try:
        yield
    finally:
        STATE.own.current = running


def attach(root: nn.Module) -> nn.Module:
    """Make ``root`` open one pass for each of its forwards, and name its sources of noise; returns ``root``.

    ``convert`` does this. Hooks keep the signature of ``forward``, compile, export, copy and pickle.
    """
    for module in root.modules():
        if any(hook is _open_pass for hook in module._forward_pre_hooks.values()):  # it was a root
            detach(module)
            attach_alone(module)
    detach(root)
    name_sources(root)
    root.register_forward_pre_hook(_open_pass, prepend=True)  # before hooks that compute weights
    root.register_forward_hook(_close_pass, always_call=True)
    return root


def attach_alone(module: nn.Module) -> None:
    """Make a part of a network open a pass where none runs, so that it draws noise when it is called by itself."""
    module.register_forward_pre_hook(_open_pass_if_none, prepend=True)
    module.register_forward_hook(_close_pass, always_call=True)


def detach(module: nn.Module) -> None:
    """Remove the hooks of ``attach`` and ``attach_alone`` from a module."""
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for handle, hook in list(hooks.items()):
            if any(hook is ours for ours in (_open_pass, _open_pass_if_none, _close_pass)):
                del hooks[handle]
                module._forward_hooks_always_called.pop(handle, None)


def name_sources(root: nn.Module) -> None:
    """Set the noise key of every source under ``root`` that has none, or a taken one, to that of its qualified name."""
    taken: set[int] = set()
    for name, module in root.named_modules():
        if hasattr(module, "dubio_noise_key"):
            if module.dubio_noise_key is None or module.dubio_noise_key in taken:
                module.dubio_noise_key = noise_key(name)
            taken.add(module.dubio_noise_key)


def is_plain(model: nn.Module) -> bool:
    """Whether no dubio method has converted a network and no module of it draws noise from dubio."""
    return not hasattr(model, "dubio_spec") and not any(hasattr(part, "dubio_noise_key") for part in model.modules())


def warn_of_plain(model: nn.Module, consequence: str) -> None:
    """Warn once that nothing in a network is random, and of the consequence."""
    with _WARNED_LOCK:
        if model in _WARNED:
            return
        _WARNED.add(model)
    warnings.warn(
        f"nothing in this {type(model).__name__} is random, so {consequence}; convert it first, such as with "
        "dubio.Bayes().convert(net), or with dubio.Deterministic().convert(net) if that is intended",
        stacklevel=4,
    )


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Activation checkpointing that recomputes with the same draws; use it in place of torch's inside a network.

    The recomputation in the backward pass happens after the pass and the settings of the forward have ended, on CUDA
    even in another thread, so that this function keeps them. Under ``vmap`` checkpointing is not possible; a network
    that uses it runs looped.
    """
    if torch.compiler.is_compiling():  # the compiler recomputes by itself, from the same noise
        return torch_checkpoint(function, *args, use_reentrant=False, **kwargs)
    if is_transformed():
        raise RuntimeError("activation checkpointing cannot run under vmap")
    settings, running = STATE.own.settings, STATE.own.current
    devices = {torch.device("cpu"), *(leaf.device for leaf in tensors_in((args, kwargs)) if leaf.is_cuda)}
    generators = {device: generator_state(device) for device in devices}
    drawn, calls = (dict(running.drawn), dict(running.calls)) if running else ({}, {})
    first_time = [True]

    def replay(*inner_args: Any, **inner_kwargs: Any) -> Any:
        if first_time[0]:
            first_time[0] = False
            return function(*inner_args, **inner_kwargs)
        former = STATE.own.settings, STATE.own.current
        STATE.own.settings = settings
        again = Pass(settings) if running is None else Pass(running.settings, running.draw, None, running.collecting)
        again.drawn, again.calls = dict(drawn), dict(calls)
        STATE.own.current = again
        try:
            with redirected(Stream(states=generators)):  # also for draws of torch itself, such as ordinary dropout
                return function(*inner_args, **inner_kwargs)
        finally:
            STATE.own.settings, STATE.own.current = former

    # Torch would rewind its global generators for the second time, and other threads draw from them.
    return torch_checkpoint(replay, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def _first_row(settings: Settings, shape: Sequence[int]) -> int:
    if settings.num_rows is None or not shape or shape[0] % settings.num_rows:
        return settings.first_row
    return settings.first_row * (shape[0] // settings.num_rows)


def _open_pass(root: nn.Module, args: tuple[Any, ...]) -> None:
    running = STATE.own.current
    if running is not None and _is_stale(running, root):
        STATE.own.current = None
    _open_pass_if_none(root, args)


def _open_pass_if_none(module: nn.Module, args: tuple[Any, ...]) -> None:
    if (running := STATE.own.current) is None:
        _refuse_recomputation()
        STATE.own.current = Pass(STATE.own.settings, owner=module)
    elif running.owner is module:
        running.depth += 1


def _close_pass(root: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    running = STATE.own.current
    if running is None or running.owner is not root:
        return
    if running.depth > 0:
        running.depth -= 1
    else:
        STATE.own.current = None


def _is_stale(running: Pass, root: nn.Module) -> bool:
    """Whether an interrupted forward left this pass behind: its network is not being called any more."""
    if running.owner is None or torch.compiler.is_compiling():
        return False
    calls = -1 if running.owner is root else 0  # the call that is just beginning does not count
    frame = inspect.currentframe()
    while frame is not None:
        calls += frame.f_code.co_name == "_call_impl" and frame.f_locals.get("self") is running.owner
        frame = frame.f_back
    return calls < 1


def _refuse_recomputation() -> None:
    if not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            "a stochastic layer was called during the backward pass, where its draw is gone (torch.utils.checkpoint "
            "inside a stochastic network?); use dubio.checkpoint in its place, it recomputes with the same draw"
        )
