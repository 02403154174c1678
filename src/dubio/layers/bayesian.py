"""Linear and convolution layers whose weights are drawn: weight sampling, local reparameterisation, flipout.

A layer is made by conversion of its deterministic counterpart and stays an instance of it: same attributes, same
``forward`` signature, ``layer.weight`` is the weight of the running pass. The three estimators give the same marginal
mean and variance of every output (T-13, T-17, ``test_estimators.py``):

- ``weight`` draws the weights; every row of the batch sees the same draw;
- ``local`` draws the outputs from their moments (E-23 to E-25); each row and output has noise of its own, so it is the
  choice for training and must not be used where one consistent function is needed;
- ``flipout`` draws one perturbation of the weights and flips its sign per row, input and output unit.

With noise off, each runs its counterpart's own forward on the means.
"""

from abc import ABC, abstractmethod
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from dubio import functional
from dubio.layers.posterior import GaussianPosterior
from dubio.sampling import Estimator, Pass, joined_pass

__all__ = ["BAYESIAN", "BayesianLayer", "Conv1d", "Conv2d", "Conv3d", "Linear"]


class BayesianLayer(nn.Module, ABC):
    """What the Bayesian layers share: posteriors in place of parameters, and the estimators."""

    noise_key: int | None = None
    estimator: Estimator
    _plain: type[nn.Module]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = self._plain.__name__
        raise TypeError(f"a Bayesian {name} is made from a plain one: dubio.Bayes().convert(torch.nn.{name}(...))")

    @property
    def weight(self) -> Float[Tensor, "*shape"]:
        """The weights of the running pass; outside any pass, their means."""
        return self._value("weight")  # type: ignore[return-value]

    @property
    def bias(self) -> Float[Tensor, "*shape"] | None:
        """The bias of the running pass; outside any pass, its mean."""
        return self._value("bias")

    def forward(self, input: Float[Tensor, "*shape"]) -> Float[Tensor, "*outputs"]:
        """The layer's output for the running pass, or for a fresh draw where there is none."""
        self._check_input(input)
        with joined_pass() as run:
            estimator = run.settings.estimator or self.estimator
            if run.off or estimator == "weight":
                return self._apply_to(input, self.weight, self.bias)
            if estimator == "local":
                return self._local(input, run)
            return self._flipout(input, run)

    def extra_repr(self) -> str:
        """What the plain layer prints, and the estimator."""
        return f"{super().extra_repr()}, estimator={self.estimator!r}"

    def _local(self, input: Tensor, run: Pass) -> Tensor:
        if run.collecting:  # no weight is drawn here, but a divergence without closed form needs one
            self._collect_divergence(run)
        mean = self._apply_to(input, self._mean("weight"), self._mean("bias"))
        dtype = torch.promote_types(input.dtype, torch.float32)
        # Squares under- and overflow in half precision: the variance is computed in float32 at least.
        with torch.autocast(input.device.type, enabled=False):
            square = input.to(dtype).square()
            variance = self._apply_to(square, self._variance("weight", dtype), self._variance("bias", dtype))
            noise = run.noise_for_activations(self, mean.shape, dtype, mean.device)
            return functional.local_reparameterisation(mean, variance, noise)

    def _collect_divergence(self, run: Pass) -> None:
        for name in ("weight", "bias"):
            posterior = self._posterior(name)
            if posterior is not None and posterior.closed_divergence() is None:
                posterior.perturbation(run)

    def _flipout(self, input: Tensor, run: Pass) -> Tensor:
        mean = self._apply_to(input, self._mean("weight"), self._mean("bias"))
        in_shape, out_shape = self._sign_shapes(input, mean)
        in_signs = run.noise_for_activations(self, in_shape, input.dtype, input.device, kind="sign")
        out_signs = run.noise_for_activations(self, out_shape, mean.dtype, mean.device, kind="sign")
        weight, bias = self._perturbation("weight", run), self._perturbation("bias", run)
        perturbation = self._apply_to(input * in_signs, weight, bias)
        return functional.flip(mean, perturbation, out_signs)

    def _posterior(self, name: str) -> GaussianPosterior | None:
        return getattr(self, f"{name}_posterior", None)

    def _value(self, name: str) -> Tensor | None:
        posterior = self._posterior(name)
        return self._parameters.get(name) if posterior is None else posterior.draw()

    def _mean(self, name: str) -> Tensor | None:
        posterior = self._posterior(name)
        return self._parameters.get(name) if posterior is None else posterior.mean

    def _variance(self, name: str, dtype: torch.dtype) -> Tensor | None:
        posterior = self._posterior(name)
        return None if posterior is None else functional.softplus(posterior.rho.to(dtype)).square()

    def _perturbation(self, name: str, run: Pass) -> Tensor | None:
        posterior = self._posterior(name)
        return None if posterior is None else posterior.perturbation(run)

    @abstractmethod
    def _apply_to(self, input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """The plain layer as a function."""

    @abstractmethod
    def _sign_shapes(self, input: Tensor, output: Tensor) -> tuple[torch.Size, torch.Size]:
        """Shapes of flipout's signs for inputs and outputs."""

    @abstractmethod
    def _check_input(self, input: Tensor) -> None:
        """Refuse inputs of the wrong shape."""


class Linear(BayesianLayer, nn.Linear):  # type: ignore[misc, override]
    """``nn.Linear`` with drawn weights."""

    _plain = nn.Linear

    def _apply_to(self, input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.linear(input, cast(Tensor, weight), bias)

    def _sign_shapes(self, input: Tensor, output: Tensor) -> tuple[torch.Size, torch.Size]:
        return input.shape, output.shape

    def _check_input(self, input: Tensor) -> None:
        if input.dim() == 0 or input.shape[-1] != self.in_features:
            raise ValueError(
                f"input of a Linear must have {self.in_features} features on its last axis, "
                f"got shape {tuple(input.shape)}"
            )


class _Convolution(BayesianLayer):
    in_channels: int
    weight_posterior: GaussianPosterior
    _conv_forward: Any

    def _apply_to(self, input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return cast(Tensor, self._conv_forward(input, weight, bias))

    def _sign_shapes(self, input: Tensor, output: Tensor) -> tuple[torch.Size, torch.Size]:
        # One sign per row and channel: the perturbation must stay one filter over all positions.
        positions = (1,) * self._spatial
        channels = input.dim() - self._spatial
        return (
            torch.Size((*input.shape[:channels], *positions)),
            torch.Size((*output.shape[:channels], *positions)),
        )

    def _check_input(self, input: Tensor) -> None:
        spatial = self._spatial
        if input.dim() not in (spatial + 1, spatial + 2) or input.shape[-spatial - 1] != self.in_channels:
            axes = ", ".join(("batch", f"{self.in_channels} channels", *("depth", "height", "width")[3 - spatial :]))
            raise ValueError(f"input of a {self._plain.__name__} must be ({axes}), got shape {tuple(input.shape)}")

    @property
    def _spatial(self) -> int:
        return self.weight_posterior.mean.dim() - 2


class Conv1d(_Convolution, nn.Conv1d):  # type: ignore[override]
    """``nn.Conv1d`` with drawn weights."""

    _plain = nn.Conv1d


class Conv2d(_Convolution, nn.Conv2d):  # type: ignore[override]
    """``nn.Conv2d`` with drawn weights."""

    _plain = nn.Conv2d


class Conv3d(_Convolution, nn.Conv3d):  # type: ignore[override]
    """``nn.Conv3d`` with drawn weights."""

    _plain = nn.Conv3d


BAYESIAN: dict[type[nn.Module], type[BayesianLayer]] = {
    layer._plain: layer for layer in (Linear, Conv1d, Conv2d, Conv3d)
}
"""The Bayesian layer for each plain one."""
