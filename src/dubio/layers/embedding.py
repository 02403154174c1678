"""Embeddings: a padding row, which torch maps with a wrong gradient, and sparse gradients of drawn weights.

On mapped indices, torch's rule gives the padding row a gradient for every draw but the first. Here the gradient is cut
where the index is the padding. A sparse gradient can reach a parameter only, and a drawn weight is computed from two:
its gradient is dense.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dubio._engine import current_pass
from dubio.layers.drawn import posterior_of
from dubio.layers.leaf_loop import loop_over_draws

__all__ = ["Embedding", "EmbeddingBag"]


class Embedding(nn.Embedding):
    """``nn.Embedding`` whose padding row gets no gradient from any draw."""

    def forward(self, input: Tensor) -> Tensor:
        """Look the indices up."""
        run = current_pass()
        if run is None or not run.mapped:
            return self._look_up(input)
        if (
            self.max_norm is not None
            or self.scale_grad_by_freq
            or (self.sparse and posterior_of(self, "weight") is None)
        ):
            return loop_over_draws(self, self._look_up, input)  # type: ignore[no-any-return]
        if self.padding_idx is None:
            return F.embedding(input, self.weight)
        vectors = F.embedding(input, self.weight)
        return torch.where((input == self.padding_idx).unsqueeze(-1), vectors.detach(), vectors)

    def _look_up(self, input: Tensor) -> Tensor:
        return F.embedding(
            input,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            _gives_sparse_gradients(self),
        )


class EmbeddingBag(nn.EmbeddingBag):
    """``nn.EmbeddingBag`` whose drawn weights have dense gradients."""

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """Look the indices up and put those of each bag together."""
        return F.embedding_bag(
            input,
            self.weight,
            offsets,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.mode,
            _gives_sparse_gradients(self),
            per_sample_weights,
            self.include_last_offset,
            self.padding_idx,
        )


def _gives_sparse_gradients(table: nn.Embedding | nn.EmbeddingBag) -> bool:
    return table.sparse and posterior_of(table, "weight") is None
