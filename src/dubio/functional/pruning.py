"""Which weights matter least: signal-to-noise ratios, magnitudes, and the lowest of them (2.8).

Invariants: exactly ``floor(r n)`` of ``n`` are removed, equal scores by index, and what a smaller share removes a
larger one removes too; scaling means and scales by one constant changes no ranking (T-11).

References: Graves 2011, Practical Variational Inference for Neural Networks; Blundell et al. 2015, section 5.1.
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["decibels", "lowest_scores", "num_removed", "signal_to_noise", "unit_scores", "units_kept"]


def signal_to_noise(mean: Float[Tensor, "*shape"], std: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """``|mu| / sigma`` (E-22), in float32 at least; zero for a weight that is always zero."""
    dtype = torch.promote_types(mean.dtype, torch.float32)
    return torch.where(mean == 0.0, 0.0, mean.to(dtype).abs() / std.to(dtype))


def decibels(ratio: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """``10 log10(ratio)`` (E-22)."""
    return 10.0 * torch.log10(ratio)


def num_removed(count: int, fraction: float) -> int:
    """``floor(r n)`` of the decimal number that was written: 0.29 of 100 is 29."""
    from fractions import Fraction  # its import is slow, and nothing else needs it

    return math.floor(Fraction(str(float(fraction))) * count)


def lowest_scores(scores: Float[Tensor, " weight"], count: int) -> Bool[Tensor, " weight"]:
    """Which ``count`` scores are lowest; of equal ones those with the lower index."""
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    chosen[scores.argsort(stable=True)[:count]] = True
    return chosen


def units_kept(scores: Sequence[Float[Tensor, " _"]], count: int) -> list[Int[Tensor, " _"]]:
    """Which units stay in each layer when the ``count`` lowest of all layers go, but the best of each layer stays."""
    joined = torch.cat([layer.index_fill(0, layer.argmax(), math.inf) for layer in scores])
    gone = lowest_scores(joined, min(count, len(joined) - len(scores)))
    return [(~part).nonzero().flatten() for part in gone.split([len(layer) for layer in scores])]


def unit_scores(scores: Float[Tensor, "unit *weights"]) -> Float[Tensor, " unit"]:
    """The mean score of the weights of each unit."""
    return scores.flatten(1).mean(dim=1)
