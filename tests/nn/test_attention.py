"""Attention and transformer layers under a map over draws: equal to draws one by one, which are torch's own."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.nn.sources import posteriors
from dubio.nn.vmappable import MAPPABLE


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
    args, _ = dubio._engine.arguments(inputs)
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


ROWS, QUERIES, KEYS = 3, 4, 5
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no bias": {"bias": False},
    "other features of keys": {"kdim": 5, "vdim": 7},
    "added keys": {"add_bias_kv": True, "add_zero_attn": True},
    "a key of zeros": {"add_zero_attn": True},
}
MASKS: dict[str, dict[str, Tensor]] = {
    "none": {},
    "boolean": {"attn_mask": torch.ones(QUERIES, KEYS).triu(1).bool()},
    "of real numbers": {"attn_mask": torch.linspace(-1.0, 1.0, QUERIES * KEYS).double().view(QUERIES, KEYS)},
    "for each head": {
        "attn_mask": torch.linspace(-1.0, 1.0, 2 * ROWS * QUERIES * KEYS).double().view(-1, QUERIES, KEYS)
    },
    "padding": {"key_padding_mask": torch.arange(KEYS) > torch.tensor([[1], [2], [4]])},
    "padding, boolean": {
        "key_padding_mask": torch.arange(KEYS) > torch.tensor([[1], [2], [4]]),
        "attn_mask": torch.ones(QUERIES, KEYS).triu(1).bool(),
    },
    "padding of real numbers, of real numbers": {
        "key_padding_mask": torch.linspace(-1.0, 1.0, ROWS * KEYS).double().view(ROWS, KEYS),
        "attn_mask": torch.linspace(-1.0, 1.0, QUERIES * KEYS).double().view(QUERIES, KEYS),
    },
    "causal": {"attn_mask": torch.ones(QUERIES, KEYS).triu(1).bool(), "is_causal": True},
    "causal, padding": {
        "attn_mask": torch.ones(QUERIES, KEYS).triu(1).bool(),
        "key_padding_mask": torch.arange(KEYS) > torch.tensor([[1], [2], [4]]),
        "is_causal": True,
    },
}


class Between(nn.Module):
    """Attention of one tensor to others, without the weights that it gives."""

    def __init__(self, batch_first: bool, masks: dict[str, Tensor], **options: Any) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(6, 2, batch_first=batch_first, **options)
        self.masks = masks

    def forward(self, *factors: Tensor) -> Tensor:
        output, weights = self.attend(*factors, need_weights=False, **self.masks)
        assert weights is None
        return output


@pytest.mark.parametrize("layout", ["rows first", "positions first", "no rows"])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("layer", LAYERS)
def test_every_option_of_attention_is_mapped_as_torch_means_it(layer: str, masks: str, layout: str) -> None:
    torch.manual_seed(0)
    features = 6, LAYERS[layer].get("kdim", 6), LAYERS[layer].get("vdim", 6)
    shapes = [(ROWS, length, width) for length, width in zip((QUERIES, KEYS, KEYS), features, strict=True)]
    factors, given = [torch.randn(shape).double() for shape in shapes], dict(MASKS[masks])
    if layout == "positions first":
        factors = [factor.transpose(0, 1).contiguous() for factor in factors]
    if layout == "no rows":
        factors = [factor[0] for factor in factors]
        given |= {name: mask[0] for name, mask in given.items() if name == "key_padding_mask"}
        given |= {name: mask[:2] for name, mask in given.items() if name == "attn_mask" and mask.dim() == 3}
    model = dubio.Bayes(init_std=0.3).convert(Between(layout == "rows first", given, **LAYERS[layer]).double())
    for training in (True, False):
        model.train(training)
        mapped, looped = (dubio.sample(model, tuple(factors), 3, seed=1, executor=way) for way in ("vmap", "loop"))
        torch.testing.assert_close(mapped, looped, rtol=1e-10, atol=1e-10)
        assert (mapped[0] - mapped[1]).abs().max() > 0.01


def test_dropout_inside_attention_is_another_one_in_every_draw() -> None:
    torch.manual_seed(0)
    model, factors = dubio.Bayes(init_std=1e-6).convert(Between(True, {}, dropout=0.5)), torch.randn(2, 9, 6)
    model.train()
    draws = dubio.sample(model, (factors, factors, factors), 3, executor="vmap")
    assert (draws[0] - draws[1]).abs().max() > 0.01
    model.eval()
    draws = dubio.sample(model, (factors, factors, factors), 3, executor="vmap")
    assert (draws[0] - draws[1]).abs().max() < 0.01


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        ({"attn_mask": torch.zeros(1, KEYS)}, r"attn_mask must have shape \(4, 5\) or \(6, 4, 5\), got \(1, 5\)"),
        ({"attn_mask": torch.zeros(1, QUERIES, KEYS)}, r"\(6, 4, 5\), got \(1, 4, 5\)"),
        ({"key_padding_mask": torch.zeros(1, KEYS)}, r"key_padding_mask must have shape \(3, 5\), got \(1, 5\)"),
        ({"is_causal": True}, "attn_mask must be given where is_causal is True, got None"),
    ],
)
def test_masks_of_another_shape_are_refused(masks: dict[str, Tensor], message: str) -> None:
    """They could be spread over rows; torch refuses them, and so do mapped draws."""
    factors = tuple(torch.randn(ROWS, length, 6) for length in (QUERIES, KEYS, KEYS))
    model = dubio.Bayes().convert(Between(True, masks))
    with pytest.raises(ValueError, match=message):
        dubio.sample(model, factors, 3, executor="vmap")
    with pytest.raises((AssertionError, RuntimeError)):
        dubio.sample(model, factors, 3)


SHAPES = {
    "fewer values than keys": ((3, 4, 6), (3, 5, 6), (3, 3, 6)),
    "one row of keys": ((3, 4, 6), (1, 5, 6), (1, 5, 6)),
    "one row of queries": ((1, 4, 6), (3, 5, 6), (3, 5, 6)),
    "too many axes": ((3, 1, 4, 6), (3, 1, 5, 6), (3, 1, 5, 6)),
    "rows of keys alone": ((4, 6), (3, 5, 6), (3, 5, 6)),
}


@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("batch_first", [True, False])
def test_factors_that_do_not_belong_together_are_refused(shapes: Any, batch_first: bool) -> None:
    """Torch refuses them; a kernel might read beyond the end of values."""
    factors = tuple(torch.randn(shape) for shape in shapes)
    if not batch_first:
        factors = tuple(factor.transpose(0, 1) if factor.dim() == 3 else factor for factor in factors)
    model = dubio.Bayes().convert(Between(batch_first, {}))
    with pytest.raises(ValueError, match="query, key and value must have two axes, or three with as many rows each"):
        dubio.sample(model, factors, 3, executor="vmap")
    with pytest.raises((AssertionError, RuntimeError)):
        dubio.sample(model, factors, 3, executor="loop")


def test_masks_of_whole_numbers_are_refused() -> None:
    factors = tuple(torch.randn(ROWS, length, 6) for length in (QUERIES, KEYS, KEYS))
    model = dubio.Bayes().convert(Between(True, {"attn_mask": torch.zeros(QUERIES, KEYS, dtype=torch.int64)}))
    with pytest.raises(TypeError, match=r"attn_mask must be boolean or of real numbers, got torch\.int64"):
        dubio.sample(model, factors, 3, executor="vmap")


@pytest.mark.parametrize("average", [True, False])
def test_weights_that_are_asked_for_are_those_of_each_draw(average: bool) -> None:
    class Weights(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = nn.MultiheadAttention(6, 2, batch_first=True)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.attend(x, x, x, average_attn_weights=average)

    torch.manual_seed(0)
    model, inputs = dubio.Bayes(init_std=0.3).convert(Weights()), torch.randn(3, 4, 6)
    mapped, looped = (dubio.sample(model, inputs, 3, seed=1, executor=way) for way in ("vmap", "loop"))
    assert mapped[1].shape == ((3, 3, 4, 4) if average else (3, 3, 2, 4, 4))
    torch.testing.assert_close(mapped, looped)


@pytest.mark.parametrize("compiled", [True, False])
def test_dropout_before_the_first_noise_is_another_one_in_every_draw(compiled: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), nn.Linear(6, 3))
    net[0].self_attn.dropout = 0.5
    model, inputs = dubio.Bayes(where="1", init_std=1e-6).convert(net).train(), torch.randn(4, 9, 6)

    def draws(x: Tensor) -> Tensor:
        return dubio.sample(model, x, 3, executor="vmap")

    found = (torch.compile(draws, backend="aot_eager", fullgraph=True) if compiled else draws)(inputs)
    assert (found[0] - found[1]).abs().max() > 0.01
    model.eval()
    assert (draws(inputs)[0] - draws(inputs)[1]).abs().max() < 0.01
