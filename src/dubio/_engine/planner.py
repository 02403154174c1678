"""How many draws run at a time, and how: network, batch, draws and memory in, a plan out.

The network is probed the first time it meets several draws (``probe``), and the result is kept in a weak dictionary
beside the networks, never on them. The plan follows by arithmetic. Where draws take ``shared + draws * each`` bytes,
and the joined outputs of all of them ``kept``,

    chunk = (limit - shared - kept) // each,

and the least of these where the probe gives several such lines.

- Without gradients, draws run in chunks that fit. Without a memory limit, the budget of a chunk is what the caches of a
  CPU make use of, or a quarter of the free memory of a GPU. It is there for speed and counts ``each`` alone.
- With gradients, all draws run at once where they fit into the limit (on a GPU: half of its free memory; on a CPU
  without a limit: always), since the graph of each is kept and chunks alone would save nothing. Where they do not fit,
  chunks are recomputed in the backward pass, and ``kept`` counts a second set of gradients.
- Without gradients, drawn filters run looped once their convolutions write ``GROUPED_TO_LOOP`` elements in a draw: one
  draw keeps a GPU busy then, and grouped convolutions are slow. This does not hold where a forward changes the network,
  as batch norms do in training mode: draws one after another change it more often.
- A chunk that runs out of memory is halved, and later plans take this into account.

A probe holds as long as everything it depends on stays the same (``circumstances``). This is checked at every call, in
a walk without copies: about half a microsecond for each module and each parameter.

Invariants: no plan changes a draw (``test_a_limit_changes_no_draw``); a run stays inside its limit, or is refused
before it starts (``tests/engine/test_memory.py``).
"""

import math
import weakref
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio._engine.draws import Call, Inputs, call_for
from dubio._engine.memory import free_memory, memory_in_words, tensor_bytes
from dubio._engine.probe import Executor, Mechanism, ProbeResult, cannot_be_mapped, probe, refuse
from dubio._engine.settings import STATE, check_module, check_num_samples, memory_limit
from dubio._engine.snapshot import TensorSnapshot, statistics_of

CPU_BUDGET = 256 * 2**20
"""Bytes that one chunk of draws may take on a CPU; beyond the cache, larger chunks gain nothing there."""
CUDA_SHARE = 0.25
"""Share of the free device memory that one chunk of draws may take."""
CUDA_SHARE_WITH_GRAPH = 0.5
"""Share of the free device memory that the graph of all draws may take before it is recomputed instead."""
GROUPED_TO_LOOP = 7 * 2**26
"""About 850 images of 32x32 in a ResNet-18. At 512, mapped draws are twice as fast; at 1,000 looped ones take a fifth
less where there are a hundred, and more where there are 20; at 2,000 they take less in either case
(``engine_h200.json`` and ``peers_h200.json`` in ``benchmarks/results``)."""
FEW_DRAWS = 32
"""Fewer draws are looped from half as many images again."""
BYTES_PER_DRAW_TO_LOOP = 6 * 2**20
"""Of drawn weights and what they are multiplied with, on a CPU: 1-400-400-1 takes 130 ms mapped and 88 looped for 2,000
rows and ten draws on one core, where a draw has 24 MiB."""
TIMES = {1: "once", 2: "twice"}
PLAIN = (type(None), bool, int, float, str)
"""Types of arguments beside tensors that are compared by value."""


class DoesNotFitError(ValueError):
    """A memory limit that leaves no room for a run."""


@dataclass(frozen=True)
class OutputUse:
    """How the outputs of a run are kept, for a memory limit."""

    kept: float = 0.0
    """Copies of the outputs of all draws for these rows that are in memory in the end, where they come in chunks."""
    beside: float = 0.0
    """Copies that are kept whether or not they come in chunks."""
    consumed: int = 0
    """Bytes that are taken beside each byte of a chunk's outputs, once they are there."""
    advice: str = ""
    """What else helps where there is no room."""


JOINED = OutputUse(kept=2.0)
"""All in one tensor: the chunks and their concatenation, or the concatenation and its gradients."""
STREAMED = OutputUse()
"""Chunk by chunk, and not kept."""


