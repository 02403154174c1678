"""Steps of a normalizing flow: maps that can be undone, each with the logarithm of its Jacobian determinant.

The channel is the last axis of ``z`` and a step acts on each row alone: a row is an example of a linear layer, or one
position of one example of a convolution. Every step returns ``(z', logdet)`` with one ``logdet`` per row.

Invariants and the tests that hold them: the determinant is that of the map (T-36); a planar step can be undone whatever
its parameters (T-38); a density carried through a flow integrates to 1 (T-40); the two forms of the invertible
convolution agree (T-41); a coupling leaves its first channels as they are, bit by bit (T-42).

References: Rezende and Mohamed 2015 (planar); Dinh et al. 2017 (affine coupling); Kingma and Dhariwal 2018 (actnorm,
invertible convolution).
"""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dubio.functional.variational import softplus

Rows = Float[Tensor, "*rows channel"]
Channels = Float[Tensor, " channel"]
PerRow = Float[Tensor, "*rows"]
Matrix = Float[Tensor, "channel channel"]
Changed = Float[Tensor, "*rows changed"]

LOG_E_MINUS_ONE = math.log(math.e - 1.0)
"""The argument at which softplus is 1."""

FEW = 64
"""Entries of a matrix up to which a GPU multiplies it as a sum."""

SMALLEST_NORM = 1e-18
"""Squared length below which the weight of a planar step counts as zero: its inverse square is finite in float32."""


def flow_log_prob(base_log_prob: PerRow, logdets: Sequence[PerRow]) -> PerRow:
    """Log density of what a flow made of a draw from its base, ``log q_0(z_0) - sum_i log |det J_i|`` (E-39)."""
    log_prob = base_log_prob
    for logdet in logdets:
        log_prob = log_prob - logdet
    return log_prob


def affine_step(z: Rows, shift: Channels, log_scale: Channels) -> tuple[Rows, PerRow]:
    """``z' = m + exp(s) z``, channel by channel (E-42)."""
    return torch.addcmul(shift, z, log_scale.exp()), log_scale.sum().expand(z.shape[:-1])


def affine_inverse(z: Rows, shift: Channels, log_scale: Channels) -> Rows:
    """What ``affine_step`` maps to ``z``."""
    return (z - shift) * torch.exp(-log_scale)


def planar_step(
    z: Rows, direction: Channels, weight: Channels, bias: Float[Tensor, ""], shifted: bool = False
) -> tuple[Rows, PerRow]:
    """``z' = z + u_hat tanh(w.z + b)`` (E-43), with ``u_hat`` from ``planar_direction``."""
    direction, slope = planar_direction(direction, weight, shifted)
    height = torch.tanh(_along(z, weight) + bias)
    square = height.squeeze(-1).square()
    # A mean of 1 and a positive slope: unlike 1 + (1 - h^2) (w.u_hat), it cannot round to zero or below.
    determinant = square + (1.0 - square) * slope
    return z + _times(height, direction), determinant.log()


def planar_inverse(
    z: Rows, direction: Channels, weight: Channels, bias: Float[Tensor, ""], shifted: bool = False
) -> Rows:
    """What ``planar_step`` maps to ``z``: along ``w`` the step is one rising function, undone by bisection."""
    direction, slope = planar_direction(direction, weight, shifted)
    height = torch.tanh(_planar_root(_along(z, weight) + bias, slope))
    return z - _times(height, direction)


def planar_direction(
    direction: Channels, weight: Channels, shifted: bool = False
) -> tuple[Channels, Float[Tensor, ""]]:
    """``u_hat``, for which a planar step can be undone, and its slope ``s = 1 + w.u_hat > 0`` (E-43).

    ``u_hat = u + (m(w.u) - w.u) w / ||w||^2`` with ``m(x) = softplus(x) - 1``. With ``shifted``,
    ``m(x) = softplus(x + log(e - 1)) - 1``, which is 0 at 0, so that a step with small parameters is near the identity.
    """
    product = (weight * direction).sum()
    norm = weight.square().sum()
    slope = softplus(product + LOG_E_MINUS_ONE if shifted else product).clamp_min(_smallest_slope(weight.dtype))
    # A weight of zero has no direction to correct along, and nothing to correct.
    some = norm >= max(SMALLEST_NORM, torch.finfo(weight.dtype).tiny)
    along = torch.where(some, (slope - 1.0 - product) / torch.where(some, norm, 1.0), 0.0)
    return direction + along * weight, torch.where(some, slope, 1.0 + product)


def coupling_step(z: Rows, raw_log_scale: Changed, shift: Changed, bound: float) -> tuple[Rows, PerRow]:
    """``z'_a = z_a``, ``z'_b = z_b exp(s) + t`` (E-44) with ``s = bound tanh(raw / bound)``; ``b`` are the last ones.

    ``raw`` and ``t`` may depend on ``z_a`` in any way.
    """
    kept, changed = _split(z, raw_log_scale.shape[-1])
    log_scale = _bounded(raw_log_scale, bound)
    return torch.cat((kept, torch.addcmul(shift, changed, log_scale.exp())), dim=-1), log_scale.sum(dim=-1)


