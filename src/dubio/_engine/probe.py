"""Trying a network: can it be mapped over draws, what does a further draw repeat, and what memory does it take?

The network is mapped over one draw and over two of them, with everything it could change put back afterwards. Where
memory counts and gradients are wanted, each trial runs backwards as well. What is found out:

- a network that cannot be mapped runs looped; the module at fault and torch's reason are kept for ``describe``;
- on a CPU, weight sampling runs looped when a draw repeats more than half of the work and takes more than the cache
  holds (784-1200-1200-10, batch 128, ten draws, two cores: a training step takes 402 ms looped and 784 ms mapped; at
  64-100-100-10 it is 9 ms looped and 5 ms mapped), but mapped when most work is shared, as under a Bayesian head; so do
  members of an ensemble (five of ResNet-18, batch 32: 3.1 s looped, 4.7 s mapped);
- on a GPU, drawn filters run looped where nothing is differentiated and rows are very many (``choosing``): mapped, they
  are one convolution with a group for each draw, which does less in the same time;
- a network that draws from a generator of Python or NumPy runs looped: mapped, all draws would be one;
- everything else is mapped.

What more draws would take follows operator by operator: where ``a`` bytes are alive with one draw and ``b`` with two,
``2a - b`` are shared and ``b - a`` come with each draw, and the peak of any number of draws is the largest of
``shared + draws * each`` over all operators (``test_the_peak_of_many_draws_follows_from_two``). The two peaks alone
would promise too little: with more draws, another operator may be the largest. Under a limit, two draws are not tried
where they might not fit: a draw then counts as if it shared nothing. Nor is one draw of all rows, where trials of a few
rows, twice as many each time, tell in the same way that it would not fit.
"""

import inspect
import math
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from dubio._engine.draws import (
    Call,
    Numbers,
    OneMemberPerDraw,
    Perturbations,
    asking,
    map_draws,
    obstacle_to_repeating,
    one_draw,
)
from dubio._engine.host_rng import TORCH, HostState, follows_host, is_of_process, notice
from dubio._engine.memory import Footprint, is_out_of_memory, memory_in_words, tensor_bytes
from dubio._engine.settings import STATE
from dubio._engine.snapshot import same_numbers, unchanged

REPEATED_WORK_TO_LOOP = 0.5
ROWS_TO_SEE = 4
SLOW_GROUPS = ("cuda",)
"""Devices on which a convolution with groups takes longer than one after another."""

Executor = Literal["auto", "vmap", "loop"]
Mechanism = Literal["vmap", "vmap inputs", "loop"]


class ExecutorWarning(UserWarning):
    """A network runs looped because it cannot be mapped."""


class LoopOnlyError(RuntimeError):
    """Raised by a layer that is meant to be looped: it needs no warning."""


@dataclass(frozen=True)
class ProbeResult:
    """What trying a network told."""

    executor: Mechanism
    reason: str
    lines: tuple[tuple[int, int], ...]
    """What draws take, in bytes, is the largest of ``shared + draws * each`` over these pairs."""
    bytes_per_output: int
    size: int
    """Number of elements of the inputs that were tried."""
    backward: bool
    """Whether the backward pass was tried, too."""
    moving: tuple[tuple[str, str], ...] = ()
    """Tensors that a forward changes, such as running statistics: name of the module, name of the tensor."""
    obstacle: str = ""
    """Why draws cannot be computed anew in the backward pass, where they cannot."""
    gave_way_to: int | None = None
    """The limit for which two draws were not tried."""
    grouped: int = 0
    """Numbers that convolutions of a draw write which are groups of one when mapped; 0 where that is fast."""
    streamed: int = 0
    """Bytes that a forward of a draw takes which would leave the cache of a CPU, were there many; 0 elsewhere."""

    draws_itself: bool = True
    """Whether the network draws from torch's global generator itself; true where nobody has looked."""

    @property
    def bytes_per_draw(self) -> int:
        """What a draw more takes, where there are many; with gradients also what its graph keeps."""
        return max(each for _, each in self.lines)


@dataclass(frozen=True)
class _ProbeTrial:
    """What some draws took."""

    footprint: Footprint
    written: int
    """By the forward alone, as is ``forward_peak``."""
    forward_peak: int
    bytes_per_output: int
    drew_weights: bool
    obstacle: str


def try_out(call: Call, executor: Executor, backward: bool) -> ProbeResult:
    """Run the network for one draw and for two, and put back all it changed."""
    if executor == "loop":
        return _try_looped(call, backward, "draws run one after another, as asked for")
    failure: Exception | None = None
    mechanisms: tuple[Mechanism, ...] = ("vmap",) if executor == "vmap" else ("vmap", "vmap inputs")
    for mechanism in mechanisms:
        try:
            return _try_mapped(call, mechanism, backward, may_loop=executor == "auto")
        except (RuntimeError, ValueError, TypeError) as error:
            if executor == "vmap" or is_out_of_memory(error):
                raise
            failure = failure or error
    assert failure is not None
    return cannot_be_mapped(call, _try_looped(call, backward, ""), failure)