@dataclass(frozen=True)
class SamplingPlan:
    """How draws run, the memory they take, and why."""

    executor: Mechanism
    num_samples: int
    chunk: int
    """Draws at a time."""
    recompute: bool
    """Whether chunks are recomputed in the backward pass."""
    bytes_per_draw: int
    """Memory of a draw; 0 where nothing was measured."""
    bytes_in_all: int
    """The most that is alive at once, the outputs of all draws included."""
    limit: int | None
    """The memory that a run may take, where it is limited."""
    reason: str
    moving: tuple[tuple[str, str], ...] = ()
    """Tensors that a forward changes: name of the module, name of the tensor."""
    draws_itself: bool = True
    """Whether the network draws from torch's global generator itself; true where it was not probed."""

    def __str__(self) -> str:
        at_a_time = "all at once" if self.chunk >= self.num_samples else f"{self.chunk} at a time"
        again = ", recomputed in the backward pass" if self.recompute else ""
        each, in_all = memory_in_words(self.bytes_per_draw), memory_in_words(self.bytes_in_all)
        limit = "no limit" if self.limit is None else f"limit {memory_in_words(self.limit)}"
        memory = f"{each} a draw, {in_all} in all, {limit}" if self.bytes_in_all else "not measured"
        return (
            f"executor  {self.executor}\ndraws     {self.num_samples}, {at_a_time}{again}\n"
            f"memory    {memory}\nwhy       {self.reason}"
        )


@dataclass(frozen=True)
class PlanRequest:
    """The draws to plan, the inputs at hand, and the memory that may be taken."""

    num_samples: int
    size: int
    """Number of elements of the inputs."""
    rows: int
    gradient_bytes: int | None
    """Memory of the gradients of all parameters; None without gradients."""
    limit: int | None
    strict: bool
    """Whether the user set the limit, which is then kept or refused."""
    chunk: int | None = None
    """Draws at a time, at most, where requested."""
    use: OutputUse = JOINED
    most: int | None = None
    """Draws at a time, at most, where more ran out of memory."""
    halvings: int = 0


class _PlanOptions(NamedTuple):
    """The options of a plan that do not depend on the inputs."""

    num_samples: int
    chunk: int | None = None
    use: OutputUse = JOINED


