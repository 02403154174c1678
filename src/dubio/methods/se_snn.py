"""Stochastic embeddings of large entropy: Gaussian activations before the classifier.

Reference: Yu et al. 2021, Simple and Effective Stochastic Neural Networks.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, get_args

from torch import nn

from dubio.checks import check_choice, check_finite, check_not_negative
from dubio.convert import Where, check_where, replace_head, with_activation_noise
from dubio.methods.method import Method, NoiseOff
from dubio.nn import EntropicNoise, GaussianHead

Classes = Literal["linear", "wasserstein", "kl"]


@dataclass(frozen=True)
class SESNN(Method):
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
    on_classifier: ClassVar[bool] = True

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
    def replaces_classifier(self) -> bool:
        """Whether class weights are Gaussian."""
        return self.classes != "linear"

    def _convert(self, net: nn.Module, strict: bool) -> nn.Module:
        if self.replaces_classifier:
            return replace_head(net, lambda layer: GaussianHead(layer, self), self.where, strict)
        make_noise = partial(EntropicNoise, margin=self.margin, weight=self.weight)
        return with_activation_noise(net, make_noise, self.where, behind=self.at == "output", strict=strict)
