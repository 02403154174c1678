"""Linear and convolution layers whose weights are drawn: weight sampling, local reparameterisation, flipout.

A layer is made by conversion of its deterministic counterpart and stays an instance of it: same attributes, same
``forward`` signature, ``layer.weight`` is the weight of the running pass. The three estimators give the same marginal
mean and variance of every output (T-13, T-17, ``test_estimators.py``):

- ``weight`` draws the weights; every row of the batch sees the same draw;
- ``local`` draws the outputs from their moments (E-23 to E-25); each row and output has its own noise, so it is the
  choice for training and must not be used where one consistent function is needed;
- ``flipout`` draws one perturbation of the weights and flips its sign per row, input and output unit.

With noise off, each runs its counterpart's own forward on the means.

``affine`` is ``F.linear`` for a mapped pass. Torch maps ``F.linear`` to a batched product and an addition of the
biases, which reads and writes all outputs once more in a kernel that does not vectorise: on a GPU nearly as long as the
product. The product of a single draw adds its bias in the same kernel. So, where products are large and no gradient is
needed, draws are multiplied one after another, outside the map, into one tensor.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad

from dubio import functional
from dubio._engine import Estimator, Pass, autocast_dtype, is_mapped, is_transformed, joined_pass, lowered
from dubio.nn.rewrite import Drawn, drawn_property, gaussian_of, plain_value, posterior_of
from dubio.nn.sources import WeightSource
from dubio.nn.vmappable import call_outside_vmap

ALIGNED_UNITS = 8
"""Products of a GPU are fast where widths are a multiple of this: ten classes are compiled as sixteen."""
DEVICES = ("cuda",)
"""Where the addition of mapped biases costs that much."""
LARGE_PRODUCT, MANY_OUTPUTS = 2**32, 2**21
"""Multiplications and outputs of a draw from which a separate launch pays, and fills a large GPU."""


class BayesianLayer(Drawn, ABC):
    """The base of the Bayesian layers: the estimators."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = self.dubio_plain_class.__name__
        raise TypeError(f"a Bayesian {name} is made from a plain one: dubio.Bayes().convert(torch.nn.{name}(...))")

    weight = drawn_property("weight")
    bias = drawn_property("bias")

    @property
    def estimator(self) -> Estimator:
        """How the layer's outputs are drawn."""
        return self.dubio_estimator

    def forward(self, input: Float[Tensor, "*shape"]) -> Float[Tensor, "*outputs"]:
        """The layer's output for the running pass, or for a fresh draw where there is none."""
        return self._forward(input)

    def _forward(self, input: Tensor, *options: Any) -> Tensor:
        self._check_input(input)
        with joined_pass() as run:
            estimator = run.settings.estimator or self.dubio_estimator
            if run.off or self.dubio_shares_draw or estimator == "weight":
                return self._apply_to(input, self.weight, self.bias, *options)
            if estimator == "local":
                return self._local(input, run, *options)
            return self._flipout(input, run, *options)

    def extra_repr(self) -> str:
        """What the plain layer prints, and the estimator."""
        return f"{super().extra_repr()}, estimator={self.estimator!r}"

    def _local(self, input: Tensor, run: Pass, *options: Any) -> Tensor:
        gaussians = [gaussian_of(self, name) for name in ("weight", "bias")]
        for posterior in gaussians:
            if posterior is not None and posterior.wants(run)[0]:
                posterior.perturbation(run)  # no weight is drawn here, but a divergence without closed form needs one
        mean = self._apply_to(input, self._mean("weight"), self._mean("bias"), *options)
        dtype = torch.promote_types(input.dtype, torch.float32)
        # bfloat16 has the range of float32: under autocast to it variances are multiplied in it.
        factors = torch.bfloat16 if autocast_dtype(input.device) == torch.bfloat16 else dtype
        # Squares under- and overflow in float16: they and roots are computed in float32 at least, and their products in
        # a type with at least that range.
        with torch.autocast(input.device.type, enabled=False):
            square = input.to(dtype).square().to(factors)
            weight, bias = (None if each is None else each.variance(dtype).to(factors) for each in gaussians)
            variance = self._apply_to(square, weight, bias, *options).to(dtype)
            noise = run.noise_for_activations(self, mean.shape, dtype, mean.device)
            return functional.variational.local_reparameterisation(mean, variance, noise)

    def _flipout(self, input: Tensor, run: Pass, *options: Any) -> Tensor:
        mean = self._apply_to(input, self._mean("weight"), self._mean("bias"), *options)
        in_shape, out_shape = self._sign_shapes(input, mean)
        in_signs = run.noise_for_activations(self, in_shape, input.dtype, input.device, kind="sign")
        out_signs = run.noise_for_activations(self, out_shape, mean.dtype, mean.device, kind="sign")
        weight, bias = self._perturbation("weight", run), self._perturbation("bias", run)
        perturbation = self._apply_to(input * in_signs, weight, bias, *options)
        return functional.variational.flip(mean, perturbation, out_signs)

    def _mean(self, name: str) -> Tensor | None:
        posterior = posterior_of(self, name)
        return plain_value(self, name) if posterior is None else posterior.location

    def _perturbation(self, name: str, run: Pass) -> Tensor | None:
        posterior = posterior_of(self, name)
        return None if posterior is None else posterior.perturbation(run)

    @abstractmethod
    def _apply_to(self, input: Tensor, weight: Tensor | None, bias: Tensor | None, *options: Any) -> Tensor:
        """The plain layer as a function."""

    @abstractmethod
    def _sign_shapes(self, input: Tensor, output: Tensor) -> tuple[torch.Size, torch.Size]:
        """Shapes of flipout's signs for inputs and outputs."""

    @abstractmethod
    def _check_input(self, input: Tensor) -> None:
        """Refuse inputs of the wrong shape."""


