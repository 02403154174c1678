"""Data without files: digits, diabetes, a curve and a plane."""

import functools

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_digits

from dubio import data
from dubio.data.examples import Examples, Splits
from dubio.data.registry import CLUSTER_CENTRES, CLUSTER_STD


def parts(splits: Splits) -> tuple[Examples, Examples, Examples]:
    assert splits.train is not None
    assert splits.validation is not None
    assert splits.test is not None
    return splits.train, splits.validation, splits.test


def test_the_split_of_the_digits_is_the_one_that_earlier_runs_had() -> None:
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    test, validation, train = order.split([449, 134, 1214])
    for mine, rows in zip(parts(data.digits()), (train, validation, test), strict=True):
        assert mine.shape == (1, 8, 8)
        assert torch.equal(mine.inputs.flatten(1), torch.tensor(images / 16.0, dtype=torch.float32)[rows])
        assert torch.equal(mine.targets, torch.tensor(labels)[rows])


def test_digits_are_in_the_unit_interval_and_hold_out_what_is_asked_for() -> None:
    splits = data.digits(validation=100)
    train, validation, test = parts(splits)
    assert [len(part) for part in (train, validation, test)] == [1248, 100, 449]
    assert train.inputs.dtype == torch.float32
    assert (train.inputs.min(), train.inputs.max()) == (0.0, 1.0)
    assert train.classes == tuple("0123456789")
    assert data.digits(validation=0).validation is None


def test_the_table_of_diabetes_is_in_its_own_units() -> None:
    table = data.diabetes_table()
    assert (table.shape, len(table)) == ((10,), 442)
    assert {*table.inputs[:, 1].tolist()} == {1.0, 2.0}  # sex
    assert (table.targets.min().item(), table.targets.max().item()) == (25.0, 346.0)
    seen, rest = table[:300], table[300:]
    result = data.standardised(rest, seen)
    torch.testing.assert_close(result.targets * seen.targets.std() + seen.targets.mean(), rest.targets)
    assert (result.name, result.targets.shape) == ("diabetes", (142, 1))


def test_diabetes_is_standardised_by_what_is_not_for_testing() -> None:
    train, validation, test = parts(data.diabetes())
    assert [len(part) for part in (train, validation, test)] == [299, 33, 110]
    assert train.shape == (10,)
    assert train.targets.shape == (299, 1)
    for name in ("inputs", "targets"):
        seen = torch.cat([getattr(train, name), getattr(validation, name)])
        torch.testing.assert_close(seen.mean(dim=0), torch.zeros(seen.shape[1]), atol=1e-5, rtol=0)
        torch.testing.assert_close(seen.std(dim=0), torch.ones(seen.shape[1]), atol=1e-5, rtol=0)
        assert getattr(test, name).mean(dim=0).abs().max() > 1e-3
    # Bad for the disease, as in the paper of the data: body mass and the logarithm of triglycerides.
    correlation = torch.corrcoef(torch.cat([train.inputs, train.targets], dim=1).T)[-1]
    assert correlation[2] > 0.5
    assert correlation[8] > 0.5


def test_the_curve_is_learned_on_a_part_of_the_line_on_which_it_is_tested() -> None:
    train, validation, test = parts(data.curve())
    assert len(train) + len(validation) == 1000
    assert train.inputs.shape == train.targets.shape == (900, 1)
    assert 0.0 <= train.inputs.min() < 0.01 < 0.49 < train.inputs.max() <= 0.5
    assert (test.inputs[0].item(), test.inputs[-1].item()) == pytest.approx((-0.2, 1.2))
    x = test.inputs.numpy()
    expected = x + 0.3 * np.sin(2 * np.pi * x) + 0.3 * np.sin(4 * np.pi * x)
    np.testing.assert_allclose(test.targets.numpy(), expected, atol=1e-6)


def test_the_noise_of_the_curve_has_the_standard_deviation_of_the_specification() -> None:
    train = data.curve(validation=0, num_points=20000).train
    assert train is not None
    x = train.inputs.double()
    clean = x + 0.3 * torch.sin(2 * torch.pi * x) + 0.3 * torch.sin(4 * torch.pi * x)
    # To first order the noise is scaled by the slope of the two sines and itself.
    slope = 1 + 0.3 * 2 * torch.pi * torch.cos(2 * torch.pi * x) + 0.3 * 4 * torch.pi * torch.cos(4 * torch.pi * x)
    steep = slope.abs() > 2.0
    noise = ((train.targets - clean) / slope)[steep]
    assert noise.std().item() == pytest.approx(0.02, rel=0.03)


@functools.cache
def bayes_accuracy() -> float:
    """The integral of the larger of the two joint densities, on a fine grid."""
    axis = np.linspace(-6.0, 6.0, 601)
    points = np.stack(np.meshgrid(axis, axis), axis=-1)
    purple, *red = (stats.norm(0.0, CLUSTER_STD).pdf(points - centre).prod(axis=-1) for centre in CLUSTER_CENTRES)
    joint = np.stack([purple / 2, sum(red) / 8])
    cell = (axis[1] - axis[0]) ** 2
    assert joint.sum() * cell == pytest.approx(1.0, abs=1e-6)
    return float(joint.max(axis=0).sum() * cell)


def test_the_best_possible_accuracy_on_clusters_is_95_percent() -> None:
    assert bayes_accuracy() == pytest.approx(0.95, abs=0.005)


def test_clusters_lie_where_they_should() -> None:
    splits = data.clusters(validation=0, num_points=40000)
    assert splits.train is not None
    assert splits.test is not None
    assert splits.train.classes == ("purple", "red")
    for part in (splits.train, splits.test):
        purple, red = part.inputs[part.targets == 0], part.inputs[part.targets == 1]
        assert len(red) == pytest.approx(20000, abs=4 * 100)
        assert purple.mean(dim=0).abs().max() < 0.02
        assert purple.std(dim=0).tolist() == pytest.approx([CLUSTER_STD] * 2, rel=0.02)
        # Centres at distance 2 with equal shares: the squared radius is 4 plus the variances.
        assert red.square().sum(dim=1).mean().item() == pytest.approx(4 + 2 * CLUSTER_STD**2, rel=0.02)
        assert red.mean(dim=0).abs().max() < 0.05
    nearest = torch.cdist(splits.test.inputs, torch.tensor(CLUSTER_CENTRES)).argmin(dim=1)
    accuracy = ((nearest > 0) == splits.test.targets.bool()).float().mean().item()
    assert accuracy == pytest.approx(0.95, abs=0.02)
    assert accuracy < bayes_accuracy() + 0.005


@pytest.mark.parametrize("make", [data.curve, data.clusters])
def test_toys_repeat_unless_a_generator_says_otherwise(make) -> None:
    first, again = make(), make()
    other = make(generator=torch.Generator().manual_seed(5))
    assert len(first.train) + len(first.validation) == 1000
    assert first.train.fingerprint == again.train.fingerprint
    assert first.train.fingerprint != other.train.fingerprint
