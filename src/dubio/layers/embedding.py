"""Embedding with a padding row, which torch maps with a wrong gradient.

On mapped indices, torch's rule gives the padding row a gradient for every draw but the first. Here the gradient is cut
where the index is the padding.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dubio.layers.leaf_loop import loop_over_draws
from dubio.sampling import current_pass

__all__ = ["Embedding"]


class Embedding(nn.Embedding):
    """``nn.Embedding`` whose padding row gets no gradient from any draw."""

    def forward(self, input: Tensor) -> Tensor:
        """Look the indices up."""
        run = current_pass()
        if run is None or not run.mapped:
            return super().forward(input)
        if self.max_norm is not None or self.scale_grad_by_freq or self.sparse:
            return loop_over_draws(self, super().forward, input)  # type: ignore[no-any-return]
        if self.padding_idx is None:
            return super().forward(input)
        vectors = F.embedding(input, self.weight)
        return torch.where((input == self.padding_idx).unsqueeze(-1), vectors.detach(), vectors)
