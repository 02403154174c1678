"""The deep variational information bottleneck: Gaussian activations that pay for their information about the input.

Reference: Alemi et al. 2017, Deep Variational Information Bottleneck.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

from torch import nn

from dubio.checks import check_choice, check_not_negative
from dubio.convert import Where, check_where, with_activation_noise
from dubio.methods.method import Method
from dubio.nn import InformationNoise


@dataclass(frozen=True)
class VIB(Method):
    """Gaussian activations whose divergence from a standard normal has a price, example by example.

    Args:
        beta: the price.
        at: whether the noise is on the ``"input"`` of the chosen layer or on its ``"output"``.
        where: which linear layers; see ``dubio.Where``. By default the classifier: the last one, or with ``example``
            inputs the last one called. In the ``vib_mlp`` of ``dubio.models`` the paper's place is the output of the
            layer called bottleneck.
    """

    on_classifier: ClassVar[bool] = True

    beta: float = 1e-4
    at: Literal["input", "output"] = "input"
    where: Where = None

    def __post_init__(self) -> None:
        check_not_negative("beta", self.beta)
        check_choice("at", self.at, ("input", "output"))
        check_where(self.where)

    def _convert(self, net: nn.Module, strict: bool) -> nn.Module:
        make_noise = partial(InformationNoise, beta=self.beta)
        return with_activation_noise(net, make_noise, self.where, behind=self.at == "output", strict=strict)
