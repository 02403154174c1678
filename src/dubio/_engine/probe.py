"""Probe a network: can it be mapped over draws, what does a further draw repeat, and what memory does it take?

The network is mapped over one draw and over two of them, and everything it changes is put back afterwards. Where memory
is limited and gradients are required, each trial runs backwards as well. The result follows these rules:

- A network that cannot be mapped runs looped; ``describe`` reports the module at fault and torch's reason.
- On a CPU, weight sampling runs looped when a draw repeats more than half of the work and takes more than the cache
  holds (784-1200-1200-10, batch 128, ten draws, two cores: a training step takes 402 ms looped and 784 ms mapped; at
  64-100-100-10 it is 9 ms looped and 5 ms mapped), but mapped when most work is shared, as under a Bayesian head. The
  same holds for members of an ensemble (five of ResNet-18, batch 32: 3.1 s looped, 4.7 s mapped).
- On a GPU, drawn filters run looped without gradients and with very many rows (``planner``): mapped, they are one
  convolution with a group for each draw, which does less in the same time.
- A network that draws from a generator of Python or NumPy runs looped: mapped, all draws would be one.
- Everything else is mapped.

The memory of more draws follows operator by operator: where ``a`` bytes are alive with one draw and ``b`` with two,
``2a - b`` are shared and ``b - a`` come with each draw, and the peak of any number of draws is the largest of
``shared + draws * each`` over all operators (``test_the_peak_of_many_draws_follows_from_two``). The two peaks alone
would be too low a bound: with more draws, another operator may have the peak. Under a limit, two draws are not tried
where they might not fit: a draw then counts as if it shared nothing. One draw of all rows is not tried either where
trials of a few rows, twice as many each time, show in the same way that it would not fit.
"""

import inspect
import math
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from dubio._engine.draws import (
    Call,
    Numbers,
    OneMemberPerDraw,
    Perturbations,
    detached,
    map_draws,
    obstacle_to_repeating,
    one_draw,
    with_gradient,
)
from dubio._engine.host_rng import NUMPY, PYTHON, TORCH, HostState, Watch, follows_host, notice
from dubio._engine.memory import Footprint, is_out_of_memory, memory_in_words, tensor_bytes
from dubio._engine.settings import STATE
from dubio._engine.snapshot import isolated, same_numbers

REPEATED_WORK_TO_LOOP = 0.5
ROWS_TO_SEE = 4
SLOW_GROUPS = ("cuda",)
"""Devices on which a convolution with groups takes longer than several without."""

Executor = Literal["auto", "vmap", "loop"]
Mechanism = Literal["vmap", "vmap inputs", "loop"]
Lines = tuple[tuple[int, int], ...]
"""Pairs of shared bytes and bytes per draw."""


class ExecutorWarning(UserWarning):
    """A network runs looped because it cannot be mapped."""


class LoopOnlyError(RuntimeError):
    """Raised by a layer that is meant to be looped: it needs no warning."""


@dataclass(frozen=True)
class ProbeResult:
    """The result of probing a network."""

    executor: Mechanism
    reason: str
    lines: Lines
    """The memory of draws, in bytes, is the largest of ``shared + draws * each`` over these pairs."""
    bytes_per_output: int
    size: int
    """Number of elements of the inputs that were probed."""
    backward: bool
    """Whether the backward pass was probed, too."""
    moving: tuple[tuple[str, str], ...] = ()
    """Tensors that a forward changes, such as running statistics: name of the module, name of the tensor."""
    obstacle: str = ""
    """Why draws cannot be recomputed in the backward pass, where they cannot."""
    skipped_at: int | None = None
    """The memory limit for which two draws were not tried."""
    grouped: int = 0
    """Elements that a draw writes by convolutions that, mapped, have a group for each draw; 0 where groups are fast."""
    streamed: int = 0
    """Bytes of a draw's forward that would leave the cache of a CPU, were there many draws; 0 elsewhere."""
    draws_itself: bool = True
    """Whether the network draws from torch's global generator itself; true where it was not probed."""


