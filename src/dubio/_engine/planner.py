"""How many draws run at a time, and how: network, batch, draws and memory in, a plan out.

The first time a network meets several draws it is tried (``trying``), and what was found is remembered in a weak
dictionary beside the networks, never on them. A plan then is arithmetic (``choosing``).

- Without gradients, draws run in chunks that fit. Without a limit, a chunk may take what the caches of a CPU make use
  of, or a quarter of the free memory of a GPU.
- With gradients, all draws run at once where they fit into the limit (on a GPU: half of its free memory; on a CPU
  without a limit: always). Where they do not, chunks are computed anew in the backward pass (``recomputing``).
- A chunk that runs out of memory is halved, and the plan remembers that.

Invariants: no plan changes a draw (``test_a_limit_changes_no_draw``); a run stays inside its limit, or is refused
before it starts (``tests/engine/test_memory.py``).

A plan for some draws, by arithmetic: what was found out about a network and what is wanted in, chunk and words out.

Where draws take ``shared + draws * each`` bytes, and the outputs of all of them, joined, ``kept``,

    chunk = (limit - shared - kept) // each,

and the least of these where several such lines were found (``trying``). Without a limit that someone set, the budget
counts ``each`` alone: it is there for speed.

Without gradients, drawn filters run looped from ``GROUPED_TO_LOOP`` numbers on that their convolutions write in a draw:
a GPU has enough to do with one draw then, and groups of them are slow. Not so where a forward changes the network, as
batch norms do in training mode: draws one after another change it more often.

With gradients all draws run at once, since the graph of each is kept and chunks alone would save nothing; where they do
not fit, chunks are computed anew in the backward pass, and ``kept`` counts a second set of gradients.

What a trial of a network depends on: while all of it stays the same, what was found holds.

Asked at every call, so it is a walk without copies: about half a microsecond for a module and as much for a parameter.
"""

import math
import weakref
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio._engine.draws import Call, Inputs, arguments_for
from dubio._engine.memory import free_memory, memory_in_words, tensor_bytes
from dubio._engine.probe import Executor, Mechanism, ProbeResult, cannot_be_mapped, no_memory_left, try_out
from dubio._engine.settings import STATE, check_module, check_num_samples, memory_limit
from dubio._engine.snapshot import TensorSnapshot, statistics_of

CPU_BUDGET = 256 * 2**20
"""Bytes that one chunk of draws may take on a CPU; beyond the cache, larger chunks gain nothing there."""


CUDA_SHARE = 0.25
"""Share of the free device memory that one chunk of draws may take."""


CUDA_SHARE_WITH_GRAPH = 0.5
"""Share of the free device memory that the graph of all draws may take before it is computed anew instead."""


@dataclass(frozen=True)
class OutputUse:
    """What becomes of outputs, for a limit that someone set."""

    kept: float = 0.0
    """How many times the outputs of all draws for these rows are in memory in the end, where they come in chunks."""
    beside: float = 0.0
    """How many times they are kept however they come."""
    consumed: int = 0
    """Bytes that are taken beside each byte of a chunk's outputs, once they are there."""
    advice: str = ""
    """What else helps where there is no room."""


JOINED = OutputUse(kept=2.0)
"""All in one tensor: as they come and joined, or joined and their gradients."""


class _PlanOptions(NamedTuple):
    """What was asked for, whatever the inputs."""

    num_samples: int
    chunk: int | None = None
    use: OutputUse = JOINED


