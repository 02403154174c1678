"""Parametric noise injection: weights with Gaussian noise of a learned size.

Reference: He, Rakin and Fan 2019, Parametric Noise Injection.
"""

from dataclasses import dataclass
from typing import get_args

from torch import Tensor, nn

from dubio.checks import check_choice, check_finite
from dubio.convert import Where, check_where, chooses, is_norm, own_parameters, randomise, refuse_unconvertible
from dubio.methods.method import Method
from dubio.nn import NoisePer, ParametricNoise, takes_noise


@dataclass(frozen=True)
class PNI(Method):
    """Noise on weights in proportion to their spread; how much is learned.

    Args:
        per: one size for each ``"layer"``, for each output ``"channel"`` or for each ``"element"``.
        init: size at first.
        where: which linear layers and convolutions; see ``dubio.Where``. All by default; biases have no noise.
    """

    per: NoisePer = "layer"
    init: float = 0.1
    where: Where = None

    def __post_init__(self) -> None:
        check_choice("per", self.per, get_args(NoisePer))
        check_finite("init", self.init)
        check_where(self.where)

    def _convert(self, net: nn.Module, strict: bool) -> nn.Module:
        self._check_layers(net, strict)

        def make(weight: nn.Parameter, fixed: Tensor | None) -> ParametricNoise:
            return ParametricNoise(weight, self.per, self.init)

        where = _layers if self.where is None else self.where
        return randomise(net, make, where, strict, estimator="weight", biases=False, norms=False)

    def _check_layers(self, net: nn.Module, strict: bool) -> None:
        reasons = {}
        for name, module in net.named_modules() if isinstance(net, nn.Module) else ():
            if not own_parameters(module) or is_norm(module) or not chooses(self.where or _layers, name, module):
                continue
            if not takes_noise(module):
                reasons[name] = f"{type(module).__name__} is no linear layer or convolution"
            elif self.per == "channel" and isinstance(module, nn.modules.conv._ConvTransposeNd):
                reasons[name] = "a transposed convolution has its outputs on another axis; use per='layer'"
            elif isinstance(module.weight, Tensor) and module.weight.numel() < 2:
                reasons[name] = "one weight has no spread"
        if strict:
            refuse_unconvertible(reasons)


def _layers(name: str, module: nn.Module) -> bool:
    return takes_noise(module)
