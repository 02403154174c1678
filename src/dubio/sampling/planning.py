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
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import nn

from dubio.sampling.choosing import Plan, Wanted, choose, refusal
from dubio.sampling.drawing import Call, Inputs, arguments
from dubio.sampling.memory import Footprint, free_memory, tensor_bytes
from dubio.sampling.restoring import unchanged
from dubio.sampling.settings import STATE, check_module, check_num_samples, memory_limit
from dubio.sampling.trying import (
    Executor,
    ExecutorWarning,
    Found,
    LoopOnlyError,
    cannot_be_mapped,
    no_memory_left,
    try_out,
)

__all__ = [
    "CPU_BUDGET",
    "ExecutorWarning",
    "Footprint",
    "LoopOnlyError",
    "Plan",
    "memory_budget",
    "plan",
    "plan_for",
    "plans",
    "remember_failure",
    "remember_out_of_memory",
    "shrink_chunks",
    "unchanged",
]

CPU_BUDGET = 256 * 2**20
"""Bytes that one chunk of draws may take on a CPU; beyond the cache, larger chunks gain nothing there."""
CUDA_SHARE = 0.25
"""Share of the free device memory that one chunk of draws may take."""
CUDA_SHARE_WITH_GRAPH = 0.5
"""Share of the free device memory that the graph of all draws may take before it is computed anew instead."""


