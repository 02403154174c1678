"""One draw of a network, and the two ways to make many: mapped at once, or looped.

These are the bare mechanisms; which one runs, and over how many draws at a time, is decided in ``planning``.

Draws that keep no graph: computed again, the very same, when the backward pass asks for them.

Activation checkpointing over a chunk of draws. Torch's own cannot hold a ``vmap``, so this is an ``autograd.Function``:
its forward runs the chunk and keeps the outputs alone; its backward runs it again from the same generators, modes and
moving tensors, differentiates, and lets go. Values and gradients are those of the draws at once, and running statistics
move once (``tests/engine/test_recomputing.py``). Gradients of gradients are not to be had.

On CUDA the second run happens in another thread: everything it needs is in the call, nothing in the thread.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from dubio._engine.passes import Pass, PerturbationSource
from dubio._engine.settings import STATE, Settings
from dubio._engine.snapshot import Snapshot
from dubio._engine.vmap_rules import MappedProducts, needs_mapped_products, without_fallback_warnings

Inputs = Tensor | tuple[Any, ...] | Mapping[str, Any]


Perturbations = dict[int, Tensor]
"""What posteriors drew in a pass, by identity."""


Moved = dict[int, dict[str, Tensor]]
"""What draws have made of buffers, by identity of who takes them back."""


FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@dataclass(frozen=True, eq=False)
class Call:
    """A network, its arguments, and how noise is drawn for it."""

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    settings: Settings
    collecting: Collection[str] = ()
    ahead: PerturbationSource | None = None
    """Who draws weights of looped draws ahead, where anyone does."""

    def rows_and_device(self) -> tuple[int, torch.device]:
        """Number of rows and device of the first tensor among the arguments."""
        for leaf in pytree.tree_leaves((self.args, self.kwargs)):
            if isinstance(leaf, Tensor):
                return (leaf.shape[0] if leaf.dim() else 1), leaf.device
        return 1, torch.device("cpu")

    @property
    def size(self) -> int:
        """Number of elements of all tensors among the arguments."""
        return sum(leaf.numel() for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Tensor))

    def input_versions(self) -> list[int]:
        """Counts of the in-place changes that the arguments have seen."""
        leaves = pytree.tree_leaves((self.args, self.kwargs))
        return [leaf._version for leaf in leaves if isinstance(leaf, Tensor) and not leaf.is_inference()]


class Numbers(NamedTuple):
    """The numbers of consecutive draws; of a ``range``, the compiler would make a constant for each number of draws."""

    first: int
    how_many: int

    def part(self, done: int, size: int) -> "Numbers":
        """So many of them, or all that are left, once some are done."""
        return Numbers(self.first + done, min(size, self.how_many - done))

    def tensor(self) -> Tensor:
        """In a tensor on the CPU."""
        return torch.arange(self.first, self.first + self.how_many, device="cpu")


@runtime_checkable
class OneMemberPerDraw(Protocol):
    """A module of whose parts each draw runs one, with parameters and buffers of its own."""

    def member_names(self) -> list[str]:
        """The names of these parts, which are all alike."""

    def accept_buffers(self, draws: Numbers, moved: Mapping[str, Tensor]) -> None:
        """Keep what these draws, in order, have made of the buffers: `(sample, ...)` each."""


@dataclass(frozen=True)
class Draws:
    """What a network gave for several draws."""

    outputs: Any
    """The network's outputs, with a leading sample axis."""
    terms: dict[str, Tensor]
    """What stochastic layers handed to the pass, `(sample, ...)` each."""


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments that ``inputs`` stands for."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    if isinstance(inputs, tuple) and not hasattr(inputs, "_fields"):  # a PackedSequence is one argument
        return inputs, {}
    if isinstance(inputs, tuple):
        return (inputs,), {}
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    raise TypeError(
        "inputs must be a tensor, a tuple of positional arguments or a dict of keyword arguments, "
        f"got {type(inputs).__name__}"
    )


