"""Many draws at once: `(sample, batch, ...)` from a network written for one draw.

Two executors give the same draws. ``vmap`` maps the whole network over the draw index and carries the sample axis only
where noise has entered: what comes before the first stochastic layer runs once. ``loop`` runs one draw after another;
it is the reference, what export uses, and the fallback for networks that cannot be mapped.

Invariants: under frozen noise both agree, for any chunk size (``tests/engine/test_agreement.py``); in training mode,
batch statistics are pooled over the draws of a chunk by ``vmap`` and taken per draw by ``loop``, the one documented
exception. Running out of memory halves the chunk and changes no frozen draw (``tests/engine/test_out_of_memory.py``).

Weights of several looped draws, drawn at once.

A GPU has drawn the weights of a layer before the host has launched the next one, and a looped draw would launch them
anew for every layer. On a CPU the noise of one draw comes from one thread, that of several from as many (``filling``),
and what is the same for all draws, their scale, is computed once. So a posterior that is asked for one draw draws the
next few as well, in one map. Seeded noise is a function of its draw, so that no draw changes
(``test_drawing_ahead_changes_no_draw``); a posterior whose tensors are others meanwhile, or were changed in place,
draws again (``test_weights_are_drawn_from_what_a_posterior_holds_at_the_time``). What is changed through ``.data`` is
not seen.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio._engine.draws import (
    Call,
    CannotBeRepeatedError,
    Draws,
    Inputs,
    Numbers,
    OneMemberPerDraw,
    Perturbations,
    arguments_for,
    join,
    loop_draws,
    map_draws,
    recomputed,
    repeat,
)
from dubio._engine.memory import free_memory, is_out_of_memory, tensor_bytes
from dubio._engine.passes import Pass, is_plain, is_transformed, name_sources, warn_of_plain
from dubio._engine.planner import (
    GIVEN_AWAY,
    DoesNotFitError,
    OutputUse,
    SamplingPlan,
    memory_budget,
    plan_for,
    remember_failure,
    remember_obstacle,
    remember_out_of_memory,
    remember_standing,
)
from dubio._engine.probe import Executor
from dubio._engine.settings import STATE, Settings, Using, check_module, check_num_samples, settings_for_run
from dubio._engine.snapshot import TensorSnapshot
from dubio._engine.vmap_rules import without_fallback_warnings


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
        _warn_of_equal_draws(model, outputs)
    return outputs


def _warn_of_equal_draws(model: nn.Module, outputs: Any) -> None:
    """Warn where draws are equal; not of noise that is off, nor of a network that draws random numbers by itself."""
    leaves = [leaf.detach() for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
    if STATE.own.settings.mode != "off" and all(torch.equal(leaf, leaf[:1].expand_as(leaf)) for leaf in leaves):
        warn_of_plain(model, f"all {len(leaves[0]) if leaves else 0} draws are equal")


@dataclass(frozen=True)
class _Held:
    """A tensor as a posterior held it; it is kept, so that no other one can take its place in memory."""

    tensor: Tensor
    values: Tensor
    version: int

    @classmethod
    def now(cls, tensor: Tensor) -> "_Held":
        """As it is."""
        return cls(tensor, tensor.detach(), 0 if tensor.is_inference() else tensor._version)

    def is_still(self, tensor: Tensor) -> bool:
        """Whether that is the same tensor, in the same place, and unchanged."""
        if tensor is not self.tensor or tensor.data_ptr() != self.values.data_ptr():
            return False
        return tensor.is_inference() or tensor._version == self.version


@dataclass(frozen=True)
class _Stack:
    """The perturbations of consecutive draws of one posterior, and what they were drawn from."""

    draws: range
    tensor: Tensor
    held: Sequence[_Held]

    def is_of(self, source: nn.Module) -> bool:
        """Whether a posterior still holds what they were drawn from."""
        tensors = _tensors(source)
        return len(tensors) == len(self.held) and all(
            held.is_still(tensor) for held, tensor in zip(self.held, tensors, strict=True)
        )


class WeightPrefetcher:
    """Draws for posteriors of a looped run, a few draws at a time.

    Args:
        settings: how noise is drawn in the run.
        num_samples: how many draws it has.
        most: how many draws to draw at a time.
    """

    def __init__(self, settings: Settings, num_samples: int, most: int) -> None:
        self._settings, self._num_samples, self._most = settings, num_samples, most
        self._stacks: dict[int, _Stack] = {}
        self._left_alone: dict[int, nn.Module] = {}
        """Posteriors that cannot be mapped, or that change from draw to draw."""

    @property
    def is_drawing(self) -> bool:
        """Whether anything is drawn ahead."""
        return self._most > 1

    def stop(self) -> None:
        """Let go of everything, and draw nothing ahead any more."""
        self._stacks.clear()
        self._most = 1

    def perturbation(self, source: Any, run: Pass) -> Tensor | None:
        """How far the weights of a posterior lie from their means in a pass; None where it must draw itself."""
        key = id(source.mean)
        if run.draw is None or run.collecting or torch.is_grad_enabled() or is_transformed() or key in self._left_alone:
            return None
        draw = int(run.draw)
        known = self._stacks.pop(key, None)
        if known is not None and draw in known.draws and not known.is_of(source):
            self._left_alone[key] = source
            return None
        if known is None or draw not in known.draws:
            known = None  # before another takes its place
            known = self._drawn(source, draw)
        if known is None:
            return None
        self._stacks[key] = known
        return known.tensor[draw - known.draws.start]

    def _drawn(self, source: Any, first: int) -> _Stack | None:
        draws = range(first, min(first + self._most, self._num_samples))
        if len(draws) < 2:
            return None

        def perturbation(draw: Tensor) -> Tensor:
            drawn: Tensor = source.perturbation(Pass(self._settings, draw, mapped=True))
            return drawn

        held = [_Held.now(tensor) for tensor in _tensors(source)]
        numbers = torch.arange(draws.start, draws.stop, device="cpu")
        try:
            with without_fallback_warnings():
                return _Stack(draws, torch.func.vmap(perturbation, randomness="different")(numbers), held)
        except (RuntimeError, ValueError, TypeError) as error:
            if is_out_of_memory(error):
                raise
        self._left_alone[id(source.mean)] = source
        return None


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
    ahead: WeightPrefetcher | None = None,
) -> Draws:
    """What ``sample`` does, with the terms that the layers collected.

    ``collecting`` names the kinds of terms that are wanted: ``divergence``, ``entropy``, ``penalty``.
    ``first_draw`` continues an earlier run of the same seed. ``drawn``, one dict per draw, keeps drawn weights from
    call to call while the same frozen draws meet several batches; only the loop can use it, and what draws ``ahead``.
    """
    _check(model, num_samples, chunk, executor)
    call = Call(model, *arguments_for(model, inputs), settings_for_run(seed), collecting, ahead)
    if call.settings.mode == "off":
        return repeat(call, num_samples)
    if call.settings.seed is not None and not torch.compiler.is_compiling():
        name_sources(model)
    draws, chunk = Numbers(first_draw, num_samples), _in_turns(model, num_samples, chunk)
    if torch.compiler.is_compiling():
        return _run(call, draws, executor, chunk, drawn)
    versions = call.input_versions()
    outcome = _run(call, draws, executor, chunk, drawn)
    if num_samples > 1 and call.input_versions() != versions:
        raise RuntimeError(
            "the network changes its inputs in place, so that every draw would see what the one before left of them; "
            "let its forward work on a copy"
        )
    return outcome


def _run(
    call: Call, draws: Numbers, executor: Executor, chunk: int | None, drawn: Sequence[Perturbations] | None
) -> Draws:
    if torch.compiler.is_compiling():
        mechanism, size = _choose(call, draws.how_many, executor, chunk)
        if mechanism == "loop":
            return loop_draws(call, draws, drawn)
        if size >= draws.how_many:
            return map_draws(call, draws)
        return join([map_draws(call, draws.part(done, size)) for done in range(0, draws.how_many, size)])
    piece = drawn is not None
    plan = plan_for(call, draws.how_many, executor, chunk, piece=piece)
    if plan.executor == "loop":
        return _in_chunks(call, plan, draws, executor, chunk, drawn, piece)
    try:
        return _in_chunks(call, plan, draws, executor, chunk, None, piece)
    except (RuntimeError, ValueError, TypeError) as error:
        if executor == "vmap" or is_out_of_memory(error) or isinstance(error, DoesNotFitError):
            raise
        failure = error
    plan = plan_for(call, draws.how_many, "loop", chunk, piece=piece)
    looped_draws = _in_chunks(call, plan, draws, "loop", chunk, drawn, piece)
    # Only now: had the loop failed too, the inputs and not the map would be at fault.
    remember_failure(call, failure)
    return looped_draws


def _in_chunks(
    call: Call,
    plan: SamplingPlan,
    draws: Numbers,
    executor: Executor,
    chunk: int | None,
    drawn: Sequence[Perturbations] | None,
    piece: bool,
) -> Draws:
    """Run draws by their plan; what they have moved on the network is put back where they fail."""
    first = _standing(call, plan)
    try:
        parts = _chunks(call, plan, draws, executor, chunk, drawn, piece, first)
    except BaseException:
        _put_back(call, first)
        raise
    if torch.is_grad_enabled():
        remember_standing(call, first)
    return join(parts)


def _chunks(
    call: Call,
    plan: SamplingPlan,
    draws: Numbers,
    executor: Executor,
    chunk: int | None,
    drawn: Sequence[Perturbations] | None,
    piece: bool,
    first: TensorSnapshot | None,
) -> list[Draws]:
    """Draws in chunks; what runs out of memory runs again in smaller ones, from where it began."""
    parts: list[Draws] = []
    done, before = 0, first
    while done < draws.how_many:
        size = draws.how_many if plan.executor == "loop" and not plan.recompute else plan.chunk
        said, obstacle = "", ""
        try:
            parts.append(_carry_out(call, plan, draws.part(done, size), drawn))
            done += size
            before = _standing(call, plan) if done < draws.how_many else None
            continue
        except CannotBeRepeatedError as error:
            obstacle = str(error)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            said = str(error)
        # Outside of the handler, where nothing refers to the failed run any more.
        if obstacle:
            remember_obstacle(call, executor, obstacle)
        else:
            remember_out_of_memory(call, executor, plan, said)
        if torch.is_grad_enabled() and not plan.recompute:  # the graph of what is done takes the memory
            parts, done, before = [], 0, first
        _put_back(call, before)
        plan = plan_for(call, draws.how_many, executor, chunk, piece=piece)
    return parts


def _standing(call: Call, plan: SamplingPlan) -> TensorSnapshot | None:
    """What draws will move, as it is now; nothing where they move nothing."""
    return TensorSnapshot(call.model, plan.moving) if plan.moving else None


def _put_back(call: Call, before: TensorSnapshot | None) -> None:
    if before is not None:
        before.put_back(call.model)


def _in_turns(model: nn.Module, num_samples: int, chunk: int | None) -> int | None:
    """Draws at a time: as asked for, and where parts that take turns may move buffers, none of them twice at once."""
    for module in model.modules():
        if not hasattr(type(module), "member_names") or not any(part.training for part in module.modules()):
            continue
        num_members = len(cast(OneMemberPerDraw, module).member_names())
        if num_members < num_samples and list(module.buffers()):
            chunk = min(num_members, chunk or num_members)
    return chunk


def _carry_out(call: Call, plan: SamplingPlan, draws: Numbers, drawn: Sequence[Perturbations] | None) -> Draws:
    def run_draws(call: Call) -> Draws:
        if plan.executor == "loop":
            return loop_draws(call, draws, drawn if not plan.recompute else None)
        return map_draws(call, draws, plan.executor == "vmap inputs")

    if not plan.recompute or is_transformed():
        return run_draws(call)
    return recomputed(call, run_draws, plan.moving, plan.draws_itself)


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
    use: OutputUse = GIVEN_AWAY,
) -> Iterator[tuple[int, Any]]:
    """The same draws on several batches of rows, a few draws at a time: batch number and `(sample, batch, ...)`.

    Every batch meets every draw once. Draws come outermost, so that weights are drawn once however many batches there
    are, and no more than a chunk of draws of one batch is in memory. ``num_rows`` says how many rows each batch has,
    where its first tensor does not tell, and ``first_row`` where the first batch stands in the whole data. Which
    executor suits is tried on ``trial``, some of these rows, where one is given, and else on the first batch. ``use``
    says what becomes of the outputs of the first batch.
    """
    _check(model, num_samples, chunk, executor)
    if not batches:
        return
    if num_rows is None:
        num_rows = [
            Call(model, *arguments_for(model, batch), STATE.own.settings).rows_and_device()[0] for batch in batches
        ]
    first_rows = list(accumulate(num_rows, initial=first_row))
    if trial is not None and STATE.own.settings.mode != "off":
        with Using(first_row=first_row, num_rows=None):
            _choose(Call(model, *arguments_for(model, trial), settings_for_run(seed)), num_samples, executor, chunk)
    size, ahead = num_samples, None
    if STATE.own.settings.mode != "off":
        with Using(first_row=first_row, num_rows=num_rows[0]):  # the first batch decides
            call = Call(model, *arguments_for(model, batches[0]), settings_for_run(seed))
            mechanism, size = _choose(call, num_samples, executor, chunk, use)
        if mechanism == "loop":
            size, ahead = 1, ahead_of(call, num_samples)

    def run_draws(number: int, first_draw: int, drawn: Sequence[Perturbations]) -> Any:
        options: dict[str, Any] = {"seed": seed, "executor": executor, "chunk": chunk, "first_draw": first_draw}
        with Using(first_row=first_rows[number], num_rows=num_rows[number]):
            return run(model, batches[number], len(drawn), **options, drawn=drawn, ahead=ahead).outputs

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


def _check(model: nn.Module, num_samples: int, chunk: int | None, executor: str) -> None:
    check_module(model)
    check_num_samples(num_samples)
    if chunk is not None and (isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1):
        raise ValueError(f"chunk must be a whole number of at least 1, got {chunk!r}")
    if executor not in ("auto", "vmap", "loop"):
        raise ValueError(f"executor must be 'auto', 'vmap' or 'loop', got {executor!r}")


def _choose(
    call: Call, num_samples: int, executor: Executor, chunk: int | None, use: OutputUse = GIVEN_AWAY
) -> tuple[str, int]:
    """Mechanism and chunk size of draws whose outputs are given away chunk by chunk."""
    if _is_exporting():
        return "loop", 1
    if torch.compiler.is_compiling():
        return ("vmap" if executor == "auto" else executor), chunk or num_samples
    plan = plan_for(call, num_samples, executor, chunk, use=use)
    return plan.executor, plan.chunk


def _is_exporting() -> bool:
    """Whether draws must be looped, since vmap over drawn convolution weights would fix the batch size.

    The flag itself is asked: before torch 2.12, ``is_exporting()`` is true in everything that is compiled.
    """
    return torch.compiler._is_exporting_flag


DEVICES = ("cuda", "cpu")
"""Where several draws at once take less time than one by one."""


MOST = 16
"""Draws at a time: more would save little more."""


SHARE = 4
"""What is drawn ahead may take one part in so many of what draws may."""


def ahead_of(call: Call, num_samples: int) -> WeightPrefetcher | None:
    """Who draws weights of looped draws ahead, where that saves time; what it holds is in no limit."""
    device = call.rows_and_device()[1]
    is_frozen = call.settings.mode == "frozen" and call.settings.memory is None
    if device.type not in DEVICES or not is_frozen or torch.compiler.is_compiling():
        return None
    weights = max(tensor_bytes(list(call.model.parameters())), 1)
    most = min(MOST, memory_budget(device) // SHARE // weights)
    return WeightPrefetcher(
        call.settings, num_samples, most if device.type == "cuda" else _busy(most, torch.get_num_threads())
    )


def _busy(most: int, threads: int) -> int:
    """So many draws at most that no thread has fewer of them than another, where there are enough."""
    return most if most < threads else most - most % threads


def _tensors(source: nn.Module) -> list[Tensor]:
    """All that a posterior draws from."""
    return [*source.parameters(), *source.buffers()]
