"""Layers whose inputs pass through a source of noise first, or whose outputs do afterwards.

A noised layer is an instance of a subclass of its plain class whose ``forward`` hands the first input, or the output,
to a child that is the noise, and goes on as before: the layer keeps its parameters, their names and its class's
behaviour, a user's own linear layer included. With noise off the plain forward runs alone, so outputs are bitwise those
of the source network (T-43); a module changes its class and back without moving a tensor.
"""

from typing import Any, ClassVar

from torch import Tensor, nn

from dubio.layers.activation_noise import ActivationNoise
from dubio.layers.sources import InputSource

__all__ = [
    "Noised",
    "NoisyInput",
    "NoisyOutput",
    "channels_of",
    "noise_input",
    "noise_output",
    "plain_layer",
    "takes_noise",
]

CONVOLUTIONS = (nn.modules.conv._ConvNd,)
UNCALLED = (nn.modules.linear.NonDynamicallyQuantizableLinear,)
"""Layers whose parameters torch reads without calling them."""


class Noised(nn.Module):
    """What all noised layers share. Names begin with ``dubio_``: the class is mixed into users' own."""

    dubio_plain_class: type[nn.Module]
    dubio_noise_name: ClassVar[str]
    """Which child is the noise."""

    @property
    def dubio_noise(self) -> InputSource:
        """The noise."""
        noise = self._modules[self.dubio_noise_name]
        assert isinstance(noise, InputSource)
        return noise

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Take a plain network's weights, where a checkpoint holds those; the noise stays as it is."""
        noise = self.dubio_noise.state_dict(prefix=f"{prefix}{self.dubio_noise_name}.")
        if noise and not any(key in state_dict for key in noise):
            state_dict.update(noise)
        super()._load_from_state_dict(state_dict, prefix, *args)


class NoisyInput(Noised):
    """A layer with noise on its first input."""

    dubio_noise_name = "input_noise"
    input_noise: InputSource

    def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The plain layer's output for inputs as this pass sees them."""
        return super().forward(self.input_noise(input), *args, **kwargs)


class NoisyOutput(Noised):
    """A layer with noise on its outputs, which may look at the inputs."""

    dubio_noise_name = "output_noise"
    output_noise: ActivationNoise

    def forward(self, input: Tensor) -> Any:
        """The plain layer's output as this pass sees it."""
        return self.output_noise(super().forward(input), input)


def takes_noise(module: nn.Module) -> bool:
    """Whether noise can be put before a module: linear layers and convolutions."""
    return isinstance(module, (nn.Linear, *CONVOLUTIONS)) and not isinstance(module, UNCALLED)


def channels_of(module: nn.Module) -> tuple[int, int]:
    """How many channels the inputs of a layer have, and on which axis, counted from the last."""
    if isinstance(module, nn.Linear):
        return module.in_features, -1
    assert isinstance(module, CONVOLUTIONS)
    return module.in_channels, -len(module.kernel_size) - 1


def noise_input(module: nn.Module, noise: InputSource) -> None:
    """Put noise before a layer, in place: its class changes, and it gets a child ``input_noise``."""
    _noise(module, noise, NoisyInput)


def noise_output(module: nn.Module, noise: ActivationNoise) -> None:
    """Put noise behind a layer, in place: its class changes, and it gets a child ``output_noise``."""
    _noise(module, noise, NoisyOutput)


def plain_layer(module: nn.Module) -> None:
    """Take the noise off again, in place."""
    assert isinstance(module, Noised)
    del module._modules[module.dubio_noise_name]
    module.__class__ = module.dubio_plain_class  # type: ignore[assignment]


def _noise(module: nn.Module, noise: nn.Module, mixin: type[Noised]) -> None:
    if hasattr(module, mixin.dubio_noise_name):
        raise ValueError(f"cannot convert a {type(module).__name__}: it has an {mixin.dubio_noise_name} of its own")
    module.__class__ = _noised_class(mixin, type(module))
    module.add_module(mixin.dubio_noise_name, noise)


_CLASSES: dict[tuple[type[Noised], type[nn.Module]], type[Noised]] = {}


def _noised_class(mixin: type[Noised], plain: type[nn.Module]) -> type[Noised]:
    """The subclass of ``plain`` with noise."""
    if (mixin, plain) not in _CLASSES:
        members: dict[str, Any] = {
            "__doc__": f"``{plain.__name__}`` with {mixin.dubio_noise_name}.",
            "__module__": plain.__module__,
            "__qualname__": plain.__qualname__,
            "__reduce_ex__": _reduce,
            "dubio_plain_class": plain,
        }
        _CLASSES[mixin, plain] = type(plain.__name__, (mixin, plain), members)
    return _CLASSES[mixin, plain]


def _reduce(self: Noised, protocol: Any) -> tuple[Any, ...]:
    """Pickle a class made at run time by what it was made of."""
    return *recipe_of(type(self)), self.__getstate__()


def recipe_of(kind: type[Noised]) -> tuple[Any, tuple[Any, ...]]:
    """What makes an empty module of a class that was made at run time, and of what."""
    return _rebuild, (kind.__mro__[1], kind.dubio_plain_class)


def _rebuild(mixin: type[Noised], plain: type[nn.Module]) -> nn.Module:
    kind = _noised_class(mixin, plain)
    return kind.__new__(kind)