def coupling_inverse(z: Rows, raw_log_scale: Changed, shift: Changed, bound: float) -> Rows:
    """What ``coupling_step`` maps to ``z``."""
    kept, changed = _split(z, raw_log_scale.shape[-1])
    return torch.cat((kept, (changed - shift) * torch.exp(-_bounded(raw_log_scale, bound))), dim=-1)


def mixing_step(z: Rows, weight: Matrix, logdet: Float[Tensor, ""]) -> tuple[Rows, PerRow]:
    """Invertible 1x1 convolution, ``z' = W z`` at every row, with the log-determinant of ``W`` (E-45)."""
    return _linear(z, weight), logdet.expand(z.shape[:-1])


def mixing_inverse(z: Rows, weight: Matrix) -> Rows:
    """What ``mixing_step`` maps to ``z``."""
    rows: Tensor = torch.linalg.solve(weight.mT, z.reshape(-1, z.shape[-1]), left=False)
    return rows.reshape(z.shape)


def log_abs_det(weight: Matrix) -> Float[Tensor, ""]:
    """``log |det W|`` of any matrix."""
    logdet: Tensor = torch.linalg.slogdet(weight).logabsdet
    return logdet


def lu_weight(
    permutation: Int[Tensor, " channel"], sign: Channels, factors: Matrix
) -> tuple[Matrix, Float[Tensor, ""]]:
    """``W = P L (U + diag(sign exp(log_abs)))`` and its log-determinant, the sum of ``log_abs`` (E-45).

    One square holds all factors: ``L`` below its diagonal (with ones on it), ``U`` above, and ``log_abs`` on it. ``P``
    is given by its rows: row ``i`` of ``W`` is row ``permutation[i]`` of the product of the triangles.
    """
    log_abs = factors.diagonal()
    lower = factors.tril(-1) + torch.eye(len(factors), dtype=factors.dtype, device=factors.device)
    upper = factors.triu(1) + torch.diag(sign * log_abs.exp())
    return (lower @ upper)[permutation], log_abs.sum()


def actnorm_step(z: Rows, bias: Channels, log_scale: Channels) -> tuple[Rows, PerRow]:
    """``z' = (z - bias) / exp(log_scale)``, channel by channel."""
    return (z - bias) * torch.exp(-log_scale), (-log_scale.sum()).expand(z.shape[:-1])


def actnorm_inverse(z: Rows, bias: Channels, log_scale: Channels) -> Rows:
    """What ``actnorm_step`` maps to ``z``."""
    return torch.addcmul(bias, z, log_scale.exp())


def _smallest_slope(dtype: torch.dtype) -> float:
    # Below it, w.u_hat as the step computes it may round to -1 and less, and two rows may meet.
    return 1e-6 if dtype == torch.float64 else 1e-3


def _planar_root(image: PerRow, slope: Float[Tensor, ""]) -> PerRow:
    """The ``x`` with ``x + (slope - 1) tanh(x) = image``, which rises with ``x`` and is odd."""
    target, reach = image.detach().abs(), slope.detach() - 1.0
    low = (target - reach.clamp_min(0.0)).clamp_min(0.0)
    high = target - reach.clamp_max(0.0)
    for _ in range(8 - math.frexp(torch.finfo(image.dtype).eps)[1]):
        middle = 0.5 * (low + high)
        below = middle + reach * torch.tanh(middle) < target
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    root = torch.copysign(0.5 * (low + high), image.detach())
    # Newton's last step takes the root to full precision and gives it its gradient.
    height = torch.tanh(root)
    square = height.square()
    rise = square + (1.0 - square) * slope.detach()
    return root - (root + (slope - 1.0) * height - image) / rise


def _split(z: Rows, num_changed: int) -> tuple[Tensor, Tensor]:
    kept, changed = z.split([z.shape[-1] - num_changed, num_changed], dim=-1)
    return kept, changed


def _bounded(raw: Float[Tensor, "*shape"], bound: float) -> Float[Tensor, "*shape"]:
    return bound * torch.tanh(raw / bound)


def _along(z: Rows, weight: Channels) -> Float[Tensor, "*rows 1"]:
    return _linear(z, weight.unsqueeze(0)) if z.device.type == "cpu" else (z * weight).sum(dim=-1, keepdim=True)


def _times(height: Float[Tensor, "*rows 1"], direction: Channels) -> Rows:
    return _linear(height, direction.unsqueeze(-1)) if height.device.type == "cpu" else height * direction


def _linear(z: Rows, weight: Float[Tensor, "image channel"]) -> Float[Tensor, "*rows image"]:
    if z.device.type != "cpu" and weight.numel() <= FEW:
        # A GPU's compiler fuses a sum with what is around it and cannot fuse a product of matrices.
        return (z.unsqueeze(-2) * weight).sum(dim=-1)
    # For few channels, the product with the rows as columns is several times faster than F.linear on a CPU.
    return (weight @ z.reshape(-1, z.shape[-1]).mT).mT.reshape(*z.shape[:-1], weight.shape[0])
