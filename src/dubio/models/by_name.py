"""Networks by name, as the command line and files write it.

A name is

    KIND[:CHOICE][:SIZES][,normalise=CONSTANTS or ,standardise=features]

and contains the sizes of the network, or leaves them to ``inputs`` and ``num_classes``:

    mlp:784-100-100-10          all widths, inputs first; also dad_mlp, which has 100-100 as its default hidden widths
    fc:100-100                  hidden widths, FC-100-100-10 of the papers; fc alone is softmax regression
    lenet:1x28x28-10            channels x height x width - classes; also dad_cnn and vgg16
    vib_mlp:784-10              features - classes; an image shape counts as its number of features
    resnet18:cifar:3x32x32-10   a stem, cifar (the default) or imagenet; also resnet50, resnext101_32x8d, preresnet18,
                                resnet20 and resnet20_v2
    resnet18:cifar:w16:3x32x32-10   a width, the channels of the first stage, before the sizes; also vgg16:w16
    torchvision:resnet34:10     a model of torchvision or timm, [inputs -] classes
    timm:vit_tiny_patch16_224:3x224x224-10

Numbers have no sign and no leading zero. ``,normalise=cifar10`` adds a normalisation as the first layer, see
``dubio.models.NORMALISATIONS``. ``,standardise=features`` adds a first layer that standardises every feature of a
table; ``dubio.models.standardised`` sets its means and standard deviations from training data.

The network that ``build`` returns has its full name as an attribute (``architecture_of``). ``build`` makes the same
network from this name without other arguments (``test_a_network_is_rebuilt_from_its_name_alone``).

torchvision and timm are imported only when a name of theirs is built.
"""

import importlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast, get_args

from torch import nn

from dubio.checks import check_choice, did_you_mean
from dubio.models import networks
from dubio.models.networks import NORMALISATIONS, NUMBER, Sizes, Stem, named

WIDTH = re.compile(f"w{NUMBER}")
STANDARDISED = ",standardise=features"


def build(
    name: str, *, inputs: Sequence[int] | None = None, num_classes: int | None = None, normalise: str | None = None
) -> nn.Module:
    """The network of a name such as ``mlp:64-100-100-10``, ``lenet`` or ``resnet18:cifar:3x32x32-10``.

    Args:
        name: the name, see the docstring of the module.
        inputs: shape of one input, such as (1, 28, 28); must agree with the shape in the name.
        num_classes: number of outputs; must agree with the number in the name.
        normalise: name of the constants of a normalisation as the first layer, see ``NORMALISATIONS``.
    """
    given = Sizes(None if inputs is None else tuple(inputs), num_classes)
    if name.endswith(STANDARDISED):
        if normalise is not None:
            raise ValueError(f"normalise must be None for a network that standardises, {name!r}, got {normalise!r}")
        net = build(name.removesuffix(STANDARDISED), inputs=inputs, num_classes=num_classes)
        sizes = networks.sizes_of(net)
        features = None if sizes is None else sizes.inputs
        if features is None or len(features) != 1 or (inputs is not None and len(inputs) != 1):
            raise ValueError(f"standardise=features is for inputs of one axis, got {inputs or features} for {name!r}")
        return networks.with_standardise(net, features[0])
    text, constants = _split_normalisation(name, normalise)
    kind, *parts = text.split(":")
    if kind not in READERS:
        raise ValueError(
            f"model must be one of {', '.join(READERS)}, with its sizes as in mlp:64-100-100-10, got {name!r}"
            f"{did_you_mean(kind, READERS)}"
        )
    channels = 1 if constants is None else len(NORMALISATIONS[constants][0])
    if channels > 1 and given.inputs is not None and (len(given.inputs) != 3 or given.inputs[0] != channels):
        raise ValueError(f"normalise {constants} needs images of {channels} channels, got inputs {given.inputs}")

    net = READERS[kind](_NameReader(name, tuple(parts), given))
    return net if constants is None else networks.normalised(net, constants)


