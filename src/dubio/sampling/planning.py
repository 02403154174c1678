"""How many draws run at a time, and how: network, batch, draws and memory in, a plan out.

The first time a network meets several draws it is tried (``trying``), and what was found is remembered in a weak
dictionary beside the networks, never on them. A plan then is arithmetic (``choosing``).

- Without gradients, draws run in chunks that fit. Without a limit, a chunk may take what the caches of a CPU make use
  of, or a quarter of the free memory of a GPU.
- With gradients, all draws run at once where they fit into the limit (on a GPU: half of its free memory; on a CPU
  without a limit: always). Where they do not, chunks are computed anew in the backward pass (``recomputing``).
- A chunk that runs out of memory is halved, and the plan remembers that.

Invariants: no plan changes a draw (``test_a_limit_changes_no_draw``); a run stays inside its limit, or is refused
before it starts (``tests/sampling/test_memory.py``).
"""

import weakref
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import nn

from dubio.sampling.choosing import JOINED, DoesNotFitError, Plan, Use, Wanted, choose, refusal
from dubio.sampling.drawing import Call, Inputs, arguments_for
from dubio.sampling.memory import Footprint, free_memory, tensor_bytes
from dubio.sampling.restoring import Standing, statistics_of, unchanged
from dubio.sampling.settings import STATE, check_module, check_num_samples, memory_limit
from dubio.sampling.situations import circumstances, situation
from dubio.sampling.trying import (
    Executor,
    ExecutorWarning,
    Found,
    LoopOnlyError,
    Mechanism,
    cannot_be_mapped,
    no_memory_left,
    try_out,
)

__all__ = [
    "CPU_BUDGET",
    "DoesNotFitError",
    "ExecutorWarning",
    "Footprint",
    "LoopOnlyError",
    "Plan",
    "memory_budget",
    "plan",
    "plan_for",
    "plans",
    "remember_failure",
    "remember_obstacle",
    "remember_out_of_memory",
    "remember_standing",
    "shrink_chunks",
    "unchanged",
]

CPU_BUDGET = 256 * 2**20
"""Bytes that one chunk of draws may take on a CPU; beyond the cache, larger chunks gain nothing there."""
CUDA_SHARE = 0.25
"""Share of the free device memory that one chunk of draws may take."""
CUDA_SHARE_WITH_GRAPH = 0.5
"""Share of the free device memory that the graph of all draws may take before it is computed anew instead."""


class _Order(NamedTuple):
    """What was asked for, whatever the inputs."""

    num_samples: int
    chunk: int | None = None
    use: Use = JOINED


@dataclass
class _Known:
    """What is known of a network in one situation."""

    found: Found
    gradients: bool
    most: int | None = None
    """Draws at a time, where more have run out of memory."""
    most_at: int = 0
    """Number of elements of the inputs with which they have."""
    halvings: int = 0
    plan: Plan | None = None
    order: _Order | None = None
    size: int = 0
    """Number of elements of the inputs that the plan was made for."""
    asked: tuple[object, ...] = ()
    """What the plan was made for: order, number of elements, limit. Nothing where it does not hold any more."""

    def halve(self, tried: Plan, size: int) -> None:
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
    before: Standing | None = None
    """What the latest run with gradients has moved, as it was before."""


_KNOWN: weakref.WeakKeyDictionary[nn.Module, _Memory] = weakref.WeakKeyDictionary()


def plan(
    model: nn.Module,
    inputs: Inputs,
    num_samples: int,
    *,
    memory: int | str | None = None,
    gradients: bool = False,
    collecting: Collection[str] = (),
) -> Plan:
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
            return Plan("loop", num_samples, num_samples, False, 0, 0, None, "noise is off: all draws are one")
        return plan_for(Call(model, *arguments_for(model, inputs), STATE.own.settings, collecting), num_samples)


def plan_for(
    call: Call,
    num_samples: int,
    executor: Executor = "auto",
    chunk: int | None = None,
    *,
    use: Use = JOINED,
    piece: bool = False,
) -> Plan:
    """The plan for these draws under the settings of the call; the network is tried on first use.

    ``use`` says what becomes of the outputs; ``piece``, whether these draws are some of a run that was planned as a
    whole, whose plan then stays the one to tell of.
    """
    limit = call.settings.memory
    mechanism: Mechanism = "loop" if executor == "auto" else executor
    if num_samples == 1 and (limit is None or piece):
        return Plan(mechanism, 1, 1, False, 0, 0, None, "a single draw leaves no choice")
    if executor != "auto" and limit is None and not _is_known(call, executor):
        at_a_time = 1 if executor == "loop" else chunk or num_samples
        return Plan(executor, num_samples, at_a_time, False, 0, 0, None, "as asked for", statistics_of(call.model))
    known = _known(call, executor)
    if num_samples == 1:
        fitting = _choose(call, known, executor, _wanted(call, known, _Order(1, chunk, use)))
        return replace(fitting, executor=mechanism, reason="a single draw leaves no choice")
    if piece and known.plan is not None and not known.gradients:
        whole = known.plan
        if not known.asked and known.order is not None:  # it ran out of memory meanwhile
            whole = _plan(call, known, executor, known.order)
        return replace(whole, num_samples=num_samples, chunk=min(whole.chunk, num_samples))
    order = _Order(num_samples, chunk, use)
    if known.plan is None or known.asked != (order, call.size, limit):
        return _plan(call, known, executor, order)
    return known.plan


def plans(model: nn.Module) -> dict[str, Plan]:
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


def remember_standing(call: Call, before: Standing | None) -> None:
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


def remember_out_of_memory(call: Call, executor: Executor, tried: Plan, said: str) -> None:
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


def _plan(call: Call, known: _Known, executor: Executor, order: _Order) -> Plan:
    known.plan = _choose(call, known, executor, _wanted(call, known, order))
    known.order, known.size = order, call.size
    known.asked = (order, call.size, call.settings.memory)
    return known.plan


def _wanted(call: Call, known: _Known, order: _Order) -> Wanted:
    rows, device = call.rows_and_device()
    limit: int | None = call.settings.memory
    if limit is None and (device.type == "cuda" or not known.gradients):
        limit = memory_budget(device, CUDA_SHARE_WITH_GRAPH if known.gradients else CUDA_SHARE)
    parameters = [parameter for parameter in call.model.parameters() if parameter.requires_grad]
    most = known.most
    if most is not None and call.size < known.most_at:
        most = most * known.most_at // max(call.size, 1)
    return Wanted(
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


def _choose(call: Call, known: _Known, executor: Executor, wanted: Wanted) -> Plan:
    chosen = choose(known.found, wanted)
    larger, others = wanted.size > known.found.size, wanted.size != known.found.size
    tight = chosen is None or (larger and chosen.chunk < wanted.num_samples)
    if wanted.strict and others and tight:  # a guess from smaller inputs is not good enough, nor one that refuses
        known.found = try_out(call, executor, known.found.backward)
        chosen = choose(known.found, wanted)
    if chosen is None:
        raise refusal(known.found, wanted)
    return chosen


def _can_shrink(tried: Plan, known: _Known) -> bool:
    if known.gradients and (known.found.obstacle or not tried.recompute):
        return not known.found.obstacle
    return tried.chunk > 1 and tried.executor != "loop"
