"""Normalisation as a layer: the papers' constants, and inputs that it refuses."""

from pathlib import Path

import jaxtyping
import pytest
import torch
from torch import nn

import dubio
from dubio.models.by_name import build
from dubio.models.networks import NORMALISATIONS, Normalise, Standardise, standardised


def test_normalised_images_are_minus_mean_over_std_by_channel() -> None:
    images = torch.rand(2, 3, 4, 5)
    outputs = Normalise((0.1, 0.2, 0.3), (0.5, 1.0, 2.0))(images)
    for channel, (mean, std) in enumerate([(0.1, 0.5), (0.2, 1.0), (0.3, 2.0)]):
        torch.testing.assert_close(outputs[:, channel], (images[:, channel] - mean) / std)


@pytest.mark.parametrize(
    ("constants", "black", "white"),
    [
        (
            "cifar10",
            (-0.4914 / 0.2023, -0.4822 / 0.1994, -0.4465 / 0.2010),
            (0.5086 / 0.2023, 0.5178 / 0.1994, 0.5535 / 0.2010),
        ),
        ("cifar10_pni", (-125.3 / 63.0, -123.0 / 62.1, -113.9 / 66.7), (129.7 / 63.0, 132.0 / 62.1, 141.1 / 66.7)),
        ("cifar100", (-129.3 / 68.2, -124.1 / 65.4, -112.4 / 70.4), (125.7 / 68.2, 130.9 / 65.4, 142.6 / 70.4)),
        ("signed", (-1.0,), (1.0,)),
        ("double", (0.0,), (2.0,)),
        ("over126", (0.0,), (255 / 126,)),
    ],
)
def test_the_papers_constants_send_black_and_white_where_they_say(
    constants: str, black: tuple[float, ...], white: tuple[float, ...]
) -> None:
    layer = Normalise(*NORMALISATIONS[constants])
    for value, expected in ((0.0, black), (1.0, white)):
        outputs = layer(torch.full((1, len(expected), 2, 2), value))[0, :, 0, 0]
        torch.testing.assert_close(outputs, torch.tensor(expected))


def test_a_normalised_network_takes_images_as_they_are() -> None:
    plain = build("lenet:3x32x32-10")
    net = build("lenet", inputs=(3, 32, 32), num_classes=10, normalise="cifar10")
    net[1].load_state_dict(plain.state_dict())  # type: ignore[index]
    images = torch.rand(2, 3, 32, 32)
    expected = plain(Normalise(*NORMALISATIONS["cifar10"])(images))
    assert torch.equal(net(images), expected)
    assert dubio.models.architecture_of(net) == "lenet:3x32x32-10,normalise=cifar10"
    assert {"normalise.mean", "normalise.std"} <= set(net.state_dict())


def test_one_constant_serves_inputs_of_any_shape() -> None:
    for shape in ((4,), (4, 6), (4, 1, 2, 3)):
        assert torch.equal(Normalise((0.5,), (0.5,))(torch.ones(shape)), torch.ones(shape))


def test_a_layer_follows_the_type_of_its_network() -> None:
    net = build("mlp:4-3-2,normalise=signed").double()
    assert net(torch.rand(2, 4, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (2, 3), (3,), (2, 4, 4, 3)])
def test_images_of_other_channels_are_refused(shape: tuple[int, ...]) -> None:
    layer = Normalise(*NORMALISATIONS["cifar10"])
    with pytest.raises(ValueError, match=r"^inputs must be images of 3 channels, as the constants are, got shape \("):
        layer(torch.rand(shape))


