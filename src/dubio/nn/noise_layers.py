"""Noise on activations: multiplicative noise on inputs, Gaussian noise with a learned scale, and dropout.

``InputPosterior`` multiplies a layer's inputs by factors, ``f = layer(z * f_before)`` (E-37). ``z`` has one entry per
channel (a feature of a linear layer, a channel of a convolution), near one. It is drawn for every row, and either
shared by all positions of a channel or drawn for each position. The divergence is summed over channels and averaged
over rows and positions. ``GaussianInputNoise`` is the Gaussian and the mixture of Gaussians.

``ActivationNoise`` adds Gaussian noise to activations, ``z = mean + std(h) * noise`` (E-55); a linear layer computes
the scale from the input of the layer that it stands before or behind. A term of the loss keeps the scale from
vanishing: a margin on the entropy (SE-SNN, E-56) or the divergence from a standard normal (deep VIB, E-57), a mean over
the batch.

Dropout draws its masks from the engine, in evaluation too, independently for every row and draw. There are two forms:
torch's own dropout modules, which keep their class and place (``DROPOUTS``), and ``InputMask`` before a layer.

Invariants: with noise off all are the identity (T-43); T-46. Training mode does not change them.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Pass, joined_pass
from dubio.nn.rewrite import Rewritten
from dubio.nn.sources import InputSource, Posterior, Source
from dubio.priors import Normal

Kl = Literal["mc", "bound", "averaged"]
Batch = Float[Tensor, "*batch dim"]
NUM_ROWS = 256
"""Rows drawn for an estimate of the divergence without inputs."""
Drawing = tuple[Float[Tensor, "*rows channel"], Float[Tensor, "*rows"] | None, Float[Tensor, "*rows"] | None]
"""Factors, and for every row ``log q - log p`` and ``log q``, where they are requested."""


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
        """Factors of this shape, the channel on the last axis, with the requested densities."""

    def forward(self, input: Tensor) -> Tensor:
        """The inputs times the factors of this pass."""
        with joined_pass() as run:
            if run.off:
                return input
            wants_divergence, wants_entropy = self.wants(run)
            if wants_divergence and self.has_closed_divergence:
                run.collect("divergence", self.closed_divergence())
                wants_divergence = False
            if wants_entropy and self.has_closed_entropy:
                run.collect("entropy", self.closed_entropy())
                wants_entropy = False
            dtype = torch.promote_types(input.dtype, torch.float32)
            with torch.autocast(input.device.type, enabled=False):
                factors, log_ratio, log_prob = self.draw_rows(
                    run, self._shape_for(input), dtype, input.device, (wants_divergence, wants_entropy)
                )
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
        if not self.per_position:  # the first axis counts rows, unless it is the channel
            others = [size if place == 0 and channel > 0 else 1 for place, size in enumerate(others)]
        return [*others, self.channels]

    def _over_rows(self, values: Float[Tensor, "*rows"]) -> Float[Tensor, ""]:
        if self.sum_positions and values.dim() > 1:
            values = values.flatten(1).sum(dim=1)
        return values.mean()


class GaussianInputNoise(InputPosterior):
    """A Gaussian, or a mixture of several with equal weights, one of which is drawn for each row (8.1).

    Args:
        channels: channels of the inputs.
        axis: axis of the channels, counted from the last.
        options: the ``dubio.InputNoise`` with all settings, ``init_spread`` filled in.
    """

    def __init__(self, channels: int, axis: int, options: Any) -> None:
        super().__init__(channels, axis, options.prior, per_position=options.per == "position", sum_positions=False)
        self.kl: Kl = options.kl
        shape = options.components, channels
        self.means = nn.Parameter(1.0 + options.init_spread * torch.randn(shape))
        std = torch.tensor(options.init_std, dtype=torch.float64, device="cpu")
        self.rho = nn.Parameter(torch.full(shape, functional.variational.inverse_softplus(std).item()))

    @property
    def has_closed_divergence(self) -> bool:
        """True except for the divergence of the mixture itself (``kl="mc"``)."""
        return len(self.means) == 1 or self.kl != "mc"

    @property
    def has_closed_entropy(self) -> bool:
        """True for one Gaussian."""
        return len(self.means) == 1

    def closed_divergence(self) -> Float[Tensor, ""]:
        """The divergence of a Gaussian (E-7), or the stand-in for that of the mixture."""
        means, stds = self._moments(torch.float32)
        if self.kl == "averaged":
            mean, std = functional.noise.averaged_gaussian(means, stds)
            return self.prior.divergence(mean, std, None).sum()
        return self.prior.divergence(means, stds, None).sum(dim=1).mean()

    def closed_entropy(self) -> Float[Tensor, ""]:
        """The entropy of a Gaussian."""
        return functional.variational.normal_entropy(self._moments(torch.float32)[1]).sum()

    def draw_rows(
        self, run: Pass, shape: Sequence[int], dtype: torch.dtype, device: torch.device, wants: tuple[bool, bool]
    ) -> Drawing:
        """Factors of this shape, the channel on the last axis, with the requested densities."""
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
        index = functional.noise.component_of(uniform, len(means))
        return means[index], stds[index]

    def _moments(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(dtype, self.means.dtype)
        return self.means.to(dtype), functional.variational.softplus(self.rho.to(dtype))


class ActivationNoise(InputSource):
    """Noise whose scale a linear layer computes."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.rho = nn.Linear(num_inputs, num_outputs)

    @abstractmethod
    def std(self, rho: Batch) -> Batch:
        """The scale, from the output of the linear layer."""

    @abstractmethod
    def term(self, mean: Batch, std: Batch) -> tuple[str, Float[Tensor, ""]]:
        """The name and the value of the term that is added to the loss of a batch."""

    def forward(self, mean: Tensor, code: Tensor | None = None) -> Tensor:
        """One draw of activations around ``mean``; the scale comes from ``code``, by default the mean itself."""
        with joined_pass() as run:
            if run.off:
                return mean
            rho = self.rho(mean if code is None else code)
            dtype = torch.promote_types(mean.dtype, torch.float32)
            with torch.autocast(mean.device.type, enabled=False):
                exact, std = mean.to(dtype), self.std(rho.to(dtype))
                if "penalty" in run.collecting:
                    run.collect(*self.term(exact, std))
                noise = run.noise_for_activations(self, exact.shape, dtype, mean.device)
                return functional.noise.gaussian_activation(exact, std, noise).to(mean.dtype)


