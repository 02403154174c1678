"""What an objective returns."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

__all__ = ["Loss"]


@dataclass(frozen=True)
class Loss:
    """The number to minimise and what it is made of."""

    total: Float[Tensor, ""]
    """Per example: call ``total.backward()``."""
    nll: Float[Tensor, ""]
    """Mean negative log-likelihood over draws and examples."""
    terms: dict[str, Float[Tensor, ""]]
    """What else is in the total, as it is before weighting."""
    log_probs: Float[Tensor, "sample batch ..."] | None
    """Log-probabilities of classes per draw, without gradient; None for real targets."""