def test_bytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it would refuse them first
    layer = Normalise((0.5,), (0.5,))
    with pytest.raises(TypeError, match=r"^inputs must be numbers in \[0, 1\], got torch.uint8; dubio.data.scaled"):
        layer(torch.zeros(2, 3, 4, 4, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.5, 0.5), (0.5,), r"^std must hold one number for each of mean, got 2 means and 1 stds$"),
        ((), (), r"^std must hold one number for each of mean, got 0 means and 0 stds$"),
        ((0.5,), (0.0,), r"^std must be positive and finite, got \(0.0,\)$"),
        ((0.5,), (float("nan"),), r"^std must be positive and finite, got \(nan,\)$"),
    ],
)
def test_constants_that_cannot_normalise_are_refused(
    mean: tuple[float, ...], std: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Normalise(mean, std)


# standardised features


def features(num_rows: int = 200) -> torch.Tensor:
    """Columns in units of their own: ages, euros, a constant, whole numbers of 0 and 1, and very large numbers."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(num_rows, 5, generator=generator)
    scale = torch.tensor([12.0, 1e4, 0.0, 1.0, 1e30])
    return noise * scale + torch.tensor([40.0, 3e4, 7.0, 0.0, 5e30])


@pytest.mark.feature("Inputs of a table are standardised by the first layer of the network, from the training data.")
def test_standardised_features_have_mean_zero_and_deviation_one() -> None:
    inputs = features()
    net = standardised(build("mlp:5-4-2"), inputs)
    result = net[0](inputs).double()
    torch.testing.assert_close(result.mean(dim=0), torch.zeros(5).double(), atol=2e-6, rtol=0.0)
    expected = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0]).double()
    torch.testing.assert_close(result.std(dim=0, correction=0), expected, atol=1e-5, rtol=0.0)
    assert dubio.models.architecture_of(net) == "mlp:5-4-2,standardise=features"


def test_a_standardising_network_is_rebuilt_from_its_name_and_tensors(tmp_path: Path) -> None:
    net = standardised(build("fc:4", inputs=(5,), num_classes=2), features())
    model = dubio.Bayes().convert(net)
    dubio.save(model, tmp_path / "net.safetensors")
    loaded = dubio.load(tmp_path / "net.safetensors")
    with dubio.noise_off():
        assert torch.equal(loaded(features()), model(features()))
    assert torch.equal(loaded.standardise.mean, net[0].mean)


def test_all_members_of_an_ensemble_standardise_alike() -> None:
    net = standardised(build("mlp:5-4-2"), features())
    model = dubio.Ensemble(members=3).convert(net)
    layers = [module for module in model.modules() if isinstance(module, Standardise)]
    assert len(layers) == 3
    for layer in layers:
        assert torch.equal(layer.mean, net[0].mean)
        assert torch.equal(layer.std, net[0].std)
    weights = [member.net[1].weight for member in model.members]
    assert not torch.equal(weights[0], weights[1])


def test_features_of_a_network_of_ones_own_are_on_the_last_axis() -> None:
    inputs = features().reshape(20, 10, 5)
    net = standardised(nn.LSTM(5, 3, batch_first=True), inputs)
    assert dubio.models.architecture_of(net) is None
    torch.testing.assert_close(net[0](inputs).mean(dim=(0, 1)), torch.zeros(5), atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
def test_features_without_a_scale_are_refused(bad: float) -> None:
    inputs = features()
    inputs[3, 1] = bad
    with pytest.raises(ValueError, match=r"must be finite and smaller than .* in feature 1; scale it, or take its log"):
        standardised(build("mlp:5-4-2"), inputs)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("lenet:1x28x28-10,standardise=features", None, "standardise=features is for inputs of one axis"),
        ("fc:4,standardise=features", (1, 2, 2), "standardise=features is for inputs of one axis"),
        ("mlp:4-2,normalise=signed,standardise=features", None, "standardised inputs are for networks of 4 features"),
        ("mlp:4-2,standardise=rows", None, "model may end in ',normalise='"),
    ],
)
def test_names_that_cannot_standardise_are_refused(name: str, inputs: tuple[int, ...] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, inputs=inputs, num_classes=2 if inputs else None)


def test_inputs_of_other_features_are_refused() -> None:
    layer = Standardise(3)
    for call in (layer, layer.measure):
        with pytest.raises(ValueError, match=r"^inputs must have 3 features, got shape \(2, 4\)"):
            call(torch.zeros(2, 4))