@dataclass(frozen=True)
class _ProbeTrial:
    """The memory of some draws."""

    mechanism: Mechanism
    backward: bool
    footprint: Footprint
    written: int
    """By the forward alone, as is ``forward_peak``."""
    forward_peak: int
    bytes_per_output: int
    drew_weights: bool
    obstacle: str


def probe(call: Call, executor: Executor, backward: bool) -> ProbeResult:
    """Run the network for one draw and for two, and put back all it changed."""
    if executor == "loop":
        return _probe_looped(call, backward, "draws run one after another, as requested")
    failure: Exception | None = None
    mechanisms: tuple[Mechanism, ...] = ("vmap",) if executor == "vmap" else ("vmap", "vmap inputs")
    for mechanism in mechanisms:
        try:
            return _probe_mapped(call, mechanism, backward, may_loop=executor == "auto")
        except (RuntimeError, ValueError, TypeError) as error:
            if executor == "vmap" or is_out_of_memory(error):
                raise
            failure = failure or error
    assert failure is not None
    return cannot_be_mapped(call, _probe_looped(call, backward, ""), failure)


def cannot_be_mapped(call: Call, result: ProbeResult, error: Exception) -> ProbeResult:
    """The result for a network that failed under the map: it is looped. Warns, unless it is meant to be."""
    reason = f"{_culprit(call.model, error)} cannot be mapped: {_first_sentence(error)}"
    if not isinstance(error, LoopOnlyError):
        message = f"draws run one after another, since {reason}"
        warnings.warn(message, ExecutorWarning, stacklevel=_levels_to_the_user())
    return replace(result, executor="loop", reason=reason)


def no_memory_left(call: Call, tried: str, message: str) -> torch.OutOfMemoryError:
    """The error of a network that runs out of memory with the smallest trial; ``message`` is that of the allocator."""
    rows, device = call.rows_and_device()
    return torch.OutOfMemoryError(
        f"{device} ran out of memory with {tried} at {rows} rows, and fewer draws at a time cannot be tried; "
        f"give fewer rows at a time (batch_size); it said: {message[:200]}"
    )


def _probe_mapped(call: Call, mechanism: Mechanism, backward: bool, may_loop: bool) -> ProbeResult:
    rows, device = call.rows_and_device()
    limit = call.settings.memory
    lines: Lines
    with isolated(call.model, trial=True) as moving:
        host = HostState(call.model)
        one = _try_first(call, mechanism, backward)
        source, peak, two = host.moved(), one.footprint.peak, None
        if limit is None or 2 * peak <= limit:
            try:
                two = _try_draws(call, mechanism, 2, backward)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
        watch = STATE.own.watch
    if two is None:
        repeated, forward, lines = 1.0, one.forward_peak, ((0, peak),)
        share = f"a draw takes {memory_in_words(peak)} at {rows} rows, too much to try two at once"
    else:
        repeated = (two.written - one.written) / max(one.written, 1)
        forward = max(two.forward_peak - one.forward_peak, 0)
        lines = _lines(one.footprint, two.footprint)
        each = memory_in_words(max(each for _, each in lines))
        share = f"a further draw repeats {repeated:.0%} of the work and takes {each} at {rows} rows"
    if source in (NUMPY, PYTHON):
        if _follows_host(call):
            notice(call.model, source)
        else:
            source = ""  # it was moved by another thread, or for something else than the outputs
    result = _result(call, one, moving, watch, share, lines)
    result = replace(result, skipped_at=limit if two is None else None)
    if may_loop and source:
        return replace(result, executor="loop", reason=f"mapped draws would share what it draws from {source}; {share}")
    if may_loop and two is not None and device.type in SLOW_GROUPS:
        result = replace(result, grouped=_grouped(one.footprint, two.footprint))
    if may_loop and device.type == "cpu" and one.drew_weights and repeated > REPEATED_WORK_TO_LOOP:
        result = replace(result, streamed=forward)
    return result


