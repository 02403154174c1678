"""Layers whose inputs pass through a source of noise first.

A noised layer is an instance of a subclass of its plain class whose ``forward`` hands the first input to
``input_noise`` and goes on as before: the layer keeps its parameters, their names and its class's behaviour, a user's
own linear layer included. With noise off the plain forward runs alone, so outputs are bitwise those of the source
network (T-43); a module changes its class and back without moving a tensor.
"""

from typing import Any

from torch import Tensor, nn

from dubio.layers.sources import InputSource

__all__ = ["Noised", "channels_of", "noise_input", "noised_class", "plain_input", "takes_noise"]

CONVOLUTIONS = (nn.modules.conv._ConvNd,)
UNCALLED = (nn.modules.linear.NonDynamicallyQuantizableLinear,)
"""Layers whose parameters torch reads without calling them."""


class Noised(nn.Module):
    """What all noised layers share. Names begin with ``dubio_``: the class is mixed into users' own."""

    dubio_plain_class: type[nn.Module]
    input_noise: InputSource

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The plain layer's output for inputs as this pass sees them."""
        return super().forward(self.input_noise(input), *args, **kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take a plain network's weights, where a checkpoint holds those; the noise stays as it is."""
        noise = self.input_noise.state_dict(prefix=f"{prefix}input_noise.")
        if noise and not any(key in state_dict for key in noise):
            state_dict.update(noise)
        super()._load_from_state_dict(state_dict, prefix, *args)


def takes_noise(module: nn.Module) -> bool:
    """Whether noise can be put before a module: linear layers and convolutions."""
    return isinstance(module, (nn.Linear, *CONVOLUTIONS)) and not isinstance(module, UNCALLED)


def channels_of(module: nn.Module) -> tuple[int, int]:
    """How many channels the inputs of a layer have, and on which axis, counted from the last."""
    if isinstance(module, nn.Linear):
        return module.in_features, -1
    assert isinstance(module, CONVOLUTIONS)
    return module.in_channels, -len(module.kernel_size) - 1


_CLASSES: dict[type[nn.Module], type[Noised]] = {}


def noised_class(plain: type[nn.Module]) -> type[Noised]:
    """The subclass of ``plain`` whose inputs are noisy."""
    if plain not in _CLASSES:
        members: dict[str, Any] = {
            "__doc__": f"``{plain.__name__}`` with noise on its inputs.",
            "__module__": plain.__module__,
            "__qualname__": plain.__qualname__,
            "__reduce_ex__": _reduce,
            "dubio_plain_class": plain,
        }
        _CLASSES[plain] = type(plain.__name__, (Noised, plain), members)
    return _CLASSES[plain]


def noise_input(module: nn.Module, noise: InputSource) -> Noised:
    """Put noise before a layer, in place: its class changes, and it gets a child ``input_noise``."""
    if hasattr(module, "input_noise"):
        raise ValueError(f"cannot convert a {type(module).__name__}: it has an input_noise of its own")
    module.__class__ = noised_class(type(module))
    assert isinstance(module, Noised)
    module.add_module("input_noise", noise)
    return module


def plain_input(module: nn.Module) -> None:
    """Take the noise of a noised layer off again, in place."""
    assert isinstance(module, Noised)
    del module._modules["input_noise"]
    module.__class__ = module.dubio_plain_class  # type: ignore[assignment]


def _reduce(self: Noised, protocol: Any) -> tuple[Any, ...]:
    """Pickle a class made at run time by what it was made of."""
    return _rebuild, (type(self).dubio_plain_class,), self.__getstate__()


def _rebuild(plain: type[nn.Module]) -> nn.Module:
    kind = noised_class(plain)
    return kind.__new__(kind)
