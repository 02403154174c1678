"""Wasserstein distances against known values, SciPy and Python Optimal Transport: T-47 to T-51 and T-54."""

import itertools
import math
from types import ModuleType

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dubio import functional

FLOAT64 = {"dtype": torch.float64}
FORMS = [(2, False), (2, True), (1, False), (1, True)]
ONE_DIRECTION = torch.ones(1, 1, **FLOAT64)


@pytest.fixture(scope="module")
def ot() -> ModuleType:
    """Python Optimal Transport, which takes a second to import."""
    import ot

    return ot


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, **FLOAT64).unsqueeze(-1)


def clouds(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, **FLOAT64)


def directions(count: int, dim: int) -> torch.Tensor:
    return functional.wasserstein.unit_directions(clouds(count, dim))


def test_directions_have_length_one():
    torch.testing.assert_close(directions(50, 7).norm(dim=-1), torch.ones(50, **FLOAT64))


def test_t47_in_one_dimension_the_values_are_those_of_the_specification():
    near, far, moved = column(3, 0, 1), column(6, 9, 5), column(5, 8, 6)

    for p in (1, 2):
        assert functional.wasserstein.sliced_wasserstein(
            near, moved, ONE_DIRECTION, p, root=True
        ).item() == pytest.approx(5.0)
    first, second = (
        functional.wasserstein.sliced_wasserstein(near, far, ONE_DIRECTION, p, root=True).item() for p in (1, 2)
    )
    assert (first, second) == (pytest.approx(5.3333333, abs=5e-8), pytest.approx(5.3541261, abs=5e-8))
    assert functional.wasserstein.sliced_wasserstein(near, far, ONE_DIRECTION, 2).item() == pytest.approx(
        5.3541261**2, abs=1e-6
    )


@pytest.mark.parametrize(("num_a", "num_b"), [(5, 5), (5, 7), (4, 6), (1, 3), (8, 2), (1, 1)])
def test_t47_the_distance_on_a_line_is_that_of_scipy(num_a, num_b):
    a, b = clouds(3, num_a), clouds(3, num_b)

    expected = [stats.wasserstein_distance(x, y) for x, y in zip(a.numpy(), b.numpy(), strict=True)]

    np.testing.assert_allclose(functional.wasserstein.wasserstein_1d(a, b, 1).numpy(), expected, rtol=1e-12)
    sliced = functional.wasserstein.sliced_wasserstein(a[0, :, None], b[0, :, None], -ONE_DIRECTION, 1)
    assert sliced.item() == pytest.approx(expected[0])


@pytest.mark.parametrize(("num_a", "num_b"), [(4, 6), (1, 3), (3, 7)])
def test_unequal_sizes_are_equal_ones_with_every_point_repeated(num_a, num_b):
    a, b = clouds(num_a), clouds(num_b)

    repeated = functional.wasserstein.wasserstein_1d(a.repeat_interleave(num_b), b.repeat_interleave(num_a), 2)

    torch.testing.assert_close(functional.wasserstein.wasserstein_1d(a, b, 2), repeated)


def test_t48_a_translation_costs_its_mean_squared_projection():
    move = torch.arange(1, 9, **FLOAT64) / 10
    cloud, slices = clouds(3, 8), directions(100_000, 8)

    def cost(slices: torch.Tensor, root: bool) -> float:
        return functional.wasserstein.sliced_wasserstein(cloud, cloud[[2, 0, 1]] + move, slices, root=root).item()

    projected = (slices @ move).square()
    assert cost(slices, root=False) == pytest.approx(projected.mean().item(), rel=1e-12)
    error = 4.0 * projected.std().item() / math.sqrt(len(slices))
    assert cost(slices, root=False) == pytest.approx(0.5049752**2, abs=error)
    # Over the axes of any rotated frame the mean is that over the sphere, exactly.
    frame = torch.linalg.qr(clouds(8, 8)).Q
    assert cost(frame, root=True) == pytest.approx(0.5049752, abs=5e-8)
    assert cost(frame, root=True) * math.sqrt(8) == pytest.approx(1.4282857, abs=5e-8)


@pytest.mark.parametrize(("num_a", "num_b"), [(6, 6), (6, 9), (5, 3)])
@pytest.mark.parametrize("p", [1, 2])
def test_t49_the_root_form_is_that_of_python_optimal_transport(ot, num_a, num_b, p):
    a, b, slices = clouds(num_a, 4), clouds(num_b, 4) + 0.5, directions(20, 4)

    expected = ot.sliced_wasserstein_distance(a.numpy(), b.numpy(), p=p, projections=slices.numpy().T)

    assert functional.wasserstein.sliced_wasserstein(a, b, slices, p, root=True).item() == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize(("p", "root"), FORMS)
