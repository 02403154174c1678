"""The variational objective on minibatches: how much of the divergence each batch carries.

The optimised scalar is the free energy of the batch divided by its number of examples (E-5), so that the sum over an
epoch, each batch weighted by its size, is the free energy of the whole data (E-1). Held by T-8 and T-20.

Reference: Blundell et al. 2015, section 3.4.
"""

from typing import Literal, overload

from jaxtyping import Float
from torch import Tensor

__all__ = ["KlWeighting", "kl_share", "minibatch_cost", "warmup_share", "weighted_divergence"]

KlWeighting = Literal["uniform", "geometric", "none"]


@overload
def kl_share(scheme: KlWeighting, batch_index: int, num_batches: int, batch_share: float | None = None) -> float: ...


@overload
def kl_share(
    scheme: KlWeighting, batch_index: Tensor, num_batches: int, batch_share: float | None = None
) -> float | Tensor: ...


def kl_share(
    scheme: KlWeighting, batch_index: int | Tensor, num_batches: int, batch_share: float | None = None
) -> float | Tensor:
    """The part ``pi_i`` of the divergence that batch ``batch_index`` (from 0) of an epoch carries; the parts sum to 1.

    ``uniform`` gives each batch its share of the data, ``batch_share`` (default ``1 / num_batches``, E-3);
    ``geometric`` halves from batch to batch (E-4); ``none`` leaves the divergence out. ``batch_index`` may be a tensor,
    which is not looked at: a step that is captured once reads another number each time.
    """
    if not isinstance(batch_index, Tensor) and not 0 <= batch_index < num_batches:
        raise ValueError(f"batch_index must be in [0, num_batches = {num_batches}), got {batch_index}")
    if batch_share is not None and not 0.0 < batch_share <= 1.0:
        raise ValueError(f"batch_share must be in (0, 1], got {batch_share}")
    if scheme == "uniform":
        return 1.0 / num_batches if batch_share is None else batch_share
    if scheme == "geometric":
        # 2^(M-i) / (2^M - 1) with i from 1, divided by 2^M above and below: the plain form overflows past M = 1023.
        share: float | Tensor = 2.0 ** -(batch_index + 1) / (1.0 - 2.0**-num_batches)
        return share
    if scheme == "none":
        return 0.0
    raise ValueError(f"kl weighting must be 'uniform', 'geometric' or 'none', got {scheme!r}")


def minibatch_cost(
    nll_per_example: Float[Tensor, "sample batch"],
    divergence: Float[Tensor, ""],
    share: float | Tensor,
    beta: float = 1.0,
) -> Float[Tensor, ""]:
    """The batch's cost per example: the mean over draws of each draw's own cost, plus the divergence's part (E-5)."""
    batch_size = nll_per_example.shape[1]
    return nll_per_example.mean() + beta * share / batch_size * divergence


def warmup_share(epoch: float | Tensor, warmup: int) -> float | Tensor:
    """How much of the divergence counts after so many epochs: it grows evenly from nothing over ``warmup`` of them."""
    if warmup == 0:
        return 1.0
    return (epoch / warmup).clamp(max=1.0) if isinstance(epoch, Tensor) else min(1.0, epoch / warmup)


def weighted_divergence(
    divergence: Float[Tensor, ""], beta: float | Tensor, entropy: Float[Tensor, ""] | None = None, gamma: float = 0.0
) -> Float[Tensor, ""]:
    """``beta * KL - gamma * H``: the same as ``(beta + gamma) log q - beta log p`` in expectation (E-46, T-45)."""
    return beta * divergence if entropy is None else beta * divergence - gamma * entropy
