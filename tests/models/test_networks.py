"""The networks themselves: parameter counts, names, shapes and first weights."""

import math
from itertools import pairwise

import jaxtyping
import pytest
import torch
from torch import nn

import dubio
from dubio.models.by_name import build
from dubio.models.networks import (
    ZeroPadded,
    dad_cnn,
    dad_mlp,
    fc,
    init_truncated,
    lenet,
    mlp,
    preresnet18,
    resnet18,
    resnet50,
    vgg16,
    vib_mlp,
)

GREY, COLOUR, LARGE = (1, 28, 28), (3, 32, 32), (3, 224, 224)


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def count_of(name: str) -> int:
    with torch.device("meta"):
        return count(build(name))


@pytest.mark.parametrize(
    ("widths", "expected"),
    [
        ((784, 100, 100, 10), 89_610),
        ((784, 400, 400, 10), 478_410),
        ((784, 800, 800, 10), 1_276_810),
        ((784, 1200, 1200, 10), 2_395_210),
        ((1, 400, 400, 1), 161_601),
        ((1, 400, 400, 400, 1), 322_001),
    ],
)
def test_dense_networks_have_the_papers_counts(widths: tuple[int, ...], expected: int) -> None:
    assert count(mlp(*widths)) == count(dad_mlp(*widths)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18:imagenet:3x224x224-1000", 11_689_512),
        ("resnet50:imagenet:3x224x224-1000", 25_557_032),
        ("resnext101_32x8d:imagenet:3x224x224-1000", 88_791_336),
        ("resnet18:cifar:3x32x32-10", 11_173_962),
    ],
)
def test_residual_networks_have_the_published_counts(name: str, expected: int) -> None:
    assert count_of(name) == expected


@pytest.mark.parametrize(("name", "width"), [("vgg16:3x32x32-10", 64), ("vgg16:w16:3x32x32-10", 16)])
def test_vgg16_has_its_layers_parameters(name: str, width: int) -> None:
    channels = (3, *(width * factor for factor in (1, 1, 2, 2, 4, 4, 4, 8, 8, 8, 8, 8, 8)))
    convolutions = sum(9 * a * b + b for a, b in pairwise(channels))
    norms = 2 * sum(channels[1:])
    features = 8 * width
    classifier = features * 2 * features + 2 * features + 2 * features * features + features + features * 10 + 10
    assert count_of(name) == convolutions + norms + classifier


def test_resnet20_has_the_published_count_and_its_second_version_strided_convolutions() -> None:
    # 0.27 million (He et al. 2016): 19 convolutions, their norms and a linear layer.
    convolutions = 9 * (3 * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64)
    norms = 2 * (7 * 16 + 6 * 32 + 6 * 64)
    assert count_of("resnet20:cifar:3x32x32-10") == convolutions + norms + 64 * 10 + 10 == 269_722
    shortcuts = 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64
    assert count_of("resnet20_v2:cifar:3x32x32-10") == 269_722 + shortcuts


def test_a_shortcut_without_parameters_leaves_pixels_out_and_adds_channels_of_zeros() -> None:
    images = torch.rand(2, 3, 6, 6)
    short = ZeroPadded(3, 8, 2)(images)
    assert short.shape == (2, 8, 3, 3)
    assert torch.equal(short[:, :3], images[:, :, ::2, ::2])
    assert not short[:, 3:].any()


@pytest.mark.parametrize("kind", ["resnet18:cifar", "resnet50:imagenet", "preresnet18:cifar", "vgg16"])
def test_a_width_scales_every_layer(kind: str) -> None:
    with torch.device("meta"):
        whole, quarter = (build(f"{kind}{width}:3x32x32-10") for width in ("", ":w16"))
    pairs = list(zip(whole.modules(), quarter.modules(), strict=True))
    convolutions = [(one, other) for one, other in pairs if isinstance(one, nn.Conv2d)]
    assert len(convolutions) > 12
    assert all(one.out_channels == 4 * other.out_channels for one, other in convolutions)
    assert all(one.in_channels in (3, 4 * other.in_channels) for one, other in convolutions)
    assert all(one.num_features == 4 * other.num_features for one, other in pairs if isinstance(one, nn.BatchNorm2d))
    assert all(one.in_features == 4 * other.in_features for one, other in pairs if isinstance(one, nn.Linear))


