"""Stochastic embeddings of large entropy: Gaussian activations before the classifier.

Reference: Yu et al. 2021, Simple and Effective Stochastic Neural Networks.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

from torch import nn

from dubio._engine import Inputs
from dubio.checks import check_finite, check_not_negative, check_value as check_choice
from dubio.convert import Where, check_where, classifier_of, finish, replace_head, with_activation_noise
from dubio.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from dubio.methods.method import NoiseOff, Recipe
from dubio.nn import EntropicNoise, GaussianHead
from dubio.objectives import ELBO

Classes = Literal["linear", "wasserstein", "kl"]


@dataclass(frozen=True)
class SESNN:
    """Gaussian activations whose entropy is rewarded up to a margin.

    Args:
        margin: what the mean logarithm of the scales should reach; 0 is a scale of about one.
        weight: how much a shortfall costs.
        at: whether the noise is on the ``"input"`` of the chosen layer or on its ``"output"``.
        classes: the classifier: ``"linear"`` as it is, or Gaussian class weights, whose ``"wasserstein"`` distance or
            ``"kl"`` divergence from the Gaussian of an input is the logit (then nothing is drawn).
        where: which linear layers; see ``dubio.Where``. By default the classifier: the last one, or with ``example``
            inputs the last one called.
    """

    noise_off: ClassVar[NoiseOff] = "own mean"

    margin: float = 0.0
    weight: float = 0.1
    at: Literal["input", "output"] = "input"
    classes: Classes = "linear"
    where: Where = None

    def __post_init__(self) -> None:
        check_finite("margin", self.margin)
        check_not_negative("weight", self.weight)
        check_choice("at", self.at, ("input", "output"))
        check_choice("classes", self.classes, get_args(Classes))
        if self.at == "output" and self.classes != "linear":
            raise ValueError(f"at must be 'input' with Gaussian classes in the classifier's place, got {self.at!r}")
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

        With a linear classifier, noise off equals ``net``, which ``example`` inputs prove.
        """
        own = replace(self, where=classifier_of(net, self.where, example))
        if self.classes != "linear":
            if isinstance(likelihood, Gaussian | Bernoulli):
                raise TypeError(f"likelihood must be a Categorical for Gaussian classes, got {likelihood!r}")
            model = replace_head(net, self._head, own.where, strict)
            return finish(model, None, own, likelihood, example)
        model = with_activation_noise(
            net,
            lambda inputs, outputs: EntropicNoise(inputs, outputs, self.margin, self.weight),
            own.where,
            behind=self.at == "output",
            strict=strict,
        )
        return finish(model, net, own, likelihood, example)

    def _head(self, layer: nn.Linear) -> GaussianHead:
        assert self.classes != "linear"
        return GaussianHead(layer.in_features, layer.out_features, self.classes, self.margin, self.weight)
