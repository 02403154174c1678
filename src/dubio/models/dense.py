"""Dense networks: FC-* of the papers, the DAD networks (methods, section 7.6) and the VIB network (section 10.2).

All of them flatten their inputs first, so images go in as they are.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from jaxtyping import Float
from torch import Tensor, nn

from dubio.models.naming import check_sizes, named

__all__ = ["VibMlp", "dad_mlp", "fc", "init_glorot", "init_truncated", "mlp", "vib_mlp"]


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers of these widths, inputs first, with ReLU between."""
    _check_widths("mlp", widths)
    layers = [layer for inputs, outputs in pairwise(widths) for layer in (nn.Linear(inputs, outputs), nn.ReLU())]
    return named(nn.Sequential(nn.Flatten(), *layers[:-1]), f"mlp:{'-'.join(map(str, widths))}")


def fc(*hidden: int, inputs: Sequence[int], num_classes: int) -> nn.Sequential:
    """FC-* of the papers: FC-100-100-10 is ``fc(100, 100, inputs=(1, 28, 28), num_classes=10)``.

    Without hidden layers it is softmax regression.
    """
    check_sizes("fc", inputs, num_classes, None)
    return mlp(math.prod(inputs), *hidden, num_classes)


def dad_mlp(*widths: int) -> nn.Sequential:
    """Like ``mlp``, with dropout 0.5 before every linear layer, the first included; Glorot weights, zero biases."""
    _check_widths("dad_mlp", widths)
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Dropout(0.5), nn.Linear(inputs, outputs), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    init_glorot(net)
    return named(net, f"dad_mlp:{'-'.join(map(str, widths))}")


class VibMlp(nn.Module):
    """The network of Deep VIB with its noise off.

    Two hidden layers of 1024, a bottleneck of 256 means, a linear decoder. Nothing stands between bottleneck and
    decoder but, once the network is stochastic, the noise.
    """

    def __init__(self, num_inputs: int, num_classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(num_inputs, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()
        )
        self.bottleneck = nn.Linear(1024, 256)
        self.decoder = nn.Linear(256, num_classes)

    def forward(self, inputs: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch class"]:
        """Logits."""
        code = self.bottleneck(self.encoder(inputs))
        return self.decoder(code)  # type: ignore[no-any-return]


def vib_mlp(inputs: Sequence[int], num_classes: int) -> VibMlp:
    """The VIB network for these inputs; the paper's reads 784 pixels in [-1, 1]: normalise by ``signed``."""
    check_sizes("vib_mlp", inputs, num_classes, None)
    num_inputs = math.prod(inputs)
    return named(VibMlp(num_inputs, num_classes), f"vib_mlp:{num_inputs}-{num_classes}")


def init_glorot(net: nn.Module) -> None:
    """Glorot-uniform weights and zero biases in every layer (DAD)."""
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.xavier_uniform_(module.weight)
            assert module.bias is not None
            nn.init.zeros_(module.bias)


def init_truncated(net: nn.Module, std: float) -> None:
    """Weights and biases of every layer from N(0, std^2), cut off at two standard deviations and not rescaled (BWS)."""
    if not 0.0 < std < math.inf:
        raise ValueError(f"std must be positive and finite, got {std}")
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            for parameter in module.parameters(recurse=False):
                nn.init.trunc_normal_(parameter, std=std, a=-2.0 * std, b=2.0 * std)


def _check_widths(kind: str, widths: Sequence[int]) -> None:
    if len(widths) < 2 or any(width < 1 for width in widths):
        article = "an" if kind == "mlp" else "a"
        raise ValueError(f"{article} {kind} needs at least two widths of at least 1, inputs and outputs, got {widths}")