def arguments_for(model: nn.Module, inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that ``inputs`` stand for, numbers with a fraction in the precision of the network's own.

    Whole numbers stay, which may be tokens. Half precision is never rounded to unasked, and a network that has
    numbers of a tensor's own type, too, decides by itself.
    """
    args, kwargs = arguments(inputs)
    wanted = next((own.dtype for own in model.parameters() if own.is_floating_point()), None)
    if wanted not in (torch.float32, torch.float64):
        return args, kwargs
    others = {
        leaf.dtype
        for leaf in pytree.tree_leaves((args, kwargs))
        if isinstance(leaf, Tensor) and leaf.dtype in FLOATS and leaf.dtype != wanted
    }
    if not others:
        return args, kwargs
    others -= {own.dtype for own in model.parameters()}
    converted: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(
        Tensor, lambda leaf: leaf.to(wanted) if leaf.dtype in others else leaf, (args, kwargs)
    )
    return converted


def one_draw(
    call: Call, draw: Tensor | None = None, drawn: Perturbations | None = None
) -> tuple[Any, dict[str, Tensor]]:
    """Run the network once, in a pass of its own: its output, and the terms that its layers handed over."""
    return _in_pass(call, Pass(call.settings, draw, drawn, call.collecting, ahead=call.ahead))


def _in_pass(call: Call, running: Pass) -> tuple[Any, dict[str, Tensor]]:
    own = STATE.own
    former = own.settings, own.current
    own.settings, own.current = call.settings, running
    try:
        outputs = call.model(*call.args, **call.kwargs)
    finally:
        own.settings, own.current = former  # also because a mapped tensor left in a global breaks the compiler
    terms = {name: sum(values[1:], values[0]) for name, values in running.terms.items()}
    return getattr(outputs, "logits", outputs), terms


def map_draws(call: Call, draws: Numbers, map_inputs: bool = False, drawn: Perturbations | None = None) -> Draws:
    """Run the network for all ``draws`` at once.

    The inputs are not mapped, so the sample axis appears where noise enters. ``map_inputs`` maps copies of them from
    the start: needed by networks that add noise in place to what has none (``x += noisy``).
    """
    if torch.compiler.is_compiling():
        return _map_draws(call, draws, map_inputs, drawn)
    with without_fallback_warnings():
        return _map_draws(call, draws, map_inputs, drawn)


def _map_draws(call: Call, draws: Numbers, map_inputs: bool, drawn: Perturbations | None) -> Draws:
    if not map_inputs:
        mapped = torch.func.vmap(lambda draw: _mapped_draw(call, draw, drawn), randomness="different")
        return _settled(call, draws, *mapped(draws.tensor()))
    leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
    copies = {
        i: leaf.expand(draws.how_many, *leaf.shape).clone()
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, Tensor) and leaf.is_floating_point()
    }

    def with_inputs(draw: Tensor, own: dict[int, Tensor]) -> tuple[Any, dict[str, Tensor], Moved]:
        args, kwargs = pytree.tree_unflatten([own.get(i, leaf) for i, leaf in enumerate(leaves)], spec)
        return _mapped_draw(replace(call, args=args, kwargs=kwargs), draw, drawn)

    return _settled(call, draws, *torch.func.vmap(with_inputs, randomness="different")(draws.tensor(), copies))


def _mapped_draw(call: Call, draw: Tensor, drawn: Perturbations | None) -> tuple[Any, dict[str, Tensor], Moved]:
    running = Pass(call.settings, draw, drawn, call.collecting, mapped=True)
    if not needs_mapped_products(call.rows_and_device()[1]):
        return (*_in_pass(call, running), running.moved)
    with MappedProducts():
        return (*_in_pass(call, running), running.moved)


def _settled(call: Call, draws: Numbers, outputs: Any, terms: dict[str, Tensor], moved: Moved) -> Draws:
    """What came of mapped draws, once every module has taken back what is its own."""
    if moved:
        known = {id(module): module for module in call.model.modules()}
        for who, buffers in moved.items():
            if who not in known:
                raise RuntimeError("a part of the network moves buffers and is no submodule of it: register it as one")
            cast(OneMemberPerDraw, known[who]).accept_buffers(draws, buffers)
    return Draws(outputs, terms)


def loop_draws(call: Call, draws: Numbers, drawn: Sequence[Perturbations] | None = None) -> Draws:
    """Run the network for one draw after another."""
    numbers = enumerate(draws.tensor().unbind())
    outcomes = [one_draw(call, draw, None if drawn is None else drawn[i]) for i, draw in numbers]
    return Draws(*pytree.tree_map(_stack, *outcomes))


def join(chunks: Sequence[Draws]) -> Draws:
    """Put consecutive draws together."""
    if len(chunks) == 1:
        return chunks[0]
    return Draws(*pytree.tree_map(_concatenate, *((chunk.outputs, chunk.terms) for chunk in chunks)))


def repeat(call: Call, num_samples: int) -> Draws:
    """Equal draws of a network without noise, computed once and not copied."""
    return Draws(
        *pytree.tree_map(
            lambda leaf: leaf.expand(num_samples, *leaf.shape) if isinstance(leaf, Tensor) else leaf, one_draw(call)
        )
    )


def _stack(*leaves: Any) -> Any:
    if isinstance(leaves[0], Tensor):
        return torch.stack(leaves)
    if any(leaf is not leaves[0] and leaf != leaves[0] for leaf in leaves):
        raise TypeError(
            "the network's outputs must be tensors, in tuples, lists or dicts, or have .logits; got a "
            f"{type(leaves[0]).__name__} that is another in every draw"
        )
    return leaves[0]


def _concatenate(*leaves: Any) -> Any:
    return torch.cat(leaves) if isinstance(leaves[0], Tensor) else leaves[0]


_TENSOR = object()
"""Stands where the network gave a tensor."""


class CannotBeRepeatedError(RuntimeError):
    """A run would lose gradients if it were repeated in the backward pass; says why."""


def recomputed(
    call: Call, run: Callable[[Call], Draws], moving: Collection[tuple[str, str]], draws_itself: bool = True
) -> Draws:
    """``run(call)``, without the graph: in the backward pass it runs again.

    ``moving`` names the tensors on the network that a forward changes, by module and name; ``draws_itself`` says
    whether it may draw from torch's global generator.

    Raises:
        CannotBeRepeatedError: something asks for a gradient that a second run would not give it.
    """
    chunk = _Chunk(call, run, moving, draws_itself)
    parameters = asking(call.model.parameters())
    if not parameters and not asking(chunk.inputs):
        return run(call)
    outputs = _Recomputed.apply(chunk, *chunk.inputs, *parameters)
    return chunk.put_together(outputs)


class _Chunk:
    """A run over some draws that can be done again."""

    def __init__(
        self, call: Call, run: Callable[[Call], Draws], moving: Collection[tuple[str, str]], draws_itself: bool
    ) -> None:
        self._call, self._run = call, run
        self._leaves, self._spec = pytree.tree_flatten((call.args, call.kwargs))
        self._places = [
            i for i, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor) and not leaf.is_inference()
        ]
        self.inputs: list[Tensor] = [self._leaves[place] for place in self._places]
        """Tensors among the arguments, all of them: torch notices if they change before the backward pass."""
        self.beginning = Snapshot(call.model, moving, draws_itself)
        self._autocasts = [
            torch.autocast(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))
            for device in {"cpu", call.rows_and_device()[1].type}
        ]
        self._output_leaves: list[Any] = []
        self._output_spec: pytree.TreeSpec | None = None

    def first(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The outputs, with a graph that nobody keeps; what the network moves has moved."""
        draws, call = self._forward(inputs)
        obstacle = obstacle_to_repeating(call, (draws.outputs, draws.terms))
        if obstacle:
            raise CannotBeRepeatedError(obstacle)
        leaves, self._output_spec = pytree.tree_flatten((draws.outputs, draws.terms))
        self._output_leaves = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        return [leaf for leaf in leaves if isinstance(leaf, Tensor)]

    def again(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The same outputs, with their graph; the network stays as it is."""
        with ExitStack() as stack:
            stack.enter_context(self.beginning.again())
            for autocast in self._autocasts:
                stack.enter_context(autocast)
            draws, _ = self._forward(inputs)
        return [leaf for leaf in pytree.tree_leaves((draws.outputs, draws.terms)) if isinstance(leaf, Tensor)]

    def put_together(self, outputs: Sequence[Tensor]) -> Draws:
        """The tensors of a run in the form in which the network gave them."""
        assert self._output_spec is not None
        given = iter(outputs)
        leaves = [next(given) if leaf is _TENSOR else leaf for leaf in self._output_leaves]
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
        outputs = chunk.first([_detached(tensor) for tensor in tensors[: len(chunk.inputs)]])
        given = tuple(output.detach() for output in outputs)
        ctx.chunk = chunk
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(own for own, output in zip(given, outputs, strict=True) if not output.requires_grad)
        )
        return given

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        num_inputs = len(ctx.chunk.inputs)
        inputs = [_detached(tensor) for tensor in tensors[:num_inputs]]
        outputs = ctx.chunk.again(inputs)
        pairs = [pair for pair in zip(outputs, gradients, strict=True) if pair[1] is not None and pair[0].requires_grad]
        wanted = [*inputs, *tensors[num_inputs:]]
        needed = [i for i, is_needed in enumerate(ctx.needs_input_grad[1:]) if is_needed]
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            [wanted[i] for i in needed],
            [gradient for _, gradient in pairs],
            allow_unused=True,
        )
        by_place = dict(zip(needed, found, strict=True))
        return (None, *(by_place.get(i) for i in range(len(wanted))))


def _detached(tensor: Tensor) -> Tensor:
    """The same values without their history, asking for a gradient where they did."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def obstacle_to_repeating(call: Call, values: Any) -> str:
    """Why a run cannot be repeated in the backward pass, or nothing."""
    if isinstance(call.model, nn.parallel.DistributedDataParallel):
        return "each forward of a DistributedDataParallel prepares a reduction"
    if any(getattr(module, "max_norm", None) is not None for module in call.model.modules()):
        return "an embedding with max_norm rescales its rows in every forward"
    inputs = asking(pytree.tree_leaves((call.args, call.kwargs)))
    known = {id(tensor) for tensor in (*call.model.parameters(), *inputs)}
    seen = {tensor.grad_fn for tensor in inputs}
    waiting: list[Any] = [leaf.grad_fn for leaf in asking(pytree.tree_leaves(values))]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable") and id(node.variable) not in known:
            return "it uses a tensor with a gradient that is neither a parameter nor an input"
        waiting.extend(following for following, _ in node.next_functions)
    return ""


def asking(values: Any) -> list[Tensor]:
    """The tensors among some values that ask for a gradient."""
    return [value for value in values if isinstance(value, Tensor) and value.requires_grad]