def test_t50_the_distance_is_symmetric_blind_to_order_and_zero_on_identical_clouds(p, root):
    a, b, slices = clouds(5, 3), clouds(5, 3), directions(10, 3)

    distance = functional.wasserstein.sliced_wasserstein(a, b, slices, p, root)

    torch.testing.assert_close(functional.wasserstein.sliced_wasserstein(b, a, slices, p, root), distance)
    shuffled = a[[3, 1, 4, 0, 2]], b[[2, 0, 1, 4, 3]]
    torch.testing.assert_close(functional.wasserstein.sliced_wasserstein(*shuffled, slices, p, root), distance)
    assert functional.wasserstein.sliced_wasserstein(a, a[[3, 1, 4, 0, 2]], slices, p, root).item() <= 1e-6
    assert distance > 0.1


@pytest.mark.parametrize("p", [1, 2])
def test_t50_the_root_form_obeys_the_triangle_inequality(p):
    slices = directions(10, 3)
    for _ in range(20):
        a, b, c = clouds(4, 3), clouds(6, 3), clouds(4, 3)
        ab, bc, ac = (
            functional.wasserstein.sliced_wasserstein(x, y, slices, p, root=True)
            for x, y in itertools.pairwise([a, b, c, a])
        )
        assert ac <= ab + bc
        assert ab <= ac + bc


@pytest.mark.parametrize("p", [1, 2])
def test_t50_no_slice_costs_more_than_the_exact_distance(p):
    a, b = clouds(7, 3), clouds(7, 3)

    costs = torch.cdist(a, b).pow(p).numpy()
    exact = costs[optimize.linear_sum_assignment(costs)].mean()

    assert 0.05 * exact < functional.wasserstein.sliced_wasserstein(a, b, directions(200, 3), p).item() <= exact


@pytest.mark.parametrize(("p", "root"), FORMS)
def test_t50_scaling_both_clouds_scales_the_distance(p, root):
    a, b, slices = clouds(5, 3), clouds(4, 3), directions(10, 3)

    scaled = functional.wasserstein.sliced_wasserstein(-3.0 * a, -3.0 * b, slices, p, root)

    power = 1 if root else p
    torch.testing.assert_close(scaled, 3.0**power * functional.wasserstein.sliced_wasserstein(a, b, slices, p, root))


def test_t50_rotating_both_clouds_changes_nothing_but_monte_carlo_error():
    a, b, slices = clouds(5, 3), clouds(5, 3) + 1.0, directions(20_000, 3)
    rotation = torch.linalg.qr(clouds(3, 3)).Q

    before = functional.wasserstein.wasserstein_1d(slices @ a.T, slices @ b.T, 2)
    after = functional.wasserstein.wasserstein_1d(slices @ (a @ rotation).T, slices @ (b @ rotation).T, 2)

    change = after - before
    assert change.abs().max() > 0.1
    assert abs(change.mean()) < 4.0 * change.std() / math.sqrt(len(slices))


@pytest.mark.parametrize(("p", "root"), FORMS)
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_t51_all_pairs_equal_the_double_loop(p, root, batch):
    features, classes, slices = clouds(*batch, 6, 5), clouds(3, 6, 5), directions(8, 5)

    found = functional.wasserstein.sliced_wasserstein_matrix(features, classes, slices, p, root)

    rows = [
        torch.stack([functional.wasserstein.sliced_wasserstein(cloud, other, slices, p, root) for other in classes])
        for cloud in features.reshape(-1, 6, 5)
    ]
    torch.testing.assert_close(found, torch.stack(rows).reshape(*batch, 3))


@pytest.mark.parametrize(("p", "root"), FORMS)
def test_t51_gradients_are_finite_where_clouds_coincide(p, root):
    features = torch.randn(3, 6, 5, requires_grad=True)
    classes = features.detach().clone().requires_grad_()
    slices = functional.wasserstein.unit_directions(torch.randn(8, 5))

    together = functional.wasserstein.sliced_wasserstein(features[0], classes[0], slices, p, root)
    matrix = functional.wasserstein.sliced_wasserstein_matrix(features, classes, slices, p, root)

    for value in (together, matrix.diagonal().sum()):
        for gradient in torch.autograd.grad(value, (features, classes)):
            assert gradient.isfinite().all()
    assert matrix.diagonal().max() <= 1e-6


@pytest.mark.parametrize(("p", "root"), FORMS)
def test_gradients_of_all_pairs_are_those_of_the_differences(p, root):
    features, classes, slices = clouds(3, 4, 2), clouds(2, 4, 2), directions(5, 2)
    features.requires_grad_(), classes.requires_grad_()

    assert torch.autograd.gradcheck(
        lambda x, y: functional.wasserstein.sliced_wasserstein_matrix(x, y, slices, p, root), (features, classes)
    )


