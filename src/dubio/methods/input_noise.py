"""Implicit Bayesian networks: the inputs of each layer are multiplied by noise with a learned distribution.

Reference: Trinh, Kaski and Heinonen 2020, Scalable Bayesian neural networks by layer-wise input augmentation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from torch import nn

from dubio.checks import check_choice, check_count, check_flag, check_not_negative, check_positive
from dubio.convert import Where, check_where, insert_noise
from dubio.methods.method import Method
from dubio.nn import GaussianInputNoise, InputSource, Kl, channels_of
from dubio.objectives import ELBO
from dubio.priors import Normal

Per = Literal["channel", "position"]
SPREAD = 0.5
"""Initial standard deviation of the means of several components, as in the reference."""


@dataclass(frozen=True)
class InputNoise(Method):
    """Multiplicative noise on the inputs of layers: Gaussian, or a mixture of Gaussians.

    Args:
        prior: of the factors; around one.
        components: how many Gaussians the posterior is a mixture of.
        kl: the divergence of a mixture: ``"mc"`` from draws, ``"bound"`` the mean of the components' (never less), or
            ``"averaged"``, that of a Gaussian with averaged moments, which is what the reference code computes and not
            the mixture's. One Gaussian has its own, in closed form.
        per: one factor for each ``"channel"`` of an example, shared by its positions, or for each ``"position"``.
        init_std: standard deviation that every factor starts with.
        init_spread: standard deviation of the first means around one; by default 0.5 for several components and 0 for
            one.
        beta: weight of the divergence.
        freeze_deterministic: whether the weights of the network are frozen, and only the noise is trained.
        where: which linear layers and convolutions; see ``dubio.Where``. All by default.
    """

    prior: Normal = Normal(1.0, 0.3)
    components: int = 1
    kl: Kl = "mc"
    per: Per = "channel"
    init_std: float = 0.05
    init_spread: float | None = None
    beta: float = 1.0
    freeze_deterministic: bool = False
    where: Where = None

    def __post_init__(self) -> None:
        if not isinstance(self.prior, Normal):
            raise TypeError(f"prior of factors must be a Normal, got {self.prior!r}")
        check_count("components", self.components)
        check_choice("kl", self.kl, get_args(Kl))
        check_choice("per", self.per, get_args(Per))
        check_positive("init_std", self.init_std)
        if self.init_spread is not None:
            check_not_negative("init_spread", self.init_spread)
        check_flag("freeze_deterministic", self.freeze_deterministic)
        check_where(self.where)
        self.objective()

    def _convert(self, net: nn.Module, strict: bool) -> nn.Module:
        return insert_noise(net, self._noises, where=self.where, strict=strict, freeze=self.freeze_deterministic)

    def objective(self, num_data: int | None = None) -> ELBO:
        """The evidence lower bound."""
        return ELBO(num_data, beta=self.beta)

    def _noises(self, layers: dict[str, nn.Module]) -> Sequence[InputSource]:
        spread = (SPREAD if self.components > 1 else 0.0) if self.init_spread is None else self.init_spread
        options = replace(self, init_spread=spread)
        return [GaussianInputNoise(*channels_of(layer), options) for layer in layers.values()]
