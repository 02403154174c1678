"""Attention and transformer layers that can be mapped over draws.

Torch's fused inference path has no derivative under ``vmap``. It is taken in eval mode when it may; each class here
makes it decline where a pass runs, by torch's own conditions. Attention whose weights nobody asks for is computed for
all draws together (``sampling.attending``); everything else is left to the plain forward.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dubio._engine import attention, current_pass

__all__ = ["MultiheadAttention", "TransformerEncoder", "TransformerEncoderLayer"]


class MultiheadAttention(nn.MultiheadAttention):
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
        """Attention outputs and, where asked for, weights."""
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
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        mask: Tensor | None,
        is_causal: bool,
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
        biases = [
            part if part.is_floating_point() else query.new_zeros(part.shape).masked_fill(part, -torch.inf)
            for part in parts
        ]
        return sum(biases[1:], biases[0])


def _for_all_keys(bias: Tensor | None, num_keys: int) -> Tensor | None:
    """The same for keys that were added: they are seen."""
    if bias is None or bias.shape[-1] == num_keys:
        return bias
    return F.pad(bias, (0, num_keys - bias.shape[-1]), value=float(bias.dtype == torch.bool))


def _check_factors(query: Tensor, key: Tensor, value: Tensor, row_axis: int) -> None:
    """Refuse what could be spread over rows, or be read beyond its end."""
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


class TransformerEncoderLayer(nn.TransformerEncoderLayer):
    """``nn.TransformerEncoderLayer`` that can be mapped over draws."""

    @property
    def activation_relu_or_gelu(self) -> Any:
        """Which activation the fused path would use: none while a pass runs."""
        return 0 if current_pass() is not None else self.__dict__["activation_relu_or_gelu"]

    @activation_relu_or_gelu.setter
    def activation_relu_or_gelu(self, value: int) -> None:
        self.__dict__["activation_relu_or_gelu"] = value


class TransformerEncoder(nn.TransformerEncoder):
    """``nn.TransformerEncoder`` that packs no padding away while a pass runs: its layers could not read the rest."""

    @property
    def use_nested_tensor(self) -> Any:
        """Whether padded inputs become nested tensors on the fused path."""
        return current_pass() is None and self.__dict__["use_nested_tensor"]

    @use_nested_tensor.setter
    def use_nested_tensor(self, value: bool) -> None:
        self.__dict__["use_nested_tensor"] = value