def test_the_root_of_a_small_distance_keeps_its_digits():
    classes = 10.0 * torch.randn(4, 16, 8)
    features, slices = (
        classes + 1e-3 * torch.randn(4, 16, 8),
        functional.wasserstein.unit_directions(torch.randn(20, 8)),
    )

    found = functional.wasserstein.sliced_wasserstein_matrix(features, classes, slices, root=True).diagonal()

    exact = functional.wasserstein.sliced_wasserstein_matrix(
        features.double(), classes.double(), slices.double(), root=True
    )
    torch.testing.assert_close(found.double(), exact.diagonal(), rtol=2e-3, atol=0.0)


class LargestArray(TorchDispatchMode):
    """Remembers the size of the largest array that any operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.size = max([self.size, *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))])
        return result


@pytest.mark.parametrize(("p", "root"), FORMS)
def test_no_array_over_all_pairs_and_their_points_is_made(p, root):
    features, classes = torch.randn(8, 4, 3, requires_grad=True), torch.randn(20, 4, 3, requires_grad=True)
    slices = functional.wasserstein.unit_directions(torch.randn(6, 3))

    with LargestArray() as largest:
        functional.wasserstein.sliced_wasserstein_matrix(features, classes, slices, p, root).sum().backward()

    assert largest.size <= 20 * 6 * 4


@pytest.mark.parametrize(("p", "root"), FORMS)
def test_sliced_distances_can_be_mapped(p, root):
    features, classes, slices = clouds(3, 2, 4, 5), clouds(3, 6, 4, 5), clouds(3, 7, 5)

    def value(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        matrix = functional.wasserstein.sliced_wasserstein_matrix(
            x, y, functional.wasserstein.unit_directions(z), p, root
        )
        return matrix.sum() + functional.wasserstein.sliced_wasserstein(x[0], y[0, :3], z, p, root)

    found = torch.func.vmap(torch.func.grad(value, argnums=(0, 1)))(features, classes, slices)

    pairs = [torch.func.grad(value, argnums=(0, 1))(*each) for each in zip(features, classes, slices, strict=True)]
    torch.testing.assert_close(found, tuple(torch.stack(each) for each in zip(*pairs, strict=True)))


@pytest.mark.usefixtures("compiler")
def test_distances_of_clouds_compile():
    features, classes, slices = clouds(2, 4, 5).requires_grad_(), clouds(3, 4, 5), directions(7, 5)

    def value(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        total = (
            functional.wasserstein.sinkhorn_matrix(x, y, 1.0, 2).sum()
            + functional.wasserstein.variance_margin(x, 5.0).sum()
        )
        for p, root in FORMS:
            total = total + functional.wasserstein.sliced_wasserstein_matrix(x, y, slices, p, root).sum()
            total = total + functional.wasserstein.sliced_wasserstein(x[0], y[0, :3], slices, p, root)
        return total

    compiled = torch.compile(value, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(features, classes), features)
    torch.testing.assert_close(found, torch.autograd.grad(value(features, classes), features))


def test_coinciding_points_cost_the_squared_distance_over_the_dimension():
    """The formula of T-53: with no noise a class's logit is minus this, in expectation over directions."""
    feature, centres = clouds(5, 1, 6), clouds(3, 1, 6)
    frame = torch.linalg.qr(clouds(6, 6)).Q  # the mean over its axes is that over the sphere

    found = functional.wasserstein.sliced_wasserstein_matrix(feature.expand(5, 4, 6), centres.expand(3, 4, 6), frame)

    torch.testing.assert_close(found, (feature - centres[:, 0]).square().sum(dim=-1) / 6)


def test_the_hinge_is_zero_above_the_margin_and_the_margin_for_a_collapsed_cloud():
    """The formula of T-52."""
    wide = clouds(4, 8, 3).mul(3.0).requires_grad_()

    losses = functional.wasserstein.variance_margin(wide, 1.0)

    assert losses.tolist() == [0.0] * 4
    assert (torch.autograd.grad(losses.sum(), wide)[0] == 0.0).all()
    assert functional.wasserstein.variance_margin(clouds(4, 1, 3).expand(4, 8, 3), 1.5).tolist() == pytest.approx(
        [1.5] * 4
    )