@dataclass(frozen=True)
class SamplingPlan:
    """How so many draws run, what that takes, and why."""

    executor: Mechanism
    num_samples: int
    chunk: int
    """Draws at a time."""
    recompute: bool
    """Whether chunks are computed anew in the backward pass."""
    bytes_per_draw: int
    """What a draw takes; 0 where nothing was measured."""
    bytes_in_all: int
    """The most that is alive at once, the outputs of all draws included."""
    limit: int | None
    """What a run may take, where anything limits it."""
    reason: str
    moving: tuple[tuple[str, str], ...] = ()
    """Tensors that a forward changes: name of the module, name of the tensor."""
    draws_itself: bool = True
    """Whether the network draws from torch's global generator itself; true where nobody has looked."""

    def __str__(self) -> str:
        at_a_time = "all at once" if self.chunk >= self.num_samples else f"{self.chunk} at a time"
        again = ", computed anew in the backward pass" if self.recompute else ""
        each, in_all = memory_in_words(self.bytes_per_draw), memory_in_words(self.bytes_in_all)
        limit = "no limit" if self.limit is None else f"limit {memory_in_words(self.limit)}"
        return "\n".join(
            [
                f"executor  {self.executor}",
                f"draws     {self.num_samples}, {at_a_time}{again}",
                f"memory    {each} a draw, {in_all} in all, {limit}" if self.bytes_in_all else "memory    not measured",
                f"why       {self.reason}",
            ]
        )


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
        collecting: kinds of terms that an objective asks the layers for, which take memory, too: ``divergence``,
            ``entropy``, ``penalty``.

    >>> print(dubio.plan(model, inputs, num_samples=1000, memory="512 MiB"))
    """
    check_module(model)
    check_num_samples(num_samples)
    with nullcontext() if memory is None else memory_limit(memory), torch.set_grad_enabled(gradients):
        if STATE.own.settings.mode == "off":
            return SamplingPlan("loop", num_samples, num_samples, False, 0, 0, None, "noise is off: all draws are one")
        return plan_for(Call(model, *arguments_for(model, inputs), STATE.own.settings, collecting), num_samples)


@dataclass
class _Known:
    """What is known of a network in one situation."""

    found: ProbeResult
    gradients: bool
    most: int | None = None
    """Draws at a time, where more have run out of memory."""
    most_at: int = 0
    """Number of elements of the inputs with which they have."""
    halvings: int = 0
    plan: SamplingPlan | None = None
    order: _PlanOptions | None = None
    size: int = 0
    """Number of elements of the inputs that the plan was made for."""
    asked: tuple[object, ...] = ()
    """What the plan was made for: order, number of elements, limit. Nothing where it does not hold any more."""

    def halve(self, tried: SamplingPlan, size: int) -> None:
        """Take half as many draws at a time as a plan that ran out of memory with inputs of a size."""
        at_once = tried.num_samples if self.gradients and not tried.recompute else tried.chunk
        self.most, self.most_at = max(1, at_once // 2), size
        self.halvings += 1
        self.asked = ()


@dataclass
class _Memory:
    """What is known of one network."""

    entries: dict[tuple[object, ...], _Known] = field(default_factory=dict)
    """By all that a trial depends on."""
    latest: dict[str, _Known] = field(default_factory=dict)
    """By situation, in words."""
    before: TensorSnapshot | None = None
    """What the latest run with gradients has moved, as it was before."""


_KNOWN: weakref.WeakKeyDictionary[nn.Module, _Memory] = weakref.WeakKeyDictionary()


def plan_for(
    call: Call,
    num_samples: int,
    executor: Executor = "auto",
    chunk: int | None = None,
    *,
    use: OutputUse = JOINED,
    piece: bool = False,
) -> SamplingPlan:
    """The plan for these draws under the settings of the call; the network is tried on first use.

    ``use`` says what becomes of the outputs; ``piece``, whether these draws are some of a run that was planned as a
    whole, whose plan then stays the one to tell of.
    """
    limit = call.settings.memory
    mechanism: Mechanism = "loop" if executor == "auto" else executor
    if num_samples == 1 and (limit is None or piece):
        return SamplingPlan(mechanism, 1, 1, False, 0, 0, None, "a single draw leaves no choice")
    if executor != "auto" and limit is None and not _is_known(call, executor):
        at_a_time = 1 if executor == "loop" else chunk or num_samples
        return SamplingPlan(
            executor, num_samples, at_a_time, False, 0, 0, None, "as asked for", statistics_of(call.model)
        )
    known = _known(call, executor)
    if num_samples == 1:
        fitting = _choose(call, known, executor, _wanted(call, known, _PlanOptions(1, chunk, use)))
        return replace(fitting, executor=mechanism, reason="a single draw leaves no choice")
    if piece and known.plan is not None and not known.gradients:
        whole = known.plan
        if not known.asked and known.order is not None:  # it ran out of memory meanwhile
            whole = _plan(call, known, executor, known.order)
        return replace(whole, num_samples=num_samples, chunk=min(whole.chunk, num_samples))
    order = _PlanOptions(num_samples, chunk, use)
    if known.plan is None or known.asked != (order, call.size, limit):
        return _plan(call, known, executor, order)
    return known.plan


def plans(model: nn.Module) -> dict[str, SamplingPlan]:
    """The latest plan of a network in each situation, by what it was made for."""
    latest = _memory(model).latest
    return {situation: known.plan for situation, known in latest.items() if known.plan is not None}


def shrink_chunks(model: nn.Module) -> bool:
    """Halve the chunks of a network in every situation with gradients: for a backward pass that ran out of memory.

    Returns whether there was anything left to halve; a step that is done again then takes less, and running statistics
    that the draws of the failed one have moved are put back. Call it where nothing refers to the failed step any more:
    it gives its memory back.
    """
    shrunk, memory = False, _memory(model)
    for known in memory.entries.values():
        if known.gradients and known.plan is not None and _can_shrink(known.plan, known):
            known.halve(known.plan, known.size)
            shrunk = True
    if shrunk and memory.before is not None:
        memory.before.put_back(model)
        memory.before = None
    free_memory()
    return shrunk


def remember_standing(call: Call, before: TensorSnapshot | None) -> None:
    """A run with gradients is done: this is what it has moved, should its backward pass fail."""
    _memory(call.model).before = before


def remember_failure(call: Call, error: Exception) -> None:
    """A mapped run failed where the trial had not: loop from now on."""
    known = _known(call, "auto")
    known.found, known.asked = cannot_be_mapped(call, known.found, error), ()
    if known.plan is not None:
        known.plan = replace(known.plan, executor="loop", chunk=1, reason=known.found.reason)


def remember_obstacle(call: Call, executor: Executor, obstacle: str) -> None:
    """Draws cannot be computed anew after all: keep their graphs from now on, or refuse a limit that is too small."""
    known = _known(call, executor)
    known.found, known.asked = replace(known.found, obstacle=obstacle), ()


def remember_out_of_memory(call: Call, executor: Executor, tried: SamplingPlan, said: str) -> None:
    """Halve the chunk of a plan that ran out of memory; raises where there is nothing left to halve."""
    if tried.num_samples == 1:
        raise no_memory_left(call, "one draw", said)
    known = _known(call, executor)
    if not _can_shrink(tried, known):
        obstacle = known.found.obstacle if known.gradients else ""
        draws = f"{tried.num_samples} draws that cannot be computed anew ({obstacle})"
        raise no_memory_left(call, draws if obstacle else "one draw at a time", said)
    known.halve(tried, call.size)
    free_memory()


def memory_budget(device: torch.device, share: float = CUDA_SHARE) -> int:
    """Bytes that one chunk of draws may take on ``device``: the limit in force, or a share of what is there."""
    if STATE.own.settings.memory is not None:
        return STATE.own.settings.memory
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(share * (torch.cuda.mem_get_info(device)[0] + cached))
    return CPU_BUDGET


def _known(call: Call, executor: Executor) -> _Known:
    """What is known of the network in the situation at hand; found out where nothing is."""
    memory, words = _memory(call.model), situation(call, executor)
    key, gradients = (words, *circumstances(call)), torch.is_grad_enabled()
    limit = call.settings.memory
    backward = gradients and (limit is not None or call.rows_and_device()[1].type == "cuda")
    known = memory.entries.get(key)
    if known is None:
        known = memory.entries[key] = _Known(try_out(call, executor, backward), gradients)
    found = known.found
    gave_way = found.gave_way_to is not None and (limit is None or limit > found.gave_way_to)
    if gave_way:
        known.found = try_out(call, executor, backward)
    memory.latest[words] = known
    return known


def _is_known(call: Call, executor: Executor) -> bool:
    return (situation(call, executor), *circumstances(call)) in _memory(call.model).entries


def _memory(model: nn.Module) -> _Memory:
    found = _KNOWN.get(model)
    if found is None:
        found = _KNOWN[model] = _Memory()
    return found


def _plan(call: Call, known: _Known, executor: Executor, order: _PlanOptions) -> SamplingPlan:
    known.plan = _choose(call, known, executor, _wanted(call, known, order))
    known.order, known.size = order, call.size
    known.asked = (order, call.size, call.settings.memory)
    return known.plan


@dataclass(frozen=True)
class PlanRequest:
    """What a plan is asked for."""

    num_samples: int
    size: int
    """Number of elements of the inputs."""
    rows: int
    gradient_bytes: int | None
    """What the gradients of all parameters take; None without gradients."""
    limit: int | None
    strict: bool
    """Whether the limit was set by someone, and is kept or refused."""
    chunk: int | None = None
    """Draws at a time, at most, where asked for."""
    use: OutputUse = JOINED
    most: int | None = None
    """Draws at a time, where more ran out of memory."""
    halvings: int = 0


def _wanted(call: Call, known: _Known, order: _PlanOptions) -> PlanRequest:
    rows, device = call.rows_and_device()
    limit: int | None = call.settings.memory
    if limit is None and (device.type == "cuda" or not known.gradients):
        limit = memory_budget(device, CUDA_SHARE_WITH_GRAPH if known.gradients else CUDA_SHARE)
    parameters = [parameter for parameter in call.model.parameters() if parameter.requires_grad]
    most = known.most
    if most is not None and call.size < known.most_at:
        most = most * known.most_at // max(call.size, 1)
    return PlanRequest(
        order.num_samples,
        call.size,
        rows,
        tensor_bytes(parameters) if known.gradients else None,
        limit,
        call.settings.memory is not None,
        order.chunk,
        order.use,
        most,
        known.halvings,
    )


def _choose(call: Call, known: _Known, executor: Executor, wanted: PlanRequest) -> SamplingPlan:
    chosen = choose(known.found, wanted)
    larger, others = wanted.size > known.found.size, wanted.size != known.found.size
    tight = chosen is None or (larger and chosen.chunk < wanted.num_samples)
    if wanted.strict and others and tight:  # a guess from smaller inputs is not good enough, nor one that refuses
        known.found = try_out(call, executor, known.found.backward)
        chosen = choose(known.found, wanted)
    if chosen is None:
        raise refusal(known.found, wanted)
    return chosen


def _can_shrink(tried: SamplingPlan, known: _Known) -> bool:
    if known.gradients and (known.found.obstacle or not tried.recompute):
        return not known.found.obstacle
    return tried.chunk > 1 and tried.executor != "loop"


TIMES = {1: "once", 2: "twice"}


GROUPED_TO_LOOP = 7 * 2**26
"""About 850 images of 32x32 in a ResNet-18. At 512, mapped draws are twice as fast; at 1,000 looped ones take a fifth
less where there are a hundred, and more where there are 20; at 2,000 they take less in either case
(``engine_h200.json`` and ``peers_h200.json`` in ``benchmarks/results``)."""


BYTES_PER_DRAW_TO_LOOP = 6 * 2**20
"""Of drawn weights and what they are multiplied with, on a CPU: 1-400-400-1 takes 130 ms mapped and 88 looped for 2,000
rows and ten draws on one core, where a draw has 24 MiB."""


FEW_DRAWS = 32
"""For fewer it takes half as many images again."""


class DoesNotFitError(ValueError):
    """A memory limit that leaves no room for a run."""


GIVEN_AWAY = OutputUse()
"""Chunk by chunk to someone who keeps nothing."""


@dataclass(frozen=True)
class _MemoryCost:
    """What a run takes for the inputs at hand, in bytes."""

    lines: tuple[tuple[int, int], ...]
    each: int
    kept: int
    """For what all draws leave: outputs, and gradients of parameters."""
    beside: int
    """For what is kept of them however they come; part of the lines."""

    def at_once(self, draws: int) -> int:
        """What draws take that run at the same time."""
        return max(shared + draws * each for shared, each in self.lines)

    def fitting(self, limit: int) -> int:
        """How many draws at a time fit into a limit; fewer than one where none does."""
        left = limit - self.kept
        return min((left - shared) // max(each, 1) for shared, each in self.lines)


def choose(found: ProbeResult, wanted: PlanRequest) -> SamplingPlan | None:
    """The plan; None where a strict limit cannot be kept."""
    why = _why_looped(found, wanted)
    if why:
        found = replace(found, executor="loop", reason=f"{why}; {found.reason}")
    takes = _takes(found, wanted)
    gradients = wanted.gradient_bytes is not None
    careful = wanted.strict or gradients
    at_once = takes.at_once(wanted.num_samples) if careful else wanted.num_samples * takes.each
    fits = wanted.limit is None or at_once <= wanted.limit
    most = min(wanted.most or wanted.num_samples, wanted.num_samples)
    recompute = gradients and not found.obstacle and (not fits or most < wanted.num_samples)
    if found.executor == "loop":
        chunk = 1
    elif gradients and not recompute:
        chunk = wanted.chunk or wanted.num_samples
    elif fits or wanted.limit is None or not (careful or wanted.chunk is None):
        chunk = min(wanted.chunk or most, most)
    else:
        fitting = takes.fitting(wanted.limit) if careful else wanted.limit // max(takes.each, 1)
        chunk = min(wanted.chunk or most, most, fitting)
    chunk = max(1, min(chunk, wanted.num_samples))
    in_chunks = chunk < wanted.num_samples and (recompute or not gradients)
    in_all = takes.kept + takes.at_once(chunk) if in_chunks else takes.at_once(wanted.num_samples)
    if wanted.strict and wanted.limit is not None and in_all > wanted.limit:
        return None
    words = _words(found, wanted, takes, chunk, recompute)
    return SamplingPlan(
        found.executor,
        wanted.num_samples,
        chunk,
        recompute,
        takes.each,
        in_all,
        wanted.limit,
        words,
        found.moving,
        found.draws_itself,
    )


def _why_looped(found: ProbeResult, wanted: PlanRequest) -> str:
    """Why draws that can be mapped are faster one by one; nothing where they are not."""
    if found.executor == "loop":
        return ""
    gradients = wanted.gradient_bytes is not None
    # Where there are gradients all rows were tried; rows that are only predicted may be many more.
    scale = 1.0 if gradients else max(1.0, _scale(found, wanted))
    if scale * found.streamed > BYTES_PER_DRAW_TO_LOOP:
        return "draws of this size run faster one by one on a CPU"
    if gradients or found.moving:
        return ""
    enough = GROUPED_TO_LOOP if wanted.num_samples >= FEW_DRAWS else 1.5 * GROUPED_TO_LOOP
    is_grouped = _scale(found, wanted) * found.grouped >= enough
    return "so many rows are convolved faster draw by draw" if is_grouped else ""


def refusal(found: ProbeResult, wanted: PlanRequest) -> DoesNotFitError:
    """Why a limit cannot be kept, and what to do."""
    takes = _takes(found, wanted)
    one, left = memory_in_words(takes.at_once(1) - takes.beside), takes.kept + takes.beside
    limit = memory_in_words(wanted.limit or 0)
    if wanted.gradient_bytes is not None and found.obstacle:
        return DoesNotFitError(
            f"memory_limit must leave room for the graph of {wanted.num_samples} draws, {one} each at {wanted.rows} "
            f"rows, since they cannot be computed anew: {found.obstacle}; got {limit}; give fewer rows or draws at a "
            "time, or allow more"
        )
    kept = f" and {memory_in_words(left)} for what all draws leave" if left else ""
    return DoesNotFitError(
        f"memory_limit must leave room for one draw, {one} at {wanted.rows} rows{kept}, got {limit}; "
        f"give fewer rows at a time (batch_size), {wanted.use.advice}or allow more"
    )


def _takes(found: ProbeResult, wanted: PlanRequest) -> _MemoryCost:
    scale = max(1.0, _scale(found, wanted))
    lines = tuple((math.ceil(scale * shared), math.ceil(scale * each)) for shared, each in found.lines)
    output = math.ceil(scale * found.bytes_per_output)
    if found.executor == "loop":  # every draw repeats everything
        lines = ((0, max(shared + each for shared, each in lines)),)
    each = max(each for _, each in lines)
    kept, beside = (math.ceil(times * wanted.num_samples * output) for times in (wanted.use.kept, wanted.use.beside))
    if wanted.strict:
        lines = (*lines, (0, (1 + wanted.use.consumed) * output))
        lines = tuple((shared + beside, each) for shared, each in lines)
    return _MemoryCost(lines, each, kept + (wanted.gradient_bytes or 0), beside)


def _scale(found: ProbeResult, wanted: PlanRequest) -> float:
    """How many times what was tried is wanted."""
    return wanted.size / max(found.size, 1)


def _words(found: ProbeResult, wanted: PlanRequest, takes: _MemoryCost, chunk: int, recompute: bool) -> str:
    if chunk >= wanted.num_samples:
        amount = f"all {wanted.num_samples} draws at once"
    else:
        amount = f"{chunk} draws at a time" if chunk > 1 else "one draw at a time"
    if found.executor == "loop" and wanted.gradient_bytes is not None and not recompute:
        amount += f", the graphs of all {wanted.num_samples} kept"
    amount += f": {memory_in_words(takes.each)} each"
    if wanted.limit is not None:
        amount += f" within a {'limit' if wanted.strict else 'budget'} of {memory_in_words(wanted.limit)}"
    if recompute:
        amount += ", computed anew in the backward pass"
    if wanted.chunk == chunk and found.executor != "loop":
        amount += ", as asked for"
    if wanted.halvings:
        times = TIMES.get(wanted.halvings, f"{wanted.halvings} times")
        amount += f"; halved {times} after running out of memory"
    return f"{found.reason}; {amount}"


PLAIN = (type(None), bool, int, float, str)
"""Types of arguments beside tensors that say all about themselves."""


def situation(call: Call, executor: str) -> str:
    """In words, for people."""
    device = call.rows_and_device()[1].type
    parts = [
        *([] if device == "cpu" else [f"on {device}"]),
        "training mode" if call.model.training else "eval mode",
        "with gradients" if torch.is_grad_enabled() else "without gradients",
        *(["autocast"] if torch.is_autocast_enabled(device) else []),
        *([f"estimator {call.settings.estimator}"] if call.settings.estimator else []),
        *([] if executor == "auto" else [f"executor {executor}"]),
    ]
    return ", ".join(parts)


def circumstances(call: Call) -> tuple[object, ...]:
    """Kind and mode of every module; shape, type and learning of every parameter.

    Under a limit also what is collected, and the form of the arguments but for the number of their rows: memory goes by
    all of it, and with rows alone it grows as they do.
    """
    found: list[object] = [] if call.settings.memory is None else _form(call)
    waiting: list[nn.Module] = [call.model]
    seen: set[int] = set()
    while waiting:
        module = waiting.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        found += (type(module), module.training)
        for parameter in module._parameters.values():
            if parameter is not None:
                found += (parameter.shape, parameter.dtype, parameter.requires_grad)
        waiting += module._modules.values()  # type: ignore[arg-type]  # a place may be empty
    return tuple(found)


def _form(call: Call) -> list[object]:
    found: list[object] = [*sorted(call.collecting), *call.kwargs]
    for leaf in pytree.tree_leaves((call.args, call.kwargs)):
        if isinstance(leaf, Tensor):
            found += (leaf.dim(), leaf.shape[1:], leaf.dtype, leaf.requires_grad)
        else:
            found.append(leaf if isinstance(leaf, PLAIN) else type(leaf))
    return found