@dataclass(frozen=True)
class _NameReader:
    """The parts of a name after its kind, and the sizes passed as arguments."""

    name: str
    parts: tuple[str, ...]
    given: Sizes

    def refusal(self, example: str) -> ValueError:
        """An error that shows an example of such a name."""
        return ValueError(f"model must be like {example}, with plain whole numbers, got {self.name!r}")

    def widths(self, example: str) -> tuple[int, ...]:
        """The only part, as widths."""
        widths = networks.read_widths(self.parts[0]) if len(self.parts) == 1 else None
        if widths is None:
            raise self.refusal(example)
        return widths

    def sizes(self, parts: Sequence[str], example: str) -> tuple[tuple[int, ...], int]:
        """Inputs and classes from the only part, or from the arguments if there is none."""
        if not parts:
            return self.given_sizes(example)
        sizes = networks.read_sizes(parts[0]) if len(parts) == 1 else None
        if sizes is None or sizes.inputs is None or sizes.num_classes is None:
            raise self.refusal(example)
        self.check(sizes.inputs, sizes.num_classes)
        return sizes.inputs, sizes.num_classes

    def given_sizes(self, example: str) -> tuple[tuple[int, ...], int]:
        """Inputs and classes from the arguments."""
        inputs, num_classes = self.given.inputs, self.given.num_classes
        if inputs is None or num_classes is None:
            raise ValueError(
                f"model {self.name!r} needs inputs and num_classes, got {inputs} and {num_classes}; "
                f"pass both, or write them into the name, as in {example}"
            )
        return inputs, num_classes

    def check(self, inputs: tuple[int, ...] | None, num_classes: int) -> None:
        """Refuse sizes in the name that differ from the arguments; 784 features agree with an image of 1x28x28."""
        given = self.given.inputs
        if given is not None and inputs is not None and given != inputs and (math.prod(given),) != inputs:
            raise ValueError(f"inputs must be {inputs}, which model {self.name!r} takes, got {given}")
        if self.given.num_classes not in (None, num_classes):
            raise ValueError(
                f"num_classes must be {num_classes}, which model {self.name!r} has, got {self.given.num_classes}"
            )


Read = Callable[[_NameReader], nn.Module]


def _read_fc(reader: _NameReader) -> nn.Module:
    hidden = reader.widths("fc:100-100") if reader.parts else ()
    inputs, num_classes = reader.given_sizes("mlp:784-100-100-10")
    return networks.fc(*hidden, inputs=inputs, num_classes=num_classes)


def _dense(make: Callable[..., nn.Module], example: str, hidden: tuple[int, ...] | None = None) -> Read:
    def read(reader: _NameReader) -> nn.Module:
        if hidden is not None and not reader.parts:
            inputs, num_classes = reader.given_sizes(example)
            return make(math.prod(inputs), *hidden, num_classes)
        widths = reader.widths(example)
        reader.check(widths[:1], widths[-1])
        return make(*widths)

    return read


def _sized(make: Callable[[Sequence[int], int], nn.Module], example: str) -> Read:
    return lambda reader: make(*reader.sizes(reader.parts, example))


def _scaled(make: Callable[..., nn.Module], example: str) -> Read:
    return lambda reader: _with_width(make, reader, reader.parts, example)


def _stemmed(make: Callable[..., nn.Module], example: str) -> Read:
    def read(reader: _NameReader) -> nn.Module:
        is_named = reader.parts[:1] and reader.parts[0] in get_args(Stem)
        stem, *parts = reader.parts if is_named else ("cifar", *reader.parts)
        return _with_width(partial(make, stem=cast(Stem, stem)), reader, parts, example)

    return read


def _with_width(make: Callable[..., nn.Module], reader: _NameReader, parts: Sequence[str], example: str) -> nn.Module:
    """The network of these parts, of which the first may be a width, such as w16."""
    if not parts or not WIDTH.fullmatch(parts[0]):
        return make(*reader.sizes(parts, example))
    return make(*reader.sizes(parts[1:], example), width=int(parts[0][1:]))


