"""Dropout layers that are always on: masks by row and draw, whole channels, rates, and the engine's noise."""

import pytest
import torch
from torch import Tensor, nn

import dubio
from dubio.nn.noise_layers import DROPOUTS, InputMask, RandomDropout

SHAPES: dict[type[nn.Module], tuple[int, ...]] = {
    nn.Dropout: (40, 50),
    nn.Dropout1d: (40, 50, 5),
    nn.Dropout2d: (40, 50, 2, 3),
    nn.Dropout3d: (40, 50, 2, 1, 3),
    nn.AlphaDropout: (40, 50),
    nn.FeatureAlphaDropout: (40, 50, 4),
}
CHANNELS = [nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout]
every_dropout = pytest.mark.parametrize("kind", SHAPES)


def always_on(layer: nn.Module) -> RandomDropout:
    """A dropout layer out of a converted network."""
    converted = dubio.Dropout().convert(nn.Sequential(layer, nn.Linear(3, 3)))[0]
    assert isinstance(converted, RandomDropout)
    return converted


def within(count: Tensor, total: int, rate: float) -> bool:
    """Whether so many of so many agree with a rate, within four standard errors."""
    return bool((count / total - rate).abs() < 4.0 * (rate * (1.0 - rate) / total) ** 0.5)


def test_the_table_holds_every_dropout() -> None:
    assert set(SHAPES) == set(DROPOUTS)


@pytest.mark.parametrize("executor", ["vmap", "loop"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_t33_masks_differ_across_draws_and_examples_in_either_mode(executor: str, mode: str) -> None:
    for net in (nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 64)), nn.Linear(64, 64)):
        linear = net if isinstance(net, nn.Linear) else net[1]
        nn.init.eye_(linear.weight)
        nn.init.zeros_(linear.bias)
        model = dubio.Dropout(0.5).convert(net).train(mode == "train")
        masks = dubio.sample(model, torch.ones(8, 64), 4, executor=executor).reshape(32, 64)
        assert set(masks.detach().unique().tolist()) == {0.0, 2.0}
        assert len(masks.unique(dim=0)) == 32


@every_dropout
def test_a_dropout_keeps_its_class_and_drops_at_its_rate(kind: type[nn.Module]) -> None:
    layer = always_on(kind(0.3)).eval()
    assert isinstance(layer, kind)
    assert type(layer).dubio_plain_class is kind
    outputs = layer(torch.full(SHAPES[kind], 5.0))
    values, counts = outputs.unique(return_counts=True)
    assert len(values) == 2
    whole = outputs[0, 0].numel() if kind in CHANNELS else 1
    assert within(counts[0] / whole, outputs.numel() // whole, 0.3)  # the lesser value is the dropped one
    with dubio.noise_off():
        assert torch.equal(layer(outputs), outputs)


@every_dropout
def test_values_are_those_of_torchs_own(kind: type[nn.Module]) -> None:
    inputs = torch.full(SHAPES[kind], 5.0)
    torch.testing.assert_close(always_on(kind(0.3))(inputs).unique(), kind(0.3).train()(inputs).unique())


@pytest.mark.parametrize("kind", CHANNELS)
def test_channels_are_dropped_whole(kind: type[nn.Module]) -> None:
    outputs = always_on(kind(0.5))(torch.full(SHAPES[kind], 5.0)).flatten(2)
    assert torch.equal(outputs, outputs[..., :1].expand_as(outputs))
    assert len(outputs[..., 0].unique(dim=0)) == 40


def test_two_dimensional_dropout_reads_three_axes_as_torch_does() -> None:
    outputs = always_on(nn.Dropout2d(0.5))(torch.ones(40, 8, 5))
    assert torch.equal(outputs, outputs[..., :1].expand_as(outputs))  # rows, channels, length
    assert len(outputs[..., 0].unique(dim=0)) > 30


@pytest.mark.parametrize("kind", [nn.Dropout1d, nn.Dropout3d])
def test_unbatched_inputs_are_told_by_their_axes(kind: type[nn.Module]) -> None:
    outputs = always_on(kind(0.5))(torch.ones(SHAPES[kind][1:])).flatten(1)
    assert torch.equal(outputs, outputs[:, :1].expand_as(outputs))
    assert len(outputs[:, 0].unique()) == 2


@pytest.mark.parametrize(("kind", "axes"), [(nn.Dropout1d, 2), (nn.Dropout2d, 3), (nn.Dropout3d, 4)])
def test_inputs_with_other_axes_are_refused(kind: type[nn.Module], axes: int) -> None:
    with pytest.raises(ValueError, match=rf"input of a {kind.__name__} must have {axes} axes, or {axes + 1} with a"):
        always_on(kind(0.5))(torch.ones(4))


@pytest.mark.parametrize("kind", [nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_alpha_dropout_keeps_mean_and_variance(kind: type[nn.Module]) -> None:
    outputs = always_on(kind(0.3))(torch.randn(400, 500, 1))
    assert outputs.mean().abs() < 4.0 / 200_000**0.5
    assert (outputs.var() - 1.0).abs() < 0.02


def test_rates_are_exact_in_half_precision() -> None:
    dropped = always_on(nn.Dropout(1e-3))(torch.ones(500_000, dtype=torch.bfloat16)) == 0.0
    assert within(dropped.sum(), 500_000, 1e-3)


def test_a_rate_of_zero_draws_nothing() -> None:
    net = nn.Sequential(nn.Dropout(0.0), nn.Dropout(0.5), nn.Linear(4, 2))
    inputs, layers = torch.randn(3, 4), (dubio.Dropout().convert(net)[0], InputMask(0.0))
    state = torch.get_rng_state()
    assert all(layer(inputs) is inputs for layer in layers)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(ValueError, match=r"p must be given: all dropout of this network has rate 0 \(0\)"):
        dubio.Dropout().convert(nn.Sequential(nn.Dropout(0.0), nn.Linear(4, 2)))


def test_dropout_that_conversion_cannot_reach_is_told() -> None:
    net = nn.Sequential(nn.Dropout(0.5), nn.LSTM(4, 4, num_layers=2, dropout=0.3))
    with pytest.warns(
        dubio.ConversionWarning, match=r"the dropout inside 1 \(LSTM\) stays as it is, random in training"
    ):
        dubio.Dropout().convert(net)

    class Own(nn.Dropout):
        """A dropout of one's own."""

    with pytest.raises(TypeError, match="cannot convert: 0: Own is a custom dropout"):
        dubio.Dropout().convert(nn.Sequential(Own(0.5), nn.Linear(4, 2)))


def test_an_always_on_layer_is_made_from_a_plain_one() -> None:
    with pytest.raises(TypeError, match=r"an always-on Dropout2d is made from a plain one: dubio\.Dropout\(\)\.conv"):
        DROPOUTS[nn.Dropout2d](0.5)


def test_layers_say_what_they_do() -> None:
    assert InputMask(0.25).describe() == "dropped at rate 0.25"
    assert repr(InputMask(0.25)) == "InputMask(p=0.25)"
    assert always_on(nn.Dropout(0.25)).dubio_describe() == (("mask",), "always on, rate 0.25")
