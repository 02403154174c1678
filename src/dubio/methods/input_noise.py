"""Implicit Bayesian networks: each layer's inputs times noise with a learned distribution.

Reference: Trinh, Kaski and Heinonen 2020, Scalable Bayesian neural networks by layer-wise input augmentation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import nn

from dubio._engine import Inputs
from dubio.checks import check_count, check_flag, check_not_negative, check_positive, check_value as check_choice
from dubio.convert import Where, check_where, finish, insert_noise
from dubio.likelihoods import Categorical, Likelihood
from dubio.methods.method import NoiseOff, Recipe
from dubio.nn import GaussianInputNoise, InputSource, Kl, channels_of
from dubio.objectives import ELBO
from dubio.priors import Normal

Per = Literal["channel", "position"]
SPREAD = 0.5
"""How far the means of several components lie apart at first, as in the reference."""


@dataclass(frozen=True)
class InputNoise:
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
        freeze_deterministic: whether the weights of the network stay as they are, and the noise alone is trained.
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
    noise_off: ClassVar[NoiseOff] = "source"

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

    @property
    def recipe(self) -> Recipe:
        """How it is trained by default."""
        return Recipe()

    def objective(self, num_data: int | None = None) -> ELBO:
        """What this method minimises on ``num_data`` training examples; ``dubio.fit`` fills the number in."""
        return ELBO(num_data, beta=self.beta)

    def convert(
        self,
        net: nn.Module,
        likelihood: Likelihood = Categorical(),
        *,
        strict: bool = True,
        example: Inputs | None = None,
    ) -> nn.Module:
        """A stochastic copy of ``net``: same signature and weights, noise on inputs; ``net`` itself is untouched.

        A chosen module with parameters before which no noise can go is an error or, with ``strict=False``, stays as it
        is. With ``example`` inputs the conversion is proved on them: noise off must equal ``net``.
        """
        model = insert_noise(net, self._noises, where=self.where, strict=strict, freeze=self.freeze_deterministic)
        return finish(model, net, self, likelihood, example)

    def _noises(self, layers: dict[str, nn.Module]) -> Sequence[InputSource]:
        spread = (SPREAD if self.components > 1 else 0.0) if self.init_spread is None else self.init_spread
        return [
            GaussianInputNoise(
                *channels_of(layer),
                self.prior,
                components=self.components,
                kl=self.kl,
                per_position=self.per == "position",
                init_std=self.init_std,
                init_spread=spread,
            )
            for layer in layers.values()
        ]
