"""Names of networks: what they build, that they spell it out, and how bad ones are refused."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import dubio
from dubio.models.by_name import build
from dubio.models.networks import architecture_of, sizes_of

GREY, COLOUR = (1, 28, 28), (3, 32, 32)

# The name, the inputs, and the full name of the network.
NAMES = [
    ("mlp:20-7-10", None, "mlp:20-7-10"),
    ("mlp:784-7-10", GREY, "mlp:784-7-10"),
    ("fc", GREY, "mlp:784-10"),
    ("fc:30-20", GREY, "mlp:784-30-20-10"),
    ("dad_mlp", GREY, "dad_mlp:784-100-100-10"),
    ("dad_mlp:784-30-10", GREY, "dad_mlp:784-30-10"),
    ("vib_mlp", GREY, "vib_mlp:784-10"),
    ("vib_mlp:1x8x8-10", None, "vib_mlp:64-10"),
    ("lenet", GREY, "lenet:1x28x28-10"),
    ("lenet:3x32x32-10", COLOUR, "lenet:3x32x32-10"),
    ("dad_cnn", GREY, "dad_cnn:1x28x28-10"),
    ("vgg16", COLOUR, "vgg16:3x32x32-10"),
    ("resnet18", COLOUR, "resnet18:cifar:3x32x32-10"),
    ("resnet18:imagenet", COLOUR, "resnet18:imagenet:3x32x32-10"),
    ("resnet18:3x32x32-10", None, "resnet18:cifar:3x32x32-10"),
    ("resnet50:imagenet:3x32x32-10", None, "resnet50:imagenet:3x32x32-10"),
    ("resnet50:cifar", COLOUR, "resnet50:cifar:3x32x32-10"),
    ("resnext101_32x8d:cifar", COLOUR, "resnext101_32x8d:cifar:3x32x32-10"),
    ("resnext101_32x8d:imagenet", COLOUR, "resnext101_32x8d:imagenet:3x32x32-10"),
    ("preresnet18", COLOUR, "preresnet18:cifar:3x32x32-10"),
    ("preresnet18:imagenet", COLOUR, "preresnet18:imagenet:3x32x32-10"),
    ("resnet20", COLOUR, "resnet20:cifar:3x32x32-10"),
    ("resnet20_v2", COLOUR, "resnet20_v2:cifar:3x32x32-10"),
    ("resnet18:w16", COLOUR, "resnet18:cifar:w16:3x32x32-10"),
    ("resnet18:imagenet:w16:3x32x32-10", None, "resnet18:imagenet:w16:3x32x32-10"),
    ("preresnet18:w8", COLOUR, "preresnet18:cifar:w8:3x32x32-10"),
    ("resnet50:w8", COLOUR, "resnet50:cifar:w8:3x32x32-10"),
    ("resnet18:w64", COLOUR, "resnet18:cifar:3x32x32-10"),
    ("resnet20:w64", COLOUR, "resnet20:cifar:w64:3x32x32-10"),
    ("vgg16:w16", COLOUR, "vgg16:w16:3x32x32-10"),
    ("vgg16:w16:3x32x32-10,normalise=cifar10", None, "vgg16:w16:3x32x32-10,normalise=cifar10"),
    ("lenet:1x28x28-10,normalise=signed", GREY, "lenet:1x28x28-10,normalise=signed"),
]


def layout(net: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in net.state_dict().items()}


@pytest.mark.parametrize(("name", "inputs", "full"), NAMES, ids=[name for name, _, _ in NAMES])
@pytest.mark.feature("The networks of the papers by name: FC-*, LeNet, VGG16, ResNets, ResNeXt, DAD and VIB")
def test_a_network_is_rebuilt_from_its_name_alone(name: str, inputs: tuple[int, ...] | None, full: str) -> None:
    with torch.device("meta"):
        net = build(name, inputs=inputs, num_classes=None if inputs is None else 10)
        again = build(full)
    assert architecture_of(net) == architecture_of(again) == full
    assert layout(net) == layout(again)
    assert repr(net) == repr(again)


def images_for(net: nn.Module, rows: int = 2) -> torch.Tensor:
    sizes = sizes_of(net)
    assert sizes is not None
    assert sizes.inputs is not None
    return torch.rand(rows, *sizes.inputs)


@pytest.mark.parametrize(("name", "inputs", "full"), NAMES, ids=[name for name, _, _ in NAMES])
def test_images_go_in_and_logits_come_out(name: str, inputs: tuple[int, ...] | None, full: str) -> None:
    with torch.device("meta"):
        net = build(full)
        images = images_for(net) if inputs is None else torch.rand(2, *inputs)
        assert net(images).shape == (2, 10)


SMALL = sorted({full for _, _, full in NAMES if not full.startswith(("resnext", "resnet50"))})


@pytest.mark.parametrize("name", SMALL)
def test_every_network_converts_and_is_itself_with_noise_off(name: str) -> None:
    net = build(name).eval()
    images = images_for(net)
    model = dubio.Bayes().convert(net).eval()
    with dubio.noise_off(), torch.no_grad():
        assert torch.equal(model(images), net(images))
    assert architecture_of(model) == name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50:cifar:3x32x32-10", "resnext101_32x8d:imagenet:3x32x32-10"])
def test_large_networks_convert_too(name: str) -> None:
    test_every_network_converts_and_is_itself_with_noise_off(name)


@pytest.mark.parametrize("name", ["lenet:1x28x28-10", "dad_cnn:1x8x8-3", "lenet:3x32x32-10,normalise=cifar10"])
def test_a_file_brings_the_network_back(tmp_path: Path, name: str) -> None:
    model = dubio.Bayes().convert(build(name)).eval()
    dubio.save(model, tmp_path / "model.safetensors")
    loaded = dubio.load(tmp_path / "model.safetensors")
    images = images_for(loaded)
    assert torch.equal(dubio.sample(loaded, images, 2, seed=1), dubio.sample(model, images, 2, seed=1))


def test_sizes_are_read_from_the_name() -> None:
    assert sizes_of(dubio.models.mlp(5, 4, 3)) == dubio.models.Sizes((5,), 3)
    assert sizes_of(build("lenet:3x32x32-7,normalise=cifar10")) == dubio.models.Sizes((3, 32, 32), 7)
    assert sizes_of(nn.Linear(3, 4)) is None


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        (
            "net:3",
            {},
            r"^model must be one of mlp, fc, .*timm, with its sizes as in mlp:.*, got 'net:3'; did you mean ",
        ),
        ("zzz:3", {}, r"^model must be one of mlp, fc, .*timm, with its sizes as in mlp:64-100-100-10, got 'zzz:3'$"),
        ("", {}, r"^model must be one of mlp, .*got ''$"),
        ("mlp", {}, r"^model must be like mlp:784-100-100-10, with plain whole numbers, got 'mlp'$"),
        ("mlp:5", {}, r"^an mlp needs at least two widths of at least 1, inputs and outputs, got \(5,\)$"),
        ("mlp:5-0", {}, r"^model must be like mlp:784-100-100-10, with plain whole numbers, got 'mlp:5-0'$"),
        ("mlp:05-3", {}, r"^model must be like .* got 'mlp:05-3'$"),
        ("mlp: 5-3", {}, r"^model must be like .* got 'mlp: 5-3'$"),
        ("mlp:5-3\n", {}, r"^model must be like "),
        ("mlp:5-3:2", {}, r"^model must be like .* got 'mlp:5-3:2'$"),
        ("mlp:5--3", {}, r"^model must be like .* got 'mlp:5--3'$"),
        ("mlp:5_0-3", {}, r"^model must be like .* got 'mlp:5_0-3'$"),
        ("dad_mlp:a", {}, r"^model must be like dad_mlp:784-100-100-10, with plain whole numbers, got 'dad_mlp:a'$"),
        ("fc:1.5", {"inputs": GREY, "num_classes": 10}, r"^model must be like fc:100-100, with plain whole numbers"),
        (
            "fc:100",
            {},
            r"^model 'fc:100' needs inputs and num_classes, got None and None; pass both, or write them into the name, "
            r"as in mlp:784-100-100-10$",
        ),
        (
            "lenet",
            {"inputs": GREY},
            r"^model 'lenet' needs inputs and num_classes, got \(1, 28, 28\) and None; pass both, or write them into "
            r"the name, as in lenet:1x28x28-10$",
        ),
        ("lenet:1x28-10", {}, r"^model must be like lenet:1x28x28-10, with plain whole numbers, got 'lenet:1x28-10'$"),
        ("lenet:10", {}, r"^model must be like lenet:1x28x28-10"),
        ("lenet:cifar:1x28x28-10", {}, r"^model must be like lenet:1x28x28-10"),
        (
            "lenet:784-10",
            {},
            r"^inputs of lenet must be \(channels, height, width\) with sides of at least 14, got \(7",
        ),
        ("lenet:1x28x13-10", {}, r"^inputs of lenet must be .* with sides of at least 14, got \(1, 28, 13\)$"),
        ("dad_cnn:1x5x6-10", {}, r"^inputs of dad_cnn must be .* with sides of at least 6, got \(1, 5, 6\)$"),
        ("vgg16:1x28x28-10", {}, r"^inputs of vgg16 must be .* with sides of at least 32, got \(1, 28, 28\)$"),
        ("resnet18:tiny:3x32x32-10", {}, r"^model must be like resnet18:cifar:3x32x32-10, with plain whole numbers"),
        ("resnet18:cifar:imagenet", {}, r"^model must be like resnet18:cifar:3x32x32-10"),
        ("resnet18:w0:3x32x32-10", {}, r"^model must be like resnet18:cifar:3x32x32-10"),
        ("resnet18:w16:w16:3x32x32-10", {}, r"^model must be like resnet18:cifar:3x32x32-10"),
        ("lenet:w16:3x32x32-10", {}, r"^model must be like lenet:1x28x28-10"),
        (
            "lenet:1x28x28-10",
            {"inputs": (1, 8, 8)},
            r"^inputs must be \(1, 28, 28\), which model 'lenet:1x28x28-10' ta",
        ),
        ("mlp:784-10", {"inputs": (64,)}, r"^inputs must be \(784,\), which model 'mlp:784-10' takes, got \(64,\)$"),
        ("mlp:784-10", {"num_classes": 7}, r"^num_classes must be 10, which model 'mlp:784-10' has, got 7$"),
        ("lenet", {"inputs": GREY, "num_classes": 0}, r"^num_classes of lenet must be at least 1, got 0$"),
        ("fc", {"inputs": (), "num_classes": 2}, r"^inputs of fc must be sizes of at least 1, got \(\)$"),
        (
            "mlp:5-3,",
            {},
            r"^model may end in ',normalise=' and one of cifar10, .*, and in nothing else, got 'mlp:5-3,'$",
        ),
        ("mlp:5-3,normalise=mnist", {}, r"^model may end in ',normalise=' and one of cifar10"),
        ("mlp:5-3,normalize=signed", {}, r"^model may end in ',normalise=' and one of cifar10"),
        ("mlp:5-3", {"normalise": "mnist"}, r"^normalise must be 'cifar10', .* or 'over126', got 'mnist'$"),
        (
            "mlp:5-3,normalise=signed",
            {"normalise": "double"},
            r"^normalise must be signed, which model 'mlp:5-3,normalise=signed' has, got double$",
        ),
        (
            "lenet",
            {"inputs": GREY, "num_classes": 10, "normalise": "cifar10"},
            r"^normalise cifar10 needs images of 3 channels, got inputs \(1, 28, 28\)$",
        ),
        ("torchvision", {}, r"^model must be like torchvision:resnet34:10"),
        ("timm:", {"num_classes": 10}, r"^model must be like timm:vit_tiny_patch16_224:10"),
        ("timm:vit:10:3", {}, r"^model must be like timm:vit_tiny_patch16_224:10"),
        ("timm:vit", {}, r"^model 'timm:vit' needs num_classes: pass it, or write it behind, as in timm:vit_tiny_"),
        ("timm:vit:10", {"num_classes": 3}, r"^num_classes must be 10, which model 'timm:vit:10' has, got 3$"),
    ],
)
def test_bad_names_are_refused(name: str, given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("library", ["torchvision", "timm"])
def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    message = rf"^{library}:resnet34 needs {library}, which does not import here \(.*\): pip install 'dubio\[vision\]'$"
    with pytest.raises(ImportError, match=message):
        build(f"{library}:resnet34", num_classes=10)


class Library:
    """Stands for torchvision or timm: makes linear networks and records the calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, object]]] = []

    def make(self, model: str, **options: object) -> nn.Module:
        self.calls.append((model, options))
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, int(str(options["num_classes"]))))

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "Library":
        timm, torchvision = ModuleType("timm"), ModuleType("torchvision")
        timm.is_model = lambda model: model == "vit"  # type: ignore[attr-defined]
        timm.create_model = self.make  # type: ignore[attr-defined]
        torchvision.models = SimpleNamespace(  # type: ignore[attr-defined]
            list_models=lambda module: ["resnet34"], get_model=self.make
        )
        monkeypatch.setitem(sys.modules, "timm", timm)
        monkeypatch.setitem(sys.modules, "torchvision", torchvision)
        return self


