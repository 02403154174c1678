"""Bootstrapped cross-entropy: a label counts for ``beta``, the network's own opinion for the rest.

Both forms take log-probabilities, so that nothing overflows for extreme logits, and leave one loss per example.

Invariants: the numbers of the specification (T-69); with ``beta = 1`` both are the cross-entropy (T-70).

Reference: Reed et al. 2015, Training Deep Neural Networks on Noisy Labels with Bootstrapping.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

__all__ = ["bootstrap_counts", "hard_bootstrap", "soft_bootstrap"]


def bootstrap_counts(
    num_examples: int, num_members: int, generator: torch.Generator
) -> Float[Tensor, "example member"]:
    """How often each member of a bagged ensemble sees each example: as many draws with replacement as examples."""
    chosen = torch.randint(num_examples, (num_members, num_examples), generator=generator)
    return torch.stack([row.bincount(minlength=num_examples) for row in chosen], dim=1).float()


def soft_bootstrap(
    log_probs: Float[Tensor, "*batch class"], targets: Int[Tensor, "*batch"], beta: float = 0.95, detach: bool = False
) -> Float[Tensor, "*batch"]:
    """``-sum_k (beta t_k + (1 - beta) q_k) log q_k`` (E-68).

    The gradient flows through the weight ``q_k`` too, which makes the second term a penalty on entropy; with ``detach``
    that weight is a constant.
    """
    _check_share(beta)

    probs = log_probs.exp()
    finite = log_probs.clamp_min(torch.finfo(log_probs.dtype).min)  # a class ruled out has p log p = 0, not 0 * inf
    own = -((probs.detach() if detach else probs) * finite).sum(dim=-1)
    return beta * _cross_entropy(log_probs, targets) + (1.0 - beta) * own


def hard_bootstrap(
    log_probs: Float[Tensor, "*batch class"], targets: Int[Tensor, "*batch"], beta: float = 0.8
) -> Float[Tensor, "*batch"]:
    """``-sum_k (beta t_k + (1 - beta) [k = argmax q]) log q_k``, the most probable class a constant (E-69)."""
    _check_share(beta)

    own = -log_probs.max(dim=-1).values
    return beta * _cross_entropy(log_probs, targets) + (1.0 - beta) * own


def _cross_entropy(log_probs: Float[Tensor, "*batch class"], targets: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    return -log_probs.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)


def _check_share(beta: float) -> None:
    if not 0.0 <= beta <= 1.0:
        raise ValueError(f"beta must be in [0, 1], got {beta}; 1 is the cross-entropy")