def _probe_looped(call: Call, backward: bool, reason: str) -> ProbeResult:
    """Raises where the inputs and not the map are at fault."""
    with isolated(call.model, trial=True) as moving:
        one, watch = _try_first(call, "loop", backward), STATE.own.watch
    return _result(call, one, moving, watch, reason, ((0, one.footprint.peak),))


def _result(
    call: Call, one: _ProbeTrial, moving: Collection[tuple[str, str]], watch: Watch | None, reason: str, lines: Lines
) -> ProbeResult:
    if draws_itself := watch is not None and watch.itself:
        notice(call.model, TORCH)
    moved, output = _of_all_members(call.model, moving), one.bytes_per_output
    result = ProbeResult(one.mechanism, reason, lines, output, call.size, one.backward, moved, one.obstacle)
    return replace(result, draws_itself=draws_itself)


def _follows_host(call: Call) -> bool:
    """Whether a draw of a few rows follows NumPy's or Python's numbers; assumed where it cannot be run."""
    few = _with_rows(call, ROWS_TO_SEE) if _rows_to_cut(call) > ROWS_TO_SEE else call

    def outputs() -> Any:
        copied = few.with_tensors(torch.clone)  # the network may change its inputs
        with torch.no_grad(), isolated(call.model, trial=True, host=False):
            return one_draw(copied, torch.zeros((), dtype=torch.int64, device="cpu"))[0]

    try:
        with same_numbers(call.model):
            return follows_host(outputs)
    except Exception:  # of so few rows, or of copies
        return True


