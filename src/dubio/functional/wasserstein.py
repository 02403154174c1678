"""Wasserstein distances between clouds of points, and distances of all pairs of rows.

In one dimension the distance is a matter of sorting (E-51). A sliced distance is the mean over directions of that of
the projections (E-50, E-52); directions are arguments, so that all pairs of one forward pass share them. An entropic
distance (Sinkhorn) serves for comparison. Every distance is between uniform weights on the points of two clouds.

Invariants: in one dimension the sliced distance is the exact one (T-47); a translation by m costs
``mean_l (v_l . m)^2`` (T-48); values are those of Python Optimal Transport (T-49); it is a metric in its root form
(T-50); all pairs equal the double loop, and gradients are finite where clouds coincide (T-51).

Distances of rows need no array of differences. The squared distance is expanded, ``|a|^2 + |b|^2 - 2 a.b``, so that all
pairs are one matrix product. Both sets are first measured from the mean of the second, since a common offset of all
rows would cost digits of the difference. The remaining error is the rounding of the rows' own size about that mean;
``pairwise_norms`` takes the differences themselves, where small distances must keep their digits. A squared distance is
never negative, and its gradient is right even where rounding would have made it so; results are in float32 at least,
also under autocast (``tests/functional/test_distances.py``).

References: Bonneel et al. 2015 (sliced distances); Cuturi 2013 (entropic distances).
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

Values = Float[Tensor, "*shape"]
Directions = Float[Tensor, "direction dim"]
Clouds = Float[Tensor, "*batch cloud dim"]
PerClass = Float[Tensor, "*batch class"]

UNDER_THE_ROOT = 1e-12
"""Added before a square root, whose gradient is infinite where two clouds coincide."""


def sliced_wasserstein_matrix(
    features: Clouds, classes: Float[Tensor, "class cloud dim"], directions: Directions, p: int = 2, root: bool = False
) -> PerClass:
    """``sliced_wasserstein`` of every cloud of features and every class (E-50 to E-52); each is sorted once.

    No array over all pairs, directions and points is made. The squared form (``p = 2`` without the root) is one matrix
    product; the others take differences pair by pair, since a root would magnify what the product rounds away.
    """
    _check_order(p)

    rows, others = _sorted_projections(features, directions), _sorted_projections(classes, directions)
    num_terms = rows.shape[-1]
    if p == 1:
        return pairwise_norms(rows, others, 1) / num_terms
    if not root:
        return squared_distances(rows, others) / num_terms
    return _root(pairwise_norms(rows, others, 2).square() / num_terms, p)


def point_distances(
    features: Float[Tensor, "*batch dim"], classes: Float[Tensor, "class dim"], p: int = 2, root: bool = False
) -> PerClass:
    """What ``sliced_wasserstein_matrix`` gives for clouds of one point, in expectation over directions (T-53).

    ``||f - g||^2 / E`` for ``p = 2``, its root with the root, and for ``p = 1`` the mean of ``|v.(f - g)|``.
    """
    _check_order(p)

    dim = features.shape[-1]
    if p == 1:
        mean_cosine = math.exp(math.lgamma(dim / 2) - math.lgamma((dim + 1) / 2)) / math.sqrt(math.pi)
        return pairwise_norms(features, classes, 2) * mean_cosine
    if not root:
        return squared_distances(features, classes) / dim
    return _root(pairwise_norms(features, classes, 2).square() / dim, p)


def sliced_wasserstein(
    a: Float[Tensor, "cloud_a dim"],
    b: Float[Tensor, "cloud_b dim"],
    directions: Directions,
    p: int = 2,
    root: bool = False,
) -> Float[Tensor, ""]:
    """``SW_p^p`` of two clouds over given directions (E-50, E-52), or ``SW_p`` with the root; sizes may differ."""
    distance = wasserstein_1d(directions @ a.mT, directions @ b.mT, p).mean()
    return _root(distance, p) if root else distance


def wasserstein_1d(
    a: Float[Tensor, "*batch cloud_a"], b: Float[Tensor, "*batch cloud_b"], p: int
) -> Float[Tensor, "*batch"]:
    """``W_p^p`` of points on a line: ``(1/N) sum_i |sort(a)_i - sort(b)_i|^p`` (E-51).

    With unequal sizes it is the integral of ``|F_a^-1 - F_b^-1|^p`` over the merged grid of quantiles.
    """
    _check_order(p)

    num_a, num_b = a.shape[-1], b.shape[-1]
    a, b = a.sort(dim=-1).values, b.sort(dim=-1).values
    if num_a == num_b:
        return _powered(a - b, p).mean(dim=-1)
    # In units of 1 / (num_a num_b) all levels are whole numbers, so that no rounding moves a point to its neighbour.
    levels = sorted({*range(0, num_a * num_b, num_b), *range(0, num_a * num_b, num_a)})
    ends = [*levels[1:], num_a * num_b]
    widths = a.new_tensor([(end - level) / (num_a * num_b) for level, end in zip(levels, ends, strict=True)])
    gap = a[..., [level // num_b for level in levels]] - b[..., [level // num_a for level in levels]]
    return (_powered(gap, p) * widths).sum(dim=-1)


def unit_directions(noise: Directions) -> Directions:
    """Directions uniform on the sphere from standard normal noise, ``g / ||g||`` (E-52)."""
    return torch.nn.functional.normalize(noise, dim=-1)


def sinkhorn_matrix(
    features: Float[Tensor, "*batch cloud_a dim"],
    classes: Float[Tensor, "class cloud_b dim"],
    regularisation: float,
    num_iterations: int,
) -> PerClass:
    """Cost ``<P, C>`` of the entropic plan for every pair, C the squared Euclidean distances of points.

    The plan is ``exp(f_i + g_j - C_ij / regularisation)`` after that many rounds in the log domain. They end on the
    features, each of whose points then has exactly its mass. Holds an array over all pairs of clouds and of points.
    """
    if regularisation <= 0.0:
        raise ValueError(f"regularisation must be positive, got {regularisation}; sliced distances need none")
    if num_iterations < 1:
        raise ValueError(f"num_iterations must be at least 1, got {num_iterations}")

    num_classes, num_b, _ = classes.shape
    flat = squared_distances(features, classes.flatten(0, 1))
    costs = flat.reshape(*flat.shape[:-1], num_classes, num_b).movedim(-2, -3)
    kernel = -costs / regularisation
    log_a, log_b = -math.log(features.shape[-2]), -math.log(num_b)
    potential_a = torch.zeros_like(kernel[..., :1])
    for _ in range(num_iterations):
        potential_b = log_b - torch.logsumexp(kernel + potential_a, dim=-2, keepdim=True)
        potential_a = log_a - torch.logsumexp(kernel + potential_b, dim=-1, keepdim=True)
    return ((kernel + potential_a + potential_b).exp() * costs).sum(dim=(-2, -1))


def variance_margin(cloud: Clouds, margin: float) -> Float[Tensor, "*batch"]:
    """``max(0, margin - Var)``, Var the unbiased variance of the points, averaged over coordinates (E-53)."""
    return (margin - cloud_variance(cloud)).relu()


def cloud_variance(cloud: Clouds) -> Float[Tensor, "*batch"]:
    """Unbiased variance of the points of a cloud, averaged over coordinates."""
    if cloud.shape[-2] < 2:
        raise ValueError("cloud must hold at least 2 points to have a variance, got 1; leave out the variance term")

    # In two passes, which is several times faster on a CPU than torch's variance along an inner axis.
    centred = cloud - cloud.mean(dim=-2, keepdim=True)
    return centred.square().mean(dim=(-2, -1)) * (cloud.shape[-2] / (cloud.shape[-2] - 1))


def spread_ratio(points: Float[Tensor, "point dim"], labels: Int[Tensor, " point"]) -> Float[Tensor, ""]:
    """Variance between classes over variance within them.

    ``sum_k n_k ||m_k - m||^2 / sum_i ||x_i - m_(y_i)||^2``, m_k the mean of the n_k points of class k, m that of all
    points.
    """
    _, classes, counts = labels.unique(return_inverse=True, return_counts=True)
    means = points.new_zeros(len(counts), points.shape[-1]).index_add_(0, classes, points) / counts[:, None]
    between = (counts * (means - points.mean(dim=0)).square().sum(dim=-1)).sum()
    ratio: Tensor = between / (points - means[classes]).square().sum()
    return ratio


def _sorted_projections(clouds: Clouds, directions: Directions) -> Float[Tensor, "*batch terms"]:
    """Every cloud's projections, sorted along each direction, as one row."""
    return (directions @ clouds.mT).sort(dim=-1).values.flatten(-2)


