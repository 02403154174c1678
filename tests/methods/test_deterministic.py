"""``Deterministic``: the ordinary network and its penalty; T-21."""

import pytest
import torch
from torch import nn

import dubio
from networks import mlp


def toy_network() -> nn.Sequential:
    """Two inputs, three hidden units, one output; the squares of the weights sum to 91 and to 14."""
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[1.0, -2.0], [3.0, 4.0], [-5.0, 6.0]]))
        network[2].weight.copy_(torch.tensor([[1.0, 2.0, -3.0]]))
    return network


def test_t21_the_penalty_divides_the_squares_of_a_layer_by_its_units() -> None:
    model = dubio.Deterministic(l2=0.1).convert(toy_network(), dubio.Gaussian())
    objective = dubio.spec(model).method.objective(50)
    loss = objective(model, torch.randn(4, 2), torch.randn(4, 1))
    assert objective == dubio.ELBO(50, l2=0.1, l2_per="unit")
    assert loss.terms["l2"].item() == pytest.approx(0.1 * (91.0 / 3.0 + 14.0))
    torch.testing.assert_close(loss.total, loss.nll + loss.terms["l2"])
    plain = dubio.ELBO(50, l2=0.1)(model, torch.randn(4, 2), torch.randn(4, 1))
    assert plain.terms["l2"].item() == pytest.approx(0.1 * (91.0 + 14.0))


def test_t21_units_of_convolutions_are_their_output_channels() -> None:
    net = nn.Sequential(nn.Conv2d(2, 3, 1, bias=False), nn.ConvTranspose2d(3, 5, 1, bias=False), nn.Flatten())
    for layer, value in zip(net, (2.0, 3.0), strict=False):
        nn.init.constant_(layer.weight, value)
    model = dubio.Deterministic(l2=1.0).convert(net)
    loss = dubio.spec(model).method.objective(50)(model, torch.randn(2, 2, 1, 1), torch.tensor([0, 1]))
    assert loss.terms["l2"].item() == pytest.approx(6 * 4.0 / 3 + 15 * 9.0 / 5)


def test_without_a_penalty_the_loss_is_the_negative_log_likelihood_alone() -> None:
    net, inputs, targets = mlp(5, 4, 3), torch.randn(6, 5), torch.arange(6) % 3
    model = dubio.Deterministic().convert(net)
    loss = dubio.spec(model).method.objective(50)(model, inputs, targets, 3)
    torch.testing.assert_close(loss.total, nn.functional.cross_entropy(net(inputs), targets))
    assert set(loss.terms) == {"divergence"}
    assert loss.terms["divergence"] == dubio.divergence(model) == 0.0


def test_several_draws_are_one_network() -> None:
    net, inputs = mlp(5, 4, 3), torch.randn(6, 5)
    prediction = dubio.predict(dubio.Deterministic().convert(net), inputs, 4)
    assert prediction.mutual_information.abs().max() < 1e-6
    torch.testing.assert_close(prediction.probs, net(inputs).softmax(dim=-1))


@pytest.mark.parametrize("l2", [-1.0, float("nan"), float("inf")])
def test_fields_are_refused_by_name_rule_and_value(l2: float) -> None:
    with pytest.raises(ValueError, match=f"l2 must be finite and at least 0, got {l2}"):
        dubio.Deterministic(l2=l2)
