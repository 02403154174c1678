"""Networks of torchvision and timm by name, where these are installed; nothing here imports them before it is asked."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from dubio.models.naming import check_sizes, named, write_sizes

__all__ = ["timm_model", "torchvision_model"]


def torchvision_model(model: str, inputs: Sequence[int] | None, num_classes: int) -> nn.Module:
    """A classifier of torchvision, untrained; all of them read three channels."""
    try:
        from torchvision import models  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except (ImportError, RuntimeError) as error:  # a build for another torch fails with the latter
        raise ImportError(
            f"torchvision:{model} needs torchvision, which does not import here ({error}): pip install 'dubio[vision]'"
        ) from error
    if model not in models.list_models(module=models):
        raise ValueError(
            f"model after torchvision: must be one of torchvision's classifiers, such as resnet34, got {model!r}"
        )
    _check(f"torchvision:{model}", inputs, num_classes)
    if inputs is not None and inputs[0] != 3:
        raise ValueError(f"inputs of torchvision:{model} must have 3 channels, got {tuple(inputs)}")
    net: nn.Module = models.get_model(model, weights=None, num_classes=num_classes)
    return named(net, _name("torchvision", model, inputs, num_classes))


def timm_model(model: str, inputs: Sequence[int] | None, num_classes: int) -> nn.Module:
    """A model of timm, untrained, for as many channels as the inputs have, three where they are not known."""
    try:
        import timm  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except (ImportError, RuntimeError) as error:  # timm imports torchvision
        raise ImportError(
            f"timm:{model} needs timm, which does not import here ({error}): pip install 'dubio[vision]'"
        ) from error
    if not timm.is_model(model):
        raise ValueError(f"model after timm: must be one of timm.list_models(), got {model!r}")
    _check(f"timm:{model}", inputs, num_classes)
    channels: dict[str, Any] = {} if inputs is None else {"in_chans": inputs[0]}
    net: nn.Module = timm.create_model(model, pretrained=False, num_classes=num_classes, **channels)
    return named(net, _name("timm", model, inputs, num_classes))


def _check(name: str, inputs: Sequence[int] | None, num_classes: int) -> None:
    check_sizes(name, (3, 1, 1) if inputs is None else inputs, num_classes, 1)


def _name(library: str, model: str, inputs: Sequence[int] | None, num_classes: int) -> str:
    sizes = str(num_classes) if inputs is None else write_sizes(inputs, num_classes)
    return f"{library}:{model}:{sizes}"
