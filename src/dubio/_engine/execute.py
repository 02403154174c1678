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
from dataclasses import dataclass, replace
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
    join,
    loop_draws,
    map_draws,
    recomputed,
    repeat,
)
from dubio._engine.memory import free_memory, is_out_of_memory, tensor_bytes, tensors_in
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
from dubio._engine.probe import Executor
from dubio._engine.settings import STATE, Settings, Using, check_module, check_num_samples, settings_for_run
from dubio._engine.snapshot import TensorSnapshot
from dubio._engine.vmap_rules import without_fallback_warnings

DEVICES = ("cuda", "cpu")
"""Where weights are prefetched: several draws at once take less time than one by one."""
MOST = 16
"""Draws that are prefetched together, at most; more would save little more."""
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
    drawn: Sequence[Perturbations] | None = None,
    ahead: "WeightPrefetcher | None" = None,
) -> Draws:
    """Like ``sample``, with the terms that the layers collected.

    ``collecting`` names the kinds of terms to collect: ``divergence``, ``entropy``, ``penalty``. ``first_draw``
    continues an earlier run of the same seed. ``drawn``, one dict per draw, keeps drawn weights from call to call while
    the same frozen draws meet several batches. Only the loop uses it, and the prefetcher ``ahead``.
    """
    _check(model, num_samples, chunk, executor)
    call = call_for(model, inputs, settings_for_run(seed), collecting, ahead)
    if call.settings.mode == "off":
        return repeat(call, num_samples)
    if call.settings.seed is not None and not torch.compiler.is_compiling():
        name_sources(model)
    draws, chunk = Numbers(first_draw, num_samples), _chunk_of_members(model, num_samples, chunk)
    if torch.compiler.is_compiling():
        mechanism, size = _mechanism_and_chunk(call, num_samples, executor, chunk)
        if mechanism == "loop":
            return loop_draws(call, draws, drawn)
        if size >= num_samples:
            return map_draws(call, draws)
        return join([map_draws(call, draws.part(done, size)) for done in range(0, num_samples, size)])
    versions = call.input_versions()
    outcome = _Run(call, draws, executor, chunk, drawn).outcome()
    if num_samples > 1 and call.input_versions() != versions:
        raise RuntimeError(
            "the network changes its inputs in place, so that every draw would see what the one before left of them; "
            "let its forward work on a copy"
        )
    return outcome


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
    trial: Inputs | None = None,
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
        trial: some of the rows, on which the network is probed; by default the first batch.
        use: how the outputs of the first batch are kept.
    """
    _check(model, num_samples, chunk, executor)
    if not batches:
        return
    if num_rows is None:
        num_rows = [call_for(model, batch, STATE.own.settings).rows_and_device()[0] for batch in batches]
    first_rows = list(accumulate(num_rows, initial=first_row))
    size, ahead = num_samples, None
    if STATE.own.settings.mode != "off":
        if trial is not None:
            with Using(first_row=first_row, num_rows=None):
                call = call_for(model, trial, settings_for_run(seed))
                _mechanism_and_chunk(call, num_samples, executor, chunk)
        with Using(first_row=first_row, num_rows=num_rows[0]):  # the first batch decides
            call = call_for(model, batches[0], settings_for_run(seed))
            mechanism, size = _mechanism_and_chunk(call, num_samples, executor, chunk, use)
        if mechanism == "loop":
            size, ahead = 1, _prefetcher_for(call, num_samples)
    run_some = partial(run, model, seed=seed, executor=executor, chunk=chunk, ahead=ahead)

    def run_draws(number: int, first_draw: int, drawn: Sequence[Perturbations]) -> Any:
        with Using(first_row=first_rows[number], num_rows=num_rows[number]):
            return run_some(batches[number], len(drawn), first_draw=first_draw, drawn=drawn).outputs

    def outputs_of(number: int, first_draw: int, drawn: list[Perturbations]) -> Any:
        try:
            return run_draws(number, first_draw, drawn)
        except (RuntimeError, MemoryError) as error:
            if ahead is None or not ahead.is_drawing or not is_out_of_memory(error):
                raise
        # Outside of the handler, where nothing refers to the failed run any more.
        ahead.stop()
        drawn[:] = [{}]
        free_memory()
        return run_draws(number, first_draw, drawn)

    for first_draw in range(0, num_samples, size):
        drawn: list[Perturbations] = [{} for _ in range(min(size, num_samples - first_draw))]
        for number in range(len(batches)):
            yield number, outputs_of(number, first_draw, drawn)


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


@dataclass(frozen=True, eq=False)
class _Run:
    """Some draws of a network, and the options that their plan follows."""

    call: Call
    draws: Numbers
    executor: Executor
    chunk: int | None
    drawn: Sequence[Perturbations] | None

    def outcome(self) -> Draws:
        """The draws by their plan, or looped where mapping them fails."""
        plan = self._plan()
        if plan.executor == "loop":
            return self._in_chunks(plan, self.drawn)
        try:
            return self._in_chunks(plan, None)
        except (RuntimeError, ValueError, TypeError) as error:
            if self.executor == "vmap" or is_out_of_memory(error) or isinstance(error, DoesNotFitError):
                raise
            failure = error
        looped = replace(self, executor="loop")
        draws = looped._in_chunks(looped._plan(), self.drawn)
        # Recorded only now: had the loop failed too, the inputs and not the map would be at fault.
        record_map_failure(self.call, failure)
        return draws

    def _plan(self) -> SamplingPlan:
        piece = self.drawn is not None
        return plan_for(self.call, self.draws.num_draws, self.executor, self.chunk, piece=piece)

    def _in_chunks(self, plan: SamplingPlan, drawn: Sequence[Perturbations] | None) -> Draws:
        """Run draws in chunks; one that runs out of memory runs again in smaller ones, from where it began.

        Tensors that the draws have moved on the network are put back where the run fails.
        """
        call, num_draws, parts, done = self.call, self.draws.num_draws, list[Draws](), 0
        first = before = TensorSnapshot(call.model, plan.moving)
        try:
            while done < num_draws:
                size = num_draws if plan.executor == "loop" and not plan.recompute else plan.chunk
                message, obstacle = "", ""
                try:
                    parts.append(_run_chunk(call, plan, self.draws.part(done, size), drawn))
                    done += size
                    if done < num_draws:
                        before = TensorSnapshot(call.model, plan.moving)
                    continue
                except CannotBeRepeatedError as error:
                    obstacle = str(error)
                except (RuntimeError, MemoryError) as error:
                    if not is_out_of_memory(error):
                        raise
                    message = str(error)
                # Outside of the handler, where nothing refers to the failed run any more.
                if obstacle:
                    record_obstacle(call, self.executor, obstacle)
                else:
                    halve_chunk(call, self.executor, plan, message)
                if torch.is_grad_enabled() and not plan.recompute:  # the graph of the finished chunks takes the memory
                    parts, done, before = [], 0, first
                before.put_back(call.model)
                plan = self._plan()
        except BaseException:
            first.put_back(call.model)
            raise
        if torch.is_grad_enabled():
            record_snapshot(call, first)
        return join(parts)


def _run_chunk(call: Call, plan: SamplingPlan, draws: Numbers, drawn: Sequence[Perturbations] | None) -> Draws:
    def run_draws(call: Call) -> Draws:
        if plan.executor == "loop":
            return loop_draws(call, draws, drawn if not plan.recompute else None)
        return map_draws(call, draws, plan.executor == "vmap inputs")

    if not plan.recompute or is_transformed():
        return run_draws(call)
    return recomputed(call, run_draws, plan.moving, plan.draws_itself)


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


def _mechanism_and_chunk(
    call: Call, num_samples: int, executor: Executor, chunk: int | None, use: OutputUse = STREAMED
) -> tuple[str, int]:
    """Mechanism and chunk size of draws whose outputs are consumed chunk by chunk."""
    # An export loops, since vmap over drawn convolution weights would fix the batch size. The flag itself is read:
    # before torch 2.12, ``is_exporting()`` is true in everything that is compiled.
    if torch.compiler._is_exporting_flag:
        return "loop", 1
    if torch.compiler.is_compiling():
        return ("vmap" if executor == "auto" else executor), chunk or num_samples
    plan = plan_for(call, num_samples, executor, chunk, use=use)
    return plan.executor, plan.chunk