def cannot_be_mapped(call: Call, found: ProbeResult, error: Exception) -> ProbeResult:
    """What is known of a network once mapping it has failed: it is looped. Warns, unless it is meant to be."""
    reason = f"{_culprit(call.model, error)} cannot be mapped: {_first_sentence(error)}"
    if not isinstance(error, LoopOnlyError):
        message = f"draws run one after another, since {reason}"
        warnings.warn(message, ExecutorWarning, stacklevel=_levels_to_the_user())
    return replace(found, executor="loop", reason=reason)


def no_memory_left(call: Call, tried: str, said: str) -> torch.OutOfMemoryError:
    """The error of a network for which nothing smaller can be tried."""
    rows, device = call.rows_and_device()
    return torch.OutOfMemoryError(
        f"{device} ran out of memory with {tried} at {rows} rows, and fewer draws at a time cannot be tried; "
        f"give fewer rows at a time (batch_size); it said: {said[:200]}"
    )


def _try_mapped(call: Call, mechanism: Mechanism, backward: bool, may_loop: bool) -> ProbeResult:
    rows, device = call.rows_and_device()
    limit = call.settings.memory
    lines: tuple[tuple[int, int], ...]
    with unchanged(call.model) as moving:
        host = HostState(call.model)
        one = _try_first(call, mechanism, backward)
        source, peak, watch = host.moved(), one.footprint.peak, STATE.own.watch
        two = None if limit is not None and 2 * peak > limit else _try_second(call, mechanism, backward)
    if two is None:
        repeated, forward, lines = 1.0, one.forward_peak, ((0, peak),)
        share = f"a draw takes {memory_in_words(peak)} at {rows} rows, too much to try two at once"
    else:
        repeated = (two.written - one.written) / max(one.written, 1)
        forward = max(two.forward_peak - one.forward_peak, 0)
        lines = _lines(one.footprint, two.footprint)
        each = memory_in_words(max(each for _, each in lines))
        share = f"a further draw repeats {repeated:.0%} of the work and takes {each} at {rows} rows"
    if is_of_process(source) and not _follows_host(call):
        source = ""  # it was moved by another thread, or for something else than the outputs
    elif is_of_process(source):
        notice(call.model, source)
    draws_itself = watch is not None and watch.itself
    if draws_itself:
        notice(call.model, TORCH)
    gave_way_to = limit if two is None else None
    found = ProbeResult(
        mechanism,
        share,
        lines,
        one.bytes_per_output,
        call.size,
        backward,
        _in_all_turns(call.model, moving),
        one.obstacle,
        gave_way_to,
        draws_itself=draws_itself,
    )
    if may_loop and source:
        return replace(found, executor="loop", reason=f"mapped draws would share what it draws from {source}; {share}")
    if may_loop and two is not None and device.type in SLOW_GROUPS:
        found = replace(found, grouped=_grouped(one.footprint, two.footprint))
    if may_loop and device.type == "cpu" and one.drew_weights and repeated > REPEATED_WORK_TO_LOOP:
        found = replace(found, streamed=forward)
    return found


def _follows_host(call: Call) -> bool:
    """Whether a draw of a few rows follows NumPy's or Python's numbers; taken for granted where it cannot be run."""
    few = _with_rows(call, ROWS_TO_SEE) if _rows_to_cut(call) > ROWS_TO_SEE else call

    def outputs() -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, torch.clone, (few.args, few.kwargs))  # it may change its inputs
        with torch.no_grad(), unchanged(call.model, host=False):
            return one_draw(replace(few, args=args, kwargs=kwargs), torch.zeros((), dtype=torch.int64, device="cpu"))[0]

    try:
        with same_numbers(call.model):
            return follows_host(outputs)
    except Exception:  # of so few rows, or of copies
        return True


def _try_looped(call: Call, backward: bool, reason: str) -> ProbeResult:
    """Raises where the inputs and not the map are at fault."""
    with unchanged(call.model) as moving:
        one, watch = _try_first(call, "loop", backward), STATE.own.watch
    lines, moved = ((0, one.footprint.peak),), _in_all_turns(call.model, moving)
    draws_itself = watch is not None and watch.itself
    if draws_itself:
        notice(call.model, TORCH)
    found = ProbeResult("loop", reason, lines, one.bytes_per_output, call.size, backward, moved, one.obstacle)
    return replace(found, draws_itself=draws_itself)