@dataclass
class _Entry:
    """The probe of a network in one situation, and its latest plan."""

    result: ProbeResult
    gradients: bool
    most: int | None = None
    """Draws at a time, where more have run out of memory."""
    most_size: int = 0
    """Number of elements of the inputs with which they have."""
    halvings: int = 0
    plan: SamplingPlan | None = None
    plan_key: tuple[_PlanOptions, int, int | None] | None = None
    """What the plan was made for: options, number of elements of the inputs, limit."""
    is_stale: bool = False
    """Whether the plan does not hold any more."""

    def halve(self, tried: SamplingPlan, size: int) -> None:
        """Take half as many draws at a time as a plan that ran out of memory with inputs of a size."""
        at_once = tried.num_samples if self.gradients and not tried.recompute else tried.chunk
        self.most, self.most_size = max(1, at_once // 2), size
        self.halvings += 1
        self.is_stale = True

    def can_shrink(self, tried: SamplingPlan) -> bool:
        """Whether a plan that ran out of memory can take fewer draws at a time."""
        if self.gradients and (self.result.obstacle or not tried.recompute):
            return not self.result.obstacle
        return tried.chunk > 1 and tried.executor != "loop"

    def update(self, call: Call, executor: Executor, options: _PlanOptions) -> SamplingPlan:
        """Make the plan for a call, and keep it."""
        self.plan = self.choose(call, executor, options)
        self.plan_key, self.is_stale = (options, call.size, call.settings.memory), False
        return self.plan

    def choose(self, call: Call, executor: Executor, options: _PlanOptions) -> SamplingPlan:
        """The plan for a call; the network is probed again where a strict limit needs it."""
        request = self._request(call, options)
        plan = choose(self.result, request)
        is_larger, differs = request.size > self.result.size, request.size != self.result.size
        tight = plan is None or (is_larger and plan.chunk < request.num_samples)
        if request.strict and differs and tight:  # an extrapolation from other inputs is not enough to refuse or to cut
            self.result = probe(call, executor, self.result.backward)
            plan = choose(self.result, request)
        if plan is None:
            raise refusal(self.result, request)
        return plan

    def _request(self, call: Call, options: _PlanOptions) -> PlanRequest:
        rows, device = call.rows_and_device()
        limit, strict, size = call.settings.memory, call.settings.memory is not None, call.size
        if limit is None and (device.type == "cuda" or not self.gradients):
            limit = memory_budget(device, CUDA_SHARE_WITH_GRAPH if self.gradients else CUDA_SHARE)
        parameters = [parameter for parameter in call.model.parameters() if parameter.requires_grad]
        gradient_bytes = tensor_bytes(parameters) if self.gradients else None
        most = self.most
        if most is not None and size < self.most_size:
            most = most * self.most_size // max(size, 1)
        num_samples, chunk, use = options
        return PlanRequest(num_samples, size, rows, gradient_bytes, limit, strict, chunk, use, most, self.halvings)


@dataclass
class _Memory:
    """The probes and plans of one network."""

    entries: dict[tuple[Any, ...], _Entry] = field(default_factory=dict)
    """By all that a probe depends on."""
    latest: dict[str, _Entry] = field(default_factory=dict)
    """By situation, as text."""
    before: TensorSnapshot | None = None
    """The tensors that the latest run with gradients has moved, as they were before."""


_MEMORIES: weakref.WeakKeyDictionary[nn.Module, _Memory] = weakref.WeakKeyDictionary()


def plan(
    model: nn.Module,
    inputs: Inputs,
    num_samples: int,
    *,
    memory: int | str | None = None,
    gradients: bool = False,
    collecting: Collection[str] = (),
) -> SamplingPlan:
    """How ``dubio.sample`` would run: executor, draws at a time, memory, and why.

    Args:
        model: a converted network, or any ``nn.Module``.
        inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
        num_samples: how many draws.
        memory: bytes, or a text such as ``"2 GiB"``, as in ``dubio.memory_limit``; by default the limit in force.
        gradients: whether the draws are to be differentiated.
        collecting: kinds of terms that an objective collects from the layers, which take memory, too: ``divergence``,
            ``entropy``, ``penalty``.

    >>> print(dubio.plan(model, inputs, num_samples=1000, memory="512 MiB"))
    """
    check_module(model)
    check_num_samples(num_samples)
    with nullcontext() if memory is None else memory_limit(memory), torch.set_grad_enabled(gradients):
        if STATE.own.settings.mode == "off":
            return SamplingPlan("loop", num_samples, num_samples, False, 0, 0, None, "noise is off: all draws are one")
        return plan_for(call_for(model, inputs, STATE.own.settings, collecting), num_samples)


def plan_for(
    call: Call,
    num_samples: int,
    executor: Executor = "auto",
    chunk: int | None = None,
    *,
    use: OutputUse = JOINED,
    piece: bool = False,
) -> SamplingPlan:
    """The plan for these draws under the settings of the call; the network is probed on first use.

    ``use`` says how the outputs are kept; ``piece``, whether these draws are part of a run that was planned as a whole,
    whose plan then stays the one that ``plans`` reports.
    """
    limit = call.settings.memory
    mechanism: Mechanism = "loop" if executor == "auto" else executor
    if num_samples == 1 and (limit is None or piece):
        return SamplingPlan(mechanism, 1, 1, False, 0, 0, None, "a single draw leaves no choice")
    entry = _probed(call, executor)
    if entry is None and executor != "auto" and limit is None:
        at_a_time, moving = 1 if executor == "loop" else chunk or num_samples, statistics_of(call.model)
        return SamplingPlan(executor, num_samples, at_a_time, False, 0, 0, None, "as requested", moving)
    if entry is None:
        entry = _with_result(call, executor, probe(call, executor, _runs_backward(call)))
    if num_samples == 1:
        plan = entry.choose(call, executor, _PlanOptions(1, chunk, use))
        return replace(plan, executor=mechanism, reason="a single draw leaves no choice")
    if piece and entry.plan is not None and not entry.gradients:
        whole = entry.plan
        if entry.is_stale and entry.plan_key is not None:  # it ran out of memory meanwhile
            whole = entry.update(call, executor, entry.plan_key[0])
        return replace(whole, num_samples=num_samples, chunk=min(whole.chunk, num_samples))
    options = _PlanOptions(num_samples, chunk, use)
    if entry.plan is None or entry.is_stale or entry.plan_key != (options, call.size, limit):
        return entry.update(call, executor, options)
    return entry.plan


def plans(model: nn.Module) -> dict[str, SamplingPlan]:
    """The latest plan of a network in each situation, by what it was made for."""
    latest = _memory(model).latest
    return {situation: entry.plan for situation, entry in latest.items() if entry.plan is not None}


def shrink_chunks(model: nn.Module) -> bool:
    """Halve the chunks of a network in every situation with gradients, after a backward pass ran out of memory.

    Returns whether any chunk could be halved. A step that is repeated then takes less memory, and running statistics
    that the draws of the failed step have moved are put back. Call it where nothing refers to the failed step any more,
    so that its memory can be released.
    """
    shrunk, memory = False, _memory(model)
    for entry in memory.entries.values():
        if entry.gradients and entry.plan is not None and entry.plan_key is not None and entry.can_shrink(entry.plan):
            entry.halve(entry.plan, entry.plan_key[1])
            shrunk = True
    if shrunk and memory.before is not None:
        memory.before.put_back(model)
        memory.before = None
    free_memory()
    return shrunk


def record_snapshot(call: Call, before: TensorSnapshot) -> None:
    """Keep what a run with gradients has moved, for the case that its backward pass fails."""
    _memory(call.model).before = before


def record_map_failure(call: Call, error: Exception) -> None:
    """Loop from now on: a mapped run failed although the probe had not."""
    entry = _entry(call, "auto")
    entry.result, entry.is_stale = cannot_be_mapped(call, entry.result, error), True
    if entry.plan is not None:
        entry.plan = replace(entry.plan, executor="loop", chunk=1, reason=entry.result.reason)


def record_obstacle(call: Call, executor: Executor, obstacle: str) -> None:
    """Keep the graphs of all draws from now on, or refuse a limit that is too small: draws cannot be recomputed."""
    entry = _entry(call, executor)
    entry.result, entry.is_stale = replace(entry.result, obstacle=obstacle), True


def halve_chunk(call: Call, executor: Executor, tried: SamplingPlan, message: str) -> None:
    """Halve the chunk of a plan that ran out of memory with ``message``; raises where it cannot be halved."""
    if tried.num_samples == 1:
        refuse(call, "one draw", message)
    entry = _entry(call, executor)
    if not entry.can_shrink(tried):
        obstacle = entry.result.obstacle if entry.gradients else ""
        draws = f"{tried.num_samples} draws that cannot be recomputed ({obstacle})"
        refuse(call, draws if obstacle else "one draw at a time", message)
    entry.halve(tried, call.size)


def bytes_per_row(call: Call, executor: Executor) -> int:
    """Memory of a further row while one draw runs, from a probe of as many rows as the call has, or more."""
    entry = _probed(call, executor)
    if entry is None or entry.result.rows < call.rows_and_device()[0]:
        entry = _with_result(call, executor, probe(call, executor, _runs_backward(call)))
    return entry.result.bytes_per_row


def memory_budget(device: torch.device, share: float = CUDA_SHARE) -> int:
    """Bytes that one chunk of draws may take on ``device``: the limit in force, or a share of the free memory."""
    if STATE.own.settings.memory is not None:
        return STATE.own.settings.memory
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(share * (torch.cuda.mem_get_info(device)[0] + cached))
    return CPU_BUDGET


def _entry(call: Call, executor: Executor) -> _Entry:
    """The entry of the network in the present situation; the network is probed where there is none."""
    return _probed(call, executor) or _with_result(call, executor, probe(call, executor, _runs_backward(call)))


def _probed(call: Call, executor: Executor) -> _Entry | None:
    """The entry of the network in the present situation, where its probe holds for the present limit."""
    memory, key, limit = _memory(call.model), _key(call, executor), call.settings.memory
    entry = memory.entries.get(key)
    if entry is not None:
        skipped_at = entry.result.skipped_at
        if skipped_at is not None and (limit is None or limit > skipped_at):
            return None
        memory.latest[key[0]] = entry
    return entry


def _with_result(call: Call, executor: Executor, result: ProbeResult) -> _Entry:
    """The entry of the network in the present situation, with the result of a new probe."""
    memory, key = _memory(call.model), _key(call, executor)
    entry = memory.entries.setdefault(key, _Entry(result, torch.is_grad_enabled()))
    entry.result, entry.is_stale = result, True
    memory.latest[key[0]] = entry
    return entry


def _runs_backward(call: Call) -> bool:
    """Whether a probe runs backwards, too: where gradients are required and memory may be short."""
    return torch.is_grad_enabled() and (call.settings.memory is not None or call.rows_and_device()[1].type == "cuda")


def _key(call: Call, executor: Executor) -> tuple[Any, ...]:
    return situation(call, executor), *circumstances(call)


def _memory(model: nn.Module) -> _Memory:
    return _MEMORIES.setdefault(model, _Memory())


@dataclass(frozen=True)
class _MemoryCost:
    """The memory of a run with the inputs at hand, in bytes."""

    lines: tuple[tuple[int, int], ...]
    each: int
    kept: int
    """Of what all draws leave: outputs, and gradients of parameters."""
    beside: int
    """Of outputs that are kept whether or not they come in chunks; part of the lines."""

    def at_once(self, draws: int) -> int:
        """The memory of draws that run at the same time."""
        return max(shared + draws * each for shared, each in self.lines)

    def fitting(self, limit: int) -> int:
        """The number of draws at a time that fit into a limit; less than one where none does."""
        left = limit - self.kept
        return min((left - shared) // max(each, 1) for shared, each in self.lines)


def choose(result: ProbeResult, request: PlanRequest) -> SamplingPlan | None:
    """The plan; None where a strict limit cannot be kept."""
    if why := _why_looped(result, request):
        result = replace(result, executor="loop", reason=f"{why}; {result.reason}")
    cost, num_samples, limit = _cost(result, request), request.num_samples, request.limit
    gradients = request.gradient_bytes is not None
    careful = request.strict or gradients
    fits = limit is None or (cost.at_once(num_samples) if careful else num_samples * cost.each) <= limit
    most = min(request.most or num_samples, num_samples)
    recompute = gradients and not result.obstacle and (not fits or most < num_samples)
    if result.executor == "loop":
        chunk = 1
    elif gradients and not recompute:
        chunk = request.chunk or num_samples
    elif fits or limit is None or not (careful or request.chunk is None):
        chunk = min(request.chunk or most, most)
    else:
        chunk = min(request.chunk or most, most, cost.fitting(limit) if careful else limit // max(cost.each, 1))
    chunk = max(1, min(chunk, num_samples))
    in_chunks = chunk < num_samples and (recompute or not gradients)
    in_all = cost.kept + cost.at_once(chunk) if in_chunks else cost.at_once(num_samples)
    if request.strict and limit is not None and in_all > limit:
        return None
    reason, moving = _reason(result, request, cost, chunk, recompute), result.moving
    plan = SamplingPlan(result.executor, num_samples, chunk, recompute, cost.each, in_all, limit, reason, moving)
    return replace(plan, draws_itself=result.draws_itself)


def _why_looped(result: ProbeResult, request: PlanRequest) -> str:
    """Why draws that can be mapped are faster one by one; empty where they are not."""
    if result.executor == "loop":
        return ""
    gradients, scale = request.gradient_bytes is not None, _scale(result, request)
    # With gradients all rows were probed; a prediction may have many more rows than its probe.
    if (1.0 if gradients else max(1.0, scale)) * result.streamed > BYTES_PER_DRAW_TO_LOOP:
        return "draws of this size run faster one by one on a CPU"
    enough = GROUPED_TO_LOOP if request.num_samples >= FEW_DRAWS else 1.5 * GROUPED_TO_LOOP
    is_grouped = not gradients and not result.moving and scale * result.grouped >= enough
    return "so many rows are convolved faster draw by draw" if is_grouped else ""


def refusal(result: ProbeResult, request: PlanRequest) -> DoesNotFitError:
    """The error for a limit that cannot be kept, with advice."""
    cost = _cost(result, request)
    one, left = memory_in_words(cost.at_once(1) - cost.beside), cost.kept + cost.beside
    limit = memory_in_words(request.limit or 0)
    if request.gradient_bytes is not None and result.obstacle:
        return DoesNotFitError(
            f"memory_limit must leave room for the graph of {request.num_samples} draws, {one} each at {request.rows} "
            f"rows, since they cannot be recomputed: {result.obstacle}; got {limit}; give fewer rows or draws at a "
            "time, or allow more"
        )
    kept = f" and {memory_in_words(left)} for what all draws leave" if left else ""
    return DoesNotFitError(
        f"memory_limit must leave room for one draw, {one} at {request.rows} rows{kept}, got {limit}; "
        f"give fewer rows at a time (batch_size), {request.use.advice}or allow more"
    )


def _cost(result: ProbeResult, request: PlanRequest) -> _MemoryCost:
    scale = max(1.0, _scale(result, request))
    lines = tuple((math.ceil(scale * shared), math.ceil(scale * each)) for shared, each in result.lines)
    output = math.ceil(scale * result.bytes_per_output)
    if result.executor == "loop":  # every draw repeats everything
        lines = ((0, max(shared + each for shared, each in lines)),)
    each = max(each for _, each in lines)
    kept, beside = (math.ceil(times * request.num_samples * output) for times in (request.use.kept, request.use.beside))
    if request.strict:
        lines = (*lines, (0, (1 + request.use.consumed) * output))
        lines = tuple((shared + beside, each) for shared, each in lines)
    return _MemoryCost(lines, each, kept + (request.gradient_bytes or 0), beside)


def _scale(result: ProbeResult, request: PlanRequest) -> float:
    """The size of the requested inputs relative to those that were probed."""
    return request.size / max(result.size, 1)


def _reason(result: ProbeResult, request: PlanRequest, cost: _MemoryCost, chunk: int, recompute: bool) -> str:
    if chunk >= request.num_samples:
        amount = f"all {request.num_samples} draws at once"
    else:
        amount = f"{chunk} draws at a time" if chunk > 1 else "one draw at a time"
    if result.executor == "loop" and request.gradient_bytes is not None and not recompute:
        amount += f", the graphs of all {request.num_samples} kept"
    amount += f": {memory_in_words(cost.each)} each"
    if request.limit is not None:
        amount += f" within a {'limit' if request.strict else 'budget'} of {memory_in_words(request.limit)}"
    if recompute:
        amount += ", recomputed in the backward pass"
    if request.chunk == chunk and result.executor != "loop":
        amount += ", as requested"
    if request.halvings:
        times = TIMES.get(request.halvings, f"{request.halvings} times")
        amount += f"; halved {times} after running out of memory"
    return f"{result.reason}; {amount}"


def situation(call: Call, executor: str) -> str:
    """The situation of a call as text: device, mode, gradients, autocast, estimator and executor."""
    device = call.rows_and_device()[1].type
    parts = (
        "" if device == "cpu" else f"on {device}",
        "training mode" if call.model.training else "eval mode",
        "with gradients" if torch.is_grad_enabled() else "without gradients",
        "autocast" if torch.is_autocast_enabled(device) else "",
        f"estimator {call.settings.estimator}" if call.settings.estimator else "",
        "" if executor == "auto" else f"executor {executor}",
    )
    return ", ".join(filter(None, parts))


def circumstances(call: Call) -> tuple[object, ...]:
    """All that a probe depends on: class and mode of every module; shape, dtype and gradient of every parameter.

    Under a limit also the collected terms, and the form of the arguments except for the number of their rows: memory
    depends on all of it, and grows in proportion to the rows.
    """
    values: list[object] = [] if call.settings.memory is None else _form(call)
    pending: list[nn.Module] = [call.model]
    seen: set[int] = set()
    while pending:
        module = pending.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        values += (type(module), module.training)
        for parameter in module._parameters.values():
            if parameter is not None:
                values += (parameter.shape, parameter.dtype, parameter.requires_grad)
        pending += module._modules.values()  # type: ignore[arg-type]  # a place may be empty
    return tuple(values)


def _form(call: Call) -> list[object]:
    values: list[object] = [*sorted(call.collecting), *call.kwargs]
    for leaf in pytree.tree_leaves((call.args, call.kwargs)):
        if isinstance(leaf, Tensor):
            values += (leaf.dim(), leaf.shape[1:], leaf.dtype, leaf.requires_grad)
        else:
            values.append(leaf if isinstance(leaf, PLAIN) else type(leaf))
    return values
