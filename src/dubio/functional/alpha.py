"""Alpha-divergences: how the losses of several draws become one number per example.

``alpha = 0`` is the mean of the losses (variational inference), ``alpha = 1`` the loss of the mean likelihood
(expectation propagation), ``alpha = 0.5`` lies between (Hellinger). Likelihoods are averaged over draws, never summed:
a sum would make the value depend on the number of draws and diverge as alpha goes to zero.

Invariants: with one draw it is that draw's loss for every alpha (T-28); it does not rise with alpha and lies between
the least and the mean loss (T-31).

Reference: Li and Gal 2017, Dropout Inference in Bayesian Neural Networks with Alpha-divergences.
"""

import torch
from jaxtyping import Float
from torch import Tensor

__all__ = ["alpha_energy"]

SMALLEST_ALPHA = 1e-6
"""Below it, the expansion in alpha is exact to the last digit and the logarithm is not."""


def alpha_energy(losses: Float[Tensor, "sample *batch"], alpha: float) -> Float[Tensor, "*batch"]:
    """``-(1/alpha) log mean_k exp(-alpha l_k)`` (E-30); for alpha near 0, its expansion (E-31, E-32)."""
    if abs(alpha) < SMALLEST_ALPHA:
        return losses.mean(dim=0) - 0.5 * alpha * losses.var(dim=0, correction=0)
    # Measured from the draw that counts most, nothing overflows and nothing is lost to rounding where alpha is small.
    anchor = (losses.amin(dim=0) if alpha > 0.0 else losses.amax(dim=0)).detach()
    return anchor - torch.expm1(-alpha * (losses - anchor)).mean(dim=0).log1p() / alpha