def test_a_width_must_be_a_whole_number_of_at_least_one() -> None:
    with pytest.raises(ValueError, match=r"^width of resnet18 must be a whole number of at least 1, got 0$"):
        resnet18(COLOUR, 10, width=0)
    with pytest.raises(ValueError, match=r"^width of vgg16 must be a whole number of at least 1, got 0$"):
        vgg16(COLOUR, 10, width=0)


def test_preactivation_leaves_out_the_norms_of_stem_and_shortcuts() -> None:
    # Pre-activated: the first block's norm has 64 channels rather than those of its branch, and so on down the stages.
    block_norms = 2 * (64 + 64 + 64 + 64 + 64 + 128 + 128 + 128 + 128 + 256 + 256 + 256 + 256 + 512 + 512 + 512)
    first_norms = 2 * (2 * 64 * 2 + 2 * 128 * 2 + 2 * 256 * 2 + 2 * 512 * 2)
    expected = 11_173_962 - 2 * 64 - 2 * (128 + 256 + 512) - first_norms + block_norms + 2 * 512
    assert count_of("preresnet18:cifar:3x32x32-10") == expected


def test_small_networks_have_their_layers_parameters() -> None:
    linear = 256 * 120 + 120 + 120 * 84 + 84 + 84 * 10 + 10
    assert count(lenet(GREY, 10)) == 25 * 6 + 6 + 25 * 6 * 16 + 16 + linear
    assert count(lenet(COLOUR, 10)) == 25 * 3 * 6 + 6 + 25 * 6 * 16 + 16 + linear
    assert count(dad_cnn(GREY, 10)) == 9 * 32 + 32 + 9 * 32 * 32 + 32 + 32 * 12 * 12 * 100 + 100 + 100 * 10 + 10
    encoder = 784 * 1024 + 1024 + 1024 * 1024 + 1024
    assert count(vib_mlp(GREY, 10)) == encoder + 1024 * 256 + 256 + 256 * 10 + 10


def test_fc_10_is_softmax_regression() -> None:
    net = fc(inputs=GREY, num_classes=10)
    assert [type(layer) for layer in net] == [nn.Flatten, nn.Linear]
    assert count(net) == 7_850


# Facts about torchvision's checkpoints.
CHECKPOINTS = {
    "resnet18": (122, {"layer1.0.conv1.weight": (64, 64, 3, 3), "layer4.1.conv2.weight": (512, 512, 3, 3)}, 512),
    "resnet50": (320, {"layer1.0.conv1.weight": (64, 64, 1, 1), "layer4.2.conv3.weight": (2048, 512, 1, 1)}, 2048),
    "resnext101_32x8d": (
        626,
        {
            "layer1.0.conv1.weight": (256, 64, 1, 1),
            "layer1.0.conv2.weight": (256, 8, 3, 3),
            "layer3.22.conv2.weight": (1024, 32, 3, 3),
            "layer4.2.conv3.weight": (2048, 2048, 1, 1),
        },
        2048,
    ),
}


