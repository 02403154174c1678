"""Input noise whose distribution is a normalizing flow: ``z_0`` from a fixed Gaussian, then one step after another.

The divergence of a draw is ``log q_0(z_0) - sum log|det J| - log p(z_k)`` (E-39, E-41): the prior judges what the flow
gives, not what it began with. Every position of a convolution's input is a draw of its own, a vector of channels.
Averaged over positions, the divergence is smaller than that of the whole map by their number, and the bound is not one
for the joint latent; ``sum_positions`` restores it (8.2).

Reference: Rezende and Mohamed 2015, Variational Inference with Normalizing Flows.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dubio import functional
from dubio._engine import Pass
from dubio.flows import FlowBlock
from dubio.layers.flow_steps import FlowStep, make_step, run_steps
from dubio.layers.input_noise import Drawing, InputPosterior
from dubio.priors import Normal

__all__ = ["FlowNoise"]


class FlowNoise(InputPosterior):
    """Factors that a flow makes of Gaussian noise."""

    def __init__(
        self, channels: int, axis: int, prior: Normal, *, block: FlowBlock, base: Normal, sum_positions: bool
    ) -> None:
        super().__init__(channels, axis, prior, per_position=True, sum_positions=sum_positions)
        self.block, self.base = block, base
        self.steps = nn.ModuleList(make_step(step, channels) for step in block.steps)

    @property
    def has_closed_divergence(self) -> bool:
        """No: it is estimated from draws."""
        return False

    @property
    def has_closed_entropy(self) -> bool:
        """No: it is estimated from draws."""
        return False

    def closed_divergence(self) -> Float[Tensor, ""]:
        """There is none."""
        raise ValueError("the divergence of a flow has no closed form; it is estimated from draws")

    def closed_entropy(self) -> Float[Tensor, ""]:
        """There is none."""
        raise ValueError("the entropy of a flow has no closed form; it is estimated from draws")

    def draw_rows(
        self, run: Pass, shape: Sequence[int], dtype: torch.dtype, device: torch.device, wants: tuple[bool, bool]
    ) -> Drawing:
        """Factors of this shape, the channel on the last axis, with the densities that are wanted."""
        value = self.base.mean + self.base.std * run.noise_for_activations(self, shape, dtype, device)
        base_log_prob = self.base.log_prob(value, None).sum(dim=-1) if any(wants) else None
        value, log_dets = run_steps(cast(Iterable[FlowStep], self.steps), value)
        if base_log_prob is None:
            return value, None, None
        log_prob = functional.flows.flow_log_prob(base_log_prob, log_dets)
        log_ratio = log_prob - self.prior.log_prob(value, None).sum(dim=-1)
        return value, log_ratio if wants[0] else None, log_prob if wants[1] else None

    def describe(self) -> str:
        """What kind of noise this is, in a few words."""
        return f"flow {self.block}, prior {self.prior}"
