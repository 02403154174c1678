"""Dropout whose masks come from the engine: on in evaluation too, independent for every row and draw.

Two forms: torch's own dropout modules, which keep their class and place (``DROPOUTS``), and a mask that is put before
a layer (``InputMask``). With noise off both are the identity. In a network in training mode they do the same as in
evaluation.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dubio import functional
from dubio._engine import joined_pass
from dubio.layers.sources import InputSource, Source

__all__ = ["DROPOUTS", "InputMask", "RandomDropout"]


class _Masks(Source):
    """What both forms share."""

    p: float

    def _mask(self, input: Tensor, shape: Sequence[int], formula: Callable[..., Tensor]) -> Tensor:
        with joined_pass() as run:
            if run.off or self.p == 0.0:
                return input
            # In half precision there are too few numbers between 0 and 1 for the rate to be exact.
            uniform = run.noise_for_activations(self, shape, torch.float32, input.device, kind="uniform")
            return formula(input, uniform, self.p)


class InputMask(_Masks, InputSource):
    """A mask on the inputs of a layer, element by element."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, input: Tensor) -> Tensor:
        """The inputs with some of them dropped."""
        return self._mask(input, input.shape, functional.noise.dropout)

    def describe(self) -> str:
        """What kind of noise this is, in a few words."""
        return f"dropped at rate {self.p:g}"

    def extra_repr(self) -> str:
        """The rate, for printing."""
        return f"p={self.p:g}"


class RandomDropout(_Masks):
    """A dropout module of torch that is always on."""

    dubio_plain_class: ClassVar[type[nn.Module]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = self.dubio_plain_class.__name__
        raise TypeError(f"an always-on {name} is made from a plain one: dubio.Dropout().convert(torch.nn.{name}(...))")

    def forward(self, input: Tensor) -> Tensor:
        """The inputs with some of them dropped."""
        return self._mask(input, input.shape, functional.noise.dropout)

    def describe(self) -> str:
        """What kind of noise this is, in a few words."""
        return f"always on, rate {self.p:g}"


class Dropout(RandomDropout, nn.Dropout):
    """``nn.Dropout``, always on."""

    dubio_plain_class = nn.Dropout


class AlphaDropout(RandomDropout, nn.AlphaDropout):
    """``nn.AlphaDropout``, always on."""

    dubio_plain_class = nn.AlphaDropout

    def forward(self, input: Tensor) -> Tensor:
        """The inputs with some of them at the floor of a SELU."""
        return self._mask(input, input.shape, functional.noise.alpha_dropout)


class _ChannelDropout(RandomDropout):
    """Drops whole channels."""

    positions: ClassVar[int]
    """Axes of an unbatched input after its channels."""

    def forward(self, input: Tensor) -> Tensor:
        """The inputs with some channels dropped."""
        if input.dim() not in (self.positions + 1, self.positions + 2):
            raise ValueError(
                f"input of a {self.dubio_plain_class.__name__} must have {self.positions + 1} axes, or "
                f"{self.positions + 2} with a batch, got shape {tuple(input.shape)}"
            )
        channel = input.dim() - self.positions
        return self._mask(input, (*input.shape[:channel], *(1,) * self.positions), functional.noise.dropout)


class Dropout1d(_ChannelDropout, nn.Dropout1d):
    """``nn.Dropout1d``, always on."""

    dubio_plain_class = nn.Dropout1d
    positions = 1


class Dropout2d(_ChannelDropout, nn.Dropout2d):
    """``nn.Dropout2d``, always on."""

    dubio_plain_class = nn.Dropout2d
    positions = 2

    def forward(self, input: Tensor) -> Tensor:
        """The inputs with some channels dropped; three axes are rows, channels and length, as torch reads them."""
        if input.dim() == 3:
            return self._mask(input, (*input.shape[:2], 1), functional.noise.dropout)
        return super().forward(input)


class Dropout3d(_ChannelDropout, nn.Dropout3d):
    """``nn.Dropout3d``, always on."""

    dubio_plain_class = nn.Dropout3d
    positions = 3


class FeatureAlphaDropout(RandomDropout, nn.FeatureAlphaDropout):
    """``nn.FeatureAlphaDropout``, always on."""

    dubio_plain_class = nn.FeatureAlphaDropout

    def forward(self, input: Tensor) -> Tensor:
        """The inputs with some channels at the floor of a SELU."""
        shape = (*input.shape[:2], *(1,) * (input.dim() - 2))
        return self._mask(input, shape, functional.noise.alpha_dropout)


DROPOUTS: dict[type[nn.Module], type[RandomDropout]] = {
    layer.dubio_plain_class: layer
    for layer in (Dropout, Dropout1d, Dropout2d, Dropout3d, AlphaDropout, FeatureAlphaDropout)
}
"""The layer that is always on for each plain one."""
