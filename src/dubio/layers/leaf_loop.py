"""A module that torch cannot map, run draw by draw inside a mapped network.

Under ``vmap`` nothing can be looped over, since the draws are one tensor. An ``autograd.Function`` with a vmap rule is
the way out: its rule sees the draws apart, outside the map, and what it computes there is differentiated as usual. The
network around the module stays mapped.

Works in eager mode; the compiler traces past the rule.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio._engine import STATE, Pass, current_pass, is_mapped
from dubio.layers.posterior import posteriors

__all__ = ["apart", "loop_over_draws"]

Rule = Callable[[int, Sequence[Tensor], Sequence[int | None]], tuple[Tensor, ...]]
"""Number of draws, tensors and the axis of each that counts draws (None: shared) to outputs with draws on axis 0."""


def apart(rule: Rule, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Apply a rule to mapped tensors outside the map; at least one of them must be mapped."""
    return _Apart.apply(rule, *tensors)  # type: ignore[no-any-return]


def loop_over_draws(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``forward(*args, **kwargs)`` of a module in a mapped pass, one draw after another where anything is mapped."""
    run = current_pass()
    assert run is not None
    own = posteriors(module)
    perturbations = [] if run.off else [posterior.perturbation(run) for posterior in own]
    leaves, arguments_spec = pytree.tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    if not is_mapped(perturbations, leaves):
        return forward(*args, **kwargs)
    draw = [] if run.draw is None else [run.draw]
    output_leaves: list[Any] = []
    output_spec: list[pytree.TreeSpec] = []

    def one(tensors: Sequence[Tensor]) -> list[Tensor]:
        drawn = (
            {id(posterior.mean): tensor for posterior, tensor in zip(own, tensors, strict=False)}
            if perturbations
            else {}
        )
        values = list(leaves)
        for place, tensor in zip(places, tensors[len(perturbations) + len(draw) :], strict=True):
            values[place] = tensor
        own_args, own_kwargs = pytree.tree_unflatten(values, arguments_spec)
        former = STATE.own.current
        STATE.own.current = Pass(run.settings, tensors[len(perturbations)] if draw else None, drawn)
        try:
            outputs = forward(*own_args, **own_kwargs)
        finally:
            STATE.own.current = former
        output_leaves[:], spec = pytree.tree_flatten(outputs)
        output_spec[:] = [spec]
        return [leaf for leaf in output_leaves if isinstance(leaf, Tensor)]

    def rule(num_samples: int, tensors: Sequence[Tensor], axes: Sequence[int | None]) -> tuple[Tensor, ...]:
        draws = [
            one(
                [tensor if axis is None else tensor.select(axis, i) for tensor, axis in zip(tensors, axes, strict=True)]
            )
            for i in range(num_samples)
        ]
        return tuple(torch.stack(column) for column in zip(*draws, strict=True))

    stacked = iter(apart(rule, [*perturbations, *draw, *(leaves[place] for place in places)]))
    values = [next(stacked) if isinstance(leaf, Tensor) else leaf for leaf in output_leaves]
    return pytree.tree_unflatten(values, output_spec[0])


class _Apart(torch.autograd.Function):
    @staticmethod
    def forward(rule: Rule, *tensors: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("nothing is mapped here")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: the rule's own operations are differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], rule: Rule, *tensors: Tensor) -> tuple[Any, Any]:
        outputs = rule(info.batch_size, tensors, in_dims[1:])
        return outputs, (0,) * len(outputs)
