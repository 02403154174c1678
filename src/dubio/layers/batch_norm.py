"""Batch norm whose training mode can be mapped over draws: statistics are taken over draws and batch together.

The running statistics move once a pass; members of an ensemble, each a network of its own, take and move their own.
Torch's own functions compute it, which the compiler fuses with what stands around them. Mapped in eval mode it is one
scale and one shift per channel, in float32 at least, as torch's kernel for a CPU has it: torch's own rule refuses
inputs of another type than the statistics, and on a GPU channels-last ones. Outside a mapped pass these are torch's own
layers; parameters, buffers and names stay the same throughout.
"""

from typing import Any

import torch
from torch import Tensor, nn

from dubio._engine import current_pass, is_mapped

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "standardise"]


@torch.library.custom_op("dubio::standardise", mutates_args=())
def standardise(input: Tensor, eps: float, pooled: bool) -> tuple[Tensor, Tensor, Tensor]:
    """``_standardised`` of a mapped input, over all draws together where they are ``pooled``, else over each alone.

    A custom operator because its vmap rule can be written for nothing less: ``torch.compile`` traces an
    ``autograd.Function`` into its forward, past its vmap rule. The rule puts torch's own functions in its place, for
    autograd and the compiler to see.
    """
    return _standardised(input, eps)


@standardise.register_fake
def _(input: Tensor, eps: float, pooled: bool) -> tuple[Tensor, Tensor, Tensor]:
    dtype = torch.promote_types(input.dtype, torch.float32)
    mean, variance = (input.new_empty(input.shape[1], dtype=dtype) for _ in range(2))
    return torch.empty_like(input), mean, variance


@standardise.register_vmap
def _(
    info: Any, in_dims: tuple[Any, ...], input: Tensor, eps: float, pooled: bool
) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
    if pooled:
        input = input.movedim(in_dims[0], 0)
        output, *statistics = _standardised(input.flatten(0, 1), eps)
        return (output.unflatten(0, input.shape[:2]), *statistics), (0, None, None)
    input = input.movedim(in_dims[0], 1)  # channels of their own: torch's rule would keep statistics in bf16
    output, *statistics = _standardised(input.flatten(1, 2), eps)
    mean, variance = (each.unflatten(0, input.shape[1:3]) for each in statistics)
    return (output.unflatten(1, input.shape[1:3]), mean, variance), (1, 0, 0)


def _standardised(input: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Zero mean and unit variance per channel over all other axes, the mean, and the unbiased variance."""
    count = input.numel() // input.shape[1]
    if count < 2:
        raise ValueError(
            f"batch norm in training needs more than one value per channel, got shape {tuple(input.shape)}"
        )
    # Statistics in float32 at least: without weights to tell it, torch would keep them in the type of the input.
    exact = torch.promote_types(input.dtype, torch.float32)
    one, zero = (fill(input.shape[1], dtype=exact) for fill in (input.new_ones, input.new_zeros))
    output, mean, inverse_std = torch.native_batch_norm(input, one, zero, None, None, True, 0.0, eps)
    variance = (inverse_std.square().reciprocal() - eps).clamp_min(0.0)
    return output, mean, variance * (count / (count - 1))


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
            found = standardise(input, self.eps, not run.alone) if is_mapped(input) else _standardised(input, self.eps)
            output, mean, variance = found
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