class Linear(BayesianLayer, nn.Linear):
    """``nn.Linear`` with drawn weights."""

    def _apply_to(self, input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        assert weight is not None
        units = self.out_features
        missing = -units % ALIGNED_UNITS
        if not (input.is_cuda and missing and torch.compiler.is_compiling()):
            return affine(input, weight, bias)
        weight = F.pad(weight, (0, 0, 0, missing))
        bias = None if bias is None else F.pad(bias, (0, missing))
        return affine(input, weight, bias)[..., :units]

    def _sign_shapes(self, input: Tensor, output: Tensor) -> tuple[torch.Size, torch.Size]:
        return input.shape, output.shape

    def _check_input(self, input: Tensor) -> None:
        if input.dim() == 0 or input.shape[-1] != self.in_features:
            raise ValueError(
                f"input of a Linear must have {self.in_features} features on its last axis, "
                f"got shape {tuple(input.shape)}"
            )


class _Convolution(BayesianLayer, nn.modules.conv._ConvNd):
    weight_posterior: WeightSource
    _conv_forward: Any

    def _apply_to(self, input: Tensor, weight: Tensor | None, bias: Tensor | None, *options: Any) -> Tensor:
        return cast(Tensor, self._conv_forward(input, weight, bias))

    def _sign_shapes(self, input: Tensor, output: Tensor) -> tuple[torch.Size, torch.Size]:
        # One sign per row and channel: the perturbation stays one filter over all positions.
        positions = (1,) * self._num_positions
        channels = input.dim() - self._num_positions
        return torch.Size((*input.shape[:channels], *positions)), torch.Size((*output.shape[:channels], *positions))

    def _check_input(self, input: Tensor) -> None:
        axes = self._num_positions
        if input.dim() not in (axes + 1, axes + 2) or input.shape[-axes - 1] != self.in_channels:
            names = ", ".join(("batch", f"{self.in_channels} channels", *("depth", "height", "width")[3 - axes :]))
            raise ValueError(
                f"input of a {self.dubio_plain_class.__name__} must be ({names}), got shape {tuple(input.shape)}"
            )

    @property
    def _num_positions(self) -> int:
        return self.weight_posterior.mean.dim() - 2


class Conv1d(_Convolution, nn.Conv1d):
    """``nn.Conv1d`` with drawn weights."""


class Conv2d(_Convolution, nn.Conv2d):
    """``nn.Conv2d`` with drawn weights."""


class Conv3d(_Convolution, nn.Conv3d):
    """``nn.Conv3d`` with drawn weights."""


class _Transposed(_Convolution):
    padding: Any
    _output_padding: Any

    def forward(
        self, input: Float[Tensor, "*shape"], output_size: Sequence[int] | None = None
    ) -> Float[Tensor, "*outputs"]:
        """The layer's output for the running pass, or for a fresh draw where there is none."""
        return self._forward(input, output_size)

    def _apply_to(self, input: Tensor, weight: Tensor | None, bias: Tensor | None, *options: Any) -> Tensor:
        (output_size,) = options or (None,)
        size = None if output_size is None else list(output_size)
        window = self.stride, self.padding, self.kernel_size, self._num_positions, self.dilation
        output_padding = self._output_padding(input, size, *window)
        function: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self._num_positions - 1]
        options = self.stride, self.padding, output_padding, self.groups, self.dilation
        return cast(Tensor, function(input, weight, bias, *options))


