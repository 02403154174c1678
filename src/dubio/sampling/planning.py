"""Which executor runs a network, and how many draws at a time: found by trying it once, then remembered.

The first time a network meets several draws, it is mapped over one and over two of them, with everything it could
change put back afterwards. Whether that works, how much of the work a further draw repeats and how much memory it
takes decides:

- a network that cannot be mapped runs looped; the module at fault and torch's reason are kept for ``describe``;
- on a CPU, weight sampling runs looped when a draw repeats more than half of the work and takes more than the cache
  holds (784-1200-1200-10, batch 128, ten draws, two cores: a training step takes 402 ms looped and 784 ms mapped; at
  64-100-100-10 it is 9 ms looped and 5 ms mapped), but mapped when most work is shared, as under a Bayesian head;
- everything else is mapped, as many draws at a time as the memory budget allows.

Plans are kept in a weak dictionary beside the networks, never on them.
"""

import inspect
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from dubio.sampling.drawing import Call, Perturbations, map_draws, one_draw

__all__ = [
    "CPU_BUDGET",
    "ExecutorWarning",
    "Footprint",
    "LoopOnlyError",
    "Plan",
    "memory_budget",
    "plan_for",
    "plans",
    "remember_failure",
    "unchanged",
]

CPU_BUDGET = 256 * 2**20
"""Bytes that one chunk of draws may take on a CPU; beyond the cache, larger chunks gain nothing there."""
CUDA_SHARE = 0.25
"""Share of the free device memory that one chunk of draws may take."""
REPEATED_WORK_TO_LOOP = 0.5
BYTES_PER_DRAW_TO_LOOP = 6 * 2**20


Mechanism = Literal["vmap", "vmap inputs", "loop"]


class ExecutorWarning(UserWarning):
    """A network runs looped because it cannot be mapped."""


class LoopOnlyError(RuntimeError):
    """Raised by a layer that is meant to be looped: it needs no warning."""


@dataclass(frozen=True)
class Plan:
    """What runs, and why."""

    executor: Mechanism
    bytes_per_draw: int
    size: int
    """Number of elements of the inputs that it was made with."""
    reason: str

    def chunk(self, call: Call) -> int:
        """How many draws fit into the memory budget, for inputs of this size."""
        if self.bytes_per_draw == 0:
            return 2**31
        per_draw = self.bytes_per_draw * max(1.0, call.size / max(self.size, 1))
        return max(1, int(memory_budget(call.rows_and_device()[1]) / per_draw))


_PLANS: weakref.WeakKeyDictionary[nn.Module, dict[str, Plan]] = weakref.WeakKeyDictionary()


def plans(model: nn.Module) -> dict[str, Plan]:
    """The plans made for a network so far, by what they were made for."""
    return dict(_PLANS.get(model, {}))


def plan_for(call: Call) -> Plan:
    """The plan for this network under these settings, made on first use."""
    known = _PLANS.setdefault(call.model, {})
    key = _key(call)
    if key not in known:
        known[key] = _make_plan(call)
    return known[key]


def remember_failure(call: Call, error: Exception) -> None:
    """A mapped run failed where the trial had not: loop from now on."""
    _PLANS.setdefault(call.model, {})[_key(call)] = _looped_plan(call, error)


def memory_budget(device: torch.device) -> int:
    """Bytes that one chunk of draws may take on ``device``."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(CUDA_SHARE * (torch.cuda.mem_get_info(device)[0] + cached))
    return CPU_BUDGET


class Footprint(TorchDispatchMode):
    """Counts the bytes that operators write, and the most that were alive at once. Works below vmap, on real shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.peak = 0
        self._alive = 0
        self._storages: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        return out

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address == 0 or address in self._storages:
            return
        size = storage.nbytes()
        self.written += size
        self._alive += size
        self.peak = max(self.peak, self._alive)
        self._storages.add(address)
        weakref.finalize(tensor, self._release, address, size)

    def _release(self, address: int, size: int) -> None:
        self._storages.discard(address)
        self._alive -= size