def _external(library: str, make: Callable[[str, Sequence[int] | None, int], nn.Module], example: str) -> Read:
    def read(reader: _NameReader) -> nn.Module:
        model, *parts = reader.parts or ("",)
        sizes = networks.read_sizes(parts[0]) if len(parts) == 1 else None if parts else reader.given
        if not model or sizes is None:
            raise reader.refusal(example)
        if sizes.num_classes is None:
            raise ValueError(f"model {reader.name!r} needs num_classes: pass it, or write it behind, as in {example}")
        reader.check(sizes.inputs, sizes.num_classes)
        inputs, num_classes = sizes.inputs or reader.given.inputs, sizes.num_classes
        networks.check_sizes(f"{library}:{model}", inputs or (3, 1, 1), num_classes, 1)
        text = str(num_classes) if inputs is None else networks.write_sizes(inputs, num_classes)
        return named(make(model, inputs, num_classes), f"{library}:{model}:{text}")

    return read


def _torchvision_model(model: str, inputs: Sequence[int] | None, num_classes: int) -> nn.Module:
    """An untrained classifier of torchvision; all of them have three input channels."""
    models = _vision_library("torchvision", model).models
    if model not in models.list_models(module=models):
        raise ValueError(
            f"model after torchvision: must be one of torchvision's classifiers, such as resnet34, got {model!r}"
        )
    if inputs is not None and inputs[0] != 3:
        raise ValueError(f"inputs of torchvision:{model} must have 3 channels, got {tuple(inputs)}")
    return cast(nn.Module, models.get_model(model, weights=None, num_classes=num_classes))


def _timm_model(model: str, inputs: Sequence[int] | None, num_classes: int) -> nn.Module:
    """An untrained model of timm with the channels of the inputs, or three if ``inputs`` is None."""
    timm = _vision_library("timm", model)
    if not timm.is_model(model):
        raise ValueError(f"model after timm: must be one of timm.list_models(), got {model!r}")
    channels = {} if inputs is None else {"in_chans": inputs[0]}
    return cast(nn.Module, timm.create_model(model, pretrained=False, num_classes=num_classes, **channels))


READERS: dict[str, Read] = {
    "mlp": _dense(networks.mlp, "mlp:784-100-100-10"),
    "fc": _read_fc,
    "dad_mlp": _dense(networks.dad_mlp, "dad_mlp:784-100-100-10", hidden=(100, 100)),
    "vib_mlp": _sized(networks.vib_mlp, "vib_mlp:784-10"),
    "lenet": _sized(networks.lenet, "lenet:1x28x28-10"),
    "dad_cnn": _sized(networks.dad_cnn, "dad_cnn:1x28x28-10"),
    "vgg16": _scaled(networks.vgg16, "vgg16:3x32x32-10"),
    "resnet18": _stemmed(networks.resnet18, "resnet18:cifar:3x32x32-10"),
    "resnet50": _stemmed(networks.resnet50, "resnet50:cifar:3x32x32-10"),
    "resnext101_32x8d": _stemmed(networks.resnext101_32x8d, "resnext101_32x8d:cifar:3x32x32-10"),
    "preresnet18": _stemmed(networks.preresnet18, "preresnet18:cifar:3x32x32-10"),
    "resnet20": _stemmed(networks.resnet20, "resnet20:cifar:3x32x32-10"),
    "resnet20_v2": _stemmed(networks.resnet20_v2, "resnet20_v2:cifar:3x32x32-10"),
    "torchvision": _external("torchvision", _torchvision_model, "torchvision:resnet34:10"),
    "timm": _external("timm", _timm_model, "timm:vit_tiny_patch16_224:10"),
}


def _split_normalisation(name: str, normalise: str | None) -> tuple[str, str | None]:
    """The name without its normalisation, and the constants from the name or the argument."""
    text, comma, option = name.partition(",")
    key, _, constants = option.partition("=")
    if comma and (key != "normalise" or constants not in NORMALISATIONS):
        raise ValueError(
            f"model may end in ',normalise=' and one of {', '.join(NORMALISATIONS)}, and in nothing else, got {name!r}"
        )
    if normalise is not None:
        check_choice("normalise", normalise, NORMALISATIONS)
    if comma and normalise not in (None, constants):
        raise ValueError(f"normalise must be {constants}, which model {name!r} has, got {normalise}")
    return text, constants if comma else normalise


def _vision_library(library: str, model: str) -> Any:
    try:
        return importlib.import_module(library)
    except (ImportError, RuntimeError) as error:  # a torchvision for another torch fails with a RuntimeError
        raise ImportError(
            f"{library}:{model} needs {library}, which does not import here ({error}): pip install 'dubio[vision]'"
        ) from error
