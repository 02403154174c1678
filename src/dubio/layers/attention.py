"""Attention and transformer layers without their fused inference path, which has no derivative under ``vmap``.

Torch takes that path in eval mode when it may; each class here makes it decline where a pass runs, by torch's own
conditions, and leaves everything else to the plain forward.
"""

from typing import Any

from torch import Tensor, nn

from dubio.sampling import current_pass

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
        if run is not None and run.mapped and value is query:
            value = value.view_as(value)  # another object: only attention of a tensor to itself is fused
        return super().forward(
            query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
        )


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
