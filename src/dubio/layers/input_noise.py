"""Multiplicative noise on a layer's inputs, ``f = layer(z * f_before)`` (E-37): what all such posteriors share, and the
Gaussian and mixture ones.

``z`` has one entry per channel (a feature of a linear layer, a channel of a convolution), near one. It is drawn for
every row, and either shared by all positions of a channel or drawn for each position. The divergence is summed over
channels and averaged over rows and positions.

Invariants: with noise off ``z`` is one, whatever the posterior (T-43); T-46.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Pass, joined_pass
from dubio.layers.sources import InputSource, Posterior
from dubio.priors import Normal

__all__ = ["Drawing", "GaussianInputNoise", "InputPosterior", "Kl"]

Kl = Literal["mc", "bound", "averaged"]
NUM_ROWS = 256
"""Rows drawn for an estimate of the divergence that has no inputs to go by."""

Drawing = tuple[Float[Tensor, "*rows channel"], Float[Tensor, "*rows"] | None, Float[Tensor, "*rows"] | None]
"""What was drawn, and for every row ``log q - log p`` and ``log q``, where they were asked for."""


class InputPosterior(InputSource, Posterior):
    """A distribution of factors for the inputs of a layer."""

    per_call = True

    def __init__(self, channels: int, axis: int, prior: Normal, *, per_position: bool, sum_positions: bool) -> None:
        super().__init__()
        self.channels, self.axis, self.prior = channels, axis, prior
        self.per_position, self.sum_positions = per_position, sum_positions

    @abstractmethod
    def draw_rows(
        self, run: Pass, shape: Sequence[int], dtype: torch.dtype, device: torch.device, wants: tuple[bool, bool]
    ) -> Drawing:
        """Factors of this shape, the channel on the last axis, with the densities that are wanted."""

    def forward(self, input: Tensor) -> Tensor:
        """The inputs times the factors of this pass."""
        with joined_pass() as run:
            if run.off:
                return input
            wants_divergence, wants_entropy = self.wants(run)
            if wants_divergence and self.has_closed_divergence:
                run.collect("divergence", self.closed_divergence())
            if wants_entropy and self.has_closed_entropy:
                run.collect("entropy", self.closed_entropy())
            wants = wants_divergence and not self.has_closed_divergence, wants_entropy and not self.has_closed_entropy
            dtype = torch.promote_types(input.dtype, torch.float32)
            with torch.autocast(input.device.type, enabled=False):
                factors, log_ratio, log_prob = self.draw_rows(run, self._shape_for(input), dtype, input.device, wants)
                if log_ratio is not None:
                    run.collect("divergence", self._over_rows(log_ratio))
                if log_prob is not None:
                    run.collect("entropy", -self._over_rows(log_prob))
            return input * factors.movedim(-1, self.axis).to(input.dtype)

    def draw_divergence(self, run: Pass) -> Float[Tensor, ""]:
        """The mean over some rows, one position each."""
        if self.sum_positions:
            raise ValueError(
                "inputs must be given where positions are summed (spatial='sum'): the divergence counts every position"
            )
        parameter = next(self.parameters())
        dtype = torch.promote_types(parameter.dtype, torch.float32)
        with torch.autocast(parameter.device.type, enabled=False):
            log_ratio = self.draw_rows(run, (NUM_ROWS, self.channels), dtype, parameter.device, (True, False))[1]
        assert log_ratio is not None
        return self._over_rows(log_ratio)

    def extra_repr(self) -> str:
        """Shape and prior, for printing."""
        return f"channels={self.channels}, prior={self.prior}"

    def _shape_for(self, input: Tensor) -> list[int]:
        """Rows, positions, channels."""
        channel = input.dim() + self.axis
        if channel < 0 or input.shape[channel] != self.channels:
            raise ValueError(
                f"inputs must have {self.channels} channels on axis {self.axis}, got shape {tuple(input.shape)}"
            )
        others = [size for axis, size in enumerate(input.shape) if axis != channel]
        if not self.per_position:  # the first axis counts rows, where it is not the channel
            others = [size if place == 0 and channel > 0 else 1 for place, size in enumerate(others)]
        return [*others, self.channels]

    def _over_rows(self, values: Float[Tensor, "*rows"]) -> Float[Tensor, ""]:
        if self.sum_positions and values.dim() > 1:
            values = values.flatten(1).sum(dim=1)
        return values.mean()


class GaussianInputNoise(InputPosterior):
    """A Gaussian, or a mixture of several with equal weights, for each of which a row is drawn (8.1)."""

    def __init__(
        self,
        channels: int,
        axis: int,
        prior: Normal,
        *,
        components: int,
        kl: Kl,
        per_position: bool,
        init_std: float,
        init_spread: float,
    ) -> None:
        super().__init__(channels, axis, prior, per_position=per_position, sum_positions=False)
        self.kl = kl
        self.means = nn.Parameter(1.0 + init_spread * torch.randn(components, channels))
        rho = functional.variational.inverse_softplus(torch.tensor(init_std, dtype=torch.float64, device="cpu")).item()
        self.rho = nn.Parameter(torch.full((components, channels), rho))

    @property
    def has_closed_divergence(self) -> bool:
        """Yes, but for a mixture whose divergence is to be that of the mixture."""
        return len(self.means) == 1 or self.kl != "mc"

    @property
    def has_closed_entropy(self) -> bool:
        """Yes, for one Gaussian."""
        return len(self.means) == 1

    def closed_divergence(self) -> Float[Tensor, ""]:
        """That of a Gaussian (E-7), or what stands for that of the mixture."""
        means, stds = self._moments(torch.float32)
        if self.kl == "averaged":
            mean, std = functional.noise.averaged_gaussian(means, stds)
            return self.prior.divergence(mean, std, None).sum()
        return self.prior.divergence(means, stds, None).sum(dim=1).mean()

    def closed_entropy(self) -> Float[Tensor, ""]:
        """That of a Gaussian."""
        return functional.variational.normal_entropy(self._moments(torch.float32)[1]).sum()

    def draw_rows(
        self, run: Pass, shape: Sequence[int], dtype: torch.dtype, device: torch.device, wants: tuple[bool, bool]
    ) -> Drawing:
        """Factors of this shape, the channel on the last axis, with the densities that are wanted."""
        means, stds = self._moments(dtype)
        noise = run.noise_for_activations(self, shape, dtype, device)
        mean, std = self._components(run, shape, means, stds)
        factors = mean + std * noise
        if not any(wants):
            return factors, None, None
        log_prob = functional.noise.mixture_log_prob(factors, means, stds)
        log_ratio = log_prob - self.prior.log_prob(factors, None).sum(dim=-1)
        return factors, log_ratio if wants[0] else None, log_prob if wants[1] else None

    def describe(self) -> str:
        """What kind of noise this is, in a few words."""
        count = len(self.means)
        kind = "Gaussian noise" if count == 1 else f"noise of {count} Gaussians"
        return f"{kind} {'per position' if self.per_position else 'per channel'}, prior {self.prior}"

    def _components(self, run: Pass, shape: Sequence[int], means: Tensor, stds: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the component of every row."""
        if len(means) == 1:
            return means[0], stds[0]
        rows = [shape[0], *(1 for _ in shape[1:-1])] if len(shape) > 1 else []
        uniform = run.noise_for_activations(self, rows, torch.float32, means.device, kind="uniform")
        chosen = functional.noise.component_of(uniform, len(means))
        return means[chosen], stds[chosen]

    def _moments(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(dtype, self.means.dtype)
        return self.means.to(dtype), functional.variational.softplus(self.rho.to(dtype))
