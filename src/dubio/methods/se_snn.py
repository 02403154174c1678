"""Stochastic embeddings of large entropy: Gaussian activations before the classifier.

Reference: Yu et al. 2021, Simple and Effective Stochastic Neural Networks.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from torch import nn

from dubio.conversion import Where, finish, replace_head, with_activation_noise
from dubio.conversion.choice import check_where
from dubio.layers import EntropicNoise, GaussianHead
from dubio.likelihoods import Categorical, Likelihood
from dubio.methods.method import NoiseOff, Recipe
from dubio.objectives import Elbo
from dubio.sampling import Inputs

__all__ = ["SeSnn"]

Classes = Literal["linear", "wasserstein", "kl"]


@dataclass(frozen=True)
class SeSnn:
    """Gaussian activations whose entropy is rewarded up to a margin.

    Args:
        margin: what the mean logarithm of the scales should reach; 0 is a scale of about one.
        weight: how much a shortfall costs.
        at: whether the noise is on the ``"input"`` of the chosen layer or on its ``"output"``.
        classes: the classifier: ``"linear"`` as it is, or Gaussian class weights, whose ``"wasserstein"`` distance or
            ``"kl"`` divergence from the Gaussian of an input is the logit (then nothing is drawn).
        where: which linear layers; see ``dubio.Where``. By default the last, the classifier.
    """

    noise_off: ClassVar[NoiseOff] = "own mean"

    margin: float = 0.0
    weight: float = 0.1
    at: Literal["input", "output"] = "input"
    classes: Classes = "linear"
    where: Where = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.margin):
            raise ValueError(f"margin must be finite, got {self.margin}")
        if not (math.isfinite(self.weight) and self.weight >= 0.0):
            raise ValueError(f"weight must be finite and at least 0, got {self.weight}")
        if self.at not in ("input", "output"):
            raise ValueError(f"at must be 'input' or 'output', got {self.at!r}")
        if self.classes not in get_args(Classes):
            raise ValueError(f"classes must be 'linear', 'wasserstein' or 'kl', got {self.classes!r}")
        check_where(self.where)

    @property
    def recipe(self) -> Recipe:
        """How it is trained by default."""
        return Recipe()

    def objective(self, num_data: int | None = None) -> Elbo:
        """What this method minimises on ``num_data`` training examples; ``dubio.fit`` fills the number in."""
        return Elbo(num_data)

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
        if self.classes != "linear":
            kind = self.classes
            model = replace_head(
                net, lambda layer: GaussianHead(layer.in_features, layer.out_features, kind), self.where, strict
            )
            return finish(model, None, self, likelihood, example)
        model = with_activation_noise(
            net,
            lambda inputs, outputs: EntropicNoise(inputs, outputs, self.margin, self.weight),
            self.where,
            behind=self.at == "output",
            strict=strict,
        )
        return finish(model, net, self, likelihood, example)
