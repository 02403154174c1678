"""Convolutions that are mapped under the autocast of a CPU as they are under that of a GPU.

``vmap`` takes a convolution apart before autocast sees it; what is left of it then, autocast lowers on a GPU alone. So
in a mapped pass factors are lowered here; outside one these are torch's own layers.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from dubio.layers.autocasting import autocast_dtype, lowered
from dubio.sampling import current_pass

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

Convolve = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def _lowered(convolve: Convolve, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution in the type of autocast, where draws are mapped."""
    run = current_pass()
    lower = autocast_dtype(input.device) if run is not None and run.mapped else None
    if lower is None:
        return convolve(input, weight, bias)
    with torch.autocast(input.device.type, enabled=False):  # which would pad in float32
        bias = None if bias is None else lowered(bias, lower)
        return convolve(lowered(input, lower), lowered(weight, lower), bias)


class _Correlation(nn.modules.conv._ConvNd):
    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _lowered(super()._conv_forward, input, weight, bias)


class Conv1d(_Correlation, nn.Conv1d):
    """``nn.Conv1d`` that is mapped under autocast."""


class Conv2d(_Correlation, nn.Conv2d):
    """``nn.Conv2d`` that is mapped under autocast."""


class Conv3d(_Correlation, nn.Conv3d):
    """``nn.Conv3d`` that is mapped under autocast."""


class _Transposed(nn.modules.conv._ConvTransposeNd):
    _function: ClassVar[Callable[..., Tensor]]

    def forward(
        self, input: Float[Tensor, "*shape"], output_size: Sequence[int] | None = None
    ) -> Float[Tensor, "*outputs"]:
        """The transposed convolution."""
        return self._conv_forward(input, self.weight, self.bias, output_size)

    def _conv_forward(
        self, input: Tensor, weight: Tensor, bias: Tensor | None, output_size: Sequence[int] | None = None
    ) -> Tensor:
        size = None if output_size is None else list(output_size)
        sizes: Any = (self.stride, self.padding, self.kernel_size, len(self.kernel_size), self.dilation)
        options = (self.stride, self.padding, self._output_padding(input, size, *sizes), self.groups, self.dilation)
        return _lowered(lambda *factors: type(self)._function(*factors, *options), input, weight, bias)


class ConvTranspose1d(_Transposed, nn.ConvTranspose1d):
    """``nn.ConvTranspose1d`` that is mapped under autocast."""

    _function = staticmethod(F.conv_transpose1d)


class ConvTranspose2d(_Transposed, nn.ConvTranspose2d):
    """``nn.ConvTranspose2d`` that is mapped under autocast."""

    _function = staticmethod(F.conv_transpose2d)


class ConvTranspose3d(_Transposed, nn.ConvTranspose3d):
    """``nn.ConvTranspose3d`` that is mapped under autocast."""

    _function = staticmethod(F.conv_transpose3d)
