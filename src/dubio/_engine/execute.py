"""Many draws at once: `(sample, batch, ...)` from a network written for one draw.

Two executors give the same draws. ``vmap`` maps the whole network over the draw index and carries the sample axis only
where noise has entered: what comes before the first stochastic layer runs once. ``loop`` runs one draw after another.
It is the reference, what export uses, and the fallback for networks that cannot be mapped.

``WeightPrefetcher`` draws the weights of several looped draws at once. A GPU draws the weights of a layer faster than
the host launches the next kernel; on a CPU, the noise of one draw comes from one thread and that of several from as
many, and what all draws share, their scale, is computed once. So a posterior that needs the weights of one draw draws
those of the next few as well, in one map.

Invariants: under frozen noise both executors agree, for any chunk size (``tests/engine/test_agreement.py``). In
training mode, ``vmap`` pools batch statistics over the draws of a chunk and ``loop`` takes them per draw, the one
documented exception. Running out of memory halves the chunk and changes no frozen draw
(``tests/engine/test_out_of_memory.py``). Prefetching changes no draw (``test_drawing_ahead_changes_no_draw``): seeded
noise is a function of its draw. A posterior whose tensors were replaced, or changed in place, draws again
(``test_weights_are_drawn_from_what_a_posterior_holds_at_the_time``); changes through ``.data`` are not seen.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from dubio._engine.draws import (
    Call,
    CannotBeRepeatedError,
    Draws,
    Inputs,
    Numbers,
    OneMemberPerDraw,
    Perturbations,
    call_for,
    expanded,
    forward,
    join,
    joined_draws,
    loop_draws,
    map_draws,
    mapped,
    mapping,
    one_draw,
    recomputed,
    stacked,
)
from dubio._engine.memory import is_out_of_memory, tensor_bytes, tensors_in, with_less_memory
from dubio._engine.passes import Pass, is_plain, is_transformed, name_sources, warn_of_plain
from dubio._engine.planner import (
    STREAMED,
    DoesNotFitError,
    OutputUse,
    SamplingPlan,
    halve_chunk,
    memory_budget,
    plan_for,
    record_map_failure,
    record_obstacle,
    record_snapshot,
)
from dubio._engine.probe import Executor, is_raised_by_user, refuse
from dubio._engine.settings import STATE, Settings, check_module, check_num_samples, settings_for_run
from dubio._engine.snapshot import TensorSnapshot
from dubio._engine.vmap_rules import without_fallback_warnings

DEVICES = ("cuda", "cpu")
"""Where weights are prefetched: several draws at once take less time than one by one."""
MOST = 16
"""Draws that are prefetched together, at most; more would save little more."""
RETRIED = (CannotBeRepeatedError, RuntimeError, ValueError, TypeError)
"""Errors, beside those of allocators, after which draws may run in another way."""
SHARE = 4
"""Prefetched weights take at most one part in so many of the memory of a chunk."""


def sample(
    model: nn.Module,
    inputs: Inputs,
    num_samples: int = 1,
    *,
    seed: int | Tensor | None = None,
    executor: Executor = "auto",
    chunk: int | None = None,
) -> Any:
    """Draw ``num_samples`` outputs of a stochastic network: raw outputs `(sample, batch, ...)`, differentiable.

    Args:
        model: any ``nn.Module``; one without stochastic layers gives equal draws.
        inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
        num_samples: how many draws.
        seed: freezes the noise, as ``with dubio.frozen(seed)`` does.
        executor: ``"vmap"``, ``"loop"``, or ``"auto"`` for what suits network, estimator and device.
        chunk: how many draws are mapped at a time, at most; by default as many as memory allows.

    Returns:
        The network's output with a leading sample axis; of an output object with ``.logits``, the logits.
    """
    outputs = run(model, inputs, num_samples, seed=seed, executor=executor, chunk=chunk).outputs
    if num_samples > 1 and not torch.compiler.is_compiling() and not is_transformed() and is_plain(model):
        leaves = [leaf.detach() for leaf in tensors_in(outputs)]
        # No warning where noise is off, nor for a network that draws random numbers by itself.
        if STATE.own.settings.mode != "off" and all(torch.equal(leaf, leaf[:1].expand_as(leaf)) for leaf in leaves):
            warn_of_plain(model, f"all {len(leaves[0]) if leaves else 0} draws are equal")
    return outputs


def run(
    model: nn.Module,
    inputs: Inputs,
    num_samples: int = 1,
    *,
    seed: int | Tensor | None = None,
    executor: Executor = "auto",
    chunk: int | None = None,
    first_draw: int = 0,
    collecting: Collection[str] = (),
) -> Draws:
    """Like ``sample``, with the terms that the layers collected.

    ``collecting`` names the kinds of terms to collect: ``divergence``, ``entropy``, ``penalty``. ``first_draw``
    continues an earlier run of the same seed.
    """
    _check(model, num_samples, chunk, executor)
    settings, is_compiling = settings_for_run(seed), torch.compiler.is_compiling()
    call = call_for(model, inputs, settings, collecting)
    if settings.mode == "off":
        return expanded(one_draw(call), num_samples)
    if settings.seed is not None and not is_compiling:
        name_sources(model)
    draws = Numbers(first_draw, num_samples)
    if num_samples > 1:
        chunk = _chunk_of_members(model, num_samples, chunk)
    if is_compiling:
        # An export loops, since vmap over drawn convolution weights would fix the batch size. The flag itself is read:
        # before torch 2.12, ``is_exporting()`` is true in everything that is compiled.
        if torch.compiler._is_exporting_flag or executor == "loop":
            return loop_draws(call, draws)
        size = chunk or num_samples
        if size >= num_samples:
            return map_draws(call, draws)
        return join([map_draws(call, draws.part(done, size)) for done in range(0, num_samples, size)])
    if num_samples == 1 and settings.memory is None:
        once = partial(forward, torch.tensor(first_draw, device="cpu"), call, None)
        outputs, terms, _ = with_less_memory(once, partial(refuse, call, "one draw"))
        return expanded((outputs, terms), 1)
    plan = plan_for(call, num_samples, executor, chunk)
    with _Run(call, draws, executor, chunk, plan) as work:
        return with_less_memory(work.attempt, work.shrink, also=RETRIED)


def stream(
    model: nn.Module,
    batches: Sequence[Inputs],
    num_samples: int,
    *,
    seed: int | Tensor | None = None,
    executor: Executor = "auto",
    chunk: int | None = None,
    num_rows: Sequence[int] | None = None,
    first_row: int = 0,
    use: OutputUse = STREAMED,
) -> Iterator[tuple[int, Any]]:
    """The same draws on several batches of rows, a few draws at a time: batch number and `(sample, batch, ...)`.

    Every batch meets every draw once. Draws come outermost, so that weights are drawn once however many batches there
    are, and no more than a chunk of draws of one batch is in memory.

    Args:
        model: as for ``sample``.
        batches: the batches, in the order of their rows.
        num_samples: how many draws.
        seed: as for ``sample``.
        executor: as for ``sample``.
        chunk: as for ``sample``.
        num_rows: rows of each batch; by default those of its first tensor.
        first_row: the number of the first row of the first batch in the whole data.
        use: how the outputs of the first batch are kept.
    """
    _check(model, num_samples, chunk, executor)
    if not batches:
        return
    settings, ahead = settings_for_run(seed), None
    if num_rows is None:
        num_rows = [call_for(model, batch, settings).rows_and_device()[0] for batch in batches]
    first_rows = list(accumulate(num_rows, initial=first_row))

    def call_of(number: int) -> Call:
        placed = replace(settings, first_row=first_rows[number], num_rows=num_rows[number])
        return call_for(model, batches[number], placed, ahead=ahead)

    if settings.mode == "off":
        for number in range(len(batches)):
            yield number, expanded(one_draw(call_of(number)), num_samples).outputs
        return
    if settings.seed is not None:
        name_sources(model)
    chunk = _chunk_of_members(model, num_samples, chunk)
    plan = plan_for(call_of(0), num_samples, executor, chunk, use=use)  # the first batch decides
    size = plan.chunk
    if plan.executor == "loop":
        size, ahead = 1, _prefetcher_for(call_of(0), num_samples)
    for first_draw in range(0, num_samples, size):
        draws = Numbers(first_draw, min(size, num_samples - first_draw))
        drawn: list[Perturbations] = [{} for _ in range(draws.num_draws)]
        for number in range(len(batches)):
            plan = replace(plan, num_samples=draws.num_draws, chunk=min(plan.chunk, draws.num_draws))
            with _Run(call_of(number), draws, executor, chunk, plan, drawn) as work:
                outcome = with_less_memory(work.attempt, work.shrink, also=RETRIED)
            plan = work.plan
            yield number, outcome.outputs


class WeightPrefetcher:
    """Draws the perturbations of posteriors in a looped run, a few draws at a time.

    Args:
        settings: how noise is drawn in the run.
        num_samples: how many draws the run has.
        most: how many draws to draw at a time.
    """

    def __init__(self, settings: Settings, num_samples: int, most: int) -> None:
        self._settings, self._num_samples, self._most = settings, num_samples, most
        self._stacks: dict[int, _Stack] = {}
        self._excluded: dict[int, nn.Module] = {}
        """Posteriors that cannot be mapped, or that change from draw to draw."""

    @property
    def is_drawing(self) -> bool:
        """Whether weights are prefetched."""
        return self._most > 1

    def stop(self) -> None:
        """Drop what was prefetched, and prefetch no more."""
        self._stacks.clear()
        self._most = 1

    def perturbation(self, source: Any, run: Pass) -> Tensor | None:
        """The weights of a posterior minus their means in a pass; None where it must draw them itself."""
        key = id(source.mean)
        if run.draw is None or run.collecting or torch.is_grad_enabled() or is_transformed() or key in self._excluded:
            return None
        draw = int(run.draw)
        stack = self._stacks.pop(key, None)
        if stack is not None and draw in stack.draws and _versions(source) != stack.versions:
            self._excluded[key] = source
            return None
        if stack is None or draw not in stack.draws:
            stack = None  # released before the next one is drawn
            stack = self._drawn(source, draw)
        if stack is None:
            return None
        self._stacks[key] = stack
        return stack.tensor[draw - stack.draws.start]

    def _drawn(self, source: Any, first: int) -> "_Stack | None":
        draws = range(first, min(first + self._most, self._num_samples))
        if len(draws) < 2:
            return None

        def perturbation(draw: Tensor) -> Tensor:
            drawn: Tensor = source.perturbation(Pass(self._settings, draw, mapped=True))
            return drawn

        versions, held = _versions(source), [(tensor, tensor.detach()) for tensor in _tensors(source)]
        numbers = torch.arange(draws.start, draws.stop, device="cpu")
        try:
            with without_fallback_warnings():
                return _Stack(draws, torch.func.vmap(perturbation, randomness="different")(numbers), versions, held)
        except (RuntimeError, ValueError, TypeError) as error:
            if is_out_of_memory(error):
                raise
        self._excluded[id(source.mean)] = source
        return None


class _Stack(NamedTuple):
    """The perturbations of consecutive draws of one posterior, and the versions of the tensors they were drawn from."""

    draws: range
    tensor: Tensor
    versions: Sequence[tuple[int, int, int]]
    held: Sequence[tuple[Tensor, Tensor]]
    """The tensors and their storages: a reference keeps an identity and an address from being used again."""


def _versions(source: nn.Module) -> list[tuple[int, int, int]]:
    """Identity, address and version counter of all tensors that a posterior draws from."""
    tensors = _tensors(source)
    return [(id(tensor), tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version) for tensor in tensors]


def _tensors(source: nn.Module) -> list[Tensor]:
    """All tensors that a posterior draws from."""
    return [*source.parameters(), *source.buffers()]


def _prefetcher_for(call: Call, num_samples: int) -> WeightPrefetcher | None:
    """A prefetcher for looped draws, where it saves time; its memory counts in no limit."""
    device = call.rows_and_device()[1]
    is_frozen = call.settings.mode == "frozen" and call.settings.memory is None
    if device.type not in DEVICES or not is_frozen or torch.compiler.is_compiling():
        return None
    weights = max(tensor_bytes(list(call.model.parameters())), 1)
    most = min(MOST, memory_budget(device) // SHARE // weights)
    threads = torch.get_num_threads()
    if device.type != "cuda" and most >= threads:  # no thread has fewer draws than another
        most -= most % threads
    return WeightPrefetcher(call.settings, num_samples, most)


class _Run:
    """Some draws of a network by a plan, which changes where it fails.

    Draws that were planned to be mapped are looped where torch cannot map them. Tensors that the draws have moved on
    the network are put back before the next attempt, and where the run fails.

    ``drawn``, one dict for each draw of a part of a stream, keeps drawn weights while the draws meet several batches.
    """

    def __init__(
        self,
        call: Call,
        draws: Numbers,
        executor: Executor,
        chunk: int | None,
        plan: SamplingPlan,
        drawn: Sequence[Perturbations] | None = None,
    ) -> None:
        self._call, self._draws, self._executor, self._chunk = call, draws, executor, chunk
        self.plan, self._drawn = plan, drawn
        self._done, self._parts = 0, list[Draws]()
        self._failure: str | None = None
        """The message of the error after which the next attempt plans again; the error itself would keep tensors."""
        self._is_obstacle = False
        self._map_failure: Exception | None = None
        self._first = self._before = TensorSnapshot(call.model, plan.moving)
        self._versions = call.input_versions()

    def __enter__(self) -> "_Run":
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if kind is not None:
            self._first.put_back(self._call.model)
            return
        if self._map_failure is not None:
            # Recorded only now: had the loop failed too, the inputs and not the map would be at fault.
            record_map_failure(self._call, self._map_failure)
        if torch.is_grad_enabled():
            record_snapshot(self._call, self._first)
        if self._draws.num_draws > 1 and self._call.input_versions() != self._versions:
            raise RuntimeError(
                "the network changes its inputs in place, so that every draw would see what the one before left of "
                "them; let its forward work on a copy"
            )

    def attempt(self) -> Draws:
        """Run the draws that are left, in chunks; after a failure, smaller ones."""
        if self._failure is not None:
            self._plan_again()
        call, plan = self._call, self.plan
        while self._done < self._draws.num_draws:
            looped = plan.executor == "loop"
            part = self._draws.part(self._done, self._draws.num_draws if looped and not plan.recompute else plan.chunk)
            if plan.recompute and not is_transformed():
                run_draws = partial(loop_draws, draws=part) if looped else partial(map_draws, draws=part)
                if plan.executor == "vmap inputs":
                    run_draws = partial(run_draws, map_inputs=True)
                draws = recomputed(call, run_draws, plan.moving, plan.draws_itself)
            elif looped:
                outcomes = []
                for i, draw in enumerate(part.tensor().unbind()):
                    outcomes.append(forward(draw, call, self._drawn[i] if self._drawn else None)[:2])
                draws = stacked(outcomes)
            else:
                work = mapped(call, part, plan.executor == "vmap inputs")
                with mapping(call):
                    outcome = work()
                draws = joined_draws(call, part, *outcome)
            self._parts.append(draws)
            self._done += part.num_draws
            if self._done < self._draws.num_draws:
                self._before = TensorSnapshot(call.model, plan.moving)
        return join(self._parts)

    def shrink(self, error: Exception) -> bool:
        """Choose what the next attempt does otherwise, if anything: fewer draws, kept graphs, a loop."""
        if self._failure is not None:  # it was raised where nothing smaller is left
            return False
        self._is_obstacle = isinstance(error, CannotBeRepeatedError)
        ahead = self._call.ahead
        if not self._is_obstacle and not is_out_of_memory(error):
            is_final = isinstance(error, DoesNotFitError) or is_raised_by_user(error)
            if is_final or self.plan.executor == "loop" or self._executor == "vmap":
                return False
            self._map_failure, self._executor, self._failure = error, "loop", ""
            self._parts, self._done, self._before = [], 0, self._first
        elif isinstance(ahead, WeightPrefetcher) and ahead.is_drawing and self._drawn is not None:
            ahead.stop()
            for drawn in self._drawn:
                drawn.clear()
            self._failure = ""
        else:
            self._failure = str(error) or type(error).__name__
        return True

    def _plan_again(self) -> None:
        if self._failure and self._is_obstacle:
            record_obstacle(self._call, self._executor, self._failure)
        elif self._failure:
            halve_chunk(self._call, self._executor, self.plan, self._failure)
        if torch.is_grad_enabled() and not self.plan.recompute:  # the graph of the finished chunks takes the memory
            self._parts, self._done, self._before = [], 0, self._first
        self._before.put_back(self._call.model)
        num_draws, is_piece = self._draws.num_draws, self._drawn is not None
        self.plan = plan_for(self._call, num_draws, self._executor, self._chunk, piece=is_piece)
        self._failure = None


def _chunk_of_members(model: nn.Module, num_samples: int, chunk: int | None) -> int | None:
    """Draws at a time: as requested, but where members of an ensemble move buffers, no member twice at once."""
    for module in model.modules():
        if not hasattr(type(module), "member_names") or not any(part.training for part in module.modules()):
            continue
        num_members = len(cast(OneMemberPerDraw, module).member_names())
        if num_members < num_samples and list(module.buffers()):
            chunk = min(num_members, chunk or num_members)
    return chunk


def _check(model: nn.Module, num_samples: int, chunk: int | None, executor: str) -> None:
    check_module(model)
    check_num_samples(num_samples)
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise ValueError(f"chunk must be a whole number of at least 1, got {chunk!r}")
    if executor not in ("auto", "vmap", "loop"):
        raise ValueError(f"executor must be 'auto', 'vmap' or 'loop', got {executor!r}")