class ConvTranspose1d(_Transposed, nn.ConvTranspose1d):
    """``nn.ConvTranspose1d`` with drawn weights."""


class ConvTranspose2d(_Transposed, nn.ConvTranspose2d):
    """``nn.ConvTranspose2d`` with drawn weights."""


class ConvTranspose3d(_Transposed, nn.ConvTranspose3d):
    """``nn.ConvTranspose3d`` with drawn weights."""


BAYESIAN: dict[type[nn.Module], type[BayesianLayer]] = {
    getattr(nn, layer.__name__): layer
    for layer in (Linear, Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
}
"""The layer with all three estimators for each plain one, which has the same name; others draw their weights."""
for plain, layer in BAYESIAN.items():
    layer.dubio_plain_class = plain


def affine(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``F.linear(input, weight, bias)``."""
    if bias is not None and input.device.type in DEVICES and _is_worth_a_launch(input, weight):
        lower = autocast_dtype(input.device)
        factors = [lowered(value, lower) for value in (input, weight, bias)]
        if all(value.dtype == (lower or bias.dtype) for value in factors):
            return call_outside_vmap(_one_by_one, factors)[0]
    return F.linear(input, weight, bias)


def _is_worth_a_launch(input: Tensor, weight: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return False
    rows = input.shape[:-1].numel()
    return is_mapped(weight) and rows * weight.numel() >= LARGE_PRODUCT and rows * len(weight) >= MANY_OUTPUTS


def _one_by_one(num_samples: int, tensors: Sequence[Tensor], axes: Sequence[int | None]) -> tuple[Tensor]:
    """Each draw's product, written into the joint tensor."""
    inputs, weights, biases = (
        # Shared tensors are contiguous, so that rows are counted on one axis without a copy for each draw.
        tensor.contiguous().expand(num_samples, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        for tensor, axis in zip(tensors, axes, strict=True)
    )
    rows = inputs.reshape(num_samples, inputs.shape[1:-1].numel(), inputs.shape[-1])
    shape = (*inputs.shape[:-1], weights.shape[1])
    if is_transformed() or forward_ad._current_level >= 0:  # writing into a tensor would escape an outer transform
        return ((torch.bmm(rows, weights.mT) + biases.unsqueeze(1)).reshape(shape),)
    outputs = rows.new_empty(*rows.shape[:2], weights.shape[1])
    for output, draw_rows, weight, bias in zip(outputs, rows, weights, biases, strict=True):
        torch.addmm(bias, draw_rows, weight.t(), out=output)
    return (outputs.reshape(shape),)
