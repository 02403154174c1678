"""Probe a network: can it be mapped over draws, what does a further draw repeat, and what memory does it take?

On a CPU the network is mapped over one draw, and what its operators write from drawn numbers comes with each draw. On
other devices, under a memory limit, and where the trial runs backwards, it is mapped over one draw and over two, whose
difference is exact. Everything that a trial changes is put back. The result follows these rules:

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

import dis
import inspect
import math
import warnings
from collections.abc import Collection, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from operator import add, sub
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from dubio._engine.draws import (
    Call,
    Moved,
    Numbers,
    OneMemberPerDraw,
    Perturbations,
    detached,
    forward,
    joined_draws,
    mapped,
    mapping,
    obstacle_to_repeating,
    with_gradient,
)
from dubio._engine.host_rng import NUMPY, PYTHON, TORCH, HostState, follows_host, notice
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
    rows: int = 0
    """Number of rows that were probed."""
    bytes_per_row: int = 1
    """Memory of a further row while one draw runs."""


class _Trial:
    """Some draws of a network that do not count, and the memory that they take."""

    def __init__(self, call: Call, mechanism: Mechanism, num_samples: int, backward: bool) -> None:
        self.call = call.with_tensors(detached) if backward else call
        self.mechanism, self.num_samples, self.backward = mechanism, num_samples, backward
        self.drawn: Perturbations = {}
        if mechanism == "loop":
            self.run = partial(forward, torch.zeros((), dtype=torch.int64, device="cpu"), self.call, self.drawn)
        else:
            self.run = mapped(self.call, Numbers(0, num_samples), mechanism == "vmap inputs", self.drawn)
        drawn = () if mechanism == "loop" else self.run.args
        self.footprint = Footprint(drawn, call.rows_and_device()[0], call.tensors)

    def measure(self, outcome: tuple[Any, dict[str, Tensor], Moved]) -> None:
        """Take the outcome of the run, and run backwards from it where that is asked for."""
        values, footprint = outcome[:2], self.footprint
        joined_draws(self.call, Numbers(0, self.num_samples), *outcome)
        self.drew_weights = bool(self.drawn)
        self.drawn.clear()
        self.written, self.forward_peak = footprint.written, footprint.peak
        self.obstacle = obstacle_to_repeating(self.call, values) if torch.is_grad_enabled() else ""
        self.bytes_per_output = tensor_bytes(values) // self.num_samples
        if self.backward:
            outputs = with_gradient(pytree.tree_leaves(values))
            sources = [*with_gradient(self.call.model.parameters()), *with_gradient(self.call.tensors)]
            if outputs and sources:  # the gradients are thrown away
                torch.autograd.grad(outputs, sources, [torch.ones_like(leaf) for leaf in outputs], allow_unused=True)
        self.peak = footprint.peak


def probe(call: Call, executor: Executor, backward: bool) -> ProbeResult:
    """Run the network for a draw or two, and put back all it changed.

    On a CPU without a limit, one draw is enough: what does not depend on noise is shared with further draws. Where
    memory is short, the difference of two draws is exact. An error that the network itself raises is raised at once.
    """
    modes: dict[str, tuple[Mechanism, ...]] = {"loop": ("loop",), "vmap": ("vmap",)}
    mechanisms = list(modes.get(executor, ("vmap", "vmap inputs", "loop")))
    device = call.rows_and_device()[1].type
    is_exact = backward or call.settings.memory is not None or device != "cpu" or device in SLOW_GROUPS
    failure: Exception | None = None
    while mechanisms:
        mechanism = mechanisms.pop(0)
        most = 2 if is_exact and mechanism != "loop" else 1
        try:
            with isolated(call.model, trial=True) as moving:
                host = HostState(call.model)
                trials = _few_rows(call, mechanism, backward)
                while len(trials) < most and _is_room(call, trials):
                    trial = _Trial(call, mechanism, len(trials) + 1, backward)
                    try:
                        with trial.footprint, nullcontext() if mechanism == "loop" else mapping(call):
                            trial.measure(trial.run())
                    except (RuntimeError, MemoryError) as error:
                        if not is_out_of_memory(error):
                            raise
                        if not trials:
                            refuse(call, "one draw", error)
                        break
                    trials.append(trial)
                source, watch = host.moved(), STATE.own.watch
            break
        except (RuntimeError, ValueError, TypeError) as error:
            if not mechanisms or is_out_of_memory(error) or is_raised_by_user(error):
                raise
            failure = failure or error
    if draws_itself := watch is not None and watch.itself:
        notice(call.model, TORCH)
    result = _result(call, trials, is_exact, _of_all_members(call.model, moving), source, executor == "auto")
    result = replace(result, draws_itself=draws_itself)
    return result if failure is None or mechanism != "loop" else cannot_be_mapped(call, result, failure)


def is_raised_by_user(error: BaseException) -> bool:
    """Whether an error was raised by a ``raise`` in the network's own code, and not by torch's refusal to map it.

    The innermost frame outside of torch decides. The code of this package raises errors about the map, too.
    """
    if isinstance(error, LoopOnlyError):
        return False
    last, trace = None, error.__traceback__
    while trace is not None:
        last = trace if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] != "torch" else last
        trace = trace.tb_next
    if last is None or last.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "dubio":
        return False
    return last.tb_frame.f_code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]


def cannot_be_mapped(call: Call, result: ProbeResult, error: Exception) -> ProbeResult:
    """The result for a network that failed under the map: it is looped. Warns, unless it is meant to be."""
    reason = f"{_culprit(call.model, error)} cannot be mapped: {_first_sentence(error)}"
    if not isinstance(error, LoopOnlyError):
        message = f"draws run one after another, since {reason}"
        warnings.warn(message, ExecutorWarning, stacklevel=_levels_to_the_user())
    return replace(result, executor="loop", reason=reason)


def refuse(call: Call, tried: str, error: Exception | str) -> NoReturn:
    """Raise the error of a network that runs out of memory with the smallest trial."""
    rows, device = call.rows_and_device()
    raise torch.OutOfMemoryError(
        f"{device} ran out of memory with {tried} at {rows} rows, and fewer draws at a time cannot be tried; "
        f"give fewer rows at a time (batch_size); it said: {str(error)[:200]}"
    )


def _result(
    call: Call,
    trials: Sequence[_Trial],
    is_exact: bool,
    moving: tuple[tuple[str, str], ...],
    source: str,
    may_loop: bool,
) -> ProbeResult:
    """What trials show; ``source`` is a generator outside of torch that moved, ``may_loop`` lets the result choose."""
    one, two = trials[0], trials[1] if len(trials) > 1 else None
    rows, device = call.rows_and_device()
    result = ProbeResult(
        one.mechanism,
        "draws run one after another, as requested",
        ((0, one.peak),),
        one.bytes_per_output,
        call.size,
        one.backward,
        moving,
        one.obstacle,
        rows=rows,
        bytes_per_row=max(1, one.footprint.row_bytes // max(rows, 1)),
    )
    if one.mechanism == "loop":
        return result
    if is_exact and two is None:
        repeated, streamed = 1.0, one.forward_peak
        share = f"a draw takes {memory_in_words(one.peak)} at {rows} rows, too much to try two at once"
        result = replace(result, skipped_at=call.settings.memory)
    else:
        if two is not None:
            written, peak, lines = two.written - one.written, two.forward_peak, _lines(one.footprint, two.footprint)
        else:
            course, drawn = one.footprint.course, one.footprint.drawn_course
            written, peak = one.footprint.drawn_written, max(map(add, course, drawn), default=0)
            lines = _envelope(zip(map(sub, course, drawn), drawn, strict=True))
        repeated, streamed = written / max(one.written, 1), max(peak - one.forward_peak, 0)
        each = memory_in_words(max(each for _, each in lines))
        share = f"a further draw repeats {repeated:.0%} of the work and takes {each} at {rows} rows"
        result = replace(result, lines=lines)
    if source in (NUMPY, PYTHON):
        if _follows_host(call):
            notice(call.model, source)
        else:
            source = ""  # it was moved by another thread, or for something else than the outputs
    if may_loop and source:
        return replace(result, executor="loop", reason=f"mapped draws would share what it draws from {source}; {share}")
    if may_loop and two is not None and device.type in SLOW_GROUPS:
        result = replace(result, grouped=_grouped(one.footprint, two.footprint))
    if may_loop and device.type == "cpu" and one.drew_weights and repeated > REPEATED_WORK_TO_LOOP:
        result = replace(result, streamed=streamed)
    return replace(result, reason=share)


def _follows_host(call: Call) -> bool:
    """Whether a draw of a few rows follows NumPy's or Python's numbers; assumed where it cannot be run."""
    few = _with_rows(call, ROWS_TO_SEE) if _rows_to_cut(call) > ROWS_TO_SEE else call

    def outputs() -> Any:
        copied = few.with_tensors(torch.clone)  # the network may change its inputs
        with torch.no_grad(), isolated(call.model, trial=True, host=False):
            return forward(torch.zeros((), dtype=torch.int64, device="cpu"), copied, None)[0]

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


def _is_room(call: Call, trials: Sequence[_Trial]) -> bool:
    """Whether one draw more than the last trial fits into the limit."""
    limit = call.settings.memory
    return not trials or limit is None or 2 * trials[0].peak <= limit


def _few_rows(call: Call, mechanism: Mechanism, backward: bool) -> list[_Trial]:
    """The trial of one draw of all rows, extrapolated where fewer rows show that it exceeds a limit; else none.

    The rows are doubled, and the memory of twice as many follows from the last two trials, operator by operator.
    """
    limit, rows = call.settings.memory, _rows_to_cut(call)
    few, last = 1, None
    while limit is not None and few < rows:
        trial: _Trial | None = _Trial(_with_rows(call, few), mechanism, 1, backward)
        assert trial is not None
        try:
            with trial.footprint, nullcontext() if mechanism == "loop" else mapping(call):
                trial.measure(trial.run())
        except (RuntimeError, ValueError, TypeError) as error:  # a batch norm needs two rows, other layers all of them
            if is_out_of_memory(error):
                refuse(call, "one draw", error)
            if isinstance(error, LoopOnlyError):
                raise
            trial = None
        if trial is not None:
            lines = [(trial.peak, 0)] if last is None else row_lines(last.footprint, trial.footprint)
            following, in_all = min(2 * few, rows) / (few / 2), rows / (few / 2)
            if max(shared + following * each for shared, each in lines) > limit:
                trial.peak = trial.forward_peak = math.ceil(max(shared + in_all * each for shared, each in lines))
                trial.bytes_per_output = trial.bytes_per_output * rows // few
                return [trial]
        few, last = 2 * few, trial
    return []


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
    pairs = ((with_two, max(with_two - with_one, 0)) for with_one, with_two in zip(one.course, two.course, strict=True))
    return _envelope((with_two - 2 * each, each) for with_two, each in pairs)


def _envelope(lines: Iterable[tuple[int, int]]) -> Lines:
    """Of pairs of shared bytes and bytes per draw, those that take the most for some number of draws."""
    steepest: dict[int, int] = {}
    for shared, each in lines:
        steepest[each] = max(steepest.get(each, 0), shared)
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
