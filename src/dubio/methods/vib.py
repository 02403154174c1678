"""The deep variational information bottleneck: Gaussian activations that pay for what they tell about the input.

Reference: Alemi et al. 2017, Deep Variational Information Bottleneck.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import nn

from dubio._engine import Inputs
from dubio.checks import check_not_negative, check_value as check_choice
from dubio.convert import Where, check_where, classifier_of, finish, with_activation_noise
from dubio.likelihoods import Categorical, Likelihood
from dubio.methods.method import NoiseOff, Recipe
from dubio.nn import InformationNoise
from dubio.objectives import ELBO


@dataclass(frozen=True)
class VIB:
    """Gaussian activations whose divergence from a standard normal has a price, example by example.

    Args:
        beta: the price.
        at: whether the noise is on the ``"input"`` of the chosen layer or on its ``"output"``.
        where: which linear layers; see ``dubio.Where``. By default the classifier: the last one, or with ``example``
            inputs the last one called. In the ``vib_mlp`` of ``dubio.models`` the paper's place is the output of the
            layer called bottleneck.
    """

    noise_off: ClassVar[NoiseOff] = "source"

    beta: float = 1e-4
    at: Literal["input", "output"] = "input"
    where: Where = None

    def __post_init__(self) -> None:
        check_not_negative("beta", self.beta)
        check_choice("at", self.at, ("input", "output"))
        check_where(self.where)

    @property
    def recipe(self) -> Recipe:
        """How it is trained by default."""
        return Recipe()

    def objective(self, num_data: int | None = None) -> ELBO:
        """What this method minimises on ``num_data`` training examples; ``dubio.fit`` fills the number in."""
        return ELBO(num_data)

    def convert(
        self,
        net: nn.Module,
        likelihood: Likelihood = Categorical(),
        *,
        strict: bool = True,
        example: Inputs | None = None,
    ) -> nn.Module:
        """A stochastic copy of ``net``: same signature and weights; ``net`` itself is untouched.

        With ``example`` inputs the conversion is proved on them: noise off must equal ``net``.
        """
        own = replace(self, where=classifier_of(net, self.where, example))
        model = with_activation_noise(
            net,
            lambda inputs, outputs: InformationNoise(inputs, outputs, self.beta),
            own.where,
            behind=self.at == "output",
            strict=strict,
        )
        return finish(model, net, own, likelihood, example)
