"""torch-uncertainty: networks written with its Bayesian layers, ``ELBOLoss``, and ``StochasticModel`` to predict.

Its package imports torchvision and lightning first. Where that fails, the modules that hold these three are imported
without the ``__init__`` of the packages around them: the code that is timed is the same.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from torch import Tensor, nn

from peers.contestants import Parts, Peer
from peers.nets import Net, with_layers

PACKAGES = ("", ".layers", ".losses", ".methods", ".utils")


def contestants() -> list[Peer]:
    return [
        Peer(
            "torch-uncertainty",
            "torch-uncertainty",
            "BayesLinear and BayesConv2d; ELBOLoss and StochasticModel, which loop over draws, eager",
            "log q - log p of the drawn weights, for each draw; the mean over layers, divided by the size of the data",
            _make,
        )
    ]


def imported_whole() -> bool:
    """Import the library, whole where that works; say whether it did."""
    if "torch_uncertainty" not in sys.modules:
        try:
            import torch_uncertainty  # noqa: F401
        except ImportError:
            _import_bare()
    return hasattr(sys.modules["torch_uncertainty"], "__version__")


def _import_bare() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torch_uncertainty"]:
        del sys.modules[name]  # left by the attempt
    spec = find_spec("torch_uncertainty")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'torch_uncertainty'")
    for name in PACKAGES:
        package = ModuleType(f"torch_uncertainty{name}")
        package.__path__ = [str(Path(spec.origin).parent / name.removeprefix("."))]
        sys.modules[package.__name__] = package


def _make(net: Net) -> Parts:
    imported_whole()
    from torch_uncertainty.layers.bayesian import BayesConv2d, BayesLinear
    from torch_uncertainty.losses.bayesian import ELBOLoss
    from torch_uncertainty.methods.stochastic import StochasticModel

    def linear(layer: nn.Linear) -> nn.Module:
        return BayesLinear(layer.in_features, layer.out_features, bias=layer.bias is not None)

    def convolution(layer: nn.Conv2d) -> nn.Module:
        return BayesConv2d(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            stride=layer.stride,
            padding=layer.padding,
            bias=layer.bias is not None,
        )

    model = with_layers(net.plain(), linear, convolution)
    criterion = net.criterion()

    def loss(inputs: Tensor, targets: Tensor, num_samples: int) -> Tensor:
        elbo: Tensor = ELBOLoss(model, criterion, kl_weight=1.0 / net.num_data, num_samples=num_samples)(
            inputs, targets
        )
        return elbo.squeeze()

    def outputs(images: Tensor, num_samples: int) -> Tensor:
        drawn: Tensor = StochasticModel(model, num_samples).eval()(images)
        return drawn.unflatten(0, (num_samples, -1))

    return Parts(model, loss, outputs)