def _make_plan(call: Call) -> Plan:
    rows, device = call.rows_and_device()
    failure: Exception | None = None
    trials: tuple[tuple[Mechanism, bool], ...] = (("vmap", False), ("vmap inputs", True))
    for executor, map_inputs in trials:
        try:
            with unchanged(call.model):
                one, two, weights_drawn = _try(call, map_inputs)
        except (RuntimeError, ValueError, TypeError) as error:
            failure = failure or error
            continue
        repeated = (two.written - one.written) / max(one.written, 1)
        per_draw = max(two.peak - one.peak, 0)
        share = f"a further draw repeats {repeated:.0%} of the work and takes {per_draw / 2**20:.1f} MiB at {rows} rows"
        large = repeated > REPEATED_WORK_TO_LOOP and per_draw > BYTES_PER_DRAW_TO_LOOP
        if device.type == "cpu" and weights_drawn and large:
            return Plan(
                "loop", per_draw, call.size, f"weights of this size are drawn faster one by one on a CPU; {share}"
            )
        return Plan(executor, per_draw, call.size, share)
    with unchanged(call.model):
        one_draw(call)  # raises where the inputs and not the map are at fault
    assert failure is not None
    return _looped_plan(call, failure)


def _looped_plan(call: Call, error: Exception) -> Plan:
    reason = f"{_culprit(call.model, error)} cannot be mapped: {_first_sentence(error)}"
    if not isinstance(error, LoopOnlyError):
        message = f"draws run one after another, since {reason}"
        warnings.warn(message, ExecutorWarning, stacklevel=_levels_to_the_user())
    return Plan("loop", 0, 0, reason)


def _levels_to_the_user() -> int:
    """How far up the stack the first line outside this package is."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "dubio":
        level, frame = level + 1, frame.f_back
    return level


def _try(call: Call, map_inputs: bool) -> tuple[Footprint, Footprint, bool]:
    drawn: Perturbations = {}
    footprints = []
    for num_samples in (1, 2):
        drawn.clear()
        with Footprint() as footprint:
            map_draws(call, torch.arange(num_samples), map_inputs, drawn)
        footprints.append(footprint)
    return footprints[0], footprints[1], bool(drawn)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put back what a run may change: buffers, tensors kept as attributes, rows that an embedding rescales, generators.

    Raises where a module keeps a mapped tensor, which would be dead once the map is over.
    """
    before = [(module, _tensors_on(module)) for module in model.modules()]
    values = [
        {name: tensor.clone() for name, tensor in module._buffers.items() if tensor is not None} for module, _ in before
    ]
    rescaled = [
        (parameter, parameter.detach().clone())
        for module in model.modules()
        if getattr(module, "max_norm", None) is not None
        for parameter in module.parameters()
    ]
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    keeper = None
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            for (module, tensors), saved in zip(before, values, strict=True):
                if any(torch._C._functorch.is_batchedtensor(tensor) for _, tensor in _tensors_on(module).values()):
                    keeper = keeper or module
                for name, (holder, tensor) in tensors.items():
                    holder[name] = tensor
                with torch.no_grad():
                    for name, value in saved.items():
                        module._buffers[name].copy_(value)  # type: ignore[union-attr]
            with torch.no_grad():
                for parameter, value in rescaled:
                    parameter.copy_(value)
    if keeper is not None:
        raise RuntimeError(f"a {type(keeper).__name__} keeps a tensor of the forward on itself")


def _tensors_on(module: nn.Module) -> dict[str, tuple[dict[str, Any], Tensor]]:
    """Buffers of a module and tensors among its attributes, with what holds each."""
    holders: tuple[dict[str, Any], ...] = (module.__dict__, module._buffers)
    return {name: (holder, value) for holder in holders for name, value in holder.items() if isinstance(value, Tensor)}


def _culprit(model: nn.Module, error: Exception) -> str:
    """The innermost module of the network that the error passed through."""
    names = {id(module): name for name, module in model.named_modules()}
    culprit, trace = type(model).__name__, error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_locals.get("self")
        if isinstance(module, nn.Module) and names.get(id(module)):
            culprit = f"{names[id(module)]} ({type(module).__name__})"
        trace = trace.tb_next
    return culprit


def _first_sentence(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _key(call: Call) -> str:
    device = call.rows_and_device()[1].type
    parts = [
        *([] if device == "cpu" else [f"on {device}"]),
        "training mode" if call.model.training else "eval mode",
        "with gradients" if torch.is_grad_enabled() else "without gradients",
        *([f"estimator {call.settings.estimator}"] if call.settings.estimator else []),
    ]
    return ", ".join(parts)
