"""Implicit Bayesian networks whose input noise follows a normalizing flow.

The noise of each layer is Gaussian around one and passes through a block of invertible steps, which are trained. The
weights are those of the plain network, trained jointly with the noise or frozen.

References: Trinh, Kaski and Heinonen 2020 for input noise; Rezende and Mohamed 2015 for flows; Kingma and Dhariwal 2018
for invertible convolutions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import nn

from dubio.checks import check_choice, check_flag
from dubio.convert import Where, check_where, insert_noise
from dubio.flows import FlowBlock, NormalAffine, NormalInvConv, NormalPlanar1d
from dubio.methods.method import Method, Recipe
from dubio.nn import FlowNoise, InputSource, channels_of
from dubio.objectives import ELBO
from dubio.priors import Normal


@dataclass(frozen=True)
class Flow(Method):
    """Multiplicative noise on the inputs of layers, distributed as a normalizing flow.

    Args:
        blocks: one block of steps (``dubio.flows``) for every layer, or a tuple with one for each chosen layer in
            order. By default every second layer has a flow, ``NormalInvConv`` before a convolution and
            ``NormalPlanar1d`` before a linear layer, and the others ``NormalAffine``.
        prior: of the factors; around one.
        base: the distribution at the start of the flow; by default the prior.
        spatial: whether the divergence of a convolution's noise is the ``"average"`` or the ``"sum"`` over positions.
        beta: weight of the divergence.
        gamma: weight of the entropy of the noise, which is rewarded beyond its part in the divergence.
        freeze_deterministic: whether the weights of the network are frozen, and only the noise is trained.
        where: which linear layers and convolutions; see ``dubio.Where``. All by default.
    """

    blocks: FlowBlock | tuple[FlowBlock, ...] | None = None
    prior: Normal = Normal(1.0, 0.5)
    base: Normal | None = None
    spatial: Literal["average", "sum"] = "average"
    beta: float = 1.0
    gamma: float = 0.0
    freeze_deterministic: bool = False
    where: Where = None

    def __post_init__(self) -> None:
        for block in self.blocks if isinstance(self.blocks, tuple) else (self.blocks,):
            if block is not None and not isinstance(block, FlowBlock):
                raise TypeError(
                    "blocks must be NormalAffine(), NormalPlanar1d(), NormalInvConv() or Block(steps) of dubio.flows, "
                    f"or a tuple of those, got {block!r}"
                )
        for name, value in (("prior", self.prior), ("base", self.base or self.prior)):
            if not isinstance(value, Normal):
                raise TypeError(f"{name} of factors must be a Normal, got {value!r}")
        check_choice("spatial", self.spatial, ("average", "sum"))
        check_flag("freeze_deterministic", self.freeze_deterministic)
        check_where(self.where)
        self.objective()

    def _convert(self, net: nn.Module, strict: bool) -> nn.Module:
        return insert_noise(net, self._noises, where=self.where, strict=strict, freeze=self.freeze_deterministic)

    def objective(self, num_data: int | None = None) -> ELBO:
        """The evidence lower bound, and the reward of entropy."""
        return ELBO(num_data, beta=self.beta, gamma=self.gamma)

    @property
    def recipe(self) -> Recipe:
        """The flow learns ten times as fast as the weights."""
        return Recipe(noise_ratio=10.0)

    def _noises(self, layers: dict[str, nn.Module]) -> Sequence[InputSource]:
        base, summed = self.base or self.prior, self.spatial == "sum"
        return [
            FlowNoise(*channels_of(layer), self.prior, block=block, base=base, sum_positions=summed)
            for block, layer in zip(self._placed(layers), layers.values(), strict=True)
        ]

    def _placed(self, layers: dict[str, nn.Module]) -> Sequence[FlowBlock]:
        """One block for each layer."""
        if self.blocks is None:
            flows = [NormalPlanar1d() if isinstance(layer, nn.Linear) else NormalInvConv() for layer in layers.values()]
            return [flow if place % 2 else NormalAffine() for place, flow in enumerate(flows)]
        if not isinstance(self.blocks, tuple):
            return [self.blocks] * len(layers)
        if len(self.blocks) != len(layers):
            raise ValueError(
                f"blocks must be one for all layers or one for each of {', '.join(layers)} ({len(layers)}), "
                f"got {len(self.blocks)}"
            )
        return self.blocks