@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_parameters_have_torchvisions_names_and_shapes(kind: str) -> None:
    num_entries, shapes, features = CHECKPOINTS[kind]
    with torch.device("meta"):
        state = build(f"{kind}:imagenet", inputs=LARGE, num_classes=1000).state_dict()
    layout = {name: tuple(tensor.shape) for name, tensor in state.items()}
    expected = shapes | {
        "conv1.weight": (64, 3, 7, 7),
        "bn1.weight": (64,),
        "bn1.running_mean": (64,),
        "bn1.num_batches_tracked": (),
        "layer1.0.bn1.bias": (shapes["layer1.0.conv1.weight"][0],),
        "layer2.0.downsample.0.weight": (features // 4, 64 * (features // 512), 1, 1),
        "layer2.0.downsample.1.running_var": (features // 4,),
        "fc.weight": (1000, features),
        "fc.bias": (1000,),
    }
    assert {name: layout[name] for name in expected} == expected
    assert len(layout) == num_entries
    assert ("layer1.0.downsample.0.weight" in layout) == (kind != "resnet18")


def test_stems_and_stages_shrink_the_image_as_they_should() -> None:
    with torch.device("meta"):
        for stem, size in (("cifar", 64), ("imagenet", 16)):
            net = resnet50((3, 64, 64), 10, stem)  # type: ignore[arg-type]
            x = net.maxpool(net.conv1(torch.zeros(1, 3, 64, 64)))
            for stage, shrunk in ((net.layer1, 1), (net.layer2, 2), (net.layer3, 4), (net.layer4, 8)):
                x = stage(x)
                assert x.shape[-2:] == (size // shrunk, size // shrunk)
        block = resnet50(COLOUR, 10).layer2[0]
        assert (block.conv1.stride, block.conv2.stride, block.downsample[0].stride) == ((1, 1), (2, 2), (2, 2))


def test_a_preactivated_block_does_nothing_to_the_sum() -> None:
    block = preresnet18((3, 32, 32), 10).layer1[0].eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 64, 5, 5)
    assert torch.equal(block(x), x)


def test_a_preactivated_shortcut_starts_from_the_activated_input() -> None:
    block = preresnet18((3, 32, 32), 10).layer2[0].eval()
    nn.init.zeros_(block.conv2.weight)
    nn.init.constant_(block.bn1.bias, 0.5)
    x = torch.randn(2, 64, 6, 6)
    expected = nn.functional.conv2d(block.bn1(x).relu(), block.downsample.weight, stride=2)
    assert torch.equal(block(x), expected)


def test_an_activated_block_is_positive_and_adds_its_shortcut() -> None:
    block = resnet18((3, 32, 32), 10).layer1[0].eval()
    nn.init.zeros_(block.conv2.weight)
    x = torch.randn(2, 64, 5, 5)
    assert torch.equal(block(x), x.relu())


def test_dropout_stands_where_dad_has_it() -> None:
    linear, drop, relu = nn.Linear, nn.Dropout, nn.ReLU
    assert [type(layer) for layer in dad_mlp(4, 3, 2)] == [nn.Flatten, drop, linear, relu, drop, linear]
    cnn = dad_cnn((1, 8, 8), 2)
    assert not any(isinstance(layer, drop) for layer in cnn.features)
    assert [type(layer) for layer in cnn.classifier] == [drop, linear, relu, drop, linear]
    assert {layer.p for net in (dad_mlp(4, 3, 2), cnn) for layer in net.modules() if isinstance(layer, drop)} == {0.5}


def test_first_weights_of_dad_are_glorot_uniform_and_biases_zero() -> None:
    for net in (dad_cnn(GREY, 10), dad_mlp(784, 100, 100, 10)):
        for layer in net.modules():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                fan = sum(layer.weight.shape[:2]) * math.prod(layer.weight.shape[2:])
                limit = math.sqrt(6 / fan)
                assert 0.98 * limit < layer.weight.abs().max() <= limit
                assert not layer.bias.any()


def test_first_weights_of_vgg16_are_those_of_nfi() -> None:
    net = vgg16(COLOUR, 10)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            std = math.sqrt(2 / (9 * layer.out_channels))
        elif isinstance(layer, nn.Linear):
            std = 0.01
        else:
            continue
        count = layer.weight.numel()
        assert layer.weight.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * count))
        assert not layer.bias.any()


def test_first_weights_of_residual_networks_are_kaiming_by_fan_out() -> None:
    net = resnet18(COLOUR, 10)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            std = math.sqrt(2 / (layer.out_channels * math.prod(layer.kernel_size)))
            assert layer.weight.std().item() == pytest.approx(std, rel=5 / math.sqrt(2 * layer.weight.numel()))


def test_lenet_reads_images_of_any_size_with_the_same_weights() -> None:
    net = lenet(GREY, 10)
    assert net(torch.rand(2, 1, 40, 32)).shape == (2, 10)


def test_a_stem_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # it would refuse the literal first
    with pytest.raises(ValueError, match=r"^stem of resnet18 must be 'cifar' or 'imagenet', got 'mnist'$"):
        resnet18(COLOUR, 10, "mnist")  # type: ignore[arg-type]


def test_networks_do_not_share_weights_between_calls() -> None:
    torch.manual_seed(1)
    first = dubio.models.mlp(5, 4, 3)
    torch.manual_seed(1)
    again = dubio.models.mlp(5, 4, 3)
    other = dubio.models.mlp(5, 4, 3)
    assert torch.equal(first[1].weight, again[1].weight)
    assert not torch.equal(first[1].weight, other[1].weight)


def test_truncated_weights_stay_within_two_standard_deviations() -> None:
    net = fc(200, inputs=GREY, num_classes=10)
    init_truncated(net, 0.25)
    weights = torch.cat([parameter.flatten() for parameter in net.parameters()]).detach()
    assert weights.abs().max() <= 0.5
    assert weights.std().item() == pytest.approx(0.8796 * 0.25, rel=0.01)  # what the cut leaves, not made up for
    assert all(parameter.std() > 0.1 for parameter in net.parameters())  # biases too
    with pytest.raises(ValueError, match=r"std must be positive and finite, got 0\.0"):
        init_truncated(net, 0.0)
