"""Penalties on weights: values by hand and gradients (T-21, and the formula behind T-34)."""

import pytest
import torch
from torch import nn

from dubio import functional


def toy_network() -> nn.Sequential:
    """Two inputs, three hidden units, one output; the squares of the weights sum to 91 and to 14."""
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 6.0]]))
        network[2].weight.copy_(torch.tensor([[1.0, 2.0, -3.0]]))
    return network


def test_t21_the_scaled_penalty_is_that_by_hand_with_the_outputs_of_each_layer():
    layers = [layer for layer in toy_network() if isinstance(layer, nn.Linear)]
    weights, num_units = [layer.weight for layer in layers], [layer.out_features for layer in layers]

    assert functional.variational.scaled_weight_penalty(weights, num_units).item() == pytest.approx(91.0 / 3.0 + 14.0)


def test_the_plain_penalty_has_gradient_twice_the_weight_and_none_for_biases():
    """The formula of T-34."""
    network = toy_network()
    first, second = network[0].weight, network[2].weight

    penalty = functional.variational.weight_penalty([first, second])
    (1e-2 * penalty).backward()

    assert penalty.item() == 105.0
    torch.testing.assert_close(first.grad, 2e-2 * first.detach())
    torch.testing.assert_close(second.grad, 2e-2 * second.detach())
    assert network[0].bias.grad is None


def test_penalties_can_be_mapped_over_draws():
    draws = torch.randn(4, 3, 2, dtype=torch.float64)

    found = torch.func.vmap(lambda weight: functional.variational.scaled_weight_penalty([weight, weight[0]], [3, 1]))(
        draws
    )

    torch.testing.assert_close(found, draws.square().sum(dim=(1, 2)) / 3 + draws[:, 0].square().sum(dim=1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_squares_of_rounded_weights_are_added_up_in_single_precision(dtype: torch.dtype):
    weights = [torch.full((1000, 3), 1.25, dtype=dtype), torch.full((3,), 300.0, dtype=dtype)]

    found = functional.variational.scaled_weight_penalty(weights, [1, 2])

    assert found.dtype == torch.float32
    assert found.item() == 3000 * 1.25**2 + 1.5 * 300.0**2


def test_penalties_refuse_what_they_cannot_pair():
    with pytest.raises(ValueError, match="weights must hold at least one tensor, got none; leave out the penalty"):
        functional.variational.weight_penalty([])
    with pytest.raises(ValueError, match="num_units must have one number for each of 1 weights, got 2"):
        functional.variational.scaled_weight_penalty([torch.ones(2)], [1, 2])