def _powered(gap: Values, p: int) -> Values:
    return gap.abs() if p == 1 else gap.square()


def _root(distance: Values, p: int) -> Values:
    return distance if p == 1 else (distance + UNDER_THE_ROOT).sqrt()


def _check_order(p: int) -> None:
    if p not in (1, 2):
        raise ValueError(f"p must be 1 or 2, got {p}")


def squared_distances(
    rows: Float[Tensor, "*batch feature"], others: Float[Tensor, "other feature"]
) -> Float[Tensor, "*batch other"]:
    """``|a - b|^2`` of every pair, by one matrix product."""
    with torch.autocast(rows.device.type, enabled=False):
        rows, others = at_least_float32(rows), at_least_float32(others)
        centre = others.mean(dim=0).detach()  # distances do not depend on it, so neither do gradients
        rows, others = rows - centre, others - centre
        squares = rows.square().sum(dim=-1, keepdim=True) + others.square().sum(dim=-1)
        return not_negative(squares - 2.0 * (rows @ others.mT))


def pairwise_norms(
    rows: Float[Tensor, "*batch feature"], others: Float[Tensor, "other feature"], p: int
) -> Float[Tensor, "*batch other"]:
    """``(sum_i |a_i - b_i|^p)^(1/p)`` of every pair, exact for close pairs; slower than ``squared_distances``."""
    flat, others = at_least_float32(rows).reshape(-1, rows.shape[-1]), at_least_float32(others)
    norms = torch.cdist(flat, others, p=float(p), compute_mode="donot_use_mm_for_euclid_dist")
    return norms.reshape(*rows.shape[:-1], others.shape[0])


def not_negative(value: Values) -> Values:
    """The value, zero where rounding took it below; the gradient passes unchanged, which a clamp would cut off."""
    return value - value.detach().clamp_max(0.0)


def at_least_float32(value: Values) -> Values:
    """The value, in float32 if its own format is narrower."""
    return value.to(torch.promote_types(value.dtype, torch.float32))