def _of_all_members(model: nn.Module, moving: Collection[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The tensors that all draws move, where some draws move these: each member of an ensemble moves its own."""
    tensors = list(moving)
    for root, module in model.named_modules():
        names = module.member_names() if isinstance(module, OneMemberPerDraw) else ()
        members = [f"{root}.{name}".lstrip(".") for name in names]
        for path, name in moving:
            inside = next((path[len(member) :] for member in members if f"{path}.".startswith(f"{member}.")), None)
            tensors += [(member + inside, name) for member in members if inside is not None]
    return tuple(dict.fromkeys(tensors))


def _try_first(call: Call, mechanism: Mechanism, backward: bool) -> _ProbeTrial:
    try:
        return _try_few_rows(call, mechanism, backward) or _try_draws(call, mechanism, 1, backward)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise no_memory_left(call, "one draw", str(error)) from error


def _try_few_rows(call: Call, mechanism: Mechanism, backward: bool) -> _ProbeTrial | None:
    """The trial of one draw of all rows, extrapolated where fewer rows show that it exceeds a limit; else None.

    The rows are doubled, and the memory of twice as many follows from the last two trials, operator by operator.
    """
    limit, rows = call.settings.memory, _rows_to_cut(call)
    few, last = 1, None
    while limit is not None and few < rows:
        try:
            trial = _try_draws(_with_rows(call, few), mechanism, 1, backward)
        except (RuntimeError, ValueError, TypeError) as error:  # a batch norm needs two rows, other layers all of them
            if is_out_of_memory(error) or isinstance(error, LoopOnlyError):
                raise
            trial = None
        if trial is not None:
            lines = [(trial.footprint.peak, 0)] if last is None else row_lines(last.footprint, trial.footprint)
            following, in_all = min(2 * few, rows) / (few / 2), rows / (few / 2)
            if max(shared + following * each for shared, each in lines) > limit:
                peak = math.ceil(max(shared + in_all * each for shared, each in lines))
                output = trial.bytes_per_output * rows // few
                return replace(trial, footprint=Footprint(peak), forward_peak=peak, bytes_per_output=output)
        few, last = 2 * few, trial
    return None


def _rows_to_cut(call: Call) -> int:
    """Number of rows, where all tensors among the arguments have as many; else 1."""
    rows = {len(tensor) for tensor in call.tensors if tensor.dim()}
    packed = any(isinstance(argument, PackedSequence) for argument in (*call.args, *call.kwargs.values()))
    return rows.pop() if len(rows) == 1 and not packed else 1


def _with_rows(call: Call, rows: int) -> Call:
    settings = call.settings if call.settings.num_rows is None else replace(call.settings, num_rows=rows)
    # A slice does not require a gradient where gradients are disabled, and its tensor may.
    few = call.with_tensors(lambda leaf: leaf[:rows].detach().requires_grad_(leaf.requires_grad))
    return replace(few, settings=settings)


def row_lines(fewer: Footprint, more: Footprint) -> Sequence[tuple[int, int]]:
    """Shared bytes, and bytes for each time the rows of the smaller trial, where the other had twice as many."""
    if fewer.operators == more.operators:
        return _lines(fewer, more)
    each = max(more.peak - fewer.peak, 0)
    return [(more.peak - 2 * each, each)]


def _try_draws(call: Call, mechanism: Mechanism, num_samples: int, backward: bool) -> _ProbeTrial:
    call = call.with_tensors(detached) if backward else call
    drawn: Perturbations = {}
    with Footprint() as footprint:
        values: Any
        if mechanism == "loop":
            values = one_draw(call, torch.zeros((), dtype=torch.int64, device="cpu"), drawn)
        else:
            draws = map_draws(call, Numbers(0, num_samples), mechanism == "vmap inputs", drawn)
            values = draws.outputs, draws.terms
            del draws
        drew_weights = bool(drawn)
        drawn.clear()
        written, forward_peak = footprint.written, footprint.peak
        obstacle = obstacle_to_repeating(call, values) if torch.is_grad_enabled() else ""
        if backward:
            outputs = with_gradient(pytree.tree_leaves(values))
            sources = [*with_gradient(call.model.parameters()), *with_gradient(call.tensors)]
            if outputs and sources:  # the gradients are thrown away
                torch.autograd.grad(outputs, sources, [torch.ones_like(leaf) for leaf in outputs], allow_unused=True)
    output = tensor_bytes(values) // num_samples
    return _ProbeTrial(mechanism, backward, footprint, written, forward_peak, output, drew_weights, obstacle)


def _grouped(one: Footprint, two: Footprint) -> int:
    """Elements that a draw writes by convolutions that have a group for each draw."""
    if len(one.convolutions) != len(two.convolutions):
        return 0
    pairs = zip(one.convolutions, two.convolutions, strict=True)
    return sum(written // 2 for (fewer, _), (more, written) in pairs if more > fewer)


def _lines(one: Footprint, two: Footprint) -> Lines:
    """Shared bytes and bytes per draw of every operator that has the peak for some number of draws."""
    if one.operators != two.operators:  # an operator runs draw by draw: half of the second peak bounds each draw
        each = max(two.peak - one.peak, 0)
        return (max(one.peak - each, 0), each), (0, -(-two.peak // 2))
    steepest: dict[int, int] = {}
    for with_one, with_two in zip(one.course, two.course, strict=True):
        each = max(with_two - with_one, 0)
        steepest[each] = max(steepest.get(each, 0), with_two - 2 * each)
    envelope: list[tuple[int, int]] = []
    for each, shared in sorted(steepest.items()):
        while envelope and (shared >= envelope[-1][0] or _is_below(envelope, (shared, each))):
            envelope.pop()
        envelope.append((shared, each))
    return tuple(envelope) or ((0, 0),)


def _is_below(envelope: list[tuple[int, int]], line: tuple[int, int]) -> bool:
    """Whether the last line of an envelope is nowhere the largest once a steeper one is added."""
    if len(envelope) < 2:
        return False
    (first_shared, first), (shared, each) = envelope[-2:]
    return (first_shared - line[0]) * (each - first) <= (first_shared - shared) * (line[1] - first)


def _levels_to_the_user() -> int:
    """Number of frames up to the first line outside this package."""
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "dubio":
        level, frame = level + 1, frame.f_back
    return level


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
