"""One draw of a network, and the two ways to make many: mapped at once, or looped.

These are the bare mechanisms; which one runs, and over how many draws at a time, is decided in ``planning``.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio.sampling.passes import Pass, Supply
from dubio.sampling.products import MappedProducts, needs_mapped_products
from dubio.sampling.settings import STATE, Settings
from dubio.sampling.silence import without_fallback_warnings

__all__ = [
    "Call",
    "Draws",
    "Perturbations",
    "Inputs",
    "Numbers",
    "TakingTurns",
    "arguments",
    "arguments_for",
    "join",
    "loop_draws",
    "map_draws",
    "one_draw",
    "repeat",
]

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
    ahead: Supply | None = None
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
class TakingTurns(Protocol):
    """A module of whose parts each draw runs one, with parameters and buffers of its own."""

    def turns(self) -> list[str]:
        """The names of these parts, which are all alike."""

    def take_back(self, draws: Numbers, moved: Mapping[str, Tensor]) -> None:
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
            cast(TakingTurns, known[who]).take_back(draws, buffers)
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
            lambda leaf: leaf.expand(num_samples, *leaf.shape) if isinstance(leaf, Tensor) else leaf,
            one_draw(call),
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
