"""Layers that torch cannot map over draws, or maps wrongly, and what conversion replaces them by.

Each is a subclass of its plain layer with the same parameters, buffers and names, and does the same outside a mapped
pass.

- Attention and transformer layers: torch's fused inference path has no derivative under ``vmap``. Each class makes
  torch decline it while a pass runs, by torch's own conditions. Attention whose weights are not requested is computed
  for all draws together (``attention`` of the engine); everything else is the plain forward.
- Batch norm in training takes its statistics over draws and batch together, and the running statistics move once a
  pass; each member of an ensemble takes and moves its own. Torch's own functions compute it, so that the compiler fuses
  them with their neighbours. In eval mode it is one scale and one shift per channel, in float32 at least, as in torch's
  CPU kernel: torch's own rule refuses inputs of another type than the statistics, and on a GPU channels-last ones.
- Embeddings: torch's rule gives the padding row a gradient for every draw but the first; here the gradient is cut where
  the index is the padding. A sparse gradient can only reach a parameter, and a drawn weight is computed from two: its
  gradient is dense.
- ``nn.PReLU`` maps under autocast: ``vmap`` decomposes the function before autocast sees it.
- Recurrent layers, which torch cannot map at all: draws are folded into rows where weights are shared, and looped over
  where they are drawn. Drawn recurrent layers read their weights in every forward and keep no flat copy of them.

``loop_inside_vmap`` runs any other module draw by draw inside a mapped network. Under ``vmap`` the draws are one
tensor; the vmap rule of an ``autograd.Function`` sees them separately, outside the map, and what it computes there is
differentiated as usual. This works in eager mode; the compiler traces past the rule.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dubio._engine import STATE, Pass, attention, current_pass, is_mapped
from dubio.nn.rewrite import Rewritten, drawn_names, posterior_of
from dubio.nn.sources import posteriors

Rule = Callable[[int, Sequence[Tensor], Sequence[int | None]], tuple[Tensor, ...]]
"""Number of draws, tensors and the axis of each that counts draws (None: shared) to outputs with draws on axis 0."""


class MultiheadAttention(Rewritten, nn.MultiheadAttention):
    """``nn.MultiheadAttention`` that can be mapped over draws."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention outputs and, with ``need_weights``, weights."""
        run = current_pass()
        mapped = run is not None and run.mapped
        if mapped and not need_weights:
            return self._attend_mapped(query, key, value, key_padding_mask, attn_mask, is_causal), None
        if mapped and value is query:
            value = value.view_as(value)  # another object: only attention of a tensor to itself is fused
        return super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )

    def _attend_mapped(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """What the plain forward computes, with attention that can be mapped."""
        _check_factors(query, key, value, row_axis=0 if self.batch_first else 1)
        if is_causal and mask is None:
            raise ValueError(
                "attn_mask must be given where is_causal is True, got None; "
                "nn.Transformer.generate_square_subsequent_mask makes one"
            )
        is_batched = query.dim() == 3
        query, key, value = self._projected(query, key, value)
        if not is_batched:
            query, key, value = (factor.unsqueeze(0) for factor in (query, key, value))
            padding = None if padding is None else padding.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (factor.transpose(0, 1) for factor in (query, key, value))
        bias = self._bias(mask, padding, query, key)
        if self.bias_k is not None and self.bias_v is not None:
            biases = (each.expand(len(query), -1, -1) for each in (self.bias_k, self.bias_v))
            key, value = (torch.cat(pair, dim=1) for pair in zip((key, value), biases, strict=True))
        query, key, value = (self._heads(factor) for factor in (query, key, value))
        if self.add_zero_attn:
            key, value = (F.pad(factor, (0, 0, 0, 1)) for factor in (key, value))
        is_causal = is_causal and padding is None  # the mask says the same, and padding must be added to it
        bias = None if is_causal else _for_all_keys(bias, key.shape[-2])
        output = attention(query, key, value, bias, self.dropout if self.training else 0.0, is_causal)
        output = F.linear(output.transpose(1, 2).flatten(2), self.out_proj.weight, self.out_proj.bias)
        if not is_batched:
            return output.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1)

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        if query is key and key is value and self.in_proj_weight is not None:
            return F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        packed = self.in_proj_weight
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if packed is None else packed.chunk(3)
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return tuple(F.linear(*parts) for parts in zip((query, key, value), weights, biases, strict=True))

    def _heads(self, factor: Tensor) -> Tensor:
        """`(row, position, feature)` to `(row, head, position, feature)`."""
        return factor.reshape(*factor.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def _bias(self, mask: Tensor | None, padding: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
        """Both masks in one: what is added to scores or, where both are boolean, which keys are seen."""
        (rows, num_queries), num_keys, heads = query.shape[:2], key.shape[1], self.num_heads
        parts = []
        if mask is not None:
            _check_mask("attn_mask", mask, (num_queries, num_keys), (rows * heads, num_queries, num_keys))
            parts.append(mask if mask.dim() == 2 else mask.reshape(rows, heads, num_queries, num_keys))
        if padding is not None:
            _check_mask("key_padding_mask", padding, (rows, num_keys))
            parts.append(padding[:, None, None, :])
        if not parts:
            return None
        if all(part.dtype == torch.bool for part in parts):
            return (parts[0] if len(parts) == 1 else parts[0] | parts[1]).logical_not()
        zeros = query.new_zeros
        biases = [p if p.is_floating_point() else zeros(p.shape).masked_fill(p, -torch.inf) for p in parts]
        return sum(biases[1:], biases[0])


def _other_in_passes(name: str, inside: object) -> property:
    """An attribute that has another value while a pass runs."""

    def read(self: nn.Module) -> Any:
        return self.__dict__[name] if current_pass() is None else inside

    return property(read, lambda self, value: self.__dict__.update({name: value}))


class TransformerEncoderLayer(Rewritten, nn.TransformerEncoderLayer):
    """``nn.TransformerEncoderLayer`` that can be mapped over draws."""

    activation_relu_or_gelu: Any = _other_in_passes("activation_relu_or_gelu", 0)
    """Which activation the fused path would use: none while a pass runs."""


class TransformerEncoder(Rewritten, nn.TransformerEncoder):
    """``nn.TransformerEncoder`` without nested tensors while a pass runs: its layers could not read them."""

    use_nested_tensor: Any = _other_in_passes("use_nested_tensor", False)
    """Whether padded inputs become nested tensors on the fused path."""


class _BatchNorm(Rewritten, nn.modules.batchnorm._BatchNorm):
    def forward(self, input: Tensor) -> Tensor:
        """Batch norm; in training under many draws, over draws and batch together."""
        run = current_pass()
        if run is None or not run.mapped:
            return super().forward(input)
        self._check_input_dim(input)
        if input.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} channels, got {input.shape[1]}")
        channels = (-1, *(1 for _ in input.shape[2:]))
        output: Tensor
        if self.training:
            output, mean, variance = (
                standardise(input, self.eps, not run.alone) if is_mapped(input) else _standardised(input, self.eps)
            )
            self._move_running_statistics(mean, variance)
            scale, shift = self.weight, self.bias
            output = output if scale is None else output * scale.view(channels)
            output = output if shift is None else output + shift.view(channels)
        elif self.running_mean is None or self.running_var is None:
            return super().forward(input)
        else:
            output = self._normalised(self.running_mean, self.running_var, input, channels)
        return output.to(input.dtype)

    def _normalised(self, mean: Tensor, variance: Tensor, input: Tensor, channels: tuple[int, ...]) -> Tensor:
        """Batch norm with these statistics."""
        exact = torch.promote_types(mean.dtype, torch.float32)
        scale = (variance.to(exact) + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight.to(exact)
        shift = -mean.to(exact) * scale
        shift = shift if self.bias is None else shift + self.bias.to(exact)
        return torch.addcmul(shift.view(channels), input, scale.view(channels))

    @torch.no_grad()
    def _move_running_statistics(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        dtype = self.running_mean.dtype
        step = 1.0 / self.num_batches_tracked.to(dtype) if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            running.add_((new.to(dtype) - running) * step)  # lerp_ cannot be mapped


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """``nn.BatchNorm1d`` that can be mapped over draws in training."""


class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """``nn.BatchNorm2d`` that can be mapped over draws in training."""


class BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    """``nn.BatchNorm3d`` that can be mapped over draws in training."""


class Embedding(Rewritten, nn.Embedding):
    """``nn.Embedding`` whose padding row gets no gradient from any draw."""

    def forward(self, input: Tensor) -> Tensor:
        """Look the indices up."""
        run = current_pass()
        if run is None or not run.mapped:
            return self._look_up(input)
        if self.max_norm is not None or self.scale_grad_by_freq or _gives_sparse_gradients(self):
            return loop_inside_vmap(self, self._look_up, input)  # type: ignore[no-any-return]
        vectors = F.embedding(input, self.weight)
        if self.padding_idx is None:
            return vectors
        return torch.where((input == self.padding_idx).unsqueeze(-1), vectors.detach(), vectors)

    def _look_up(self, input: Tensor) -> Tensor:
        options = self.padding_idx, self.max_norm, self.norm_type, self.scale_grad_by_freq
        return F.embedding(input, self.weight, *options, _gives_sparse_gradients(self))


class EmbeddingBag(Rewritten, nn.EmbeddingBag):
    """``nn.EmbeddingBag`` whose drawn weights have dense gradients."""

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Look the indices up and put those of each bag together."""
        options = self.max_norm, self.norm_type, self.scale_grad_by_freq, self.mode, _gives_sparse_gradients(self)
        last = per_sample_weights, self.include_last_offset, self.padding_idx
        return F.embedding_bag(input, self.weight, offsets, *options, *last)


class PReLU(Rewritten, nn.PReLU):
    """``nn.PReLU`` whose slope has the type of the input, as autocast would have it."""

    def forward(self, input: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """The activation."""
        return F.prelu(input, self.weight.to(input.dtype))


class _Recurrent(Rewritten, nn.RNNBase):
    @property
    def _flat_weights(self) -> list[Any]:
        if not drawn_names(self):
            return list(self.__dict__["_flat_weights"])
        return [getattr(self, name, None) for name in self._flat_weights_names]

    @_flat_weights.setter
    def _flat_weights(self, value: list[Any]) -> None:
        if not drawn_names(self):
            self.__dict__["_flat_weights"] = value

    def _weights_have_changed(self) -> bool:
        return not drawn_names(self) and super()._weights_have_changed()

    def flatten_parameters(self) -> None:
        """Make plain weights contiguous for cuDNN; torch joins drawn ones in every forward."""
        if not drawn_names(self):
            super().flatten_parameters()

    def forward(self, input: Any, hx: Any = None) -> Any:
        """The layer's outputs and last states."""
        run = current_pass()
        if run is None or not run.mapped:
            return super().forward(input, hx)
        if not drawn_names(self) and isinstance(input, Tensor) and input.dim() == 3 and is_mapped(input, hx):
            return self._fold(input, hx)
        return loop_inside_vmap(self, super().forward, input, hx)

    def _fold(self, input: Tensor, hx: Any) -> Any:
        """Shared weights: draws are more rows. Rows are on axis 0 or 1 of the inputs, and on axis 1 of the states."""
        states, states_spec = pytree.tree_flatten(hx)
        states = [state for state in states if isinstance(state, Tensor)]
        input_rows = 0 if self.batch_first else 1
        output_spec: list[pytree.TreeSpec] = []

        def rule(num_samples: int, tensors: Sequence[Tensor], axes: Sequence[int | None]) -> tuple[Tensor, ...]:
            rows = [input_rows, *(1 for _ in states)]
            folded = [
                _join(tensor, axis, num_samples, row) for tensor, axis, row in zip(tensors, axes, rows, strict=True)
            ]
            state = pytree.tree_unflatten(folded[1:], states_spec) if states else None
            outputs, spec = pytree.tree_flatten(super(_Recurrent, self).forward(folded[0], state))
            output_spec[:] = [spec]
            return tuple(_part(output, num_samples, 1 if place else input_rows) for place, output in enumerate(outputs))

        outputs = call_outside_vmap(rule, [input, *states])
        return pytree.tree_unflatten(list(outputs), output_spec[0])


class LSTM(_Recurrent, nn.LSTM):
    """``nn.LSTM`` that can be mapped over draws."""


class GRU(_Recurrent, nn.GRU):
    """``nn.GRU`` that can be mapped over draws."""


class RNN(_Recurrent, nn.RNN):
    """``nn.RNN`` that can be mapped over draws."""


class _RecurrentCell(Rewritten, nn.RNNCellBase):
    def forward(self, input: Tensor, hx: Any = None) -> Any:
        """One step of the cell."""
        run = current_pass()
        if run is None or not run.mapped:
            return super().forward(input, hx)
        return loop_inside_vmap(self, super().forward, input, hx)


class LSTMCell(_RecurrentCell, nn.LSTMCell):
    """``nn.LSTMCell`` that can be mapped over draws."""


class GRUCell(_RecurrentCell, nn.GRUCell):
    """``nn.GRUCell`` that can be mapped over draws."""


class RNNCell(_RecurrentCell, nn.RNNCell):
    """``nn.RNNCell`` that can be mapped over draws."""


def _for_all_keys(bias: Tensor | None, num_keys: int) -> Tensor | None:
    """The mask with entries for added keys, which are attended to."""
    if bias is None or bias.shape[-1] == num_keys:
        return bias
    return F.pad(bias, (0, num_keys - bias.shape[-1]), value=float(bias.dtype == torch.bool))


def _check_factors(query: Tensor, key: Tensor, value: Tensor, row_axis: int) -> None:
    """Refuse shapes that would be broadcast over rows, or read beyond their end."""
    alike = query.dim() in (2, 3) and query.dim() == key.dim() == value.dim() and key.shape[:-1] == value.shape[:-1]
    if not alike or (query.dim() == 3 and query.shape[row_axis] != key.shape[row_axis]):
        shapes = ", ".join(str(tuple(factor.shape)) for factor in (query, key, value))
        raise ValueError(
            "query, key and value must have two axes, or three with as many rows each, and as many keys as values; "
            f"got shapes {shapes}"
        )


def _check_mask(name: str, mask: Tensor, *allowed: tuple[int, ...]) -> None:
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"{name} must be boolean or of real numbers, got {mask.dtype}")
    if tuple(mask.shape) not in allowed:
        raise ValueError(f"{name} must have shape {' or '.join(map(str, allowed))}, got {tuple(mask.shape)}")


@torch.library.custom_op("dubio::standardise", mutates_args=())
def standardise(input: Tensor, eps: float, pooled: bool) -> tuple[Tensor, Tensor, Tensor]:
    """``_standardised`` of a mapped input, over all draws together where they are ``pooled``, else over each alone.

    A custom operator, since only that keeps its vmap rule: ``torch.compile`` traces an ``autograd.Function`` into its
    forward, past the rule. The rule replaces it by torch's own functions, which autograd and the compiler see.
    """
    return _standardised(input, eps)


def _standardised(input: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Zero mean and unit variance per channel over all other axes, the mean, and the unbiased variance."""
    count = input.numel() // input.shape[1]
    if count < 2:
        raise ValueError(
            f"batch norm in training needs more than one value per channel, got shape {tuple(input.shape)}"
        )
    # Statistics in float32 at least: without weights, torch would keep them in the type of the input.
    exact = torch.promote_types(input.dtype, torch.float32)
    one, zero = (fill(input.shape[1], dtype=exact) for fill in (input.new_ones, input.new_zeros))
    output, mean, inverse_std = torch.native_batch_norm(input, one, zero, None, None, True, 0.0, eps)
    variance = (inverse_std.square().reciprocal() - eps).clamp_min(0.0)
    return output, mean, variance * (count / (count - 1))


@standardise.register_fake
def _(input: Tensor, eps: float, pooled: bool) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(input.dtype, torch.float32)
    mean, variance = (input.new_empty(input.shape[1], dtype=dtype) for _ in range(2))
    return torch.empty_like(input), mean, variance


@standardise.register_vmap
def _(
    info: Any, in_dims: tuple[Any, ...], input: Tensor, eps: float, pooled: bool
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    if pooled:
        input = input.movedim(in_dims[0], 0)
        output, *statistics = _standardised(input.flatten(0, 1), eps)
        return (output.unflatten(0, input.shape[:2]), *statistics), (0, None, None)
    input = input.movedim(in_dims[0], 1)  # separate channels: torch's rule would keep statistics in bf16
    output, *statistics = _standardised(input.flatten(1, 2), eps)
    mean, variance = (each.unflatten(0, input.shape[1:3]) for each in statistics)
    return (output.unflatten(1, input.shape[1:3]), mean, variance), (1, 0, 0)


def _gives_sparse_gradients(table: nn.Embedding | nn.EmbeddingBag) -> bool:
    return table.sparse and posterior_of(table, "weight") is None


def _join(tensor: Tensor, axis: int | None, num_samples: int, rows: int) -> Tensor:
    tensor = tensor.expand(num_samples, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
    return tensor.movedim(0, rows).flatten(rows, rows + 1)


def _part(tensor: Tensor, num_samples: int, rows: int) -> Tensor:
    parts: Tensor = tensor.unflatten(rows, (num_samples, -1))
    return parts.movedim(rows, 0)


def call_outside_vmap(rule: Rule, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Apply a rule to mapped tensors outside the map; at least one of them must be mapped."""
    return _OutsideVmap.apply(rule, *tensors)  # type: ignore[no-any-return]


def loop_inside_vmap(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``forward(*args, **kwargs)`` of a module in a mapped pass, one draw after another where anything is mapped."""
    run = current_pass()
    assert run is not None
    weights = posteriors(module)
    perturbations = [] if run.off else [posterior.perturbation(run) for posterior in weights]
    leaves, arguments_spec = pytree.tree_flatten((args, kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    if not is_mapped(perturbations, leaves):
        return forward(*args, **kwargs)
    draw = [] if run.draw is None else [run.draw]
    output_leaves: list[Any] = []
    output_spec: list[pytree.TreeSpec] = []

    def run_draw(tensors: Sequence[Tensor]) -> list[Tensor]:
        pairs = zip(weights, tensors, strict=False) if perturbations else ()
        drawn = {id(posterior.mean): tensor for posterior, tensor in pairs}
        values = list(leaves)
        for place, tensor in zip(places, tensors[len(perturbations) + len(draw) :], strict=True):
            values[place] = tensor
        draw_args, draw_kwargs = pytree.tree_unflatten(values, arguments_spec)
        former = STATE.own.current
        STATE.own.current = Pass(run.settings, tensors[len(perturbations)] if draw else None, drawn)
        try:
            outputs = forward(*draw_args, **draw_kwargs)
        finally:
            STATE.own.current = former
        output_leaves[:], spec = pytree.tree_flatten(outputs)
        output_spec[:] = [spec]
        return [leaf for leaf in output_leaves if isinstance(leaf, Tensor)]

    def rule(num_samples: int, tensors: Sequence[Tensor], axes: Sequence[int | None]) -> tuple[Tensor, ...]:
        pairs = list(zip(tensors, axes, strict=True))
        draws = (
            [tensor if axis is None else tensor.select(axis, i) for tensor, axis in pairs] for i in range(num_samples)
        )
        return tuple(torch.stack(column) for column in zip(*map(run_draw, draws), strict=True))

    stacked = iter(call_outside_vmap(rule, [*perturbations, *draw, *(leaves[place] for place in places)]))
    values = [next(stacked) if isinstance(leaf, Tensor) else leaf for leaf in output_leaves]
    return pytree.tree_unflatten(values, output_spec[0])


class _OutsideVmap(torch.autograd.Function):
    @staticmethod
    def forward(rule: Rule, *tensors: Tensor) -> tuple[Tensor, ...]:
        raise RuntimeError("nothing is mapped here")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Saves nothing: the rule's own operations are differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], rule: Rule, *tensors: Tensor) -> tuple[Any, Any]:
        outputs = rule(info.batch_size, tensors, in_dims[1:])
        return outputs, (0,) * len(outputs)


MAPPABLE: dict[type[nn.Module], type[Rewritten]] = {
    getattr(nn, layer.__name__): layer
    for layer in (
        *(BatchNorm1d, BatchNorm2d, BatchNorm3d, Embedding, EmbeddingBag, PReLU),
        *(GRU, GRUCell, LSTM, LSTMCell, RNN, RNNCell),
        *(MultiheadAttention, TransformerEncoder, TransformerEncoderLayer),
    )
}
"""The mappable layer for each plain one, which has the same name."""
for plain, layer in MAPPABLE.items():
    layer.dubio_plain_class = plain
