"""Sets of classes that hold the target with a wanted probability, from scores of held-out examples.

A score says how strange a class is beside a prediction. The sets hold the classes that are no stranger than the
``ceil((n + 1) coverage)``-th of ``n`` held-out targets. Where held-out and new examples are exchangeable, a new
target is in its set with probability ``coverage`` at least, and ``coverage + 1 / (n + 1)`` at most where no scores
are equal (Vovk et al. 2005; Lei et al. 2018).

- ``lac``: ``1 - p_k`` (Sadinle et al. 2019), the smallest sets on average; some may be empty.
- ``aps``: the probability of all classes that are held more probable (Romano et al. 2020, without their random part:
  the most probable class scores 0, so no set is empty); larger sets, more even over easy and hard examples.

Invariants: ``tests/functional/test_conformal.py`` compares with plain NumPy.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

__all__ = ["ConformalScore", "conformal_quantile", "conformal_rank", "conformal_scores", "prediction_sets"]

ConformalScore = Literal["lac", "aps"]


def conformal_scores(log_probs: Float[Tensor, "*batch class"], kind: ConformalScore) -> Float[Tensor, "*batch class"]:
    """How strange each class would be as the target, in double precision."""
    if kind == "lac":
        return -torch.expm1(log_probs.double())
    probs = log_probs.double().exp()
    ordered, order = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(dim=-1) - ordered
    first = torch.searchsorted(-ordered, -ordered, right=False)  # equal classes have the same ones before them
    return torch.empty_like(probs).scatter(-1, order, before.gather(-1, first))


def conformal_rank(count: int, coverage: float) -> int:
    """``ceil((n + 1) coverage)``: which score, from the smallest, bounds the sets; more than ``n`` where none does."""
    return -(-round((count + 1) * coverage * 10**9) // 10**9)  # rounded up, but for rounding errors


def conformal_quantile(scores: Float[Tensor, " example"], coverage: float) -> Float[Tensor, ""]:
    """The score that bounds the sets, from the scores of held-out targets."""
    if not 0.0 < coverage < 1.0:
        raise ValueError(f"coverage must be in (0, 1), got {coverage}")
    rank = conformal_rank(len(scores), coverage)
    if rank > len(scores):
        raise ValueError(f"coverage {coverage} needs more scores than {len(scores)}: the bound would be their {rank}th")
    return scores.sort().values[rank - 1]


def prediction_sets(
    log_probs: Float[Tensor, "*batch class"], kind: ConformalScore, quantile: float, allow_empty: bool = False
) -> Bool[Tensor, "*batch class"]:
    """Which classes are in each set; the most probable one always is, unless sets may be empty."""
    sets = conformal_scores(log_probs, kind) <= quantile
    if allow_empty:
        return sets
    return sets.scatter(-1, log_probs.argmax(dim=-1, keepdim=True), True)