def test_models_of_other_libraries_are_asked_for_untrained_with_their_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library().install(monkeypatch)
    nets = [
        build("torchvision:resnet34", num_classes=10),
        build("torchvision:resnet34:3x8x8-10"),
        build("timm:vit:5"),
        build("timm:vit:5", inputs=(1, 8, 8)),
        build("timm:vit", inputs=(3, 8, 8), num_classes=5),
    ]
    assert library.calls == [
        ("resnet34", {"weights": None, "num_classes": 10}),
        ("resnet34", {"weights": None, "num_classes": 10}),
        ("vit", {"pretrained": False, "num_classes": 5}),
        ("vit", {"pretrained": False, "num_classes": 5, "in_chans": 1}),
        ("vit", {"pretrained": False, "num_classes": 5, "in_chans": 3}),
    ]
    assert [architecture_of(net) for net in nets] == [
        "torchvision:resnet34:10",
        "torchvision:resnet34:3x8x8-10",
        "timm:vit:5",
        "timm:vit:1x8x8-5",
        "timm:vit:3x8x8-5",
    ]
    for net in nets:
        assert architecture_of(build(str(architecture_of(net)))) == architecture_of(net)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "torchvision:fcn_resnet50:10",
            r"^model after torchvision: must be one of torchvision's classifiers, .*'fcn_r",
        ),
        ("torchvision:resnet34:1x8x8-10", r"^inputs of torchvision:resnet34 must have 3 channels, got \(1, 8, 8\)$"),
        ("torchvision:resnet34:64-10", r"^inputs of torchvision:resnet34 must be \(channels, height, width\)"),
        ("timm:who:10", r"^model after timm: must be one of timm.list_models\(\), got 'who'$"),
    ],
)
def test_models_that_other_libraries_lack_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    Library().install(monkeypatch)
    with pytest.raises(ValueError, match=message):
        build(name)
