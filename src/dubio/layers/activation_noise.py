"""Gaussian noise on activations whose scale depends on the input: ``z = mean + std(h) * noise`` (E-55).

The mean is the activation as it is, so that with noise off the network is the plain one. What keeps the scale alive is
a term that the layer hands to the pass: a margin on its entropy (SE-SNN, E-56) or the divergence from a standard normal
(deep VIB, E-57), each a mean over the batch.

The noise stands before a layer, or behind it; the scale is computed from that layer's input.
"""

from abc import abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dubio import functional
from dubio._engine import joined_pass
from dubio.layers.sources import InputSource

__all__ = ["ActivationNoise", "EntropicNoise", "InformationNoise"]


class ActivationNoise(InputSource):
    """Noise whose scale a linear layer computes."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.rho = nn.Linear(num_inputs, num_outputs)

    @abstractmethod
    def std(self, rho: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """The scale that the layer's output stands for."""

    @abstractmethod
    def term(
        self, mean: Float[Tensor, "*batch dim"], std: Float[Tensor, "*batch dim"]
    ) -> tuple[str, Float[Tensor, ""]]:
        """What is added to the loss of a batch, and its name."""

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
    """SE-SNN: the entropy of the noise is rewarded up to a margin."""

    def __init__(self, num_inputs: int, num_outputs: int, margin: float, weight: float) -> None:
        super().__init__(num_inputs, num_outputs)
        self.margin, self.weight = margin, weight

    def std(self, rho: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """``softplus(rho) + 1e-6``."""
        return functional.noise.activation_std(rho)

    def term(
        self, mean: Float[Tensor, "*batch dim"], std: Float[Tensor, "*batch dim"]
    ) -> tuple[str, Float[Tensor, ""]]:
        """How far the mean logarithm of the scale falls short of the margin (E-56)."""
        return "entropy_margin", self.weight * functional.noise.entropy_margin(std, self.margin).mean()

    def describe(self) -> str:
        """What kind of noise this is, in a few words."""
        return f"Gaussian activations, log scale at least {self.margin:g} on average"


class InformationNoise(ActivationNoise):
    """Deep VIB: what the activations tell about the input has a price."""

    def __init__(self, num_inputs: int, num_outputs: int, beta: float) -> None:
        super().__init__(num_inputs, num_outputs)
        self.beta = beta

    def std(self, rho: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """``softplus(rho - 5)``."""
        return functional.noise.bottleneck_std(rho)

    def term(
        self, mean: Float[Tensor, "*batch dim"], std: Float[Tensor, "*batch dim"]
    ) -> tuple[str, Float[Tensor, ""]]:
        """Divergence from a standard normal, summed over dimensions (E-57)."""
        return "information", self.beta * functional.noise.standard_normal_kl(mean, std).mean()

    def describe(self) -> str:
        """What kind of noise this is, in a few words."""
        return f"Gaussian activations, divergence from N(0, 1) at {self.beta:g}"
