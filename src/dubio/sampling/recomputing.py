"""Draws that keep no graph: computed again, the very same, when the backward pass asks for them.

Activation checkpointing over a chunk of draws. Torch's own cannot hold a ``vmap``, so this is an ``autograd.Function``:
its forward runs the chunk and keeps the outputs alone; its backward runs it again from the same generators, modes and
moving tensors, differentiates, and lets go. Values and gradients are those of the draws at once, and running statistics
move once (``tests/sampling/test_recomputing.py``). Gradients of gradients are not to be had.

On CUDA the second run happens in another thread: everything it needs is in the call, nothing in the thread.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from dubio.sampling.drawing import Call, Draws
from dubio.sampling.restoring import Beginning

__all__ = ["CannotBeRepeatedError", "asking", "obstacle_to_repeating", "recomputed"]

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
        self.beginning = Beginning(call.model, moving, draws_itself)
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