def _in_all_turns(model: nn.Module, moving: Collection[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """What all draws move, where some have moved this: those of other parts that take turns move theirs."""
    found = list(moving)
    for root, module in model.named_modules():
        parts = (
            [f"{root}.{turn}".lstrip(".") for turn in module.member_names()]
            if isinstance(module, OneMemberPerDraw)
            else []
        )
        for path, name in moving:
            inside = next((path[len(part) :] for part in parts if f"{path}.".startswith(f"{part}.")), None)
            found += [(part + inside, name) for part in parts if inside is not None]
    return tuple(dict.fromkeys(found))


def _try_first(call: Call, mechanism: Mechanism, backward: bool) -> _ProbeTrial:
    try:
        return _try_few_rows(call, mechanism, backward) or _try_draws(call, mechanism, 1, backward)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise no_memory_left(call, "one draw", str(error)) from error


def _try_few_rows(call: Call, mechanism: Mechanism, backward: bool) -> _ProbeTrial | None:
    """What one draw of all rows would take, where fewer rows tell that it exceeds a limit; None where it may fit.

    The rows are doubled, and what twice as many would take follows from the last two trials, operator by operator.
    """
    limit, rows = call.settings.memory, _rows_to_cut(call)
    few, last = 1, None
    while limit is not None and few < rows:
        try:
            tried = _try_draws(_with_rows(call, few), mechanism, 1, backward)
        except (RuntimeError, ValueError, TypeError) as error:  # a batch norm wants two rows, others all of them
            if is_out_of_memory(error) or isinstance(error, LoopOnlyError):
                raise
            tried = None
        if tried is not None:
            lines = [(tried.footprint.peak, 0)] if last is None else row_lines(last.footprint, tried.footprint)
            following, in_all = min(2 * few, rows) / (few / 2), rows / (few / 2)
            if max(shared + following * each for shared, each in lines) > limit:
                peak = math.ceil(max(shared + in_all * each for shared, each in lines))
                output = tried.bytes_per_output * rows // few
                return replace(tried, footprint=Footprint(peak), forward_peak=peak, bytes_per_output=output)
        few, last = 2 * few, tried
    return None


def _rows_to_cut(call: Call) -> int:
    """Number of rows, where all tensors among the arguments have as many; else 1."""
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    rows = {len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()}
    packed = any(isinstance(argument, PackedSequence) for argument in (*call.args, *call.kwargs.values()))
    return rows.pop() if len(rows) == 1 and not packed else 1


def _with_rows(call: Call, rows: int) -> Call:
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda leaf: leaf[:rows].detach().requires_grad_(leaf.requires_grad), (call.args, call.kwargs)
    )
    settings = call.settings if call.settings.num_rows is None else replace(call.settings, num_rows=rows)
    return replace(call, args=args, kwargs=kwargs, settings=settings)


def row_lines(fewer: Footprint, more: Footprint) -> Sequence[tuple[int, int]]:
    """Shared bytes, and bytes for each time the rows of the smaller trial, where the other had twice as many."""
    if fewer.operators == more.operators:
        return _lines(fewer, more)
    each = max(more.peak - fewer.peak, 0)
    return [(more.peak - 2 * each, each)]


def _try_second(call: Call, mechanism: Mechanism, backward: bool) -> _ProbeTrial | None:
    try:
        return _try_draws(call, mechanism, 2, backward)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        return None


def _try_draws(call: Call, mechanism: Mechanism, num_samples: int, backward: bool) -> _ProbeTrial:
    call = _detached(call) if backward else call
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
            _differentiate(call, values)
    output = tensor_bytes(values) // num_samples
    return _ProbeTrial(footprint, written, forward_peak, output, drew_weights, obstacle)


def _grouped(one: Footprint, two: Footprint) -> int:
    """Numbers that a draw writes by convolutions which have a group for each draw."""
    if len(one.convolutions) != len(two.convolutions):
        return 0
    pairs = zip(one.convolutions, two.convolutions, strict=True)
    return sum(written // 2 for (fewer, _), (more, written) in pairs if more > fewer)


def _lines(one: Footprint, two: Footprint) -> tuple[tuple[int, int], ...]:
    """Shared bytes and bytes per draw of every operator that is the largest for some number of draws."""
    if one.operators != two.operators:  # something runs draw by draw inside: half of two peaks is a bound for each
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
    """Whether the last line of an envelope is nowhere the largest once a steeper one is there."""
    if len(envelope) < 2:
        return False
    (first_shared, first), (shared, each) = envelope[-2:]
    return (first_shared - line[0]) * (each - first) <= (first_shared - shared) * (line[1] - first)


def _detached(call: Call) -> Call:
    """The same call on inputs whose own history is none of a trial's business."""
    args, kwargs = pytree.tree_map_only(
        Tensor, lambda leaf: leaf.detach().requires_grad_(leaf.requires_grad), (call.args, call.kwargs)
    )
    return replace(call, args=args, kwargs=kwargs)


def _differentiate(call: Call, values: Any) -> None:
    """A backward pass to everything that asks for a gradient, which is thrown away."""
    outputs = [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor) and leaf.requires_grad]
    wanted = [*asking(call.model.parameters()), *asking(pytree.tree_leaves((call.args, call.kwargs)))]
    if outputs and wanted:
        torch.autograd.grad(outputs, wanted, [torch.ones_like(leaf) for leaf in outputs], allow_unused=True)


def _levels_to_the_user() -> int:
    """How far up the stack the first line outside this package is."""
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