def test_below_the_margin_the_hinge_is_what_is_missing_of_the_unbiased_variance():
    narrow = clouds(4, 8, 3).mul(0.1).requires_grad_()

    losses = functional.wasserstein.variance_margin(narrow, 1.0)

    expected = 1.0 - narrow.detach().numpy().var(axis=1, ddof=1).mean(axis=-1)
    np.testing.assert_allclose(losses.detach().numpy(), expected, rtol=1e-12)
    (gradient,) = torch.autograd.grad(losses.sum(), narrow)  # outward: away from the mean of the cloud
    torch.testing.assert_close(gradient, -2.0 * (narrow - narrow.mean(dim=1, keepdim=True)).detach() / (7 * 3))


def test_t54_one_point_gives_logits_and_is_refused_for_a_variance():
    found = functional.wasserstein.sliced_wasserstein_matrix(clouds(4, 1, 3), clouds(2, 1, 3), directions(5, 3))

    assert found.shape == (4, 2)
    assert found.min() > 0.0
    with pytest.raises(ValueError, match="cloud must hold at least 2 points to have a variance, got 1; leave out"):
        functional.wasserstein.variance_margin(clouds(4, 1, 3), 1.0)


@pytest.mark.parametrize("num_iterations", [1, 4, 50])
def test_entropic_costs_are_those_of_python_optimal_transport(ot, num_iterations):
    features, classes = clouds(2, 2, 5, 3), clouds(3, 4, 3)

    found = functional.wasserstein.sinkhorn_matrix(features, classes, 0.7, num_iterations)

    assert found.shape == (2, 2, 3)
    for index in np.ndindex(2, 2, 3):
        costs = ot.dist(features[index[:2]].numpy(), classes[index[2]].numpy())
        weights = np.full(5, 1 / 5), np.full(4, 1 / 4)
        settings = {"method": "sinkhorn_log", "numItermax": num_iterations, "stopThr": 0.0, "warn": False}
        plan = ot.sinkhorn(*weights, costs, 0.7, **settings)
        assert found[index].item() == pytest.approx((plan * costs).sum(), rel=1e-9)


def test_entropic_costs_go_from_the_exact_distance_to_the_mean_over_all_pairs():
    features, classes = clouds(1, 6, 3), clouds(1, 6, 3)
    costs = torch.cdist(features[0], classes[0]).square().numpy()

    exact = costs[optimize.linear_sum_assignment(costs)].mean()

    assert functional.wasserstein.sinkhorn_matrix(features, classes, 1e-2, 1000).item() == pytest.approx(
        exact, rel=1e-3
    )
    assert functional.wasserstein.sinkhorn_matrix(features, classes, 1e6, 3).item() == pytest.approx(
        costs.mean(), rel=1e-4
    )


def test_entropic_costs_survive_a_small_regularisation_in_float32():
    features = torch.randn(2, 6, 3, requires_grad=True)

    found = functional.wasserstein.sinkhorn_matrix(features, 30.0 + torch.randn(3, 6, 3), 1e-2, 20)

    assert found.isfinite().all()
    assert torch.autograd.grad(found.sum(), features)[0].isfinite().all()


@pytest.mark.parametrize("p", [0, 3])
def test_an_order_other_than_one_and_two_is_refused(p):
    with pytest.raises(ValueError, match=f"p must be 1 or 2, got {p}"):
        functional.wasserstein.wasserstein_1d(clouds(3), clouds(3), p)
    with pytest.raises(ValueError, match=f"p must be 1 or 2, got {p}"):
        functional.wasserstein.sliced_wasserstein_matrix(clouds(2, 3, 4), clouds(2, 3, 4), directions(5, 4), p)


def test_entropic_costs_refuse_what_cannot_be_iterated():
    with pytest.raises(ValueError, match=r"regularisation must be positive, got 0\.0; sliced distances need none"):
        functional.wasserstein.sinkhorn_matrix(clouds(2, 3, 4), clouds(2, 3, 4), 0.0, 5)
    with pytest.raises(ValueError, match="num_iterations must be at least 1, got 0"):
        functional.wasserstein.sinkhorn_matrix(clouds(2, 3, 4), clouds(2, 3, 4), 1.0, 0)


def test_spread_is_between_classes_over_within_them():
    points = clouds(30, 3).double()
    labels = torch.tensor([4, 0, 4] * 10)

    found = functional.wasserstein.spread_ratio(points, labels)

    parts = [points[labels == number].numpy() for number in (0, 4)]
    centre = points.numpy().mean(axis=0)
    between = sum(len(part) * ((part.mean(axis=0) - centre) ** 2).sum() for part in parts)
    within = sum(((part - part.mean(axis=0)) ** 2).sum() for part in parts)
    assert found.item() == pytest.approx(between / within)
    assert functional.wasserstein.spread_ratio(7.0 * points + 1.0, labels).item() == pytest.approx(found.item())
