"""One draw of a network, and the two mechanisms that make many: mapped with ``vmap``, or looped.

``planner`` decides which mechanism runs, and over how many draws at a time.

``recomputed`` is activation checkpointing over a chunk of draws: the chunk keeps its outputs and no graph, and the
backward pass computes it again. Torch's own checkpointing cannot hold a ``vmap``, so this is an ``autograd.Function``.
Its forward runs the chunk; its backward runs it again from the same generators, modes and moving tensors, and
differentiates. Values and gradients equal those of all draws at once, and running statistics move once
(``tests/engine/test_recomputing.py``). Second derivatives are not available. On CUDA the second run happens in another
thread, so that the call holds everything it needs.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from dubio._engine.memory import map_tensors, tensors_in
from dubio._engine.passes import Pass, PerturbationSource
from dubio._engine.settings import STATE, Settings
from dubio._engine.snapshot import Snapshot
from dubio._engine.vmap_rules import MappedProducts, needs_mapped_products, without_fallback_warnings

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]
Perturbations = dict[int, Tensor]
"""What posteriors drew in a pass, by identity."""
Moved = dict[int, dict[str, Tensor]]
"""The buffers that draws have changed, by identity of the module that accepts them."""
_TENSOR = object()
"""Stands for a tensor among the leaves of the outputs."""


@dataclass(frozen=True, eq=False)
class Call:
    """A network, its arguments, and how noise is drawn for it."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    settings: Settings
    collecting: Collection[str] = ()
    ahead: PerturbationSource | None = None
    """Prefetches the weights of looped draws."""

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors among the arguments."""
        if len(self.args) == 1 and isinstance(self.args[0], Tensor) and not self.kwargs:
            return [self.args[0]]
        return tensors_in((self.args, self.kwargs))

    @property
    def size(self) -> int:
        """Number of elements of all tensors among the arguments."""
        return sum(tensor.numel() for tensor in self.tensors)

    def rows_and_device(self) -> tuple[int, torch.device]:
        """Number of rows and device of the first tensor among the arguments."""
        for tensor in self.tensors:
            return (tensor.shape[0] if tensor.dim() else 1), tensor.device
        return 1, torch.device("cpu")

    def input_versions(self) -> list[int]:
        """The version counters of the arguments, which count in-place changes."""
        return [tensor._version for tensor in self.tensors if not tensor.is_inference()]

    def with_tensors(self, change: Callable[[Tensor], Tensor]) -> "Call":
        """The same call, with ``change`` applied to each tensor among the arguments."""
        args, kwargs = map_tensors(change, (self.args, self.kwargs))
        return Call(self.model, args, kwargs, self.settings, self.collecting, self.ahead)


class Numbers(NamedTuple):
    """The numbers of consecutive draws. The compiler would specialise on a ``range`` for each number of draws."""

    first: int
    num_draws: int

    def part(self, done: int, size: int) -> "Numbers":
        """The next ``size`` numbers after the first ``done``, or as many as are left."""
        return Numbers(self.first + done, min(size, self.num_draws - done))

    def tensor(self) -> Tensor:
        """The numbers in a tensor on the CPU."""
        return torch.arange(self.first, self.first + self.num_draws, device="cpu")


@runtime_checkable
class OneMemberPerDraw(Protocol):
    """A module with several members, of which each draw runs one; members have their own parameters and buffers."""

    def member_names(self) -> list[str]:
        """The names of the members, which all have the same structure."""

    def accept_buffers(self, draws: Numbers, moved: Mapping[str, Tensor]) -> None:
        """Store the buffers that these draws have changed, in order: `(sample, ...)` each."""


@dataclass(frozen=True)
class Draws:
    """The outputs of a network for several draws."""

    outputs: Any
    """The network's outputs, with a leading sample axis."""
    terms: dict[str, Tensor]
    """The terms that stochastic layers collected, `(sample, ...)` each."""


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments that ``inputs`` stands for."""
    # A PackedSequence is a named tuple, and one argument.
    if isinstance(inputs, Tensor) or (isinstance(inputs, tuple) and hasattr(inputs, "_fields")):
        return (inputs,), {}
    if isinstance(inputs, tuple):
        return inputs, {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    raise TypeError(
        "inputs must be a tensor, a tuple of positional arguments or a dict of keyword arguments, "
        f"got {type(inputs).__name__}"
    )


def call_for(
    model: nn.Module,
    inputs: Inputs,
    settings: Settings,
    collecting: Collection[str] = (),
    ahead: PerturbationSource | None = None,
) -> Call:
    """The call of a network on inputs, with floating point inputs in the precision of the network's parameters.

    Integers stay as they are: they may be tokens. Inputs are never rounded to half precision, and a network that also
    has parameters of an input's type converts it by itself.
    """
    call = Call(model, *arguments(inputs), settings, collecting, ahead)
    floats = {tensor.dtype for tensor in call.tensors if tensor.dtype in FLOATS}
    first = next((parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), None)
    if floats <= {first} or first not in (torch.float32, torch.float64):
        return call
    others = floats - {parameter.dtype for parameter in model.parameters()}
    return call.with_tensors(lambda leaf: leaf.to(first) if leaf.dtype in others else leaf) if others else call


def one_draw(
    call: Call, draw: Tensor | None = None, drawn: Perturbations | None = None
) -> tuple[Any, dict[str, Tensor]]:
    """Run the network once, in its own pass: its output, and the terms that its layers collected."""
    outputs, terms, _ = forward(draw, call, drawn)
    return outputs, terms


def forward(
    draw: Tensor | None, call: Call, drawn: Perturbations | None, mapped: bool = False
) -> tuple[Any, dict[str, Tensor], Moved]:
    """Run the network in a pass of its own: its output, collected terms, and the buffers that mapped draws moved."""
    state, running = STATE.own, Pass(call.settings, draw, drawn, call.collecting, mapped=mapped, ahead=call.ahead)
    former = state.settings, state.current
    state.settings, state.current = call.settings, running
    try:
        outputs = call.model(*call.args, **call.kwargs)
    finally:
        state.settings, state.current = former  # also because a mapped tensor left in a global breaks the compiler
    terms = {name: sum(values[1:], values[0]) for name, values in running.terms.items()}
    return getattr(outputs, "logits", outputs), terms, running.moved


def mapped(
    call: Call, draws: Numbers, map_inputs: bool = False, drawn: Perturbations | None = None
) -> partial[tuple[Any, dict[str, Tensor], Moved]]:
    """All ``draws`` at once, as a function that runs them; ``joined_draws`` takes what it returns.

    The inputs are not mapped, so that the sample axis appears where noise enters. ``map_inputs`` maps copies of them,
    as networks need that add noise to their inputs in place (``x += noisy``).
    """
    if not map_inputs:
        one = partial(forward, call=call, drawn=drawn, mapped=True)
        return partial(torch.func.vmap(one, randomness="different"), draws.tensor())
    leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
    copies = {
        i: leaf.expand(draws.num_draws, *leaf.shape).clone()
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    }

    def with_inputs(draw: Tensor, copies: dict[int, Tensor]) -> tuple[Any, dict[str, Tensor], Moved]:
        args, kwargs = pytree.tree_unflatten([copies.get(i, leaf) for i, leaf in enumerate(leaves)], spec)
        return forward(draw, replace(call, args=args, kwargs=kwargs), drawn, mapped=True)

    return partial(torch.func.vmap(with_inputs, randomness="different"), draws.tensor(), copies)


@contextmanager
def mapping(call: Call) -> Iterator[None]:
    """The block in which mapped draws run in eager code."""
    with _products(call), without_fallback_warnings():
        yield


def _products(call: Call) -> AbstractContextManager[Any]:
    return MappedProducts() if needs_mapped_products(call.rows_and_device()[1]) else nullcontext()


def map_draws(call: Call, draws: Numbers, map_inputs: bool = False) -> Draws:
    """Run the network for all ``draws`` at once."""
    work = mapped(call, draws, map_inputs)
    with _products(call), nullcontext() if torch.compiler.is_compiling() else without_fallback_warnings():
        outcome = work()
    return joined_draws(call, draws, *outcome)


def joined_draws(call: Call, draws: Numbers, outputs: Any, terms: dict[str, Tensor], moved: Moved) -> Draws:
    """The outcome of mapped draws, once every module has accepted its buffers."""
    if moved:
        modules = {id(module): module for module in call.model.modules()}
        for key, buffers in moved.items():
            if key not in modules:
                raise RuntimeError("a part of the network moves buffers and is no submodule of it: register it as one")
            cast(OneMemberPerDraw, modules[key]).accept_buffers(draws, buffers)
    return Draws(outputs, terms)


def loop_draws(call: Call, draws: Numbers) -> Draws:
    """Run the network for one draw after another."""
    return stacked([one_draw(call, draw) for draw in draws.tensor().unbind()])


def stacked(outcomes: Sequence[tuple[Any, dict[str, Tensor]]]) -> Draws:
    """The draws whose outcomes these are."""
    return Draws(*pytree.tree_map(_stack, *outcomes))


def join(chunks: Sequence[Draws]) -> Draws:
    """Concatenate consecutive draws."""
    if len(chunks) == 1:
        return chunks[0]
    return Draws(*pytree.tree_map(_concatenate, *((chunk.outputs, chunk.terms) for chunk in chunks)))


def expanded(outcome: tuple[Any, dict[str, Tensor]], num_samples: int) -> Draws:
    """Equal draws, or a single one, without a copy."""
    outputs, terms = outcome
    if isinstance(outputs, Tensor) and not terms:
        return Draws(outputs.expand(num_samples, *outputs.shape), terms)
    return Draws(*map_tensors(lambda leaf: leaf.expand(num_samples, *leaf.shape), outcome))


def _stack(*leaves: Any) -> Any:
    if isinstance(leaves[0], Tensor):
        return torch.stack(leaves)
    if any(leaf is not leaves[0] and leaf != leaves[0] for leaf in leaves):
        raise TypeError(
            "the network's outputs must be tensors, in tuples, lists or dicts, or have .logits; got a "
            f"{type(leaves[0]).__name__} that differs from draw to draw"
        )
    return leaves[0]


def _concatenate(*leaves: Any) -> Any:
    return torch.cat(leaves) if isinstance(leaves[0], Tensor) else leaves[0]


class CannotBeRepeatedError(RuntimeError):
    """A run would lose gradients if it were repeated in the backward pass; the message says why."""


def recomputed(
    call: Call, run: Callable[[Call], Draws], moving: Collection[tuple[str, str]], draws_itself: bool = True
) -> Draws:
    """``run(call)`` without its graph: the backward pass runs it again.

    ``moving`` names the tensors on the network that a forward changes, by module and name; ``draws_itself`` says
    whether it may draw from torch's global generator.

    Raises:
        CannotBeRepeatedError: a tensor requires a gradient that a second run would not give it.
    """
    chunk = _Chunk(call, run, Snapshot(call.model, moving, draws_itself))
    parameters = with_gradient(call.model.parameters())
    if not parameters and not with_gradient(chunk.inputs):
        return run(call)
    return chunk.unflatten(_Recomputed.apply(chunk, *chunk.inputs, *parameters))


class _Chunk:
    """A run over some draws that can be repeated."""

    def __init__(self, call: Call, run: Callable[[Call], Draws], beginning: Snapshot) -> None:
        self._call, self._run, self._beginning = call, run, beginning
        self._leaves, self._spec = pytree.tree_flatten((call.args, call.kwargs))
        self._places = [
            i for i, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor) and not leaf.is_inference()
        ]
        self.inputs: list[Tensor] = [self._leaves[place] for place in self._places]
        """All tensors among the arguments: torch notices if they change before the backward pass."""
        self._autocasts = [
            torch.autocast(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
            for device in {"cpu", call.rows_and_device()[1].type}
        ]
        self._output_leaves: list[Any] = []
        self._output_spec: pytree.TreeSpec | None = None

    def first(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs of the first run, with a graph that is dropped; moving tensors move."""
        draws, call = self._forward(inputs)
        if obstacle := obstacle_to_repeating(call, (draws.outputs, draws.terms)):
            raise CannotBeRepeatedError(obstacle)
        leaves, self._output_spec = pytree.tree_flatten((draws.outputs, draws.terms))
        self._output_leaves = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return tensors_in(leaves)

    def again(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The same outputs, with their graph; the network stays as it is."""
        with ExitStack() as stack:
            stack.enter_context(self._beginning.again())
            for autocast in self._autocasts:
                stack.enter_context(autocast)
            draws, _ = self._forward(inputs)
        return tensors_in((draws.outputs, draws.terms))

    def unflatten(self, outputs: Sequence[Tensor]) -> Draws:
        """The tensors of a run in the structure that the network returned."""
        assert self._output_spec is not None
        tensors = iter(outputs)
        leaves = [next(tensors) if leaf is _TENSOR else leaf for leaf in self._output_leaves]
        return Draws(*pytree.tree_unflatten(leaves, self._output_spec))

    def _forward(self, inputs: Sequence[Tensor]) -> tuple[Draws, Call]:
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, inputs, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        call = replace(self._call, args=args, kwargs=kwargs)
        with torch.enable_grad():
            return self._run(call), call


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chunk: _Chunk, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = chunk.first([detached(tensor) for tensor in tensors[: len(chunk.inputs)]])
        results = tuple(output.detach() for output in outputs)
        ctx.chunk = chunk
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        fixed = (result for result, output in zip(results, outputs, strict=True) if not output.requires_grad)
        ctx.mark_non_differentiable(*fixed)
        return results

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        num_inputs = len(ctx.chunk.inputs)
        inputs = [detached(tensor) for tensor in tensors[:num_inputs]]
        outputs = ctx.chunk.again(inputs)
        pairs = [pair for pair in zip(outputs, gradients, strict=True) if pair[1] is not None and pair[0].requires_grad]
        sources = [*inputs, *tensors[num_inputs:]]
        needed = [i for i, is_needed in enumerate(ctx.needs_input_grad[1:]) if is_needed]
        results_of, begin_with = [output for output, _ in pairs], [gradient for _, gradient in pairs]
        results = torch.autograd.grad(results_of, [sources[i] for i in needed], begin_with, allow_unused=True)
        by_place = dict(zip(needed, results, strict=True))
        return (None, *(by_place.get(i) for i in range(len(sources))))


def detached(tensor: Tensor) -> Tensor:
    """The same values without their history; ``requires_grad`` stays."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def obstacle_to_repeating(call: Call, values: Any) -> str:
    """Why a run cannot be repeated in the backward pass; empty where it can."""
    if isinstance(call.model, nn.parallel.DistributedDataParallel):
        return "each forward of a DistributedDataParallel prepares a reduction"
    if any(getattr(module, "max_norm", None) is not None for module in call.model.modules()):
        return "an embedding with max_norm rescales its rows in every forward"
    inputs = with_gradient(call.tensors)
    sources = {id(tensor) for tensor in (*call.model.parameters(), *inputs)}
    seen = {tensor.grad_fn for tensor in inputs}
    pending: list[Any] = [leaf.grad_fn for leaf in with_gradient(pytree.tree_leaves(values))]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable") and id(node.variable) not in sources:
            return "it uses a tensor with a gradient that is neither a parameter nor an input"
        pending.extend(following for following, _ in node.next_functions)
    return ""


def with_gradient(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among some values that require a gradient."""
    return [value for value in values if isinstance(value, Tensor) and value.requires_grad]