class EntropicNoise(ActivationNoise):
    """SE-SNN: entropy of the noise is rewarded up to a margin."""

    def __init__(self, num_inputs: int, num_outputs: int, margin: float, weight: float) -> None:
        super().__init__(num_inputs, num_outputs)
        self.margin, self.weight = margin, weight

    def std(self, rho: Batch) -> Batch:
        """``softplus(rho) + 1e-6``."""
        return functional.noise.activation_std(rho)

    def term(self, mean: Batch, std: Batch) -> tuple[str, Float[Tensor, ""]]:
        """How far the mean logarithm of the scale falls short of the margin (E-56)."""
        return "entropy_margin", self.weight * functional.noise.entropy_margin(std, self.margin).mean()

    def describe(self) -> str:
        """What kind of noise this is, in a few words."""
        return f"Gaussian activations, log scale at least {self.margin:g} on average"


class InformationNoise(ActivationNoise):
    """Deep VIB: information of the activations about the input has a price."""

    def __init__(self, num_inputs: int, num_outputs: int, beta: float) -> None:
        super().__init__(num_inputs, num_outputs)
        self.beta = beta

    def std(self, rho: Batch) -> Batch:
        """``softplus(rho - 5)``."""
        return functional.noise.bottleneck_std(rho)

    def term(self, mean: Batch, std: Batch) -> tuple[str, Float[Tensor, ""]]:
        """Divergence from a standard normal, summed over dimensions (E-57)."""
        return "information", self.beta * functional.noise.standard_normal_kl(mean, std).mean()

    def describe(self) -> str:
        """What kind of noise this is, in a few words."""
        return f"Gaussian activations, divergence from N(0, 1) at {self.beta:g}"


class _Masks(Source):
    """The base of both forms of dropout."""

    p: float

    def _mask(self, input: Tensor, shape: Sequence[int], formula: Callable[..., Tensor]) -> Tensor:
        with joined_pass() as run:
            if run.off or self.p == 0.0:
                return input
            # Half precision has too few numbers between 0 and 1 for an exact rate.
            uniform = run.noise_for_activations(self, shape, torch.float32, input.device, kind="uniform")
            return formula(input, uniform, self.p)

    def forward(self, input: Tensor) -> Tensor:
        """The inputs with some of them dropped."""
        return self._mask(input, input.shape, functional.noise.dropout)


class InputMask(_Masks, InputSource):
    """A mask on the inputs of a layer, element by element."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def describe(self) -> str:
        """What kind of noise this is, in a few words."""
        return f"dropped at rate {self.p:g}"

    def extra_repr(self) -> str:
        """The rate, for printing."""
        return f"p={self.p:g}"


class RandomDropout(_Masks, Rewritten):
    """A dropout module of torch that is always on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        name = self.dubio_plain_class.__name__
        raise TypeError(f"an always-on {name} is made from a plain one: dubio.Dropout().convert(torch.nn.{name}(...))")

    def dubio_restore(self) -> None:
        """Make it a dropout module of torch again."""
        self.__dict__.pop("dubio_noise_key", None)
        Rewritten.dubio_restore(self)  # not that of an aspect below

    def dubio_describe(self) -> tuple[tuple[str, ...], str]:
        """That it is always on, and its rate."""
        return ("mask",), f"always on, rate {self.p:g}"


class BernoulliDropout(RandomDropout, nn.Dropout):
    """``nn.Dropout``, always on."""


class AlphaDropout(RandomDropout, nn.AlphaDropout):
    """``nn.AlphaDropout``, always on."""

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

    positions = 1


class Dropout2d(_ChannelDropout, nn.Dropout2d):
    """``nn.Dropout2d``, always on."""

    positions = 2

    def forward(self, input: Tensor) -> Tensor:
        """The inputs with some channels dropped; three axes are rows, channels and length, as torch reads them."""
        if input.dim() == 3:
            return self._mask(input, (*input.shape[:2], 1), functional.noise.dropout)
        return super().forward(input)


class Dropout3d(_ChannelDropout, nn.Dropout3d):
    """``nn.Dropout3d``, always on."""

    positions = 3


class FeatureAlphaDropout(RandomDropout, nn.FeatureAlphaDropout):
    """``nn.FeatureAlphaDropout``, always on."""

    def forward(self, input: Tensor) -> Tensor:
        """The inputs with some channels at the floor of a SELU."""
        shape = (*input.shape[:2], *(1,) * (input.dim() - 2))
        return self._mask(input, shape, functional.noise.alpha_dropout)


DROPOUTS: dict[type[nn.Module], type[RandomDropout]] = {
    layer.__bases__[-1]: layer
    for layer in (BernoulliDropout, Dropout1d, Dropout2d, Dropout3d, AlphaDropout, FeatureAlphaDropout)
}
"""The always-on layer for each plain one."""
for plain, layer in DROPOUTS.items():
    layer.dubio_plain_class = plain
