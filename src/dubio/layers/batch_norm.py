"""Batch norm whose training mode can be mapped over draws: statistics are taken over draws and batch together.

The running statistics move once a pass. Compiled, it consists of torch's own functions instead of an operator of ours:
the compiler fuses them with what stands around them. Mapped in eval mode it is one scale and one shift per channel, in
float32 at least, as torch's kernel for a CPU has it: torch's own rule refuses inputs of another type than the
statistics, and on a GPU channels-last ones. Outside a mapped pass these are torch's own layers; parameters, buffers and
names stay the same throughout.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from dubio.sampling import current_pass

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "standardise"]


@torch.library.custom_op("dubio::standardise", mutates_args=())
def standardise(input: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Zero mean and unit variance per channel over all other axes.

    Returns the outputs, the mean, one over the root of the variance, and the unbiased variance. A custom operator
    because its vmap rule, statistics over the mapped axis too, can be written for nothing less: ``torch.compile``
    traces an ``autograd.Function`` into its forward, past its vmap rule.
    """
    return _standardised(input, eps)


def _standardised(input: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    count = input.numel() // input.shape[1]
    if count < 2:
        raise ValueError(
            f"batch norm in training needs more than one value per channel, got shape {tuple(input.shape)}"
        )
    # Statistics in float32 at least: without weights to tell it, torch would keep them in the type of the input.
    exact = input.to(torch.promote_types(input.dtype, torch.float32))
    output, mean, inverse_std = torch.native_batch_norm(exact, None, None, None, None, True, 0.0, eps)
    variance = (inverse_std.square().reciprocal() - eps).clamp_min(0.0)
    return output.to(input.dtype), mean, inverse_std, variance * (count / (count - 1))


@standardise.register_fake
def _(input: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(input.dtype, torch.float32)
    mean, inverse_std, variance = (input.new_empty(input.shape[1], dtype=dtype) for _ in range(3))
    return torch.empty_like(input), mean, inverse_std, variance


@torch.library.custom_op("dubio::standardise_backward", mutates_args=())
def _standardise_backward(gradient: Tensor, input: Tensor, mean: Tensor, inverse_std: Tensor, eps: float) -> Tensor:
    exact_gradient, exact = gradient.to(mean.dtype), input.to(mean.dtype)
    gradients = torch.ops.aten.native_batch_norm_backward(
        exact_gradient, exact, None, None, None, mean, inverse_std, True, eps, [True, False, False]
    )
    return cast(Tensor, gradients[0]).to(input.dtype)


@_standardise_backward.register_fake
def _(gradient: Tensor, input: Tensor, mean: Tensor, inverse_std: Tensor, eps: float) -> Tensor:
    return torch.empty_like(input)


def _keep_for_backward(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(inputs[0], output[1], output[2])
    ctx.eps = inputs[1]


def _backward(ctx: Any, gradient: Tensor, *unused: Tensor) -> tuple[Tensor, None]:
    return _standardise_backward(gradient, *ctx.saved_tensors, ctx.eps), None


def _pool_draws(
    info: Any, in_dims: tuple[Any, ...], input: Tensor, eps: float
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    input = input.movedim(in_dims[0], 0)
    compute = _standardised if torch.compiler.is_compiling() else standardise  # the compiler sees into the former
    output, *statistics = compute(input.flatten(0, 1), eps)
    return (output.unflatten(0, input.shape[:2]), *statistics), (0, None, None, None)


standardise.register_autograd(_backward, setup_context=_keep_for_backward)
standardise.register_vmap(_pool_draws)


class _BatchNorm(nn.modules.batchnorm._BatchNorm):
    def forward(self, input: Tensor) -> Tensor:
        """Batch norm; in training under many draws, over draws and batch together."""
        run = current_pass()
        if run is None or not run.mapped:
            return super().forward(input)
        self._check_input_dim(input)
        if input.shape[1] != self.num_features:
            raise ValueError(f"expected {self.num_features} channels, got {input.shape[1]}")
        channels = (-1, *(1 for _ in input.shape[2:]))
        output: Tensor
        if self.training:
            output, mean, _, variance = (_standardised if run.alone else standardise)(input, self.eps)
            self._move_running_statistics(mean, variance)
            scale, shift = self.weight, self.bias
            output = output if scale is None else output * scale.view(channels)
            output = output if shift is None else output + shift.view(channels)
        elif self.running_mean is None or self.running_var is None:
            return super().forward(input)
        else:
            output = self._with(self.running_mean, self.running_var, input, channels)
        return output.to(input.dtype)

    def _with(self, mean: Tensor, variance: Tensor, input: Tensor, channels: tuple[int, ...]) -> Tensor:
        """Batch norm with these statistics."""
        exact = torch.promote_types(mean.dtype, torch.float32)
        scale = (variance.to(exact) + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight.to(exact)
        shift = -mean.to(exact) * scale
        shift = shift if self.bias is None else shift + self.bias.to(exact)
        return torch.addcmul(shift.view(channels), input, scale.view(channels))

    @torch.no_grad()
    def _move_running_statistics(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        dtype = self.running_mean.dtype
        step = 1.0 / self.num_batches_tracked.to(dtype) if self.momentum is None else self.momentum
        for running, new in ((self.running_mean, mean), (self.running_var, variance)):
            running.add_((new.to(dtype) - running) * step)  # lerp_ cannot be mapped


class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """``nn.BatchNorm1d`` that can be mapped over draws in training."""


class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """``nn.BatchNorm2d`` that can be mapped over draws in training."""


class BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    """``nn.BatchNorm3d`` that can be mapped over draws in training."""