@dataclass
class _Known:
    """What is known of a network in one situation."""

    found: Found
    gradients: bool
    most: int | None = None
    """Draws at a time, where more have run out of memory."""
    halvings: int = 0
    plan: Plan | None = None
    asked: tuple[object, ...] = ()
    """What the plan was made for."""

    def halve(self, tried: Plan) -> None:
        """Take half as many draws at a time as a plan that ran out of memory."""
        at_once = tried.num_samples if self.gradients and not tried.recompute else tried.chunk
        self.most = max(1, at_once // 2)
        self.halvings += 1
        self.asked = ()


_KNOWN: weakref.WeakKeyDictionary[nn.Module, dict[str, _Known]] = weakref.WeakKeyDictionary()


def plan(
    model: nn.Module, inputs: Inputs, num_samples: int, *, memory: int | str | None = None, gradients: bool = False
) -> Plan:
    """How ``dubio.sample`` would run: executor, draws at a time, memory, and why.

    Args:
        model: a converted network, or any ``nn.Module``.
        inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
        num_samples: how many draws.
        memory: bytes, or a text such as ``"2 GiB"``, as in ``dubio.memory_limit``; by default the limit in force.
        gradients: whether the draws are to be differentiated.

    >>> print(dubio.plan(model, inputs, num_samples=1000, memory="512 MiB"))
    """
    check_module(model)
    check_num_samples(num_samples)
    with nullcontext() if memory is None else memory_limit(memory), torch.set_grad_enabled(gradients):
        if STATE.own.settings.mode == "off":
            return Plan("loop", num_samples, num_samples, False, 0, 0, None, "noise is off: all draws are one")
        return plan_for(Call(model, *arguments(inputs), STATE.own.settings), num_samples)


def plan_for(
    call: Call,
    num_samples: int,
    executor: Executor = "auto",
    chunk: int | None = None,
    *,
    joined: bool = True,
    piece: bool = False,
) -> Plan:
    """The plan for these draws under the settings of the call; the network is tried on first use.

    ``joined`` says whether the outputs of all draws end up in one tensor, or are given away chunk by chunk; ``piece``,
    whether these draws are some of a run that was planned as a whole, whose plan then stays the one to tell of.
    """
    if num_samples == 1:
        mechanism = "loop" if executor == "auto" else executor
        return Plan(mechanism, 1, 1, False, 0, 0, None, "a single draw leaves no choice")
    limit = call.settings.memory
    if executor != "auto" and limit is None and _key(call, executor) not in _KNOWN.get(call.model, {}):
        at_a_time = 1 if executor == "loop" else chunk or num_samples
        return Plan(executor, num_samples, at_a_time, False, 0, 0, None, "as asked for")
    known = _known(call, executor)
    fits = not known.gradients and num_samples <= min(chunk or 0, known.most or num_samples)
    if piece and known.plan is not None and fits:
        return replace(known.plan, num_samples=num_samples, chunk=num_samples)
    asked = (num_samples, call.size, chunk, joined, limit)
    if known.plan is None or known.asked != asked:
        wanted = _wanted(call, known, num_samples, chunk, joined)
        known.plan, known.asked = _choose(call, known, executor, wanted), asked
    return known.plan


def plans(model: nn.Module) -> dict[str, Plan]:
    """The latest plan of a network in each situation, by what it was made for."""
    return {situation: known.plan for situation, known in _KNOWN.get(model, {}).items() if known.plan is not None}


def shrink_chunks(model: nn.Module) -> bool:
    """Halve the chunks of a network in every situation with gradients: for a backward pass that ran out of memory.

    Returns whether there was anything left to halve; a step that is done again then takes less. Call it where nothing
    refers to the failed step any more: it gives its memory back.
    """
    shrunk = False
    for known in _KNOWN.get(model, {}).values():
        if known.gradients and known.plan is not None and _can_shrink(known.plan, known):
            known.halve(known.plan)
            shrunk = True
    free_memory()
    return shrunk


def remember_failure(call: Call, error: Exception) -> None:
    """A mapped run failed where the trial had not: loop from now on."""
    known = _known(call, "auto")
    known.found, known.asked = cannot_be_mapped(call, known.found, error), ()
    if known.plan is not None:
        known.plan = replace(known.plan, executor="loop", chunk=1, reason=known.found.reason)


def remember_out_of_memory(call: Call, executor: Executor, tried: Plan, said: str) -> None:
    """Halve the chunk of a plan that ran out of memory; raises where there is nothing left to halve."""
    if tried.num_samples == 1:
        raise no_memory_left(call, "one draw", said)
    known = _known(call, executor)
    if not _can_shrink(tried, known):
        obstacle = known.found.obstacle if known.gradients else ""
        draws = f"{tried.num_samples} draws that cannot be computed anew ({obstacle})"
        raise no_memory_left(call, draws if obstacle else "one draw at a time", said)
    known.halve(tried)
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
    entries = _KNOWN.setdefault(call.model, {})
    key, gradients = _key(call, executor), torch.is_grad_enabled()
    limit = call.settings.memory
    backward = gradients and (limit is not None or call.rows_and_device()[1].type == "cuda")
    if key not in entries:
        entries[key] = _Known(try_out(call, executor, backward), gradients)
    found = entries[key].found
    gave_way = found.gave_way_to is not None and (limit is None or limit > found.gave_way_to)
    if gave_way or (backward and not found.backward):
        entries[key].found = try_out(call, executor, backward or found.backward)
    return entries[key]


def _wanted(call: Call, known: _Known, num_samples: int, chunk: int | None, joined: bool) -> Wanted:
    rows, device = call.rows_and_device()
    limit: int | None = call.settings.memory
    if limit is None and (device.type == "cuda" or not known.gradients):
        limit = memory_budget(device, CUDA_SHARE_WITH_GRAPH if known.gradients else CUDA_SHARE)
    parameters = [parameter for parameter in call.model.parameters() if parameter.requires_grad]
    return Wanted(
        num_samples,
        call.size,
        rows,
        tensor_bytes(parameters) if known.gradients else None,
        limit,
        call.settings.memory is not None,
        chunk,
        joined,
        known.most,
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
        raise ValueError(refusal(known.found, wanted))
    return chosen


def _can_shrink(tried: Plan, known: _Known) -> bool:
    if known.gradients and (known.found.obstacle or not tried.recompute):
        return not known.found.obstacle
    return tried.chunk > 1 and tried.executor != "loop"


def _key(call: Call, executor: Executor) -> str:
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
