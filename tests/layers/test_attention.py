"""Attention and transformer layers under a map over draws: torch's fused inference path is left out of it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.layers import MAPPABLE, posteriors

# On a CPU torch maps the attention operator one draw at a time by itself, correctly, and says that it does.


class Attending(nn.Module):
    """Attention of noise to itself, with or without the weights that it gives."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.embed, self.options = nn.Linear(6, 6), options
        self.attend = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x: Tensor) -> Any:
        h = self.embed(x)
        return self.attend(h, h, h, **self.options)[0]


def encoder_layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True, **options)


NETWORKS = {
    "attention": Attending,
    "attention, no weights": lambda: Attending(need_weights=False),
    "attention, mask": lambda: Attending(attn_mask=torch.ones(4, 4).triu(1).bool()),
    "encoder layer": encoder_layer,
    "encoder layer, gelu": lambda: encoder_layer(activation="gelu"),
    "encoder": lambda: nn.TransformerEncoder(encoder_layer(), 2),
    "decoder": lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(6, 2, 8, dropout=0.0, batch_first=True), 1),
}
every_network = pytest.mark.parametrize("kind", NETWORKS)
with_and_without_gradients = pytest.mark.parametrize("grad", [True, False], ids=["gradients", "no gradients"])


def network_and_inputs(kind: str) -> tuple[nn.Module, Any]:
    inputs = torch.randn(3, 4, 6).double()
    return NETWORKS[kind]().double().eval(), (inputs, torch.randn(3, 5, 6).double()) if kind == "decoder" else inputs


@every_network
@with_and_without_gradients
@pytest.mark.parametrize("estimator", ["weight", "local"])
def test_mapped_draws_equal_looped_ones(kind: str, grad: bool, estimator: Any) -> None:
    net, inputs = network_and_inputs(kind)
    model = dubio.Bayes(estimator=estimator, init_std=0.3).convert(net)
    with torch.set_grad_enabled(grad):
        mapped = dubio.sample(model, inputs, 5, seed=1, executor="vmap")
        looped = dubio.sample(model, inputs, 5, seed=1, executor="loop")
    torch.testing.assert_close(mapped, looped, rtol=1e-10, atol=1e-10)
    assert (mapped[0] - mapped[1]).abs().max() > 0.01


@every_network
def test_gradients_of_mapped_draws_equal_those_of_looped_ones(kind: str) -> None:
    net, inputs = network_and_inputs(kind)
    model = dubio.Bayes(init_std=0.3).convert(net)
    gradients = []
    for executor in ("vmap", "loop"):
        model.zero_grad()
        dubio.sample(model, inputs, 5, seed=1, executor=executor).square().sum().backward()
        gradients.append([p.grad.clone() for posterior in posteriors(model) for p in posterior.parameters()])
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)
    assert all((gradient != 0).any() for gradient in gradients[0])


@every_network
@with_and_without_gradients
def test_behind_noise_alone_mapped_draws_equal_looped_ones(kind: str, grad: bool) -> None:
    net, inputs = network_and_inputs(kind)
    where = next(name for name, module in net.named_modules() if type(module) is nn.Linear)
    model = dubio.Bayes(where=where, init_std=0.3).convert(net).requires_grad_(grad)
    mapped = dubio.sample(model, inputs, 5, seed=1, executor="vmap")
    torch.testing.assert_close(mapped, dubio.sample(model, inputs, 5, seed=1, executor="loop"), rtol=1e-10, atol=1e-10)
    assert (mapped[0] - mapped[1]).abs().max() > 1e-3


@every_network
@with_and_without_gradients
def test_with_noise_off_a_network_is_the_plain_one(kind: str, grad: bool) -> None:
    net, inputs = network_and_inputs(kind)
    model = dubio.Bayes().convert(net)
    args, _ = dubio.sampling.arguments(inputs)
    with torch.set_grad_enabled(grad), dubio.noise_off():
        torch.testing.assert_close(model(*args), net(*args), rtol=1e-12, atol=1e-12)  # fused or not
    if grad:
        with dubio.noise_off():
            torch.testing.assert_close(model(*args), net(*args), rtol=0.0, atol=0.0)


def test_outside_a_pass_an_encoder_layer_says_of_itself_what_the_plain_one_says() -> None:
    for activation in ("relu", "gelu"):
        net = encoder_layer(activation=activation)
        model = dubio.Bayes().convert(nn.Sequential(net))
        assert isinstance(model[0], MAPPABLE[nn.TransformerEncoderLayer])
        assert model[0].activation_relu_or_gelu == net.activation_relu_or_gelu != 0
        assert dubio.to_mean(model)[0].activation_relu_or_gelu == net.activation_relu_or_gelu
